"""What may leave this machine: fields from a list, each with the form that its values have.

All lines that are written go through this, whether into a run file or an export. Messages of other programs are not
among the fields: they are in the local log, see `local_log`. So texts here are torchmark's own, and names are those of
hardware, software, and what the user calls things: labels, model files, parameters and metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torchmark.settings import (
    KEYS,
    PLUGIN,
    may_be_told,
    shareable_build,
    shareable_hardware,
    shareable_system,
    shareable_version,
)

GONE = "…"
LONGEST_TEXT, LONGEST_NAME = 600, 200
_TEXTS = ("reason", "evidence", "cause", "cure", "provenance", "method", "note")
_WHOLE = ("id", "created", "cases", "case", "sha256", "command")  # cases, and what is made of them
_GIVEN: dict[str, Callable[[str], str]] = {
    "label": str,
    "os": shareable_system,
    "python": shareable_version,
    "torch": shareable_version,
    "torch_build": shareable_build,
    **dict.fromkeys(("cpu", "power_mode", "model", "driver", "capability"), shareable_hardware),
}
_TABLES = dict.fromkeys(("params", "ways", "metrics", "phases_s", "shares"), "") | {"provenance": "provenance"}
_NAME = re.compile(r"[\w(][\w .,:;()+@=%*&®™'-]*")
_MODEL_FILE = re.compile(r"\.(py|json)(:|$)")


def shareable(line: Any) -> Any:
    """The plain data of a line as it may be written and sent around."""
    return _fields(line, "")


def _fields(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name == "settings":
            return {key: _setting(key, inner) for key, inner in value.items() if key in KEYS}
        if name in _TABLES:  # the keys are names, and none of them that of a field
            return {_name(key): _fields(inner, _TABLES[name]) for key, inner in value.items()}
        return {key: _fields(inner, key) for key, inner in (_result(value) if name == "result" else value).items()}
    if isinstance(value, list | tuple):
        return [_fields(inner, name) for inner in value]
    if not isinstance(value, str) or name in _WHOLE:
        return value
    if name in _GIVEN:
        return _GIVEN[name](value)[:LONGEST_NAME] or (GONE if value else "")
    return value[:LONGEST_TEXT] if name in _TEXTS else _name(value)


def _setting(key: str, value: Any) -> Any:
    if key == PLUGIN and isinstance(value, str):
        package, _, version = value.partition(" ")
        value = f"{package} {shareable_version(version)}"
    return value if may_be_told(key, value) else GONE


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Without the detail; of a model file's parameters only those in the case: the defaults are content of the file."""
    case = result["case"]
    kept = {key: value for key, value in result.items() if key != "detail"}
    if _MODEL_FILE.search(case["workload"]):
        kept["params"] = {key: value for key, value in kept["params"].items() if key in case["params"]}
    return kept


def _name(text: str) -> str:
    """A name of hardware or software, a unit, a version. None of them has a slash or a line break."""
    return text[:LONGEST_NAME] if _NAME.fullmatch(text) or not text else GONE
