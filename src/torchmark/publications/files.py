"""Reads the data files of the publications that ship with torchmark."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from torchmark.errors import UnknownName
from torchmark.publications.contract import Publication

_FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """The names of all publications."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def find_publication(name: str) -> Publication:
    """The publication with all its figures."""
    if name not in names():
        raise UnknownName("publication", name, names())
    content = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(content | {"tables": list(map(_write_out, content["tables"]))}, Publication)


def _write_out(table: dict[str, Any]) -> dict[str, Any]:
    """The table with what its figures share written into each of them."""
    shared = table.get("shared", {})
    rest = {key: value for key, value in table.items() if key != "shared"}
    return rest | {"figures": [shared | figure for figure in table["figures"]]}
