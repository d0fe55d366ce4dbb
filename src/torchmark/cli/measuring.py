"""Carries a plan out: shows what happens, keeps every result at once, and says at the end what was found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace
from rich.text import Text

from torchmark.analyze.money import Prices
from torchmark.cli.ceilings import stored_ceilings, tell_of_limits
from torchmark.cli.headlines import headline_of
from torchmark.cli.interrupts import Interrupted, orderly_end
from torchmark.cli.output import emit, hint, say, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, StoreError
from torchmark.measure.awake import keep_awake
from torchmark.measure.session import Covered, Event, Finished, Plan, Revised, Session, SpreadFound, Started
from torchmark.records import Machine, Result, Run, RunHeader
from torchmark.report import render
from torchmark.report.console import draw
from torchmark.report.figures import time_by_phase
from torchmark.report.headline import render_headline
from torchmark.report.units import duration, relative
from torchmark.store import RunWriter, check_writable, home, load, log_path, new_path, read_header, scan_runs

RECENT = 10  # earlier runs that are looked at for how far processes differ here
WIDER = 1.2


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

    def report(self, show: Callable[[], int], cure: Callable[[], str] = lambda: "Fix that, then start again") -> int:
        """Show what was measured. Then raise the error that ended it, or return the exit code."""
        code = self.code
        # A run that was stopped ends with the code that says so, even where the terminal is gone that would show it.
        with contextlib.suppress(StoreError, OSError) if code else contextlib.nullcontext():
            code = show()
        if self.error:
            raise StoreError(self.error.cause, cure()) from self.error
        return self.code or code


def measure_until_stopped(measure: Callable[[], object], progress: ProgressLine, budget_s: float) -> Ending:
    """Measure until all is done; a signal or a run file that cannot be written ends it early, in order."""
    ending = Ending()
    progress.expect(budget_s)
    try:
        with ending, orderly_end(), keep_awake():
            measure()
    except Interrupted as interrupt:
        ending.code = interrupt.exit_code
    finally:
        progress.clear()
    return ending


def measure_plan(
    plan: Plan,
    machine: Machine,
    writer: RunWriter,
    done: dict[str, Any],
    format: str,  # noqa: A002
    prices: Prices | None = None,
    before: Run | None = None,
) -> int:
    """Measure, show and keep; a disk that fails says how to go on. `before` is the run that is resumed."""
    progress = ProgressLine([case.text for case in plan.cases])
    history = known_spread(machine, writer.path)
    session = Session(plan, machine, progress.heard, log_path(writer.path), stored_ceilings(machine), history)
    covered = partial(_first_answer, writer, progress) if plan.processes > 1 and format == "table" else None
    ending = carry_out(session.events(done), session.interrupted, writer, progress, plan.budget_s, covered)
    if ending.code == EXIT_FINE:
        with ending:
            writer.ended()
    if not ending.error:
        with contextlib.suppress(StoreError):  # a checksum is only a help
            writer.seal()
    run = written(writer, format)
    for text in widened(before, run) if before else ():
        say(text)
    return ending.report(lambda: _conclude(run, writer, format, ending, prices), partial(_way_on, writer))


def carry_out(
    events: Iterable[Event],
    interrupted: Callable[[], Iterable[Result]],
    writer: RunWriter,
    progress: ProgressLine,
    budget_s: float,
    covered: Callable[[], None] | None = None,
) -> Ending:
    """Every result is on the disk before the next process starts. `covered` is called once every case has had its first
    process."""

    def measure() -> None:
        for event in events:
            if isinstance(event, Started):
                progress.started(event.case, event.process)
            _keep(event, writer)
            if isinstance(event, Finished):
                progress.finished(event.result, event.process)
            elif isinstance(event, Covered) and covered:
                covered()

    ending = measure_until_stopped(measure, progress, budget_s)
    if ending.code and not ending.error:
        with ending:
            for result in interrupted():
                writer.finished(result)
    return ending


def _keep(event: Event, writer: RunWriter) -> None:
    """Put on the disk what has just happened."""
    if isinstance(event, Started):
        writer.started(event.case.text, event.process)
    elif isinstance(event, Finished):
        if event.samples_s:
            writer.samples(event.result.case.text, event.process, event.samples_s)
        writer.finished(event.result)
    elif isinstance(event, Revised):
        writer.finished(event.result)
    elif isinstance(event, SpreadFound):
        writer.spread(event.value)


def _first_answer(writer: RunWriter, progress: ProgressLine) -> None:
    """What round 1 says, for a person who watches: the rest of the time makes it more precise."""
    run = writer.run if progress.live else None
    headline = headline_of(run) if run else None
    if run and headline:
        first = replace(headline, commands=(), confidence="")  # one process says nothing about that yet
        parts = render_headline(first, run.header.machine, terminal_width())
        more = Text("\nFirst figures. More processes follow and narrow the ±.")
        progress.scroll(draw([Text(""), *parts, more], terminal_width(), use_color()))


def _conclude(run: Run, writer: RunWriter, format: str, ending: Ending, prices: Prices | None) -> int:  # noqa: A002
    at_home = writer.path.parent == home()
    headline = headline_of(run, "last" if at_home else str(writer.path))
    if headline and ending.error:
        headline = replace(headline, commands=())  # they need the file
    emit(render(run, format, terminal_width(), use_color(), prices, headline))
    if ending.code and not ending.error:
        say(f"Not all was measured. Resume: torchmark run --resume {_name(writer)}")
    if format == "table":
        spent = time_by_phase(run)
        if spent and not headline:
            text = f"{spent} Storing took {duration(writer.seconds)}."
            say(click.wrap_text(text, terminal_width()))
        say_saved(writer)
        tell_of_limits(run)
        tell_of_log(run, writer.path)
    return exit_code_of(run)


def exit_code_of(run: Run) -> int:
    """Whether anything was measured."""
    return EXIT_FINE if any(result.status == "ok" for result in run.results) else EXIT_NOTHING_MEASURED


def say_saved(*writers: RunWriter, then: str = "torchmark show {}") -> None:
    """Say how to see runs again, as far as their files hold them."""
    found = [(writer, run) for writer in writers if (run := _stored(writer))]
    if found:
        part = "" if all(run == writer.run for writer, run in found) else "in part "
        ids = [f"{run.header.id} ({run.header.label})" if len(writers) > 1 else run.header.id for _, run in found]
        hint(f"Saved {part}as {' and '.join(ids)}: {then.format(_name(found[-1][0]))}")


def _name(writer: RunWriter) -> str:
    """What other commands call the run: its file, unless that is in the folder where ids are looked for."""
    return writer.run.header.id if writer.path.parent == home() else str(writer.path)


def _stored(writer: RunWriter) -> Run | None:
    """What the file of a run holds of it."""
    with contextlib.suppress(StoreError):
        run = load(writer.path)
        return run if run.header == writer.run.header else None
    return None


def _way_on(writer: RunWriter) -> str:
    """What to do after the file of a run could not be written."""
    resume = f"then resume: torchmark run --resume {writer.path}"
    if _stored(writer):
        return f"Fix that, {resume}"
    with contextlib.suppress(StoreError):
        if read_header(writer.path) == writer.run.header:
            return f"Fix that, remove what another program has written to that file, {resume}"
    return "Fix that, then start again: that file does not hold the run"


def show_complete(run: Run, name: str, format: str, prices: Prices | None) -> int:  # noqa: A002
    """A run that ended in order is shown as it is."""
    emit(render(run, format, terminal_width(), use_color(), prices, headline_of(run, name)))
    more = f"torchmark run --resume {name} --budget 2m"
    say(f"This run is complete; nothing was measured.\nAdd processes to it: {more}")
    return EXIT_FINE


def widened(before: Run, after: Run) -> Iterator[str]:
    """Rows whose interval more processes have made wider: nothing gets worse in silence."""
    known = {result.case.text: result.estimate for result in before.results if result.estimate}
    for result in after.results:
        old, new = known.get(result.case.text), result.estimate
        if old and new and old.spread is not None and new.spread is not None and new.precision > WIDER * old.precision:
            change = new.center_s / old.center_s - 1
            yield (
                f"{result.case.text}: ± widened from {relative(old.precision)} to {relative(new.precision)}, "
                f"because later processes disagree; the figure moved by {change:+.1%}"
            )


def known_spread(machine: Machine, path: Path) -> float | None:
    """How far fresh processes differed in the last run on this machine."""
    for stored in islice(scan_runs(), RECENT):
        if stored.path != path and stored.header and stored.header.machine == machine:
            with contextlib.suppress(StoreError):  # a file that is damaged says nothing
                spread = load(stored.path).process_spread
                if spread is not None:
                    return spread
    return None


def written(writer: RunWriter, format: str) -> Run:  # noqa: A002
    """The run to show. Other formats than the table are made to be passed on: they get only what may be shared."""
    return writer.local_run if format == "table" else writer.run


def tell_of_log(run: Run, path: Path) -> None:
    """Where a crash may be explained."""
    failed = any(result.status == "crashed" or result.detail for result in run.results)
    if failed and log_path(path).exists():
        say(f"Full errors and output of the workers: {log_path(path)}")
