"""Executes a study: prepares the machine, stores every event, shows progress and the result, ends in order."""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, TextIO, TypeVar

from msgspec import Struct

from torchmark import store
from torchmark.cli.options import HoldOptions
from torchmark.cli.output import hint, say
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, StoreError
from torchmark.library import Measurement, conclude, make_header, store_events
from torchmark.measure.engine import Progress
from torchmark.measure.machine import announced_amx, keep_awake, lacks_amx, look_around
from torchmark.measure.messages import Message, Phase
from torchmark.measure.outcomes import SAFE, VARIABLE
from torchmark.measure.process import ending_handlers, kill_all, set_handlers
from torchmark.measure.session import Covered, Finished, Started
from torchmark.records import Case, Machine, Result, Run, RunHeader
from torchmark.report.figures import margin, step_rate, step_time
from torchmark.report.text import clean, printable
from torchmark.report.units import duration, rate
from torchmark.studies.study import Activity, Announcement, Event, Study

Record = TypeVar("Record", bound=Struct)
NAME_WIDTH = 46  # of a case in a row
BAR_WIDTH = 16
PHASES = {
    "import": "opening the device",
    "preheat": "warming the device up",
    "build": "building",
    "compile": "compiling",
    "first step": "first step",
    "check": "checking the numbers",
    "steps": "timing steps",
}


