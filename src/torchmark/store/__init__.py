"""Run files: append, load, find; and the lock that keeps two runs apart."""

from torchmark.store.lock import Holder, machine_lock
from torchmark.store.places import StoredRun, find_run, home, list_runs, new_path
from torchmark.store.reader import completed, load, load_samples, read_header
from torchmark.store.writer import RunWriter, check_writable

__all__ = [
    "Holder",
    "RunWriter",
    "StoredRun",
    "check_writable",
    "completed",
    "find_run",
    "home",
    "list_runs",
    "load",
    "load_samples",
    "machine_lock",
    "new_path",
    "read_header",
]
