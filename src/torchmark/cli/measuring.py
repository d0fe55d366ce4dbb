"""What `run` does with a plan: executes it, shows the result, and says how to resume."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices
from torchmark.cli.execution import Ending, execute, exit_code_of, name_of, say_log, say_saved, shown_run, stored_run
from torchmark.cli.machine_setup import hint_at_limits
from torchmark.cli.output import headline_of, print_report, say, terminal_width, use_color
from torchmark.cli.progress import ProgressLine
from torchmark.errors import EXIT_FINE, StoreError
from torchmark.library import known_spread, stored_ceilings
from torchmark.measure.session import Plan, Revised, Session
from torchmark.records import Machine, Run
from torchmark.report import render
from torchmark.report.document import Document, Lines
from torchmark.report.figures import time_by_phase
from torchmark.report.headline import headline_blocks
from torchmark.report.text import Drawn
from torchmark.report.units import duration, relative
from torchmark.store import RunWriter, home, log_path, read_header

WIDER = 1.2


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
    covered = partial(_first_answer, writer, progress) if plan.processes > 1 and format == "table" else lambda: None
    ending = execute(
        session.events(done),
        lambda: map(Revised, session.interrupted()),
        lambda _: writer,
        progress,
        plan.budget_s,
        covered=covered,
    )
    if ending.code == EXIT_FINE:
        with ending:
            writer.ended()
    if not ending.error:
        with contextlib.suppress(StoreError):  # a checksum is only a help
            writer.seal()
    run = shown_run(writer, format)
    for text in widened(before, run) if before else ():
        say(text)
    return ending.report(lambda: _conclude(run, writer, format, ending, prices), partial(_way_on, writer))


def _first_answer(writer: RunWriter, progress: ProgressLine) -> None:
    """Show the headline after the first round on a terminal; the rest of the time makes it more precise."""
    run = writer.run if progress.live else None
    headline = headline_of(run) if run else None
    if run and headline:
        first = replace(headline, commands=(), confidence="")  # one process says nothing about that yet
        more = Lines(["First figures. More processes follow and narrow the ±."])
        document = Document(lambda: [*headline_blocks(first, run.header.machine), more])
        progress.scroll(Drawn("\n" + render(document, "table", terminal_width(), use_color())))


def _conclude(run: Run, writer: RunWriter, format: str, ending: Ending, prices: Prices | None) -> int:  # noqa: A002
    at_home = writer.path.parent == home()
    headline = headline_of(run, "last" if at_home else str(writer.path))
    if headline and ending.error:
        headline = replace(headline, commands=())  # they need the file
    print_report(run, format, prices, headline)
    if ending.code and not ending.error:
        say(f"Not all was measured. Resume: torchmark run --resume {name_of(writer)}")
    if format == "table":
        spent = time_by_phase(run)
        if spent and not headline:
            text = f"{spent} Storing took {duration(writer.seconds)}."
            say(click.wrap_text(text, terminal_width()))
        say_saved(writer)
        hint_at_limits(run)
        say_log(run, writer.path)
    return exit_code_of(run)


def _way_on(writer: RunWriter) -> str:
    """What to do after the file of a run could not be written."""
    resume = f"then resume: torchmark run --resume {writer.path}"
    if stored_run(writer):
        return f"Fix that, {resume}"
    with contextlib.suppress(StoreError):
        if read_header(writer.path) == writer.run.header:
            return f"Fix that, remove what another program has written to that file, {resume}"
    return "Fix that, then start again: that file does not hold the run"


def show_complete(run: Run, name: str, format: str, prices: Prices | None) -> int:  # noqa: A002
    """A run that ended in order is shown as it is."""
    print_report(run, format, prices, headline_of(run, name))
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
