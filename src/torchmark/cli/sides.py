"""From the options of `torchmark ab` to its two sides: which case, by which interpreter, with which settings."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.devices import ACCELERATOR, first_accelerator
from torchmark.errors import UsageError
from torchmark.measure.cases import Sweep, check_case, expand
from torchmark.measure.elsewhere import find_interpreter
from torchmark.records import Case
from torchmark.studies.ab import Side, first_device

NAMES = ("A", "B")
_SAME_WORK = ("workload", "mode", "params")

Given = TypeVar("Given")


class CaseSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a settings file may change about the case: how the work is done, never the work."""

    device: str | None = None
    dtype: str | None = None
    compile: bool | str | None = None
    transfer: str | None = None
    threads: int | None = None
    ways: dict[str, str] | None = None


class SettingsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A settings file as it is written."""

    environment: dict[str, str | int | float] = field(default_factory=dict)
    case: CaseSettings = CaseSettings()


def find_sides(options: dict[str, Any]) -> tuple[Side, Side]:
    """Both sides; what is given once holds for both of them, what is given twice for A and for B."""
    _check_counts(options)
    texts = _for_both("CASE", options["cases"])
    pythons = _for_both("--python", [find_interpreter(text) for text in options["pythons"]] or [sys.executable])
    files = _for_both("--settings", [read_settings(path) for path in options["settings"]] or [SettingsFile()])
    own = [dict(map(_assignment, options[f"env_{name.lower()}"])) for name in NAMES]
    named = options["device"] if options["device"] != ACCELERATOR else None
    sides = []
    for index, name in enumerate(NAMES):
        environment = {key: str(value) for key, value in files[index].environment.items()} | own[index]
        # A device that nobody named is asked for below, where the interpreter is known.
        case = _case(texts[index], named or files[index].case.device or "cpu")
        sides.append(Side(name, _changed(case, files[index].case), pythons[index], environment))
    unnamed = not named and all("@" not in text for text in texts)
    if unnamed and all(file.case.device is None for file in files):
        device = first_device(sides[0], options["timeout_s"])
        if options["device"]:
            first_accelerator([device])
        sides = [replace(side, case=check_case(replace(side.case, device=device))) for side in sides]
    _check_work(sides[0].case, sides[1].case)
    return sides[0], sides[1]


def read_settings(path: Path) -> SettingsFile:
    """A TOML file with a table `environment`, a table `case`, or both."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), SettingsFile)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name a settings file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "Write tables, as in [environment]") from error
    except msgspec.ValidationError as error:
        valid = f"[environment] with texts and numbers, [case] with {', '.join(CaseSettings.__struct_fields__)}"
        raise UsageError(f"{path} holds what is no setting: {error}", f"Valid: {valid}") from error


def _check_counts(options: dict[str, Any]) -> None:
    """Something given once for both sides is a slip where nothing makes them differ."""
    if not options["cases"]:
        raise UsageError("no case is named", "Name one, such as mlp or mlp/infer@cpu/float32")
    differs = any(len(options[name]) > 1 for name in ("cases", "pythons", "settings"))
    if differs or options["env_a"] or options["env_b"]:
        return
    for name, option in (("pythons", "--python"), ("settings", "--settings")):
        if options[name]:
            raise UsageError(f"{option} is given once, for both sides", f"Give it twice: {option} for A, then for B")


def _for_both(name: str, given: Sequence[Given]) -> Sequence[Given]:
    if len(given) > len(NAMES):
        raise UsageError(f"{name} is given {len(given)} times", "Two are compared: once for A, once for B")
    return given if len(given) == len(NAMES) else [given[0]] * len(NAMES)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"'{text}' sets nothing", "Write NAME=VALUE, as in OMP_NUM_THREADS=1")
    return name, value


def _case(text: str, device: str) -> Case:
    cases = expand(Sweep([text], devices=[device]))
    if len(cases) != 1:
        raise UsageError(f"'{text}' on {device} is {len(cases)} cases", "One is compared: name one device")
    return cases[0]


def _changed(case: Case, settings: CaseSettings) -> Case:
    changes = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    if isinstance(settings.compile, bool):
        changes["compile"] = "on" if settings.compile else "off"
    return check_case(replace(case, **changes))


def _check_work(a: Case, b: Case) -> None:
    """The same work on both sides, or a ratio of their times means nothing."""
    for name in _SAME_WORK:
        if getattr(a, name) != getattr(b, name):
            raise UsageError(
                f"A and B do different work: {a.text} and {b.text}",
                "They may differ in device, dtype, compile, transfer and threads; `torchmark run` measures the rest",
            )
    for case in (a, b):
        if case.workers > 1:
            raise UsageError(
                f"{case.text} takes {case.workers} workers", "ab compares cases of one: leave +workers out"
            )
        if case.protocol != "steady":
            raise UsageError(f"{case.text} is timed as published", "Replay it with `torchmark replicate`")
