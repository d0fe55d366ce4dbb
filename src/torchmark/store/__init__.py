"""Run files: write, load, find, examine and export them; and the lock that keeps two runs apart."""

from torchmark.local_log import log_path
from torchmark.store.files import machine_lock
from torchmark.store.lines import as_shared
from torchmark.store.reader import load, read_header, shareable_lines, write_export
from torchmark.store.runs import check_label, find_limits, find_origin, find_run, home, is_folder, keep_limits

# isort: split
from torchmark.store.runs import keep_note, keep_origin, load_runs, new_header, new_path, read_note, scan_runs
from torchmark.store.writer import RunWriter, check_writable

__all__ = [
    "RunWriter", "as_shared", "check_label", "check_writable", "find_limits", "find_origin", "find_run", "home",
    "is_folder", "keep_limits", "keep_note", "keep_origin", "load", "load_runs", "log_path", "machine_lock",
    "new_header", "new_path", "read_header", "read_note", "scan_runs", "shareable_lines", "write_export",
]  # fmt: skip
