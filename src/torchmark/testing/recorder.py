"""Gathers the results of one pytest session, holds them against a stored run, and keeps them as a run of their own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchmark.analyze.comparison import Pair, compare_runs, find_slower
from torchmark.devices import open_device
from torchmark.measure.machine import describe_machine
from torchmark.measure.session import measure_spread
from torchmark.records import Result, Run, RunHeader
from torchmark.report import render
from torchmark.store import RunWriter, find_run, home, load, new_header, new_path

_WIDTH = 80


class Recorder:
    """All results so far; `run` is what was kept of them at the end."""

    def __init__(self, against: str | None, limit: float, budget_s: float, label: str, out: str | None) -> None:
        self.results: list[Result] = []
        self.run: Run | None = None
        self.budget_s = budget_s
        self._against, self._limit, self._label, self._out = against, limit, label, out
        self._compared: list[str] = []
        self._owners: dict[tuple[str, str], str] = {}
        self._path: Path | None = None

    def add(self, result: Result) -> str:
        """Take a result; says how much slower it is than the stored one, if it is by more than is allowed."""
        self.results.append(result)
        if self._against is None:
            return ""
        now = Run(self._header([result]), (result,), self._spread)
        comparison = compare_runs(self._stored, now)
        for pair in comparison.pairs:
            self._compared.append(f"{pair.case}: {_words(pair)}")
        slower = [pair for pair in find_slower([comparison], self._limit) if isinstance(pair, Pair)]
        if not comparison.pairs:
            reasons = [each.reason for each in comparison.unpaired if each.case == result.case.text]
            self._compared.append(f"{result.case.text}: not compared, {reasons[0] if reasons else 'no partner'}")
        return f"{slower[0].case} is slower than in {self._against}: {_words(slower[0])}" if slower else ""

    def claim(self, case: str, device: str, node: str) -> bool:
        """Whether no other test has timed something under this name on this device."""
        return self._owners.setdefault((case, device), node) == node

    def keep(self) -> None:
        """Write the run file."""
        header = self._header(self.results)
        self._path = Path(self._out) if self._out else new_path(header)
        with RunWriter.create(self._path, header) as writer:
            for result in self.results:
                writer.started(result.case.text)
                for number, process in enumerate(result.processes):
                    writer.samples(result.case.text, number, process.samples_s)
                writer.finished(result)
            if self._against is not None and self._spread is not None:
                writer.spread(self._spread)
        self.run = load(self._path)

    def summary(self) -> str:
        """The table of the run, what it was held against, and how to see it again."""
        assert self.run is not None
        assert self._path is not None
        name = self.run.header.id if self._path.parent == home() else self._path
        against = [f"Against {self._against}:", *(f"  {line}" for line in self._compared), ""] if self._compared else []
        kept = f"Kept as {self.run.header.id}: torchmark show {name}"
        return "\n".join([render(self.run, "table", _WIDTH), *against, kept])

    def encode(self) -> str:
        """All of it for another process."""
        return msgspec.json.encode((self.results, self._compared)).decode()

    def decode(self, text: str) -> None:
        """Take what another process has gathered."""
        results, compared = msgspec.json.decode(text, type=tuple[list[Result], list[str]])
        self.results += results
        self._compared += compared

    @cached_property
    def _stored(self) -> Run:
        assert self._against is not None
        return load(find_run(self._against))

    @cached_property
    def _spread(self) -> float | None:
        """How far fresh processes differ here, which one process cannot know; a stored run of this machine may."""
        stored = self._stored
        if stored.process_spread is not None and replace(stored.header.machine, devices=()) == describe_machine():
            return stored.process_spread
        return measure_spread()

    def _header(self, results: list[Result]) -> RunHeader:
        devices = dict.fromkeys(result.case.device for result in results)
        return new_header(
            "pytest",
            describe_machine(open_device(name).info() for name in devices),
            dict.fromkeys(result.case.text for result in results),
            label=self._label,
            rigor="quick",
        )


def _words(pair: Pair) -> str:
    interval = f" ({pair.low:.2f} to {pair.high:.2f})" if pair.low is not None and pair.high is not None else ""
    return f"{pair.ratio:.2f} times as long{interval}, {pair.verdict}"
