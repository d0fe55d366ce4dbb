"""One pytest session: times steps under the test's name, compares them with a stored run, keeps them as a run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from torchmark import store
from torchmark.analyze.comparison import compare_runs, gate_runs
from torchmark.devices import open_device
from torchmark.errors import StoreError, TorchmarkError, UnknownName, UnsupportedError, UsageError
from torchmark.measure.cases import read_params
from torchmark.measure.check import check_step
from torchmark.measure.machine import describe_machine
from torchmark.measure.outcomes import failure_of
from torchmark.measure.session import measure_spread
from torchmark.measure.timing import time_step
from torchmark.records import Result, Run, RunHeader
from torchmark.report import render
from torchmark.report.comparison import gate_lines, interval, speed
from torchmark.report.text import clean, printable
from torchmark.store.lines import Spread
from torchmark.testing import LABEL
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

_NO_BASELINE = "no baseline yet; this run becomes it"


class Bench:
    """The fixture `torchmark` of one test."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder, self._node = recorder, node
        # Results are shared: folders are left out, and a hash replaces parameters that may hold a path.
        file, _, inside = node.partition("::")
        path, bracket, values = inside.partition("[")
        if "/" in values or "\\" in values:
            values = hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        self._case = f"{_word(file.rpartition('/')[2])}:{_word(path.replace('::', '.') + bracket + values)}"
        self._timed: set[tuple[str, str]] = set()

    def __call__(
        self, step: Callable[[], object], device: str = "cpu", *, name: str = "", budget_s: float = 0.0, **more: Any
    ) -> Result:
        """As `torchmark.time_step`; fails the test where the stored run was faster. Several steps need names."""
        case = self._case + (f".{_word(name)}" if name else f"-{len(self._timed) + 1}" if self._timed else "")
        owner = self._recorder.owners.setdefault((case, device), self._node)
        if (case, device) in self._timed or owner != self._node:
            raise failure(f"{case} was timed already: give this step a name of its own")
        self._timed.add((case, device))
        with store.machine_lock(wait=True):  # parallel tests would disturb each other
            result = time_step(step, device, name=case, budget_s=budget_s or self._recorder.budget, **more)
        if slower := self._recorder.add(result):
            raise failure(slower)
        return result

    def check(self, file: str | Path, **params: Any) -> None:
        """Fail the test where a model file does not run, or computes the wrong numbers, in any of its modes."""
        try:
            workload = find_workload(str(file))
            given = read_params(workload, params, start=workload.tiny)
            workload.check(given)
        except TorchmarkError as error:
            raise failure(str(error)) from None
        dtypes = [each for each in ("float32", "float64") if each in workload.dtypes]  # those of every CPU
        for mode, dtype in product(workload.modes, dtypes):
            try:
                step = workload.prepare(given, Setting(mode=mode, dtype=dtype))
                step.run()
                step.run()
                check_step(step, dtype)
            except Exception as error:
                failed = failure_of(error, "check")
                cause = f"{workload.name} in {mode} with {dtype} is {failed.status}: {failed.reason}"
                raise failure(str(UnsupportedError(cause, detail=failed.detail or ""))) from None


