"""A current folder full of files that are named like modules: no command, and no child of one, imports any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import scale
from injection.commands import FAKE
from injection.tally import Tally, report_progress, together
from injection.trials import Trial, left_behind, trial

NAMES = (
    "abc", "argparse", "ast", "base64", "bisect", "click", "collections", "contextlib", "copy", "csv", "ctypes",
    "dataclasses", "datetime", "email", "enum", "functools", "hashlib", "importlib", "inspect", "json", "logging",
    "msgspec", "multiprocessing", "numpy", "operator", "pathlib", "pickle", "platform", "psutil", "queue", "random",
    "re", "rich", "scipy", "secrets", "select", "selectors", "shutil", "signal", "site", "sitecustomize", "socket",
    "sqlite3", "statistics", "string", "struct", "subprocess", "tempfile", "threading", "torch", "traceback",
    "transformers", "types", "typing", "usercustomize", "uuid", "warnings", "zlib",
)  # fmt: skip
HOSTILE = """
import sys
open({marks!r} + "/{name}-" + str(__import__("posix").getpid()), "w").write(" ".join(sys.orig_argv)[:200])
raise SystemExit("imported {name} from the current folder")
"""
STARTS = ((str(Path(sys.executable).with_name("torchmark")),), (sys.executable, "-P", "-m", "torchmark"))
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", FAKE, "--steps", "3"),
    ("run", "mlp/infer@cpu/float32", "--steps", "3"),
    ("run", "mlp/infer@cpu/float32+compile", "--steps", "3"),
    ("run", "mnist-ddp-mlp", "--device", "cpu", "--workers", "2", "--steps", "3"),
    ("ab", FAKE, "--env-b", "NOTHING=1", "--budget", "3s"),
    ("tune", FAKE, "--budget", "20s"),
    ("fit", "mlp", "--device", "fake", "--most", "2", "--budget", "5s"),
    ("limits", "--device", "fake", "--tiny", "--dtype", "float32"),
    ("replicate", "simple-add", "--device", "fake", "--scale", "0.01"),
    ("devices", "--audit"),
    ("fleet", "run", "null", "--device", "fake", "--steps", "3", "--engine", "local", "--folder", "{}/fleet"),
    ("compare", "{}/big.jsonl", "{}/big.jsonl"),
    ("report", "{}/big.jsonl", "-o", "{}/work/report.html"),
    ("export", "{}/big.jsonl", "-o", "{}/work/export.jsonl"),
)


def run_in_hostile_folders(
    parallel: int, commands: Sequence[tuple[str, ...]] = COMMANDS, starts: Sequence[tuple[str, ...]] = STARTS
) -> list[tuple[str, Tally]]:
    """Every command, started as the installed script and as a module."""
    planned = [(start, command) for start in starts for command in commands]
    with ThreadPoolExecutor(parallel) as pool:
        tried = pool.map(lambda plan: run_in_hostile_folder(*plan), planned)
        return [("hostile folder", together(report_progress("folders", tried, len(planned))))]


def run_in_hostile_folder(start: tuple[str, ...], command: tuple[str, ...]) -> Tally:
    with trial() as place:
        marks = _fill(place)
        scale.write_run(place.folder, scale.Size(1, 5, 50, 1), 0)
        (place.folder / "run-000000.jsonl").rename(place.folder / "big.jsonl")
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):  # the latter is what commands set for their children
            place.environment.pop(name, None)
        code = place.run(*command, start=start, cwd=place.folder / "hostile")
        orphans, gone_s = left_behind(place.mark)
        imported = [f"{path.name.partition('-')[0]} by {path.read_text()}" for path in sorted(marks.iterdir())]
        wrong = [*place.complaints(), *([] if code == 0 else [f"exit code {code}: {place.heard[-200:]!r}"])]
        how = f"{Path(start[0]).name} {' '.join(command)}"
        notes = tuple(f"{how}: {what}" for what in (*imported[:3], *wrong))
        return Tally(1, 0, 0, orphans, 0, len(imported) + len(wrong), gone_s, notes=notes)


def _fill(place: Trial) -> Path:
    marks, hostile = place.folder / "marks", place.folder / "hostile"
    marks.mkdir()
    hostile.mkdir()
    for name in NAMES:
        (hostile / f"{name}.py").write_text(HOSTILE.format(marks=str(marks), name=name))
    return marks
