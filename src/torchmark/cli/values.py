"""How people write times, shares and sizes on the command line: 90s, 5m, 1h30m; 1%, 0.01; 8GiB."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|$)")
_WHOLE = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h))*(?:{_NUMBER})?")
LONGEST_S = 30 * 24 * 3600.0
_MOST_BYTES = 1 << 60


class Duration(click.ParamType[float]):
    """A time span above zero, in seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        if not text or not _WHOLE.fullmatch(text):
            self.fail(f"'{value}' is not a time. Write 30s, 5m or 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        if not 0 < seconds <= LONGEST_S:
            self.fail(f"'{value}' must be above 0 and at most 30 days. Write 30s, 5m or 1h30m", param, ctx)
        return seconds


class Bytes(click.ParamType[int]):
    """An amount of memory above zero, in bytes: GiB are 1024³ of them, GB 1000³."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(rf"({_NUMBER})\s*([kmgt]?)(i?)b?", str(value).strip().lower())
        size = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ") if found else 0.0
        if found and found[0] == found[1]:
            self.fail(f"'{value}' has no unit. Write {value}GiB, {value}MB or {value}B", param, ctx)
        if not 1 <= size <= _MOST_BYTES:
            self.fail(f"'{value}' is not an amount of memory. Write 8GiB or 500MB", param, ctx)
        return int(size)


class Share(click.ParamType[float]):
    """A share between 0 and 1, which may be all of it where that makes sense."""

    name = "SHARE"

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(value).strip())
        share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
        if not (0 < share < 1 or (self._whole and share == 1)):
            self.fail(f"'{value}' is not a share between 0 and 1. Write 1% or 0.01", param, ctx)
        return share
