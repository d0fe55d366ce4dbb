"""`torchmark ab`: the same case live in two environments, until it is clear which one is faster."""

import sys
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from torchmark.analyze.comparison import LiveSide, gate_live
from torchmark.cli import options as opt
from torchmark.cli.execution import Ending, avoid_missing_instructions, execute, hold_machine, record_of
from torchmark.cli.options import argument, command, option, several
from torchmark.cli.output import emit, print_report
from torchmark.devices import ACCELERATOR, first_accelerator
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UsageError
from torchmark.measure.cases import check_case, expand
from torchmark.measure.process import find_interpreter
from torchmark.report.comparison import live_document, side_line, so_far
from torchmark.report.units import percent
from torchmark.settings import redacted
from torchmark.store import as_shared
from torchmark.studies.ab import Comparison, ComparisonOptions, Side, first_device
from torchmark.studies.study import check_single

Given = TypeVar("Given")


class AbArguments(opt.HoldOptions, opt.GateOptions, opt.DataOptions, opt.FormatOptions):
    cases: tuple[str, ...] = argument(nargs=-1, metavar="CASE [CASE]")
    pythons: tuple[str, ...] = several("Interpreter or environment of A, then of B.", "PATH", "--python")
    settings: tuple[Path, ...] = several("TOML file with the settings of A, then of B.", None, type=opt.FILE)
    env_a: tuple[str, ...] = several("Set this for A; can be given again.", "NAME=VALUE")
    env_b: tuple[str, ...] = several("Set this for B; can be given again.", "NAME=VALUE")
    device: str | None = option("Where to run a CASE that does not say; default: A's first device.", metavar="NAME")
    budget_s: float = option("Time for all, at most.", "--budget", type=opt.DURATION, default="5m")
    target: float | None = option("Go on until the ratio is this precise; default: until it is clear.", type=opt.SHARE)
    timeout_s: float = option("For one answer.", "--timeout", type=opt.DURATION, default="10m")
    label: str = opt.label_field("Both sides are kept as runs: LABEL-a and LABEL-b.", default="ab")


@command(AbArguments)
def ab(options: AbArguments) -> int:
    """Compare one case live in two environments.

    Two interpreters (two versions of torch), two sets of settings, or two ways to run the same work. Pairs of fresh
    processes take turns in random order until it is clear whether B is faster or slower than A, or the same. The
    other environment needs torch, numpy, msgspec and psutil, but not torchmark itself.

    Examples:
      torchmark ab mlp --python old-venv --python new-venv   did the upgrade slow me?
      torchmark ab mlp --env-b OMP_NUM_THREADS=1             what a variable does
      torchmark ab mlp --settings one.toml --settings two.toml
      torchmark ab mlp/train@cpu/float32 mlp/train@cpu/float32+compile
    """
    with hold_machine(options):
        sides = find_sides(options)
        if options.dry_run:
            emit("\n".join(side_line(side.name, side.case, side.python, side.environment) for side in sides))
            return EXIT_FINE
        avoid_missing_instructions([side.case.device for side in sides])
        study = Comparison(record_of(ComparisonOptions, options, a=sides[0], b=sides[1]))
        show = partial(_show, study, options)
        return execute(study, options, show, lambda news: f"pair {news.count}: {so_far(news.interval)}")


def _show(study: Comparison, options: opt.GateOptions, ending: Ending) -> int:
    """Without ratios there is nothing to judge, unless it is B that failed."""
    found = study.outcome()
    shown = found if ending.format == "table" else replace(found, a=_shared(found.a), b=_shared(found.b))
    print_report(live_document(shown), ending.format)
    failed, limit = found.b.result.status not in ("ok", "interrupted"), options.limit
    if not ending.code and limit is not None and (failed or (found.ratios and not found.failed)):
        complaint = "B failed" if failed else f"B is slower than A by more than {percent(limit)}"
        return options.judge(gate_live(found, limit), [complaint])
    return EXIT_NOTHING_MEASURED if found.failed or not found.ratios else EXIT_FINE


