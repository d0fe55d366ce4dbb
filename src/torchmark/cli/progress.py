"""What a person sees while cases are measured: one quiet line that changes, or plain lines where nobody watches."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from torchmark.measure.messages import Message, Phase, Sampled
from torchmark.records import Case, Result
from torchmark.report.figures import margin, step_time
from torchmark.report.units import duration, relative

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
    """Writes to stderr only when something happens: a spinning display would disturb what it shows."""

    def __init__(self, cases: Sequence[str] = (), processes: int = 1, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._positions = {text: number for number, text in enumerate(cases, 1)}
        self._processes, self._count = processes, 0
        self._case, self._label, self._deadline = "", "", 0.0

    def note(self, text: str) -> None:
        """Something that concerns the whole run, for whoever watches."""
        self._show(text, self._left())

    def mark(self, text: str) -> None:
        """A part that is done; where nobody watches a changing line, it leaves one."""
        if self._live:
            self._show(text, self._left())
        else:
            self._print(text)

    def expect(self, seconds: float) -> None:
        """From now on, this much time is left at most."""
        self._deadline = time.monotonic() + seconds

    def started(self, case: Case, process: int = 0) -> None:
        self._count += 1
        turn = f" process {process + 1}/{self._processes}" if self._processes > 1 else ""
        position = self._positions.get(case.text)
        place = f"[{position}/{len(self._positions)}]" if position else f"[{self._count}]"  # a search has no total
        self._case, self._label = case.text, f"{place}{turn} {case.text}"
        self._show(self._label, f" · starting{self._left()}")

    def heard(self, message: Message) -> None:
        """A worker said something."""
        if isinstance(message, Phase):
            self._show(self._label, f" · {PHASES.get(message.name, message.name)}{self._left()}")
        elif isinstance(message, Sampled):
            found = message.progress
            precision = (found.high_s - found.low_s) / 2 / found.center_s if found.center_s > 0 else None
            figure = f"{duration(found.center_s)} {relative(precision)}"
            self._show(self._label, f" · {figure}{self._left()}")

    def finished(self, result: Result) -> None:
        """Where nobody watches a changing line, each finished case leaves one."""
        if self._live:
            return
        estimate = result.estimate
        figure = f"{step_time(estimate)} {margin(estimate)} {estimate.verdict}" if estimate else ""
        label = self._label if result.case.text == self._case else result.case.text  # one that never started
        self._print(f"{label}: {figure if result.status == 'ok' else result.status}")

    def clear(self) -> None:
        if self._live:
            self._write("\r\033[K")

    def _left(self) -> str:
        if not self._deadline:
            return ""
        seconds = max(round(self._deadline - time.monotonic()), 0)
        return f" · at most {seconds // 60}:{seconds % 60:02} left"

    def _show(self, text: str, news: str = "") -> None:
        """The line, cut to the terminal's width; what is new is shown whole as long as it fits."""
        if self._live:
            width = shutil.get_terminal_size((80, 24)).columns - 1
            room = width - len(news)
            line = (text if len(text) <= room else text[: max(room - 1, 0)] + "…") + news
            self._write(f"\r\033[K{line[:width]}")

    def _print(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed is no reason to stop measuring
            self._stream.write(text)
            self._stream.flush()
