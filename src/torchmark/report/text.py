"""Strings from files made safe to print: no control characters, nothing that turns the reading direction."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, TypeVar

import msgspec

from torchmark.records import Run

Record = TypeVar("Record", bound=msgspec.Struct)

# Control, format (bidi marks and zero-width characters among them), surrogates, line and paragraph separators.
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def clean(text: str) -> str:
    """The text on one line, without characters that a terminal or a page would obey instead of showing."""
    if text.isascii() and text.isprintable():
        return text
    spaced = re.sub(r"[\t\r\n\v\f\x85\u2028\u2029]+", " ", text)
    return "".join(character for character in spaced if _is_safe(character))


def _is_safe(character: str) -> bool:
    """Nothing to obey, and nothing that XML cannot hold: the last two of every plane are no characters."""
    return unicodedata.category(character) not in _UNSAFE and ord(character) & 0xFFFE != 0xFFFE


def clean_run(run: Run) -> Run:
    """The run with every string in it cleaned, so that no report has to remember it."""
    return clean_record(run)


def clean_record(record: Record) -> Record:
    """Any record with every string in it cleaned."""
    written = msgspec.json.encode(record)
    if written.isascii() and b"\\" not in written and b"\x7f" not in written:
        return record  # what is unsafe would be escaped, but for the last character of ASCII
    return msgspec.convert(clean_values(msgspec.to_builtins(record)), type(record))


def clean_values(value: Any) -> Any:
    """Plain data with every string in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], float):
            return value  # samples: many, and no strings among them
        return [clean_values(inner) for inner in value]
    return value


def shorten(text: str, length: int = 400) -> str:
    """The beginning of a text that is too long for a table."""
    return text if len(text) <= length else text[: length - 1] + "…"
