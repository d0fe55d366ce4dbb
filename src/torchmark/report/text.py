"""Text from files, names and other programs, made safe: a terminal obeys nothing in it."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record", bound=msgspec.Struct)

# Control, format (such as bidi marks), surrogates, unassigned, line and paragraph ends.
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Cn", "Zl", "Zp"))
_BREAKS = re.compile(r"[\t\r\n\v\f\x85\u2028\u2029]+")
_UNDECODABLE = re.compile(r"[\ud800-\udfff]")  # of bytes that are not UTF-8, as in file names


class Drawn(str):
    """Text that was cleaned before our colours were added: printed unchanged."""


def clean(text: str) -> str:
    """One line without characters that a terminal or page would obey."""
    if text.isascii() and text.isprintable():
        return text
    text = _UNDECODABLE.sub("\ufffd", _BREAKS.sub(" ", text))
    return "".join(character for character in text if unicodedata.category(character) not in _UNSAFE)


def printable(text: str) -> str:
    """Safe for a terminal, line by line."""
    return text if isinstance(text, Drawn) else "\n".join(map(clean, text.split("\n")))


def escape_json(text: str) -> str:
    """The same JSON, with all that `clean` would remove as escapes."""

    def escaped(found: re.Match[str]) -> str:
        if unicodedata.category(found[0]) not in _UNSAFE:
            return found[0]
        return re.sub("(....)", r"\\u\1", found[0].encode("utf-16-be", "surrogatepass").hex())

    return re.sub(r"[^\n -~]", escaped, text)


def clean_record(record: Record) -> Record:
    return record if is_plain(record) else msgspec.convert(clean_values(msgspec.to_builtins(record)), type(record))


def is_plain(value: Any) -> bool:
    """Whether nothing needs cleaning: that would be escaped or not ASCII, except for DEL."""
    try:
        written = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return False
    return written.isascii() and b"\\" not in written and b"\x7f" not in written


def clean_values(value: Any, cleaner: Callable[[str], str] = clean) -> Any:
    """Plain data with cleaned strings, also as keys."""
    if isinstance(value, str):
        return cleaner(value)
    if isinstance(value, dict):
        return {cleaner(str(key)): clean_values(inner, cleaner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], float)):
        return [clean_values(inner, cleaner) for inner in value]
    return value  # a number, or many samples without strings


def shorten(text: str, length: int = 400) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
