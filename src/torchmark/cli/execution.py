"""Executes what measures: stores every event at once, shows progress, and ends in order on signals and full disks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torchmark.cli.output import hint, say
from torchmark.cli.progress import ProgressLine
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, StoreError
from torchmark.library import store_event
from torchmark.measure.lifecycle import ending_handlers, set_handlers
from torchmark.measure.machine import keep_awake
from torchmark.measure.process import kill_all
from torchmark.measure.session import Covered, Finished, Started
from torchmark.records import Run, RunHeader
from torchmark.store import RunWriter, check_writable, home, load, log_path, new_path
from torchmark.studies.study import Activity, Announcement, Event

AGAIN_S = 0.1  # until a finalizer has ended

Announce = Callable[[Any], str]  # the words for a study's own announcements


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
        """Send a signal again that arrived in a finalizer, where Python drops exceptions."""
        error = unraisable.exc_value
        if not isinstance(error, Interrupted):
            report_unraisable(unraisable)
            return
        set_handlers(dict.fromkeys(kept, once))
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), error.number)).start()

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


class Ending:
    """How measuring ended: all done, stopped by a signal, or because a run file could not be written.

    Used as a context, it catches and records StoreError, so that what was measured is still shown.
    """

    def __init__(self) -> None:
        self.code = EXIT_FINE
        self.error: StoreError | None = None

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, StoreError):
            self.code, self.error = error.exit_code, self.error or error
        return isinstance(error, StoreError)

    def report(self, show: Callable[[], int], fix: Callable[[], str] = lambda: "Fix that, then start again") -> int:
        """Show what was measured. Then raise the error that ended it, or return the exit code."""
        code = self.code
        # A run that was stopped ends with the code that says so, even where the terminal is gone that would show it.
        with contextlib.suppress(StoreError, OSError) if code else contextlib.nullcontext():
            code = show()
        if self.error:
            raise StoreError(self.error.cause, fix()) from self.error
        return self.code or code


def execute(
    events: Iterable[Event],
    unfinished: Callable[[], Iterable[Event]],
    writer_of: Callable[[str], RunWriter],
    progress: ProgressLine,
    budget_s: float,
    announce: Announce = str,
    covered: Callable[[], None] = lambda: None,
) -> Ending:
    """Store every event before the next one is asked for; `covered` is called when each case has had a process.

    A signal, or a run file that cannot be written, ends it early. `unfinished` is stored after a signal.
    """
    ending = Ending()
    progress.expect(budget_s)
    try:
        with ending, orderly_end(), keep_awake():
            for event in events:
                if isinstance(event, Started):
                    progress.started(event.case, event.process)
                store_event(event, writer_of)
                _show(event, progress, announce, covered)
    except Interrupted as interrupt:
        ending.code = interrupt.exit_code
    finally:
        if isinstance(events, Generator):
            events.close()  # ends its processes
        progress.clear()
    if ending.code and not ending.error:
        with ending:
            for event in unfinished():
                store_event(event, writer_of)
    return ending


def _show(event: Event, progress: ProgressLine, announce: Announce, covered: Callable[[], None]) -> None:
    match event:
        case Finished(result, process):
            progress.finished(result, process)
        case Activity(text):
            progress.note(text)
        case Announcement():
            progress.mark(announce(event))
        case Covered():
            covered()


@contextlib.contextmanager
def new_run(header: RunHeader, out: Path | None = None) -> Iterator[RunWriter]:
    """The file of a new run, at `out` or among the others."""
    path = out or new_path(header)
    try:
        check_writable(path)
    except StoreError as error:
        if isinstance(error.__cause__, FileExistsError) and not header.command.startswith("torchmark run "):
            raise StoreError(error.cause, "Choose another name with --out") from error  # only `run` has --resume
        raise
    with announced(RunWriter.create(path, header)) as writer:
        yield writer


@contextlib.contextmanager
def announced(writer: RunWriter) -> Iterator[RunWriter]:
    """Say at the end what happened to the file meanwhile."""
    try:
        with writer:
            yield writer
    finally:
        for note in dict.fromkeys(writer.notes):
            hint(f"! {note}.")


def shown_run(writer: RunWriter, format: str) -> Run:  # noqa: A002
    """The run to show. Formats other than the table are meant to be passed on, so they get only what may be shared."""
    return writer.local_run if format == "table" else writer.run


def exit_code_of(run: Run) -> int:
    """Whether anything was measured."""
    return EXIT_FINE if any(result.status == "ok" for result in run.results) else EXIT_NOTHING_MEASURED


def say_saved(*writers: RunWriter, then: str = "torchmark show {}") -> None:
    """Say how to see runs again, as far as their files hold them."""
    found = [(writer, run) for writer in writers if (run := stored_run(writer))]
    if found:
        part = "" if all(run == writer.run for writer, run in found) else "in part "
        ids = [f"{run.header.id} ({run.header.label})" if len(writers) > 1 else run.header.id for _, run in found]
        hint(f"Saved {part}as {' and '.join(ids)}: {then.format(name_of(found[-1][0]))}")


def name_of(writer: RunWriter) -> str:
    """What other commands call the run: its file, unless that is in the folder where ids are looked for."""
    return writer.run.header.id if writer.path.parent == home() else str(writer.path)


def stored_run(writer: RunWriter) -> Run | None:
    """What the file of a run holds of it."""
    with contextlib.suppress(StoreError):
        run = load(writer.path)
        return run if run.header == writer.run.header else None
    return None


def say_log(run: Run, path: Path) -> None:
    """Say where the reason for a crash may be found."""
    failed = any(result.status == "crashed" or result.detail for result in run.results)
    if failed and log_path(path).exists():
        say(f"Full errors and output of the workers: {log_path(path)}")
