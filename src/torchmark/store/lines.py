"""The lines of a run file: their kinds, how they are written, and how those of any file are read.

Run files are shared, so every line passes through `shareable`. Texts are torchmark's own; names are those of hardware
and software, or the user's: labels, model files, parameters, metrics.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from torchmark import settings
from torchmark.case import Name, Real, Text, Whole
from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Fitting, Limiting, Live, Result, RunHeader, Tuning

HEADER_BYTES = 4 << 20  # twice what the most cases need
LINE_BYTES = 512 << 10  # a result of sixty processes is shorter
SAMPLES_BYTES = 32 << 20  # a million, each with all its digits


class _Line(Struct, frozen=True, tag_field="kind", tag=str.lower):
    """The class name is the kind of the line."""


class Header(_Line, frozen=True):
    schema: int
    header: RunHeader


class Started(_Line, frozen=True):
    case: Text
    process: Whole  # a fresh one, which is about to measure the case


class Samples(_Line, frozen=True):
    case: Text
    process: Whole
    samples_s: Annotated[tuple[Real, ...], Meta(max_length=1_000_000)]  # per step, in order, nothing deleted


class Finished(_Line, frozen=True):
    result: Result  # so far; a later line for the same case replaces it


class Spread(_Line, frozen=True):
    process_spread: Annotated[float, Meta(ge=0, le=1e100)]  # between fresh processes, from the reference case


class Concluded(_Line, frozen=True):
    tuning: Tuning | None = None
    fitting: Fitting | None = None
    limiting: Limiting | None = None
    live: Live | None = None


class Ended(_Line, frozen=True):
    """The run ended normally: nothing is left to measure."""


class Checksum(_Line, frozen=True):
    sha256: Name  # of all bytes before it: detects damage, not forgery


Line = Header | Started | Samples | Finished | Spread | Concluded | Ended | Checksum
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_MALFORMED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class _Version(Struct):
    schema: int
    kind: str = ""


class RunName(Struct, frozen=True):
    id: Name
    created: Name
    label: Name | None = None


class NamedHeader(_Line, frozen=True, tag="header"):  # fast to decode, of any version, even if damaged elsewhere
    header: RunName


class NewerFileError(StoreError):
    """A newer torchmark wrote the file."""


def encode_line(line: Line) -> bytes:
    """One line with its newline: only what may be shared, and nothing that a reader would refuse."""
    plain = line if isinstance(line, Samples) else shareable(msgspec.to_builtins(line))
    try:
        for place in _not_finite(plain, "$"):  # msgspec writes null, which is valid in an optional field
            raise ValueError(f"not a finite number - at `{place}`")
        data = msgspec.json.encode(plain) + b"\n"
        _DECODER.decode(data)
        return data
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        cause = f"a line of the run file cannot be written: {error}"
        raise StoreError(cause, "This is a fault of the measurement: please report it") from error


def _not_finite(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    elif isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _not_finite(inner, f"{place}.{key}" if isinstance(value, dict) else f"{place}[{key}]")


def as_shared(result: Result) -> Result:
    """The result as in a run file: only what may be shared."""
    return msgspec.json.decode(encode_line(Finished(result)), type=Finished).result


def is_samples(raw: bytes) -> bool:
    """By its first bytes, as such lines are long and rarely needed."""
    return raw.startswith(b'{"kind":"samples"')


def decode_line(raw: bytes, schema: int, path: Path, number: int) -> Line:
    """One line of any version as a record; every fault is a StoreError."""
    try:
        if schema == SCHEMA_VERSION or (schema == 1 and is_samples(raw)):  # the form of samples has not changed
            return _DECODER.decode(raw)
        plain = msgspec.json.decode(raw)
        for version in range(schema, SCHEMA_VERSION) if isinstance(plain, dict) else ():
            plain = UPGRADES[version](plain)
        return cast("Line", msgspec.convert(plain, Line))
    except _MALFORMED as error:
        raise damaged(path, number, str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # of an upgrade
        raise damaged(path, number, f"not a line of schema {schema}: {error!r}") from error


def decode_schema(raw: bytes, path: Path) -> int:
    """The schema of the file, from its first line; an error if this torchmark cannot read it."""
    try:
        first, fault = msgspec.json.decode(raw, type=_Version), "line 1 is no header"
    except _MALFORMED as error:
        first, fault = _Version(0), f"line 1: {error}"
    if first.kind != "header":
        raise StoreError(f"{path} is not a run file: {fault}", "Run files are written by `torchmark run`")
    schema = first.schema
    if schema > SCHEMA_VERSION:
        newer = f"schema is {schema}, newer than the {SCHEMA_VERSION} that this torchmark reads"
        raise NewerFileError(f"{path}, line 1: {newer}", "Upgrade torchmark")
    if schema < 0 or any(version not in UPGRADES for version in range(schema, SCHEMA_VERSION)):
        raise StoreError(f"{path}, line 1: schema is {schema}, which does not exist", "Use another copy of the file")
    return schema


def damaged(path: Path, number: int, what: str) -> StoreError:
    return StoreError(f"{path}, line {number}: {what}", "The file is damaged or was edited: use another copy of it")


GONE = "…"
LONGEST_TEXT, LONGEST_NAME = 600, 200
_TEXTS = ("reason", "evidence", "cause", "cure", "provenance", "method", "note")
_WHOLE = ("id", "created", "cases", "case", "sha256", "command")  # cases, and texts made of them
_GIVEN: dict[str, Callable[[str], str]] = {
    "label": str,
    "os": settings.shareable_system,
    "python": settings.shareable_version,
    "torch": settings.shareable_version,
    "torch_build": settings.shareable_build,
    **dict.fromkeys(("cpu", "power_mode", "model", "driver", "capability"), settings.shareable_hardware),
}
_TABLES = dict.fromkeys(("params", "ways", "metrics", "phases_s", "shares"), "") | {"provenance": "provenance"}
_NAME = re.compile(r"[\w(][\w .,:;()+@=%*&®™'-]*")  # no slash and no line break


def shareable(value: Any, name: str = "") -> Any:
    """What may be shared of the plain data of a line, or of a field of this name."""
    match value:
        case dict() if name == "settings":
            kept = {key: inner for key, inner in value.items() if key in settings.SETTINGS}
            if isinstance(plugin := kept.get(settings.PLUGIN), str):
                package, _, version = plugin.partition(" ")
                kept[settings.PLUGIN] = f"{package} {settings.shareable_version(version)}"
            return {key: inner if settings.is_shareable(key, inner) else GONE for key, inner in kept.items()}
        case dict() if name in _TABLES:  # its keys are names, not fields
            return {_name(key): shareable(inner, _TABLES[name]) for key, inner in value.items()}
        case dict():
            kept = {key: inner for key, inner in value.items() if (name, key) != ("result", "detail")}
            # A model file's default parameters are content of the file.
            if name == "result" and re.search(r"\.(py|json)(:|$)", value["case"]["workload"]):
                given = value["case"]["params"]
                kept["params"] = {key: inner for key, inner in value["params"].items() if key in given}
            return {key: shareable(inner, key) for key, inner in kept.items()}
        case list() | tuple():
            if name == "cautions":
                value = [{key: each[key] for key in ("kind", "cause", "cure") if key in each} for each in value]
            return [shareable(inner, name) for inner in value]
        case str() if name in _GIVEN:
            return _GIVEN[name](value)[:LONGEST_NAME] or (GONE if value else "")
        case str() if name not in _WHOLE:
            return value[:LONGEST_TEXT] if name in _TEXTS else _name(value)
    return value


def _name(text: str) -> str:
    return text[:LONGEST_NAME] if _NAME.fullmatch(text) or not text else GONE


def _without_messages(line: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had messages of other programs in `reason` and in cautions: they become the local `detail`."""
    if line.get("kind") != "finished":
        return line
    result = line["result"]
    reason, status = result.get("reason"), result["status"]
    if reason and not any(re.fullmatch(form, reason) for form in _OWN_REASONS):
        result |= {"reason": _GENERIC_REASONS.get(status, "a process failed"), "detail": reason}
    for caution in result.get("cautions", ()):
        if caution["kind"] == "process-failed":
            caution["cause"] = result.get("reason") or "a process failed"
    for name, source in result.get("provenance", {}).items():
        result["provenance"][name] = re.sub(r"(NVML refuses): .*", r"\1", source, flags=re.DOTALL)
    return line


_GENERIC_REASONS = {
    "oom": "out of memory",
    "host-oom": "the system ran out of memory",
    "timeout": "it took too long",
    "unsupported": "not supported here",
    "wrong-result": "the numbers were wrong",
    "skipped": "it was skipped",
    "crashed": "it failed",
}
# Version 1's own reasons for a case that raised no exception.
_PHASE, _NUMBER = r"[a-z ]{1,20}", r"[0-9.e+-]{1,12}"
_OWN_REASONS = (
    rf"(the worker|it|rank \d+) (was ended by SIG[A-Z0-9]+|exited with code \d+|stopped answering) during {_PHASE}",
    rf"the system ran out of memory during {_PHASE} and killed (the worker|it|rank \d+)",
    rf"no (result|answer) after {_NUMBER} s; it was busy with: {_PHASE}",
    r"the run was stopped (while it was being (measured|replayed)|before its turn)",
    r"the run died while this case was measured",
    rf"(it needs about \d+ s, and )?\d+ s of the budget of {_NUMBER} s are left for it\. "
    r"Give it more time with --budget, or run it by itself",
    r"it needs about \d+ GiB where there are \d+\. Name the case to try it",
)
# UPGRADES[N] turns a decoded line of version N into one of version N + 1.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _without_messages}
