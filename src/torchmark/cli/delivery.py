"""Where a report goes: stdout, or a file that is never left half-written and never replaces somebody else's."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from torchmark.cli.output import emit, say
from torchmark.errors import StoreError, UsageError
from torchmark.report.text import clean
from torchmark.report.units import size
from torchmark.store.files import write_whole

STANDARD_OUTPUT = Path("-")
_BEGINNING = 4096  # bytes in which a file of ours says that it is one
_PATIENCE_S = 2.0


def deliver(content: str | bytes, out: Path, force: bool = False) -> None:
    """Write it, and say on stderr where it went and how large it is."""
    if out == STANDARD_OUTPUT:
        _to_standard_output(content)
        return
    if not force:
        _check_replaceable(out)
    whole = content.encode() if isinstance(content, str) else content
    try:
        write_whole(out, [whole])
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}", "Name another place with --out") from error
    say(f"wrote {clean(str(out))} ({size(len(whole))})")


def _to_standard_output(content: str | bytes) -> None:
    if isinstance(content, str):
        emit(content)
        return
    if sys.stdout.isatty():
        raise UsageError("a picture would only garble the terminal", "Send it to a file: --out card.png")
    sys.stdout.buffer.write(content)


def _check_replaceable(out: Path) -> None:
    """A page or a card of ours may be made anew; what else is there may be dear to somebody."""
    if not out.is_file():
        return
    from torchmark.report.page import is_own_page

    try:
        with out.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except OSError as error:
        raise StoreError(f"cannot read {out}: {error.strerror}", "Name another place with --out") from error
    if beginning and not is_own_page(beginning):
        raise UsageError(f"{out} is there already and not a report", "Name another file, or add --force")


class ChartCount:
    """Counts the charts that are drawn, on one line, once it takes long enough for somebody to wonder."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._began, self._count, self._said = time.monotonic(), 0, False

    def __enter__(self) -> ChartCount:
        return self

    def add(self) -> None:
        self._count += 1
        if time.monotonic() - self._began < _PATIENCE_S or (self._said and not self._live):
            return
        self._said = True
        self._stream.write(f"\r\033[Kdrawing charts: {self._count}" if self._live else "drawing charts\n")
        self._stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._said and self._live:
            self._stream.write("\r\033[K")
            self._stream.flush()
