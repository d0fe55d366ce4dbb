"""Gathers the results of one pytest session, holds them against a stored run, and keeps them as a run of their own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, Pair, compare_runs
from torchmark.analyze.gates import gate_runs
from torchmark.devices import open_device
from torchmark.errors import StoreError
from torchmark.measure.machine import describe_machine
from torchmark.measure.session import measure_spread
from torchmark.records import Result, Run, RunHeader
from torchmark.report import render
from torchmark.report.gates import complaints_of, gate_lines
from torchmark.report.ratios import interval, speed
from torchmark.store import RunWriter, load, new_header, new_path

_WIDTH = 80
_NO_BASELINE = "no baseline yet; this run becomes it"


class Recorder:
    """All results so far; `run` is what was kept of them at the end."""

    def __init__(
        self,
        against: str | None,
        stored: Run | None,
        limit: float,
        allow: bool,
        budget_s: float,
        label: str,
        out: str | None,
    ) -> None:
        self.results: list[Result] = []
        self.run: Run | None = None
        self.budget_s = budget_s
        self._against, self._limit, self._allow, self._label, self._out = against, limit, allow, label, out
        self._stored = stored
        self._compared: list[str] = []
        self._owners: dict[tuple[str, str], str] = {}
        self._problem = ""

    def add(self, result: Result) -> str:
        """Take a result; says why its test fails, if it is too slow or that could not be seen."""
        self.results.append(result)
        if self._stored is None:
            return ""
        now = Run(self._header([result]), (result,), self._spread)
        return self._gate(result, compare_runs(self._stored, now))

    def _gate(self, result: Result, comparison: Comparison) -> str:
        """What was found goes into the summary; a new test has nothing that it could be slower than."""
        case = result.case.text
        if not comparison.pairs:
            reasons = [each.reason for each in comparison.unpaired if each.case == case and each.kind != "missing"]
            self._compared.append(f"{case}: {f'not compared, {reasons[0]}' if reasons else _NO_BASELINE}")
            return ""
        gate = gate_runs([replace(comparison, unpaired=())], self._limit)
        words = f"{case}: {_words(comparison.pairs[0])}"
        self._compared.append(f"{words}, {gate.word}")
        if gate.word == "PASS" or (gate.word == "INCONCLUSIVE" and self._allow):
            return ""
        why = gate_lines(gate, complaints_of(gate), "--torchmark-fail-if-slower")
        return "\n".join([f"{words} against {self._against}", *why])

    def claim(self, case: str, device: str, node: str) -> bool:
        """Whether no other test has timed something under this name on this device."""
        return self._owners.setdefault((case, device), node) == node

    def keep(self) -> bool:
        """Write the run file; returns whether that worked. The summary shows the results in any case."""
        header = self._header(self.results)
        spread = self._spread if self._stored is not None else None
        try:
            path = Path(self._out) if self._out is not None else new_path(header)
            self._write(path, header, spread)
            self.run = load(path)
        except StoreError as error:
            self.run, self._problem = Run(header, tuple(self.results), spread), error.cause
        return not self._problem

    def _write(self, path: Path, header: RunHeader, spread: float | None) -> None:
        with RunWriter.create(path, header) as writer:
            for result in self.results:
                writer.started(result.case.text)
                for number, process in enumerate(result.processes):
                    writer.samples(result.case.text, number, process.samples_s)
                writer.finished(result)
            if spread is not None:
                writer.spread(spread)

    def summary(self) -> str:
        """The table of the run, what it was held against, and how to see it again."""
        assert self.run is not None
        against = [f"Against {self._against}:", *(f"  {line}" for line in self._compared), ""] if self._compared else []
        return "\n".join([render(self.run, "table", _WIDTH), *against, *self._kept(self.run.header)])

    def _kept(self, header: RunHeader) -> list[str]:
        if self._problem:
            return [f"The run was not saved: {self._problem}. Choose another file with --torchmark-out"]
        name = header.id if self._out is None else self._out
        saved = f"Saved as {header.id}: torchmark show {name}"
        if self._stored is not None:
            return [saved]
        return [f"{_NO_BASELINE[0].upper()}{_NO_BASELINE[1:]}: pytest --torchmark-against {name}", saved]

    def encode(self) -> str:
        """All of it for another process."""
        return msgspec.json.encode((self.results, self._compared)).decode()

    def decode(self, text: str) -> None:
        """Take what another process has gathered."""
        results, compared = msgspec.json.decode(text, type=tuple[list[Result], list[str]])
        self.results += results
        self._compared += compared

    @cached_property
    def _spread(self) -> float | None:
        """How far fresh processes differ here, which one process cannot know; a stored run of this machine may."""
        stored = self._stored
        assert stored is not None
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
    return f"{speed(pair)} as fast ({interval(pair)}), {pair.verdict}"
