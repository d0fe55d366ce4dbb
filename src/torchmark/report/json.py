"""Records as JSON, under their own names and in base units. Nothing in it moves a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from torchmark.report.text import clean_values, escape_json, printable


def pretty(value: Any) -> str:
    """Any value as JSON, indented."""
    return escape_json(msgspec.json.format(_encoded(value), indent=2).decode()) + "\n"


def lines(values: Iterable[Any]) -> str:
    """Each value as JSON on a line of its own."""
    return "".join(escape_json(_encoded(value).decode()) + "\n" for value in values)


def cleaned(value: Any) -> Any:
    """The same data with every line of every string in it cleaned, keys included."""
    try:
        written = msgspec.json.encode(value)
    except UnicodeEncodeError:
        written = b"\\"
    # What is unsafe would be escaped or not ASCII, but for the last character of that.
    is_plain = written.isascii() and b"\\" not in written and b"\x7f" not in written
    return value if is_plain else clean_values(msgspec.to_builtins(value), printable)


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return msgspec.json.encode(clean_values(msgspec.to_builtins(value)))
