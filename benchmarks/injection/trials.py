"""One command of torchmark in folders of its own, and what it leaves there."""

from __future__ import annotations

import fnmatch
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from injection import failures

MARK = "TORCHMARK_FAULT_TRIAL"
COMMAND = (sys.executable, "-P", "-m", "torchmark")
GONE_AFTER_S, LIMIT_S = 10.0, 180.0
# What a command may leave: run files with their logs, what is known of the machine, locks, and a fleet's files.
DOCUMENTED = (
    "heard", "calls", "lock", "big.jsonl", "home/*.jsonl", "home/*.jsonl.log", "home/limits/*", "home/index/*",
    "home/origins/*", "work/run.jsonl", "work/run.jsonl.log", "work/export.jsonl", "work/report.html", "fleet/*.jsonl",
    "fleet/jobs/*",
)  # fmt: skip
_numbers = count()


class Trial:
    """Folders and an environment; every process that is started in it carries its mark."""

    def __init__(self, folder: Path, script: str = "stream=iid2,sleep=on,step=0.005") -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{next(_numbers)}"
        self.home, self.work, self.temporary = (folder / name for name in ("home", "work", "tmp"))
        for made in (self.home, self.work, self.temporary):
            made.mkdir()
        self.out, self._heard = self.work / "run.jsonl", folder / "heard"
        self.environment = failures.environment(folder) | {
            MARK: self.mark,
            "TORCHMARK_FAKE": script,
            "TMPDIR": str(self.temporary),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(
        self, *arguments: str, prefix: Sequence[str] = (), start: Sequence[str] = COMMAND, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """`torchmark …` with stderr kept; `{}` in an argument is the trial's folder."""
        given = [argument.replace("{}", str(self.folder)) for argument in arguments]
        with self._heard.open("ab") as heard:
            return subprocess.Popen(
                [*prefix, *start, *given],
                env=self.environment,
                cwd=cwd or self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=heard,
            )

    def run(
        self, *arguments: str, prefix: Sequence[str] = (), start: Sequence[str] = COMMAND, cwd: Path | None = None
    ) -> int:
        """Its exit code; a command that hangs is killed."""
        process = self.start(*arguments, prefix=prefix, start=start, cwd=cwd)
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    @property
    def heard(self) -> str:
        """All that was printed to stderr so far."""
        return self._heard.read_text(errors="replace") if self._heard.exists() else ""

    def leftovers(self) -> list[str]:
        """Files and folders that no page of the documentation mentions."""
        paths = ((path, path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        found = [name.as_posix() for path, name in paths if name.parts[0] == "tmp" or not path.is_dir()]
        return [
            name for name in found if name != "tmp" and not any(fnmatch.fnmatchcase(name, each) for each in DOCUMENTED)
        ]

    def complaints(self) -> list[str]:
        """Tracebacks, and errors that a user should never see."""
        signs = ("Traceback (most recent call last)", "This is a bug in torchmark", "Exception ignored in")
        return [f"{sign}: {self.heard[-300:]!r}" for sign in signs if sign in self.heard]


@contextmanager
def trial(script: str = "stream=iid2,sleep=on,step=0.005") -> Iterator[Trial]:
    """One that is removed afterwards, with all processes that are still there."""
    with tempfile.TemporaryDirectory(prefix="trial-", ignore_cleanup_errors=True) as name:
        made = Trial(Path(name), script)
        try:
            yield made
        finally:
            for number in processes(made.mark):
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def left_behind(mark: str) -> tuple[int, float]:
    """Processes that carry the mark when all should have gone, and how long that took."""
    began = time.monotonic()
    while found := alive(mark):
        if time.monotonic() - began > GONE_AFTER_S:
            break
        time.sleep(0.05)
    return found, time.monotonic() - began


def alive(mark: str) -> int:
    return len(processes(mark))


def processes(mark: str) -> list[int]:
    """All that carry the mark; a zombie is as good as gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                carries = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if carries and "\nState:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