@dataclass
class Recorder:
    stored: Run | None  # to compare with
    label: str
    out: str | None
    against: str | None
    fail_if_slower: float
    allow_inconclusive: bool
    budget: float
    results: list[Result] = field(default_factory=list)  # so far
    run: Run | None = None  # what was kept of them at the end
    _compared: list[str] = field(default_factory=list)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)  # the test that has timed a case on a device
    _problem: str = ""

    def add(self, result: Result) -> str:
        self.results.append(result)
        if self.stored is None:
            return ""
        case = result.case.text
        comparison = compare_runs(self.stored, Run(self._header([result]), (result,), self._spread))
        if not comparison.pairs:  # a new test has no baseline to be slower than
            reasons = [each.reason for each in comparison.unpaired if each.case == case and each.kind != "missing"]
            self._compared.append(f"{case}: {f'not compared, {reasons[0]}' if reasons else _NO_BASELINE}")
            return ""
        gate, pair = gate_runs([replace(comparison, unpaired=())], self.fail_if_slower), comparison.pairs[0]
        words = f"{case}: {speed(pair)} as fast ({interval(pair)}), {pair.verdict}"
        self._compared.append(f"{words}, {gate.word}")
        if gate.word == "PASS" or (gate.word == "INCONCLUSIVE" and self.allow_inconclusive):
            return ""
        why = gate_lines(gate, option="--torchmark-fail-if-slower")
        return "\n".join([f"{words} against {self.against}", *why])

    def keep(self) -> bool:
        header, spread = self._header(self.results), self._spread if self.stored else None
        try:
            path = self.out or store.new_path(header)
            with store.RunWriter.create(path, header) as writer:
                for result in self.results:
                    writer.measured(0, result, result)
                if spread is not None:
                    writer.write(Spread(spread))
            self.run = store.load(path)
        except StoreError as error:
            self.run, self._problem = Run(header, tuple(self.results), spread), error.cause
        return not self._problem

    def summary(self) -> str:
        assert self.run is not None
        lines, name = [render(self.run, "table", 80)], self.out or self.run.header.id
        if self._compared:
            lines += [f"Against {self.against}:", *(f"  {line}" for line in self._compared), ""]
        if self._problem:
            lines.append(f"The run was not saved: {self._problem}. Choose another file with --torchmark-out")
            return printable("\n".join(lines))
        if self.stored is None:
            lines.append(f"{_NO_BASELINE.capitalize()}: pytest --torchmark-against {name}")
        return printable("\n".join([*lines, f"Saved as {self.run.header.id}: torchmark show {name}"]))

    def encode(self) -> str:
        return msgspec.json.encode((self.results, self._compared)).decode()

    def decode(self, text: str) -> None:
        results, compared = msgspec.json.decode(text, type=tuple[list[Result], list[str]])
        self.results += results
        self._compared += compared

    @cached_property
    def _spread(self) -> float | None:
        """How far fresh processes differ here, measured unless the stored run of this machine knows it."""
        stored = self.stored
        assert stored
        if stored.process_spread is not None and replace(stored.header.machine, devices=()) == describe_machine():
            return stored.process_spread
        return measure_spread()

    def _header(self, results: list[Result]) -> RunHeader:
        devices, cases = dict.fromkeys(each.case.device for each in results), [each.case.text for each in results]
        machine = describe_machine(open_device(name).info() for name in devices)
        return store.new_header("pytest", machine, dict.fromkeys(cases), label=self.label, rigor="quick")


def load_baseline(against: str | None, label: str) -> Run | None:
    """The run to compare with; None if `last` or the session's own label has no run yet."""
    if against is None:
        return None
    try:
        return store.load(store.find_run(against))
    except UnknownName:
        if against != label:
            raise
    except UsageError:
        if against != "last" or any(store.scan_runs()):
            raise
    return None


def check_options(label: str, out: str | None, against: str | None) -> Run | None:
    """The run to compare with, loaded before this session's own becomes the last one."""
    name = "label"
    try:
        if label != LABEL:
            store.check_label(label)
        if out is not None:
            name = "out"
            store.check_writable(out)
        name = "against"
        return load_baseline(against, label)
    except TorchmarkError as error:  # the fix for a file names options of `torchmark run`
        text = f"{error.cause}. Choose another file" if name == "out" else str(error)
        raise pytest.UsageError(clean(f"--torchmark-{name}: {text}")) from None


def failure(text: str) -> BaseException:
    """A failed test, without showing where in torchmark it was raised."""
    return pytest.fail.Exception(printable(text), pytrace=False)


def _word(text: str) -> str:
    """A case name: parametrised tests have brackets in theirs."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
