"""A pseudo-terminal, and a judge of what arrives at it."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import threading
import time
import tty
import unicodedata
from collections.abc import Callable

# What may come out: our colours, the progress line, the changing table of a fleet.
ALLOWED = re.compile(r"\x1b\[(?:0|[12]|3[1-6]|[12];3[1-6])m|\r\x1b\[2?K|\r?\x1b\[1A\x1b\[2K|\x1b\[\?25[lh]")
UNSAFE = ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")
BEFORE, AFTER = "qx", "xq"  # around each payload, so that it is found even where it is itself an allowed sequence


class Terminal:
    """A pseudo-terminal in the place of stdout and stderr, and everything that was written to it."""

    def __enter__(self) -> Terminal:
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)  # what is read is what was written
        sys.stdout.flush()
        self._kept = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in self._kept:
            os.dup2(self._slave, number)
        self._seen = bytearray()
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, copy in self._kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(self._slave)

    def capture(self, act: Callable[[], object]) -> tuple[object, str]:
        """What it returns, and what it printed."""
        streams = [io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), "utf-8", write_through=True) for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            answer = act()
        for stream in streams:
            stream.close()
        end = os.urandom(16).hex().encode()
        os.write(self._slave, end)
        while end not in self._seen:
            time.sleep(0.0005)
        text = self._seen[: self._seen.index(end)]
        del self._seen[: len(text) + len(end)]
        return answer, text.decode(errors="surrogateescape")

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self._master, 1 << 16):
                self._seen += piece


def obeyed(text: str, payload: str) -> list[str]:
    """What in this output a terminal would obey, and is not ours."""
    raw = [payload] if BEFORE + payload + AFTER in text and any(map(_is_unsafe, payload)) else []
    return raw + [letter for letter in ALLOWED.sub("", text) if _is_unsafe(letter)]


def _is_unsafe(letter: str) -> bool:
    return letter != "\n" and unicodedata.category(letter) in UNSAFE