class Interrupted(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise `Interrupted` once, unless they are ignored, as under nohup."""
    kept, report_unraisable = ending_handlers(), sys.unraisablehook

    def once(number: int, _: FrameType | None) -> None:
        for each in kept:
            signal.signal(each, end_at_once)
        raise Interrupted(number)

    def end_at_once(number: int, _: FrameType | None) -> None:
        kill_all()  # a stopped or stuck worker would not notice that the run is gone
        os._exit(128 + number)

    def send_again(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(error := unraisable.exc_value, Interrupted):  # it arrived where Python drops exceptions
            set_handlers(dict.fromkeys(kept, once))
            threading.Timer(0.1, os.kill, (os.getpid(), error.number)).start()
        else:
            report_unraisable(unraisable)

    set_handlers(dict.fromkeys(kept, once))
    sys.unraisablehook = send_again
    try:
        yield
    except Interrupted:
        kept = {}  # the handlers stay: a second signal, while results are saved, ends the program at once
        raise
    finally:
        sys.unraisablehook = report_unraisable
        set_handlers(kept)


@dataclass
class Ending:  # complete, by a signal, or by a run file that could not be written
    format: str
    code: int = EXIT_FINE
    error: StoreError | None = None
    writers: dict[str, store.RunWriter] = field(default_factory=dict)  # by side, as far as there is a result

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Record a StoreError: what was measured is still shown."""
        try:
            yield
        except StoreError as error:
            self.code, self.error = error.exit_code, self.error or error

    def run(self, side: str = "") -> Run:
        """The run to show; formats other than the table get only what may be shared."""
        return self.writers[side].read(local=self.format == "table")


def execute(
    study: Study,
    options: Any,
    show: Callable[[Ending], int],
    announce: Callable[[Any], str] = lambda _: "",  # the words for an event
    then: str = "torchmark show {}",  # what the user may do next
    fix: Callable[[], str] = lambda: "Fix that, then start again",  # what to do about a file that failed
    writer: store.RunWriter | None = None,
) -> int:
    """Execute a study, store it in `writer` or new runs, and show it; returns the exit code."""
    planned = () if study.open_ended else study.planned
    ending, progress = Ending(options.format), ProgressLine(planned, budget_s=study.options.budget_s)
    with ExitStack() as files:

        def writer_of(side: str) -> store.RunWriter:
            if side not in ending.writers:
                header = make_header(study, f"{options.label}-{side.lower()}" if side else options.label, side)
                ending.writers[side] = writer or files.enter_context(new_run(header, options))
            return ending.writers[side]

        if study.sides == ("",):
            study.log = store.log_path(writer_of("").path)
        else:  # the run of each side begins with its first result
            with _own_options(options):
                store.check_writable(store.home() / "study.jsonl")
        study.listen = progress.heard
        try:
            with ending.storing(), orderly_end(), keep_awake():
                store_events(study, writer_of, partial(progress.seen, announce))
        except Interrupted as interrupt:
            ending.code = interrupt.exit_code
        finally:
            progress.clear()
        for side, each in ending.writers.items():
            with ending.storing():
                if not (isinstance(study, Measurement) and ending.code):
                    conclude(study, each, side)
            if not ending.error:
                with contextlib.suppress(StoreError):  # a checksum is only a help
                    each.seal()
        # A run that was stopped keeps that exit code, even where the terminal is gone.
        with contextlib.suppress(StoreError, OSError) if ending.code else contextlib.nullcontext():
            answer = show(ending)
            _say_saved(ending, then)
            ending.code = ending.code or answer
        if ending.error:
            raise StoreError(ending.error.cause, fix()) from ending.error
        return ending.code


def new_run(header: RunHeader, options: object) -> AbstractContextManager[store.RunWriter]:
    path = getattr(options, "out", None) or store.new_path(header)
    with _own_options(options):
        store.check_writable(path)
        return announced(store.RunWriter.create(path, header))


@contextlib.contextmanager
def _own_options(options: object) -> Iterator[None]:
    """Let the fixes of errors name only options that the command has."""
    try:
        yield
    except StoreError as error:
        fix = error.fix if hasattr(options, "out") else error.fix.replace(" with --out", "")
        fix = fix if hasattr(options, "resume") else fix.replace(", or continue that run with --resume", "")
        raise StoreError(error.cause, fix) from error


@contextlib.contextmanager
def announced(writer: store.RunWriter) -> Iterator[store.RunWriter]:
    try:
        with writer:
            yield writer
    finally:
        for note in dict.fromkeys(writer.notes):
            hint(f"! {note}.")


def exit_code_of(run: Run) -> int:
    return EXIT_FINE if any(result.status == "ok" for result in run.results) else EXIT_NOTHING_MEASURED


def _say_saved(ending: Ending, then: str) -> None:
    """Name the runs for other commands, and the logs of those with errors."""
    ids, name, part = [], "", ""
    for writer in ending.writers.values() if ending.format == "table" else ():
        with contextlib.suppress(StoreError):
            stored, run = store.load(writer.path), writer.read()
            if stored.header == run.header:
                ids.append(f"{run.header.id} ({run.header.label})" if len(ending.writers) > 1 else run.header.id)
                name = run.header.id if writer.path.parent == store.home() else str(writer.path)
                part = part if stored == run else "in part "
    if ids:
        hint(f"Saved {part}as {' and '.join(ids)}: {then.format(name)}")
    for side, writer in ending.writers.items():
        failed = any(result.status == "crashed" or result.detail for result in ending.run(side).results)
        if failed and (log := store.log_path(writer.path)).exists():
            say(f"Full errors and output of the workers: {log}")


def record_of(kind: type[Record], options: object, **more: Any) -> Record:
    return kind(**{name: getattr(options, name) for name in kind.__struct_fields__ if hasattr(options, name)} | more)


def hold_machine(options: HoldOptions) -> AbstractContextManager[None]:
    """The machine's lock; none for a dry run."""
    if options.dry_run:
        return contextlib.nullcontext()
    waiting = "Waiting for another run on this machine:"
    return store.machine_lock(options.wait, options.share, on_wait=lambda holder: say(f"{waiting} {holder}"))


def look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    """The machine with these devices, or all; prints what would spoil the figures of these cases."""
    avoid_missing_instructions(devices)
    with noted("looking at the machine …"):
        machine, cautions = look_around(devices, cases)
    for caution in cautions:
        hint(f"! {caution.cause}. {caution.fix}.")
    return machine


def avoid_missing_instructions(devices: Sequence[str] | None) -> None:
    """Keep oneDNN from AMX where the CPU announces it without having it, unless the user chose."""
    amx = announced_amx() if devices is None or "cpu" in devices else None
    if amx is None or os.environ.get(VARIABLE):
        return
    known = store.read_note("instructions", amx)
    if known is None:
        with noted("trying the AMX instructions of this CPU …"):
            is_missing = lacks_amx()
        if is_missing is not None:
            known = b"missing" if is_missing else b"present"
            with contextlib.suppress(OSError):  # then it is tried again the next time
                store.keep_note("instructions", amx, known)
    if known == b"missing":
        os.environ[VARIABLE] = SAFE
        hint(f"! This CPU announces AMX but does not have it: oneDNN uses {SAFE} instead ({VARIABLE}).")


def hint_at_limits(run: Run) -> None:
    """Advise to measure the machine's limits where results lack them for comparison."""
    counted = [each.case.device for each in run.results if each.status == "ok" and each.work and each.work.flops]
    if not all(device.startswith("fake") for device in counted) and not any(each.peak for each in run.results):
        hint("To see what share of this machine's peak this is, measure the peak once: torchmark limits")


class ProgressLine:
    """On a terminal, rows above one line that changes; else a line per process. Only events write: no spinner."""

    def __init__(self, cases: Sequence[str] = (), stream: TextIO | None = None, budget_s: float = 0.0) -> None:
        self._stream = stream or sys.stderr
        self.live = self._stream.isatty()  # whether a person watches
        self._positions = {text: number for number, text in enumerate(cases, 1)}
        self._name_width = min(max(map(len, cases), default=NAME_WIDTH), NAME_WIDTH)
        self._count, self._case, self._label, self._began, self._budget_s = 0, "", "", time.monotonic(), budget_s

    def seen(self, announce: Callable[[Any], str], event: Event) -> None:
        match event:
            case Started(case, process):
                self._count += 1
                turn, position = f" process {process + 1}" if process else "", self._positions.get(case.text)
                place = f"{position}/{len(self._positions)}" if position else f"{self._count}"  # a search has no total
                self._case, self._label = case.text, f"[{place}]{turn} {case.text}"
                self._show(self._label, " · starting")
            case Finished(result, process):
                self._finished(result, process)
            case Activity(text):
                self.note(text)
            case Announcement() if self.live:
                self.note(announce(event))
            case Announcement():
                self._write(clean(announce(event)) + "\n")
            case Covered() if self.live and (text := announce(event)):
                self.scroll(text)

    def note(self, text: str) -> None:
        self._label = text
        self._show(text)

    def heard(self, message: Message, who: str = "") -> None:
        if isinstance(message, Phase):
            self._show(self._label, f" · {who and who + ': '}{PHASES.get(message.name, message.name)}")
        elif isinstance(message, Progress):
            self._show(self._label, f" · {duration(message.center_s)}")

    def _finished(self, result: Result, process: int) -> None:
        text, figures = result.case.text, str(result.status)
        estimate = result.estimate if result.status == "ok" else None
        if not self.live:
            if estimate:
                is_known = estimate.spread is not None or estimate.center_s <= 0
                figures = f"{step_time(estimate)} {margin(estimate) if is_known else ''}".rstrip()
            self._write(clean(f"{self._label if text == self._case else text}: {figures}") + "\n")
        elif process == 0:
            if estimate:
                speed = rate(step_rate(result), result.work.unit if result.work else "")
                figures = f"{step_time(estimate):>8}  {speed:>18}"
            self.scroll(f"{_cut(text, self._name_width).ljust(self._name_width)}  {figures}")

    def scroll(self, text: str) -> None:
        if self.live:
            self._write(f"\r\033[K{printable(text)}\n")

    def clear(self) -> None:
        if self.live:
            self._write("\r\033[K")

    def _show(self, text: str, news: str = "") -> None:
        """Show the time left and the text, cut to the terminal's width; `news` is cut last."""
        if not self.live:
            return
        bar, width = "", shutil.get_terminal_size((80, 24)).columns - 1
        if self._budget_s:
            spent_s = time.monotonic() - self._began
            minutes, seconds = divmod(max(round(self._budget_s - spent_s), 0), 60)
            filled = round(BAR_WIDTH * min(spent_s / self._budget_s, 1.0))
            bar = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {minutes}:{seconds:02} left  "
        line = bar + _cut(clean(text), max(width - len(bar) - len(news), 0)) + clean(news)
        self._write(f"\r\033[K{line[:width]}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            self._stream.write(text)
            self._stream.flush()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


@contextlib.contextmanager
def noted(text: str) -> Iterator[ProgressLine]:
    progress = ProgressLine()
    progress.note(text)
    try:
        yield progress
    finally:
        progress.clear()
