"""Old run files become new ones line by line: one function per version of the stored form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

# From version N to N + 1: UPGRADES[N] is given one decoded line and returns it as N + 1 would have written it.
# Version 1 is the first, so there is nothing to upgrade yet.
UPGRADES: dict[int, Upgrade] = {}


def check_schema(schema: int, place: object) -> None:
    """Refuse a version that this torchmark cannot read."""
    if schema > SCHEMA_VERSION:
        raise StoreError(
            f"{place}, line 1: schema is {schema}, newer than the {SCHEMA_VERSION} that this torchmark reads",
            "Upgrade torchmark",
        )
    if schema < 0 or any(version not in UPGRADES for version in range(schema, SCHEMA_VERSION)):
        raise StoreError(
            f"{place}, line 1: schema is {schema}, which no torchmark ever wrote", "Use another copy of the file"
        )


def upgrade_line(line: Any, schema: int) -> Any:
    """One decoded line of an older version, as the present version would have written it."""
    if not isinstance(line, dict):
        return line  # the typed decoder names the fault
    for version in range(schema, SCHEMA_VERSION):
        line = UPGRADES[version](line)
    return line
