"""Numbers and nouns in sentences."""

import re
from collections.abc import Sequence


def counted(count: float, noun: str) -> str:
    """1 process, 3 processes"""
    return f"{count:.0f} {noun if round(count) == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """samples, passes, copies"""
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
