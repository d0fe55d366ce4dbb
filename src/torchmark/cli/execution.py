"""Executes a study: prepares the machine, stores every event, shows progress and the result, ends in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from textwrap import fill
from types import FrameType
from typing import Any, TypeVar

from msgspec import Struct

from torchmark import store
from torchmark.cli.options import HoldOptions
from torchmark.cli.output import hint, say, terminal_width
from torchmark.cli.progress import ProgressLine, noted
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, StoreError
from torchmark.library import Measurement, conclude, make_header, store_events
from torchmark.measure.lifecycle import ending_handlers, set_handlers
from torchmark.measure.machine import announced_amx, keep_awake, lacks_amx, look_around
from torchmark.measure.outcomes import SAFE, VARIABLE
from torchmark.measure.process import kill_all
from torchmark.measure.session import Covered, Finished, Started
from torchmark.records import Case, Machine, Run, RunHeader
from torchmark.studies.study import Activity, Announcement, Event, Study

Record = TypeVar("Record", bound=Struct)


class Interrupted(BaseException):
    """The user, the terminal or the system wants the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted` once; what is ignored, as under nohup, stays ignored."""
    kept, report_unraisable = ending_handlers(), sys.unraisablehook

    def once(number: int, frame: FrameType | None) -> None:
        del frame
        for each in kept:
            signal.signal(each, end_at_once)
        raise Interrupted(number)

    def end_at_once(number: int, _: FrameType | None) -> None:
        kill_all()  # a worker that is stopped, or stuck, would not notice that the run is gone
        os._exit(128 + number)

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        if not isinstance(error, Interrupted):
            report_unraisable(unraisable)
            return
        set_handlers(dict.fromkeys(kept, once))  # it arrived in a finalizer, where Python drops exceptions
        threading.Timer(0.1, os.kill, (os.getpid(), error.number)).start()

    set_handlers(dict.fromkeys(kept, once))
    sys.unraisablehook = send_again
    try:
        yield
    except Interrupted:
        raise  # the handlers stay: a second signal, while results are saved and shown, ends the program at once
    except BaseException:
        set_handlers(kept)
        raise
    finally:
        sys.unraisablehook = report_unraisable
    set_handlers(kept)


@dataclass
class Ending:
    """How measuring ended: all done, stopped by a signal, or because a run file could not be written."""

    format: str
    code: int = EXIT_FINE
    error: StoreError | None = None
    writers: dict[str, store.RunWriter] = field(default_factory=dict)  # by side, as far as there is a result

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Record a StoreError instead of raising it, so that what was measured is still shown."""
        try:
            yield
        except StoreError as error:
            self.code, self.error = error.exit_code, self.error or error

    def run(self, side: str = "") -> Run:
        """The run to show. Formats other than the table are to be passed on, so they get only what may be shared."""
        return self.writers[side].read(local=self.format == "table")


def execute(
    study: Study,
    options: Any,
    show: Callable[[Ending], int],
    announce: Callable[[Any], str] = lambda _: "",
    then: str = "torchmark show {}",
    fix: Callable[[], str] = lambda: "Fix that, then start again",
    writer: store.RunWriter | None = None,
) -> int:
    """Execute a study, store it in `writer` or new runs, `show` it, and return the exit code.

    `announce` words events, `then` is what the user may do next, and `fix` what to do about a file that failed.
    """
    ending = Ending(options.format)
    progress = ProgressLine(() if study.open_ended else study.planned)

    def seen(event: Event) -> None:
        match event:
            case Finished(result, process):
                progress.finished(result, process)
            case Activity(text):
                progress.note(text)
            case Announcement():
                progress.mark(announce(event))
            case Covered() if progress.live and (text := announce(event)):
                progress.scroll(text)
            case Started(case, process):
                progress.started(case, process)

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
        progress.expect(study.options.budget_s)
        try:
            with ending.storing(), orderly_end(), keep_awake():
                store_events(study, writer_of, seen)
        except Interrupted as interrupt:
            ending.code = interrupt.exit_code
        finally:
            progress.clear()
        return _conclude(study, ending, show, then, fix)


def _conclude(study: Study, ending: Ending, show: Callable[[Ending], int], then: str, fix: Callable[[], str]) -> int:
    for side, writer in ending.writers.items():
        with ending.storing():
            if not (isinstance(study, Measurement) and ending.code):
                conclude(study, writer, side)
        if not ending.error:
            with contextlib.suppress(StoreError):  # a checksum is only a help
                writer.seal()
    answer = ending.code
    # A run that was stopped ends with the code that says so, even where the terminal is gone that would show it.
    with contextlib.suppress(StoreError, OSError) if ending.code else contextlib.nullcontext():
        answer = show(ending)
        if ending.format == "table":
            _say_saved([*ending.writers.values()], then)
        for side, writer in ending.writers.items():
            failed = any(result.status == "crashed" or result.detail for result in ending.run(side).results)
            if failed and store.log_path(writer.path).exists():
                say(f"Full errors and output of the workers: {store.log_path(writer.path)}")
    if ending.error:
        raise StoreError(ending.error.cause, fix()) from ending.error
    return ending.code or answer


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
        fix = error.fix
        for name, text in (("out", " with --out"), ("resume", ", or continue that run with --resume")):
            fix = fix if hasattr(options, name) else fix.replace(text, "")
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


def _say_saved(writers: Sequence[store.RunWriter], then: str) -> None:
    ids, name, part = [], "", ""
    for writer in writers:
        with contextlib.suppress(StoreError):
            stored, run = store.load(writer.path), writer.read()
            if stored.header == run.header:
                ids.append(f"{run.header.id} ({run.header.label})" if len(writers) > 1 else run.header.id)
                name = run.header.id if writer.path.parent == store.home() else str(writer.path)  # for other commands
                part = part if stored == run else "in part "
    if ids:
        hint(f"Saved {part}as {' and '.join(ids)}: {then.format(name)}")


def record_of(kind: type[Record], options: object, **more: Any) -> Record:
    return kind(**{name: getattr(options, name) for name in kind.__struct_fields__ if hasattr(options, name)} | more)


def hold_machine(options: HoldOptions) -> AbstractContextManager[None]:
    """The machine's lock, as --wait and --share say; none for a dry run."""
    if options.dry_run:
        return contextlib.nullcontext()
    waiting = "Waiting for another run on this machine:"
    return store.machine_lock(options.wait, options.share, on_wait=lambda holder: say(f"{waiting} {holder}"))


def look(devices: Sequence[str] | None, cases: Iterable[Case]) -> Machine:
    """The machine with these devices, or all. Prints what would spoil the figures of these cases."""
    avoid_missing_instructions(devices)
    with noted("looking at the machine …"):
        machine, cautions = look_around(devices, cases)
    for caution in cautions:
        _warn(f"{caution.cause}. {caution.fix}")
    return machine


def avoid_missing_instructions(devices: Sequence[str] | None) -> None:
    """Keep oneDNN from AMX where the CPU announces it without having it. The user's own choice stays."""
    amx = announced_amx() if devices is None or "cpu" in devices else None
    if amx is None or os.environ.get(VARIABLE):
        return
    known = store.read_note("instructions", amx)
    if known is None:
        with noted("trying the AMX instructions of this CPU …"):
            known = {True: b"missing", False: b"present", None: None}[lacks_amx()]
        if known:
            with contextlib.suppress(OSError):  # then it is tried again the next time
                store.keep_note("instructions", amx, known)
    if known == b"missing":
        os.environ[VARIABLE] = SAFE
        _warn(f"This CPU announces AMX but does not have it: oneDNN uses {SAFE} instead ({VARIABLE})")


def _warn(text: str) -> None:
    say(fill(f"! {text}.", terminal_width(), subsequent_indent="  "))


def hint_at_limits(run: Run) -> None:
    """Advise to measure the machine's limits where results could be compared with them and none are known."""
    counted = [each for each in run.results if each.status == "ok" and each.work and each.work.flops]
    is_real = any(not each.case.device.startswith("fake") for each in counted)
    if is_real and not any(each.peak for each in run.results):
        hint("To see what share of this machine's peak this is, measure the peak once: torchmark limits")
