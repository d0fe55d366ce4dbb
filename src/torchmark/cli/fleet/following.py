"""What a person sees while a fleet works: results as they come in, and below them how every node stands."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from torchmark.cli.fleet.engines import members
from torchmark.errors import FleetError
from torchmark.fleet.contract import UNDER_WAY
from torchmark.fleet.standing import Standing
from torchmark.report.console import Harmless
from torchmark.report.figures import margin, step_time
from torchmark.report.fleet import status_table, summary
from torchmark.report.text import clean

SHORTEST_S, LONGEST_S = 0.5, 5.0  # between two looks: schedulers are shared, and nobody watches every second
PATIENCE_S = 300.0  # with a scheduler that does not answer
_ROOM = 6  # lines of a terminal that are left to results


class Board:
    """Writes to stderr: each result once, each change of a state where nobody watches, else a table that changes."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._told: set[tuple[str, str]] = set()
        self._states: dict[str, str] = {}

    def show(self, standings: Sequence[Standing]) -> bool:
        """Whether there was anything new."""
        news = [*self._news(standings)]
        for line in news:
            self._console.print(Text(clean(line)), overflow="ellipsis", no_wrap=True)
        if self._live:
            self._live.update(Harmless(self._table(standings)), refresh=True)
        return bool(news)

    def _news(self, standings: Sequence[Standing]) -> Iterator[str]:
        for each in standings:
            label = each.task.label
            yield from (f"{label}: {text}" for text in self._results(each))
            if self._states.get(each.task.name) != each.state:
                self._states[each.task.name] = each.state
                if not self._live:
                    yield f"{label}: {each.state}{f' ({each.reason})' if each.reason else ''}"

    def _results(self, standing: Standing) -> Iterator[str]:
        """A case once all its processes are through, or nothing more will come."""
        run = standing.run
        for result in run.results if run else ():
            key = standing.task.name, result.case.text
            whole = len(result.processes) >= (run.header.processes if run else 1) or result.status != "ok"
            if key in self._told or not (whole or standing.state not in UNDER_WAY) or result.status == "interrupted":
                continue
            self._told.add(key)
            estimate = result.estimate
            figure = f"{step_time(estimate)} {margin(estimate)} {estimate.verdict}" if estimate else ""
            yield f"{result.case.text}: {figure if result.status == 'ok' else result.status}"

    def _table(self, standings: Sequence[Standing]) -> Group:
        """As many jobs as there is room for, those that run first."""
        room = max(self._console.height - _ROOM, 3)
        first = sorted(standings, key=lambda each: (each.state != "running", each.state != "waiting"))[:room]
        shown = members([each for each in standings if each in first], private=True)
        return Group(Text(summary(members(standings)), style="bold"), status_table(shown))


@contextlib.contextmanager
def board() -> Iterator[Board]:
    """On a terminal a table that changes, elsewhere plain lines."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not sys.stderr.isatty():
        yield Board(Console(stderr=True, highlight=False, markup=False, emoji=False, width=200), None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Board(console, live)


def follow(look: Callable[[], tuple[Standing, ...]], give_up: Callable[[Sequence[Standing]], bool]) -> None:
    """Show how the jobs stand until none waits or runs, or `give_up` says that nothing will come of the rest."""
    pause_s, heard = SHORTEST_S, time.monotonic()
    with board() as shown:
        while True:
            try:
                standings = look()
                heard = time.monotonic()
                changed = shown.show(standings)
                if not any(each.state in UNDER_WAY for each in standings):
                    return
                if give_up(standings):
                    shown.show(look())
                    return
            except FleetError:  # a scheduler that is busy or being restarted is no reason to leave its jobs alone
                changed = False
                if time.monotonic() - heard > PATIENCE_S:
                    raise
            pause_s = SHORTEST_S if changed else min(pause_s * 1.5, LONGEST_S)
            time.sleep(pause_s)
