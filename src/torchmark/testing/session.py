"""One pytest session: times steps under the test's name, compares them with a stored run, keeps them as a run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from torchmark.analyze.comparison import compare_runs, gate_runs
from torchmark.devices import open_device
from torchmark.errors import StoreError, TorchmarkError, UnknownName, UnsupportedError, UsageError
from torchmark.measure.cases import read_params
from torchmark.measure.check import check_step
from torchmark.measure.machine import describe_machine
from torchmark.measure.outcomes import failure_of
from torchmark.measure.session import measure_spread
from torchmark.measure.timing import time_step
from torchmark.records import NumericCheck, Result, Run, RunHeader
from torchmark.report import render
from torchmark.report.comparison import complaints_of, gate_lines, interval, speed
from torchmark.report.text import clean, printable
from torchmark.store import RunWriter, find_run, load, machine_lock, new_header, new_path, scan_runs
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

DTYPES = ("float32", "float64")  # every CPU computes in these
_WIDTH = 80
_NO_BASELINE = "no baseline yet; this run becomes it"


class Bench:
    """The fixture of one test."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder, self._node = recorder, node
        self._file, self._name = _named(node)
        self._timed: set[tuple[str, str]] = set()

    def __call__(
        self,
        step: Callable[[], object],
        device: str = "cpu",
        *,
        name: str | None = None,
        items: float = 1.0,
        unit: str = "step",
        budget_s: float | None = None,
        **more: Any,
    ) -> Result:
        """Time the step, keep the result, and fail the test where the stored run was faster.

        `items` and `unit` say what one call is worth, so that the result has a rate. A test that times several steps
        gives each a `name`.
        """
        count = f"-{len(self._timed) + 1}" if self._timed else ""
        case = f"{_word(self._file)}:{_word(self._name)}{f'.{_word(name)}' if name else count}"
        if (case, device) in self._timed or not self._recorder.is_free(case, device, self._node):
            raise failure(f"{case} was timed already: give this step a name of its own")
        self._timed.add((case, device))
        with machine_lock(wait=True):  # parallel tests would disturb each other
            result = time_step(
                step, device, name=case, items=items, unit=unit, budget_s=budget_s or self._recorder.budget_s, **more
            )
        if slower := self._recorder.add(result):
            raise failure(slower)
        return result

    def check(self, file: str | Path, **params: Any) -> None:
        """Fail the test where a model file does not run, or computes the wrong numbers, in any of its modes."""
        try:
            check_file(Path(file), params)
        except TorchmarkError as error:
            raise failure(str(error)) from None


def check_file(path: Path, params: dict[str, Any]) -> dict[str, NumericCheck | None]:
    """Try each mode and dtype of a model file in this process; returns the distances from the reference."""
    workload = find_workload(str(path))
    given = read_params(workload, params, start=workload.tiny)
    workload.check(given)
    found: dict[str, NumericCheck | None] = {}
    for mode in workload.modes:
        for dtype in (each for each in DTYPES if each in workload.dtypes):
            try:
                step = workload.prepare(given, Setting(mode=mode, dtype=dtype))
                step.run()
                step.run()
                found[f"{mode} {dtype}"] = check_step(step, dtype)
            except Exception as error:
                failed = failure_of(error, "check")
                cause = f"{workload.name} in {mode} with {dtype} is {failed.status}: {failed.reason}"
                raise UnsupportedError(cause, detail=failed.detail or "") from error
    return found


