"""Cases: sweeps and suites, checks, parameters and options, and whether a result fits the known work."""

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from msgspec import Struct, ValidationError, convert, inspect
from msgspec.structs import asdict, replace

from torchmark.case import AXES, MOST_CASES, parse_value
from torchmark.devices import ACCELERATOR, KINDS
from torchmark.errors import TorchmarkError, UnknownName, UsageError
from torchmark.meters.process import allowed_cores
from torchmark.records import CASE_OPTIONS, Case, DeviceInfo, Result, Value, parse_case
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Workload
from torchmark.workloads.own.files import split_name

# Options for any work in torch, the default first.
PROCESS_OPTIONS = {
    "matmul": ("highest", "high", "medium"),
    "isa": ("all", "avx512-core-bf16", "avx512-core", "avx2"),
    "bind": ("free", "close", "spread"),
    "wait": ("usual", "active", "passive"),
}
# Read when torch is imported: a process that was forked later cannot apply them.
_VARIABLES = {"bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}
_ISA = "ONEDNN_MAX_CPU_ISA"  # read at the first matrix product
_RANGE_HELP = "A range is 1..4, 128..512+128 or 16..256x2"
_MOST_VALUES = 1000
GIB = 1024**3
_AXES = {axis.name: axis for axis in AXES if axis.name != "protocol"}  # that a sweep can choose
Axes = Mapping[str, Sequence[str]]  # values as typed, with commas and ranges, by name of an axis or a parameter
_NO_AXES: Axes = {}


def expand(
    workloads: Sequence[str], axes: Axes = _NO_AXES, params: Axes = _NO_AXES, nodes: int = 1, tiny: bool = False
) -> tuple[Case, ...]:
    """Every combination, the last part changing fastest; `nodes` share the workers. Texts of cases stay as they are."""
    if not workloads:
        raise UsageError("no workload is named", "`torchmark list` shows them")
    if all("@" in name for name in workloads) and (params or axes.get("mode")):
        raise UsageError("--mode and -p do not change a case that is written out", "Write them into the case")
    for name in axes:
        _check_name("option", name, _AXES)
    cases = dict[str, Case]()
    for name in workloads:
        is_written = "@" in name
        for case in [parse_case(name)] if is_written else _combine(find_workload(name), axes, params, nodes, tiny):
            if case.protocol == "as-published":
                steady = replace(case, protocol="steady").text
                fix = f"Replay the publication with `torchmark replicate`, or measure {steady}"
                raise UsageError(f"{name} is timed the way its publication did, which is no way to measure", fix)
            # The accelerator gets its name when the machine is looked at.
            later = not is_written and case.device == ACCELERATOR
            checked = replace(check_case(replace(case, device="cpu") if later else case), device=case.device)
            cases[checked.text] = checked
        _check_count(len(cases))
    return tuple(cases.values())


def _check_count(count: int) -> None:
    if count > MOST_CASES:
        raise UsageError(f"the sweep has more than {MOST_CASES} cases", "Ask for fewer values at once")


def check_case(case: Case) -> Case:
    """The case without settings at their default; raise for what does not exist."""
    workload = find_workload(case.workload)
    _check_name(f"mode of {case.workload}", case.mode, workload.modes)
    check_device(case.device)
    if case.device == ACCELERATOR:
        raise UsageError(f"a case cannot be on '{ACCELERATOR}'", "Name one of those that `torchmark devices` lists")
    for axis in AXES:
        axis.check(case.setting(axis.name))
    _check_name(f"dtype of {case.workload}", case.dtype, workload.dtypes)
    if case.workers > 1 and not workload.distributed:
        raise UsageError(f"{case.workload} runs in one worker only", "Leave --workers out")
    params, known = read_params(workload, case.params), offered(case)
    workload.check(params)
    for name, value in case.options.items():
        _check_name(f"option of {case.workload}/{case.mode}", name, known)
        _check_name(f"{name} of {case.workload}", value, known[name])
    options = {name: value for name, value in case.options.items() if value != known[name][0]}
    return replace(case, params=_changed(workload, params), options=options)


def full_params(case: Case) -> Struct:
    return read_params(find_workload(case.workload), case.params)


def memory_needed(case: Case, nodes: int = 1) -> float:
    """About the memory that a case needs on its device; 0 if too little to matter. Ranks share only a CPU."""
    needed = find_workload(case.workload).memory_bytes(full_params(case), setting_of(case, world_size=1))
    return (needed or 0.0) * (case.workers // nodes if case.device == "cpu" else 1)


def excess_memory(case: Case, devices: Iterable[DeviceInfo], nodes: int = 1) -> str:
    """Why a case does not fit into the memory of its device; empty where it may."""
    room = next((info.memory_bytes for info in devices if info.name == case.device), None)
    needed = memory_needed(case, nodes)
    return f"it needs about {needed / GIB:.0f} GiB where there are {room / GIB:.0f}" if room and needed > room else ""


def setting_of(case: Case, **changes: Any) -> Setting:
    return replace(convert(case, Setting, from_attributes=True), **{"world_size": case.workers, **changes})


def range_of(case: Case, name: str) -> tuple[int, int] | None:
    """The bounds of a parameter that takes whole numbers; None for others."""
    (kind,) = (field.type for field in _fields(find_workload(case.workload)) if field.name == name)
    if not isinstance(kind, inspect.IntType):
        return None
    return 1 if kind.ge is None else kind.ge, 1 << 20 if kind.le is None else kind.le


def _changed(workload: Workload, params: Struct) -> dict[str, Value]:
    defaults = asdict(workload.params())
    return {name: value for name, value in asdict(params).items() if value != defaults[name]}


def _combine(workload: Workload, axes: Axes, params: Axes, nodes: int, tiny: bool) -> Iterator[Case]:
    declared = [field.name for field in _fields(workload)]
    for name in params:
        _check_name(f"parameter of {workload.name}", name, declared)
    usual = {name: axis.default for name, axis in _AXES.items()}
    usual |= {"mode": workload.modes[0], "workers": workload.default_workers}
    # Where counts of workers are compared, ranks have the threads that the largest count leaves for each.
    typed = {name: split_values(axes.get(name, ())) for name in _AXES}
    counts = {_AXES["workers"].read(text) for text in typed["workers"]}
    if len(counts) > 1:
        usual["threads"] = max(1, len(allowed_cores()) // (max(counts) // nodes or 1))
    others = {name: typed[name] or (str(usual[name]),) for name in _AXES if typed[name] or usual[name] is not None}
    swept = {name: others.pop(name) for name in ("device", "mode")}  # parameters follow these, and precede the others
    swept |= {f"-p {name}": split_values(params[name]) for name in declared if name in params}
    swept |= others
    _check_count(math.prod(map(len, swept.values())))
    start = _changed(workload, workload.tiny) if tiny else {}
    for chosen in product(*swept.values()):
        given = dict(zip(swept, chosen, strict=True))
        values = {name: parse_value(given[f"-p {name}"]) for name in declared if f"-p {name}" in given}
        settings = {name: _AXES[name].read(given[name]) for name in _AXES if name in given}
        options = {name: settings.pop(name) for name in CASE_OPTIONS if name in settings}
        yield Case(workload.name, params=start | values, options=options, **settings)


def check_device(name: str) -> None:
    """Check the name only; whether the device is here shows when it is opened."""
    kind, colon, index = name.partition(":")
    if kind not in KINDS and name != ACCELERATOR:
        raise UnknownName("device", name, [kind for kind in KINDS if kind != "fake"])
    if colon and not re.fullmatch(r"\d{1,4}", index):
        raise UsageError(f"'{name}' does not say which {kind} device", f"Write a number, such as {kind}:0")


def _check_name(kind: str, given: str, valid: Collection[str]) -> None:
    if given not in valid:
        raise UnknownName(kind, given, valid)


class Parameter(Struct, frozen=True):
    name: str
    default: Value
    takes: str  # what it accepts, in words
    choices: tuple[str, ...] = ()


@cache
def list_parameters(workload: Workload) -> tuple[Parameter, ...]:
    return tuple(Parameter(one.name, one.default, _takes(one.type), _choices(one.type)) for one in _fields(workload))


def _fields(workload: Workload) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(workload.params)
    assert isinstance(info, inspect.StructType)
    return info.fields


def read_params(workload: Workload, given: Mapping[str, Value], start: Struct | None = None) -> Struct:
    known = {parameter.name: parameter for parameter in list_parameters(workload)}
    changes: dict[str, Any] = {}
    for name, value in given.items():
        _check_name(f"parameter of {workload.name}", name, known)
        try:
            changes[name] = getattr(convert({name: value}, workload.params), name)
        except ValidationError:
            parameter = known[name]
            if parameter.choices:
                raise UnknownName(f"{name} of {workload.name}", str(value), parameter.choices) from None
            shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
            cause = f"{name}={shown} is not possible for {workload.name}: it takes {parameter.takes}"
            raise UsageError(cause, f"The default is {name}={parameter.default}") from None
    return replace(start or workload.params(), **changes)


def split_settings(texts: Iterable[str], example: str = "-p batch=16,64") -> dict[str, tuple[str, ...]]:
    """`-p batch=16,64 -p outputs=2` as names with their values as typed."""
    found = dict[str, tuple[str, ...]]()
    for text in texts:
        name, _, values = text.partition("=")
        if not name.strip() or not values.strip():
            raise UsageError(f"'{text}' is not NAME=VALUE", f"Write NAME=VALUE, such as {example}")
        found[name.strip()] = (*found.get(name.strip(), ()), values)
    return found


def split_values(texts: Iterable[str]) -> tuple[str, ...]:
    """The values in comma-separated texts, with ranges written out."""
    values = list[str]()
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not part:
            raise UsageError("a value is empty", "Separate values by single commas, such as 16,64")
        found = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})(?:([+x])(\d{1,18}))?", part)
        if not found:
            values.append(part)
            continue
        value, last, sign, by = int(found[1]), int(found[2]), found[3] or "+", int(found[4] or 1)
        if value > last or by == 0 or (sign == "x" and (by == 1 or value == 0)):
            raise UsageError(f"the range '{part}' is empty or endless", _RANGE_HELP)
        room = len(values) + _MOST_VALUES
        while value <= last:
            if len(values) == room:
                raise UsageError(f"the range '{part}' has more than {_MOST_VALUES} values", _RANGE_HELP)
            values.append(str(value))
            value = value * by if sign == "x" else value + by
    return tuple(values)


def _choices(kind: inspect.Type) -> tuple[str, ...]:
    return tuple(str(value) for value in kind.values) if isinstance(kind, inspect.LiteralType) else ()


def _takes(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return str((kind.extra_json_schema or {}).get("description") or _takes(kind.type))
        case inspect.LiteralType():
            return ", ".join(_choices(kind))
        case inspect.BoolType():
            return "on, off"
        case inspect.UnionType():  # one kind, or the word for no default
            kinds = [each for each in kind.types if not isinstance(each, inspect.LiteralType)]
            return _takes(kinds[0]) if len(kinds) == 1 else "a value"
        case inspect.IntType() | inspect.FloatType():
            words = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            for limit, word in ((kind.ge, "from"), (kind.gt, "above"), (kind.le, "to"), (kind.lt, "below")):
                words += "" if limit is None else f" {word} {limit}"
            return words
    return "a word"


def offered(case: Case) -> dict[str, tuple[str, ...]]:
    """The options of this case with their values, the default first."""
    workload = find_workload(case.workload)
    known = {each.name: each.values for each in workload.options} | (PROCESS_OPTIONS if workload.needs_torch else {})
    if case.mode == "train":
        known.pop("gradients", None)
    return {name: known[name] for name in CASE_OPTIONS if name in known}


def tunable_dtypes(case: Case) -> tuple[str, ...]:
    return tuple(each for each in ("float32", "bfloat16", "float16") if each in find_workload(case.workload).dtypes)


def chosen_instructions() -> str | None:
    """The `isa` in the environment, set by the user or because the CPU lacks what it announces."""
    value = os.environ.get(_ISA, "").lower().replace("_", "-")
    return value if value in PROCESS_OPTIONS["isa"][1:] else None


def environment_of(options: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be set before torch is imported."""
    variables = {_VARIABLES[name]: value.upper() for name, value in options.items() if name in _VARIABLES}
    return variables | ({"OMP_PLACES": "cores"} if "bind" in options else {})


def follow(options: Mapping[str, str]) -> None:
    """Apply what can be applied to a process that has not computed anything yet."""
    if "isa" in options:
        os.environ[_ISA] = options["isa"].upper().replace("-", "_")
    if "matmul" in options:
        import torch

        torch.set_float32_matmul_precision(options["matmul"])
        torch.backends.cudnn.allow_tf32 = options["matmul"] != "highest"


def compare_with_known(result: Result) -> Iterator[tuple[str, str]]:
    """Each difference from what is known here, after its field; nothing is run."""
    case = result.case
    if split_name(case.workload):  # a file of that name here may be another one
        return
    try:
        check_case(case)
        workload, params = find_workload(case.workload), full_params(case)
    except TorchmarkError as error:
        yield "$.result.case", error.cause
        return
    steady = case.protocol == "steady"
    if not 1 <= result.version <= workload.version:
        yield "$.result.version", f"{case.workload} has no version {result.version} here, but {workload.version}"
    if result.version != workload.version or result.status != "ok":
        return
    # Newer parameters were at their default.
    if asdict(workload.params()) | result.params != asdict(params):
        yield "$.result.params", "they are not those of the case"
    if result.numeric is None and workload.needs_torch and steady:
        yield "$.result.numeric", "ok although its numbers were never checked"
    expected, stored = workload.work(params, setting_of(case)), result.work
    if expected is None or not steady:
        return
    if stored is None:
        yield "$.result.work", "the work of a step is missing"
        return
    if stored.unit != expected.unit:
        yield "$.result.work.unit", f"{stored.unit} instead of {expected.unit}"
    for name in ("items", "flops", "bytes"):
        value, known = getattr(stored, name), getattr(expected, name)
        if known is not None and (value is None or not math.isclose(value, known, rel_tol=1e-6)):
            yield f"$.result.work.{name}", f"{'none' if value is None else f'{value:g}'} instead of {known:g}"


class Part(Struct, frozen=True):
    cases: tuple[Case, ...]
    only: str = ""  # "cpu" or "accelerators": the devices that the cases are for


# What `run` measures when no workload is named. Each line is a sweep, on all devices or some. The most valuable come
# first, as a run may stop early: a case for each area, published ones at their sizes, then what people run today.
_QUICK = """\
mlp mode=infer outputs=512
resnet50 mode=infer
bert-encode batch=4
llm-decode
tensor-add variant=as-run
mnist-cnn
bert-encode
bert-classify mode=infer batch=16
llm-prefill
matmul dtype=float32,bfloat16
accelerators: mlp mode=infer outputs=512 transfer=per-step
accelerators: resnet50 mode=infer transfer=per-step
cifar-cnn
cpu: mnist-ddp-sigmoid workers=2
cpu: mnist-ddp-mlp workers=4
bert-classify mode=train batch=16
stable-diffusion
"""
_STANDARD = """\
null
launch
mlp mode=infer,train
mlp mode=infer outputs=512 transfer=per-step
tensor-add variant=resident
bandwidth kind=update sizes=all
accelerators: copy direction=to-device,to-host pinned=on,off
bert-classify mode=train,infer batch=4
venv-ppo
stable-diffusion size=256 decode=off
mlp mode=infer,train dtype=float32,bfloat16 compile=off,on
tensor-add variant=as-written
matmul size=512,4096 dtype=float32,bfloat16
resnet50 mode=infer,train dtype=float32,bfloat16
resnet50 mode=infer compile=on
bert-encode batch=1,4 sequence=128,512
bert-encode batch=4 dtype=float32,bfloat16 compile=off,on
bert-classify mode=train,infer batch=16 dtype=float32,bfloat16
cpu: mnist-ddp-mlp workers=1,2,4
venv-ppo checks=on,off
lstm mode=infer,train
llm-prefill size=125m,350m dtype=float32,bfloat16
llm-decode size=125m,350m dtype=float32,bfloat16
vit-train batch=4,8
cpu: dataloader
cpu: dataloader loader_workers=0,2,4
"""
_FULL = """\
mlp mode=infer,train batch=1..4096x4 dtype=float32,bfloat16 compile=off,on
mlp mode=infer,train batch=1..4096x4 transfer=per-step
tensor-add size=768..12288x2 variant=resident,as-run,as-written
matmul size=256..8192x2 dtype=float32,bfloat16
matmul size=256..1024x2 dtype=float64,float16
resnet50 mode=infer,train batch=1..128x2 transfer=resident,per-step
bert-classify mode=train,infer size=base,large batch=16,64,256 sequence=128,512
stable-diffusion dtype=bfloat16
llm-prefill size=1b prompt=128,512 dtype=float32,bfloat16
llm-decode size=1b context=128,1024 dtype=float32,bfloat16
vit-train batch=4..32x2 dtype=float32,bfloat16
cpu: mnist-ddp-sigmoid workers=1,2,4
cpu: dataloader dataset=mnist,cifar10 batch=4,64,256 loader_workers=0..4
"""
SUITES = {"quick": _QUICK, "standard": _QUICK + _STANDARD, "full": _QUICK + _STANDARD + _FULL}


def expand_suite(name: str, tiny: bool = False) -> tuple[Part, ...]:
    """The cases of each line. Tiny keeps choices that set no size: variants, dtypes, modes."""
    _check_name("suite", name, SUITES)
    parts = list[Part]()
    for line in SUITES[name].splitlines():
        only, _, sweep = line.rpartition(": ")
        workload, *settings = sweep.split()
        params = split_settings(settings)
        axes = {axis: params.pop(axis) for axis in _AXES if axis in params}
        if tiny:
            chosen = {each.name for each in list_parameters(find_workload(workload)) if each.choices}
            params = {name: values for name, values in params.items() if name in chosen - {"size", "model"}}
        parts.append(Part(expand([workload], {"device": [ACCELERATOR], **axes}, params, tiny=tiny), only))
    return tuple(parts)


def place(parts: Sequence[Part], devices: Iterable[str]) -> tuple[Case, ...]:
    """All cases on one device after the other; a case that names its device stays there."""
    cases: dict[str, Case] = {}
    for device in devices:
        for part in parts:
            if part.only and (part.only == "cpu") != (device == "cpu"):
                continue
            placed = (replace(case, device=device) if case.device == ACCELERATOR else case for case in part.cases)
            cases.update((case.text, case) for case in placed)
    return tuple(cases.values())
