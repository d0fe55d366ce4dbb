"""The one runner of all studies: from a study to its run files, its document and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from torchmark.cli.execution import Announce, Ending, execute, new_run, say_log, say_saved, shown_run
from torchmark.cli.machine_setup import hold_machine, look
from torchmark.cli.options import DataOptions, FormatOptions, MeasureOptions, ParamOptions, argument, option
from torchmark.cli.progress import ProgressLine
from torchmark.errors import UsageError
from torchmark.library import study_header
from torchmark.measure.cases import Sweep, expand
from torchmark.records import Case, Machine, Run
from torchmark.store import RunWriter, check_writable, home, log_path
from torchmark.studies.study import Study
from torchmark.studies.tune import check_tunable

Record = TypeVar("Record", bound=Struct)
AStudy = TypeVar("AStudy", bound=Study)


class RunOptions(Protocol):
    """The options that all studies share: where the run goes, how it is shown, and which run comes first."""

    @property
    def label(self) -> str | None: ...
    @property
    def out(self) -> Path | None: ...
    @property
    def format(self) -> str: ...
    @property
    def wait(self) -> bool: ...
    @property
    def share(self) -> bool: ...


class StudyOptions(DataOptions, MeasureOptions, FormatOptions):
    """The options of a study that keeps one run."""


class CaseOptions(ParamOptions):
    """The options that name one case."""

    workload: str = argument(metavar="WORKLOAD|FILE|CASE")
    device: str | None = option("--device", metavar="NAME", help="Where to run; default: the first device here.")
    mode: str | None = option("--mode", metavar="MODE", help="infer, train; default: the workload's first.")
    dtype: str | None = option("--dtype", metavar="TYPE", help="Number format; default: float32.")

    def find_case(self, machine: Machine | None = None) -> Case:
        """The case, on the machine's first device once the machine is known."""
        device = machine.devices[0].name if machine else self.device or "cpu"
        axes = {"device": [device], "dtype": [self.dtype or "float32"], "workers": ["1"]}
        axes |= {"mode": [self.mode]} if self.mode else {}
        cases = expand(Sweep([self.workload], axes, self.read_params()))
        if len(cases) != 1:
            raise UsageError(f"that is {len(cases)} cases", "Name one value of each parameter, and one device")
        return check_tunable(cases[0])

    def look(self) -> Machine:
        """The machine with the device that is named, or with all."""
        case = self.find_case()
        named = self.device or (case.device if "@" in self.workload else None)
        return look([named] if named else None, [case])


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """All names in options whose values are separated by commas."""
    return tuple(name for text in texts for name in text.split(",") if name)


def record_of(kind: type[Record], options: object, **more: Any) -> Record:
    """The fields of a study's options, taken from those of a command and from `more`."""
    return kind(**{name: getattr(options, name) for name in kind.__struct_fields__ if hasattr(options, name)} | more)


class Done(Generic[AStudy]):
    """A study that has ended, with the runs it has kept."""

    def __init__(self, study: AStudy, ending: Ending, writers: tuple[RunWriter, ...], format: str) -> None:  # noqa: A002
        self.study, self.ending, self.writers, self.format = study, ending, writers, format

    @property
    def run(self) -> Run:
        """The run to show, of a study that keeps a single one."""
        (writer,) = self.writers
        return shown_run(writer, self.format)


def run_study(
    options: RunOptions,
    prepare: Callable[[], AStudy],
    show: Callable[[Done[AStudy]], int],
    announce: Announce = str,
    stored: Callable[[AStudy, Path], None] = lambda *_: None,
    then: str = "torchmark show {}",
) -> int:
    """Hold the machine while a study is prepared, executed and shown; returns the exit code.

    `show` prints the document and returns the exit code of the answer; `announce` has the words for what is done;
    `stored` is called once the conclusion is on the disk; `then` is what the user may do with the run.
    """
    with hold_machine(options.wait, options.share), ExitStack() as files:
        study = prepare()
        runs = _Runs(study, options, files)
        progress = ProgressLine(runs.planned)
        study.listen, study.log = progress.heard, runs.log
        ending = execute(study.events(), study.unfinished, runs.writer, progress, study.options.budget_s, announce)
        for side, writer in runs.writers.items():
            with ending:
                if conclusion := study.conclusion(side):
                    writer.concluded(conclusion)
                    stored(study, writer.path)
                writer.seal()
        done = Done(study, ending, (*runs.writers.values(),), options.format)
        return ending.report(lambda: _report(done, show, then))


def _report(done: Done[AStudy], show: Callable[[Done[AStudy]], int], then: str) -> int:
    code = show(done)
    if done.format == "table":
        say_saved(*done.writers, then=then)
    for writer in done.writers:
        say_log(shown_run(writer, done.format), writer.path)
    return code


class _Runs:
    """The run files of a study. Where it has several sides, the run of each begins with its first result."""

    def __init__(self, study: Study, options: RunOptions, files: ExitStack) -> None:
        self._study, self._options, self._files = study, options, files
        self.writers: dict[str, RunWriter] = {}
        self.log: Path | None = None
        self.planned: tuple[str, ...] = ()  # texts of cases, where all are known beforehand
        if study.sides != ("",):
            check_writable(home() / "study.jsonl")
        else:
            self.log, header = log_path(self.writer("").path), self.writer("").run.header
            self.planned = () if header.open_ended else header.cases

    def writer(self, side: str) -> RunWriter:
        if side not in self.writers:
            label = f"{self._options.label}-{side.lower()}" if side else self._options.label
            header = study_header(self._study, label, side)
            self.writers[side] = self._files.enter_context(new_run(header, self._options.out))
        return self.writers[side]
