"""Progress: one line that changes on a terminal, plain lines elsewhere."""

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from torchmark.measure.engine import Progress
from torchmark.measure.messages import Message, Phase
from torchmark.records import Case, Result
from torchmark.report.figures import margin, step_rate, step_time
from torchmark.report.text import clean, printable
from torchmark.report.units import duration
from torchmark.report.units import rate as units_rate

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


class ProgressLine:
    """Rows above one line that changes, on a terminal; else a line per process. Only events write: no spinner."""

    def __init__(self, cases: Sequence[str] = (), stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.live = self._stream.isatty()  # whether a person watches
        self._positions = {text: number for number, text in enumerate(cases, 1)}
        self._name_width = min(max(map(len, cases), default=0), NAME_WIDTH)
        self._count = 0
        self._case, self._label, self._began, self._deadline = "", "", 0.0, 0.0

    def note(self, text: str) -> None:
        self._label = text
        self._show(text)

    def mark(self, text: str) -> None:
        """Show that a part is done: on the line that changes, or as a line of its own without a terminal."""
        if self.live:
            self.note(text)
        else:
            self._write(clean(text) + "\n")

    def expect(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + seconds

    def started(self, case: Case, process: int = 0) -> None:
        self._count += 1
        turn = f" process {process + 1}" if process else ""
        position = self._positions.get(case.text)
        place = f"[{position}/{len(self._positions)}]" if position else f"[{self._count}]"  # a search has no total
        self._case, self._label = case.text, f"{place}{turn} {case.text}"
        self._show(self._label, " · starting")

    def heard(self, message: Message, who: str = "") -> None:
        if isinstance(message, Phase):
            self._show(self._label, f" · {who and who + ': '}{PHASES.get(message.name, message.name)}")
        elif isinstance(message, Progress):
            self._show(self._label, f" · {duration(message.center_s)}")

    def finished(self, result: Result, process: int = 0) -> None:
        """On a terminal, a row for each case as soon as it has a figure; elsewhere a line for each process."""
        if not self.live:
            estimate = result.estimate
            known = estimate and (estimate.spread is not None or estimate.center_s <= 0)
            figure = f"{step_time(estimate)} {margin(estimate) if known else ''}".rstrip() if estimate else ""
            label = self._label if result.case.text == self._case else result.case.text  # one that never started
            self._write(clean(f"{label}: {figure if result.status == 'ok' else result.status}") + "\n")
        elif process == 0:
            name = _cut(result.case.text, self._name_width or NAME_WIDTH).ljust(self._name_width)
            figures = f"  {result.status}"
            if result.status == "ok" and result.estimate:
                rate = units_rate(step_rate(result), result.work.unit if result.work else "")
                figures = f"  {step_time(result.estimate):>8}  {rate:>18}"
            self.scroll(name + figures)

    def scroll(self, text: str) -> None:
        if self.live:
            self._write(f"\r\033[K{printable(text)}\n")

    def clear(self) -> None:
        if self.live:
            self._write("\r\033[K")

    def _show(self, text: str, news: str = "") -> None:
        """The time that is spent and left, and the text, cut to the terminal's width; `news` is cut last."""
        if not self.live:
            return
        bar, width = "", shutil.get_terminal_size((80, 24)).columns - 1
        if self._deadline:
            now = time.monotonic()
            seconds = max(round(self._deadline - now), 0)
            filled = round(BAR_WIDTH * min((now - self._began) / max(self._deadline - self._began, 1e-9), 1.0))
            bar = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {seconds // 60}:{seconds % 60:02} left  "
        line = bar + _cut(clean(text), max(width - len(bar) - len(news), 0)) + clean(news)
        self._write(f"\r\033[K{line[:width]}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed is no reason to stop measuring
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
