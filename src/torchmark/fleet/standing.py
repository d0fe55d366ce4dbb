"""How every task of a fleet stands: what the scheduler says of its job, and what its run file has so far."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from torchmark.errors import StoreError
from torchmark.fleet.contract import UNDER_WAY, Engine, Fate, State, fate_of, shareable
from torchmark.fleet.files import read
from torchmark.fleet.plan import FleetFolder, Task
from torchmark.records import Run
from torchmark.store import load

_TAIL_BYTES = 4096
_UNTOLD = frozenset(("failed", "lost"))


class Standing(Struct, frozen=True):
    """One task: its state with the reason, and what has been measured so far."""

    task: Task
    state: State
    reason: str = ""
    run: Run | None = None

    @property
    def planned(self) -> int | None:
        """Cases to measure; None while the node has not found out."""
        return len(self.run.header.cases) if self.run else None

    @property
    def measured(self) -> int:
        """Cases that have a result, whatever it is."""
        return sum(result.status != "interrupted" for result in self.run.results) if self.run else 0


class Observer:
    """Looks again and again; a run file that has not changed is not read again, and an end is remembered."""

    def __init__(self, folder: FleetFolder, engine: Engine | None) -> None:
        self._folder, self._engine = folder, engine
        self._runs: dict[Path, tuple[tuple[int, int], Run | None]] = {}

    def look(self, tasks: Sequence[Task]) -> tuple[Standing, ...]:
        """All tasks as they stand now."""
        fates = {task.name: fate for task in tasks if (fate := self._folder.fate(task))}
        open_jobs = [job for task in tasks if task.name not in fates and (job := self._folder.job(task))]
        aside = self._folder.kept_aside()
        told = self._engine.fates(open_jobs) if self._engine and open_jobs else {}
        return tuple(
            self._standing(task, fates.get(task.name), told.get(task.name), task.name in aside) for task in tasks
        )

    def _standing(self, task: Task, kept: Fate | None, told: Fate | None, aside: bool) -> Standing:
        fate = kept or self._folder.fate(task) or told or self._without_engine(task)
        if fate.state in _UNTOLD and (said := self._last_words(task)):
            fate = Fate(fate.state, f"{shareable(fate.reason)}: {said}")
        if kept is None and fate.state not in UNDER_WAY and self._folder.job(task):
            with contextlib.suppress(StoreError):  # whoever may look need not be allowed to write
                self._folder.keep_fate(task, fate)
        reasons = [f"earlier results are in {self._folder.run_file(task).name}.aside-*"] if aside else []
        reasons += [fate.reason] if fate.reason else []
        return Standing(task, fate.state, ", ".join(reasons), self._run(self._folder.run_file(task)))

    def _without_engine(self, task: Task) -> Fate:
        """The scheduler knows nothing of it, or was not asked: its node may have written down how it ended."""
        code = self._folder.end_code(task)
        if code is not None:
            return fate_of(code)
        if self._folder.job(task) is None:
            return Fate("lost", "it was never submitted")
        return Fate("lost", "the scheduler has forgotten the job, and its node left no word")

    def _last_words(self, task: Task) -> str:
        """The error that the job printed last."""
        text = ""
        with contextlib.suppress(StoreError):
            text = (read(self._folder.file(task, "log"), _TAIL_BYTES, tail=True) or b"").decode(errors="replace")
        errors = re.findall(r"^torchmark: error: (.+)$", text, re.MULTILINE)
        return errors[-1].strip() if errors else ""

    def _run(self, path: Path) -> Run | None:
        try:
            about = path.stat()
        except OSError:
            return None
        stamp = about.st_size, about.st_mtime_ns
        if path not in self._runs or self._runs[path][0] != stamp:
            run = None
            with contextlib.suppress(StoreError):  # its header may be half-written at this very moment
                run = load(path)
            self._runs[path] = stamp, run
        return self._runs[path][1]
