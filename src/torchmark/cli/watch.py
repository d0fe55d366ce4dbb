"""The live rate of one case: a line that changes every second on a terminal, a line a second elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from torchmark.measure.messages import Message, Phase, Sampled
from torchmark.records import Case
from torchmark.report.text import clean
from torchmark.report.units import digits, duration


class RateLine:
    """Shows steps a second, and how the last second compares with the best one."""

    def __init__(self, case: Case, stream: TextIO) -> None:
        self._case, self._stream, self._live = case.text, stream, stream.isatty()
        self._best_s, self._began = 0.0, time.monotonic()

    def heard(self, message: Message) -> None:
        if isinstance(message, Phase) and self._live:
            self._write(f"{self._case} · {message.name}")
        elif isinstance(message, Sampled):
            step_s = message.progress.center_s
            self._best_s = min(self._best_s or step_s, step_s)
            against = f" · {step_s / self._best_s - 1:+.0%} against the best second"
            figure = f"{digits(1 / step_s)} steps/s · {duration(step_s)} a step"
            self._write(f"{self._case} · {message.progress.elapsed_s:4.0f} s · {figure}{against}")

    def end(self) -> None:
        if self._live:
            self._stream.write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\033[K{clean(text)}" if self._live else clean(text) + "\n")
        self._stream.flush()
