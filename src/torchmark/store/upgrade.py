"""Old run files become new ones line by line: one function per version of the stored form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

# From version N to N + 1: UPGRADES[N] is given one decoded line and returns it as N + 1 would have written it.


def _without_messages(line: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had messages of other programs in `reason` and in cautions: they become the local `detail`."""
    if line.get("kind") != "finished":
        return line
    result = line["result"]
    reason, status = result.get("reason"), result["status"]
    if reason and not _is_own(reason):
        result |= {"reason": _GENERIC.get(status, "a process failed"), "detail": reason}
    for caution in result.get("cautions", ()):
        if caution["kind"] == "process-failed":
            caution["cause"] = result.get("reason") or "a process failed"
    for name, source in result.get("provenance", {}).items():
        result["provenance"][name] = re.sub(r"(NVML refuses): .*", r"\1", source, flags=re.DOTALL)
    return line


def _is_own(reason: str) -> bool:
    return any(form.fullmatch(reason) for form in _OWN_REASONS)


_GENERIC = {
    "oom": "out of memory",
    "host-oom": "the system ran out of memory",
    "timeout": "it took too long",
    "unsupported": "not supported here",
    "wrong-result": "the numbers were wrong",
    "skipped": "it was skipped",
    "crashed": "it failed",
}
# What torchmark itself said in version 1 about a case that raised no exception. Each matches as a whole.
_PHASE, _NUMBER = r"[a-z ]{1,20}", r"[0-9.e+-]{1,12}"
_OWN_REASONS = [
    re.compile(form)
    for form in (
        rf"(the worker|it|rank \d+) (was ended by SIG[A-Z0-9]+|exited with code \d+|stopped answering) during {_PHASE}",
        rf"the system ran out of memory during {_PHASE} and killed (the worker|it|rank \d+)",
        rf"no (result|answer) after {_NUMBER} s; it was busy with: {_PHASE}",
        r"the run was stopped (while it was being (measured|replayed)|before its turn)",
        r"the run died while this case was measured",
        rf"(it needs about \d+ s, and )?\d+ s of the budget of {_NUMBER} s are left for it\. "
        r"Give it more time with --budget, or run it by itself",
        r"it needs about \d+ GiB where there are \d+\. Name the case to try it",
    )
]
UPGRADES: dict[int, Upgrade] = {1: _without_messages}


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