class Recorder:
    """All results so far; `run` is what was kept of them at the end."""

    def __init__(
        self, against: str | None, stored: Run | None, limit: float, allow: bool, budget_s: float, label: str, out: str
    ) -> None:
        self.results: list[Result] = []
        self.run: Run | None = None
        self.budget_s = budget_s
        self._against, self._limit, self._allow, self._label, self._out = against, limit, allow, label, out
        self._stored = stored
        self._compared: list[str] = []
        self._owners: dict[tuple[str, str], str] = {}
        self._problem = ""

    def is_free(self, case: str, device: str, node: str) -> bool:
        """Whether no other test has timed something under this name on this device."""
        return self._owners.setdefault((case, device), node) == node

    def add(self, result: Result) -> str:
        """Take a result; returns why its test fails: too slow, or inconclusive."""
        self.results.append(result)
        if self._stored is None:
            return ""
        case = result.case.text
        comparison = compare_runs(self._stored, Run(self._header([result]), (result,), self._spread))
        if not comparison.pairs:  # a new test has no baseline to be slower than
            reasons = [each.reason for each in comparison.unpaired if each.case == case and each.kind != "missing"]
            self._compared.append(f"{case}: {f'not compared, {reasons[0]}' if reasons else _NO_BASELINE}")
            return ""
        gate, pair = gate_runs([replace(comparison, unpaired=())], self._limit), comparison.pairs[0]
        words = f"{case}: {speed(pair)} as fast ({interval(pair)}), {pair.verdict}"
        self._compared.append(f"{words}, {gate.word}")
        if gate.word == "PASS" or (gate.word == "INCONCLUSIVE" and self._allow):
            return ""
        why = gate_lines(gate, complaints_of(gate), "--torchmark-fail-if-slower")
        return "\n".join([f"{words} against {self._against}", *why])

    def keep(self) -> bool:
        """Write the run file; returns whether that worked. The summary shows the results in any case."""
        header = self._header(self.results)
        spread = self._spread if self._stored is not None else None
        try:
            path = Path(self._out) if self._out else new_path(header)
            with RunWriter.create(path, header) as writer:
                for result in self.results:
                    writer.started(result.case.text)
                    for number, process in enumerate(result.processes):
                        writer.samples(result.case.text, number, process.samples_s)
                    writer.finished(result)
                if spread is not None:
                    writer.spread(spread)
            self.run = load(path)
        except StoreError as error:
            self.run, self._problem = Run(header, tuple(self.results), spread), error.cause
        return not self._problem

    def summary(self) -> str:
        """The table of the run, the comparison, and how to see the run again."""
        assert self.run is not None
        against = [f"Against {self._against}:", *(f"  {line}" for line in self._compared), ""] if self._compared else []
        return "\n".join([render(self.run, "table", _WIDTH), *against, *self._kept(self.run.header)])

    def _kept(self, header: RunHeader) -> list[str]:
        if self._problem:
            return [f"The run was not saved: {self._problem}. Choose another file with --torchmark-out"]
        name = self._out or header.id
        saved = f"Saved as {header.id}: torchmark show {name}"
        if self._stored is not None:
            return [saved]
        return [f"{_NO_BASELINE[0].upper()}{_NO_BASELINE[1:]}: pytest --torchmark-against {name}", saved]

    def encode(self) -> str:
        """All of it for another process."""
        return msgspec.json.encode((self.results, self._compared)).decode()

    def decode(self, text: str) -> None:
        """Take the results of another process."""
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
        return new_header(
            "pytest",
            describe_machine(open_device(name).info() for name in dict.fromkeys(each.case.device for each in results)),
            dict.fromkeys(result.case.text for result in results),
            label=self._label,
            rigor="quick",
        )


def load_baseline(against: str | None, label: str) -> Run | None:
    """The run to compare with; None without one, or where `last` or the session's own label has no run yet."""
    if against is None:
        return None
    try:
        return load(find_run(against))
    except UnknownName:
        if against != label:
            raise
    except UsageError:
        if against != "last" or any(scan_runs()):
            raise
    return None


def usage_error(option: str, error: Exception) -> pytest.UsageError:
    """A mistake in the command, on one line; the text may come from a stranger's file."""
    return pytest.UsageError(clean(f"{option}: {error}"))


def failure(text: str) -> BaseException:
    """A failed test, without showing where in torchmark it was raised."""
    return pytest.fail.Exception(printable(text), pytrace=False)


def show(reporter: pytest.TerminalReporter, text: str) -> None:
    """Write a section of the terminal summary."""
    reporter.section("torchmark")
    reporter.write_line(printable(text))


def _named(node: str) -> tuple[str, str]:
    """The file and the test inside it, by which a result is found again.

    Results are shared: folders are left out, and parameters that may hold a path are replaced by a hash.
    """
    file, _, inside = node.partition("::")
    path, bracket, values = inside.partition("[")
    if "/" in values or "\\" in values:
        values = hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return file.rpartition("/")[2], path.replace("::", ".") + bracket + values


def _word(text: str) -> str:
    """A case name: parametrised tests have brackets in theirs."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