def _shared(side: LiveSide) -> LiveSide:
    """The side without paths, messages of other programs and unknown forms of variables."""
    environment = {name: str(redacted(name, value)) for name, value in side.environment.items()}
    return replace(side, result=as_shared(side.result), python="", environment=environment, last_words=())


class CaseSettings(Struct, frozen=True, forbid_unknown_fields=True):  # how the work is done, never the work
    device: str | None = None
    dtype: str | None = None
    compile: bool | str | None = None
    transfer: str | None = None
    threads: int | None = None
    options: dict[str, str] = {}
    ways: dict[str, str] = {}  # the old name of options

    @property
    def changes(self) -> dict[str, Any]:
        mode = ("on" if self.compile else "off") if isinstance(self.compile, bool) else self.compile
        changes = asdict(self) | {"options": self.ways | self.options or None, "compile": mode, "ways": None}
        return {name: value for name, value in changes.items() if value is not None}


class SettingsFile(Struct, frozen=True, forbid_unknown_fields=True):
    environment: dict[str, str | int | float] = field(default_factory=dict)
    case: CaseSettings = CaseSettings()


def find_sides(given: AbArguments) -> tuple[Side, Side]:
    """An option given once applies to both sides, one given twice to A and to B."""
    if not given.cases:
        raise UsageError("no case is named", "Name one, such as mlp or mlp/infer@cpu/float32")
    differ = max(map(len, (given.cases, given.pythons, given.settings))) > 1 or given.env_a or given.env_b
    if not differ and (given.pythons or given.settings):
        once = "--python" if given.pythons else "--settings"
        raise UsageError(f"{once} is given once, for both sides", f"Give it twice: {once} for A, then for B")
    texts = _for_both("CASE", given.cases)
    pythons = _for_both("--python", [find_interpreter(text) for text in given.pythons] or [sys.executable])
    files = _for_both("--settings", [read_settings(path) for path in given.settings] or [SettingsFile()])
    named = given.device if given.device != ACCELERATOR else None
    sides = []
    for name, text, python, file, typed in zip("AB", texts, pythons, files, (given.env_a, given.env_b), strict=True):
        environment = {key: str(value) for key, value in file.environment.items()}
        for assignment in typed:
            key, equals, value = assignment.partition("=")
            if not key or not equals:
                raise UsageError(f"'{assignment}' sets nothing", "Write NAME=VALUE, as in OMP_NUM_THREADS=1")
            environment[key] = value
        # Without a named device, A's interpreter is asked for its first one below.
        device = named or file.case.device or "cpu"
        cases = expand([text], {"device": [device]})
        if len(cases) != 1:
            raise UsageError(f"'{text}' on {device} is {len(cases)} cases", "One is compared: name one device")
        sides.append(Side(name, check_case(replace(cases[0], **file.case.changes)), python, environment))
    if not named and all("@" not in text for text in texts) and all(file.case.device is None for file in files):
        device = first_device(sides[0], given.timeout_s)
        if given.device:
            first_accelerator([device])
        sides = [replace(side, case=check_case(replace(side.case, device=device))) for side in sides]
    a, b = sides
    if any(getattr(a.case, name) != getattr(b.case, name) for name in ("workload", "mode", "params")):
        fix = "They may differ in device, dtype, compile, transfer and threads; `torchmark run` measures the rest"
        raise UsageError(f"A and B do different work: {a.case.text} and {b.case.text}", fix)
    for side in sides:
        check_single(side.case)
    return a, b


def read_settings(path: Path) -> SettingsFile:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), SettingsFile)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name a settings file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "Write tables, as in [environment]") from error
    except msgspec.ValidationError as error:
        valid = f"[environment] with texts and numbers, [case] with {', '.join(CaseSettings.__struct_fields__)}"
        raise UsageError(f"{path} holds what is no setting: {error}", f"Valid: {valid}") from error


def _for_both(name: str, values: Sequence[Given]) -> Sequence[Given]:
    if len(values) > 2:
        raise UsageError(f"{name} is given {len(values)} times", "Two are compared: once for A, once for B")
    return values if len(values) == 2 else [values[0]] * 2
