"""A case: a workload with all its settings, its text form, and the table of axes."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from torchmark.errors import UnknownName, UsageError

# Limits, as run files may come from anyone.
MOST_CASES = 10_000
ALL_CASES = Meta(max_length=MOST_CASES)
SEVERAL = Meta(max_length=64)
Text = Annotated[str, Meta(max_length=10_000)]
Real = Annotated[float, Meta(ge=-1e100, le=1e100)]  # squares and products of measured values stay finite
Name = Annotated[str, Meta(max_length=500)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Value = Whole | float | bool | Name
Transfer = Literal["resident", "per-step", "pinned"]
Protocol = Literal["steady", "as-published"]

DTYPES = ("float64", "float32", "bfloat16", "float16")
_MODES = ("off", "on", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_HOW, _COPIES = get_args(Transfer), {"per-step": "per-step", "pinned": "pinned"}
_MOST = 4096


class Axis(Struct, frozen=True):  # a setting in which cases can differ
    name: str  # of a field of Case, or of one of its options
    default: str | int | None = None  # left out of a case's text
    values: tuple[str, ...] = ()  # empty where the workload or the device decides
    words: Mapping[str, str] = {}  # values that a case's text writes as a single word
    metavar: str = ""
    help: str = ""  # of the command-line option, if there is one
    most: int | None = None  # of a count

    def read(self, text: str) -> Any:
        if self.most is not None and not re.fullmatch(r"[0-9]{1,9}", text):
            raise UsageError(f"'{text}' is not a number of {self.name}", "Write a whole number, or a range: 1..4")
        return text if self.most is None else int(text)

    def check(self, value: Any) -> None:
        if self.values and value not in self.values:
            raise UnknownName(self.name, value, self.values)
        if self.most is not None and value is not None and not 1 <= value <= self.most:
            raise UsageError(f"{self.name} cannot be {value}", f"It takes a whole number from 1 to {self.most}")


# Known only to some workloads, devices or processors.
CASE_OPTIONS = ("layout", "attention", "gradients", "matmul", "isa", "bind", "wait")
# In the order of a case's text, and of a sweep: the last one changes fastest.
AXES = (
    Axis("device", "cpu", metavar="NAME,…", help="Where to run; default: every device here."),
    Axis("mode", metavar="MODE,…", help="infer, train; default: the workload's first."),
    Axis("dtype", "float32", DTYPES, metavar="TYPE,…", help="float32, bfloat16, float16, float64."),
    Axis("compile", "off", _MODES, {"on": "compile"}, "off,on", "With torch.compile; compiling is timed apart."),
    Axis("transfer", "resident", _HOW, _COPIES, "HOW,…", "resident, per-step (copies in every step), pinned."),
    Axis("threads", most=_MOST, metavar="N,…", help="CPU threads; default: torch's choice."),
    Axis("workers", 1, most=_MOST, metavar="N,…", help="Ranks that share the work, on all nodes together."),
    *map(Axis, CASE_OPTIONS),
    Axis("protocol", "steady", get_args(Protocol), words={"as-published": "as-published"}),
)
_SUFFIXED = AXES[3:]


class Case(Struct, frozen=True):
    workload: Name
    mode: Name
    params: Annotated[dict[Name, Value], SEVERAL] = {}  # that differ from the defaults
    device: Name = "cpu"
    dtype: Name = "float32"
    compile: Name = "off"
    transfer: Transfer = "resident"
    threads: Count | None = None
    workers: Count = 1
    options: Annotated[dict[Name, Name], SEVERAL] = field(default_factory=dict, name="ways")  # likewise
    protocol: Protocol = "steady"  # as-published: timed as a publication did

    @property
    def text(self) -> str:
        """How a case is printed and accepted everywhere: safe in any shell."""
        return f"{self.task}@{self.device}/{self.dtype}{''.join(self.suffixes)}"

    @property
    def task(self) -> str:
        """The beginning of the text, without device and settings."""
        texts = []
        for name, value in sorted(self.params.items()):
            text = repr(value).replace("e+", "e") if isinstance(value, float) else str(value)
            texts.append(f"{name}={text if not isinstance(value, bool) else 'on' if value else 'off'}")
        return f"{self.workload}/{self.mode}{':' if texts else ''}{','.join(texts)}"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The end of the text, such as +threads=2."""
        chosen = ((axis, self.setting(axis.name)) for axis in _SUFFIXED)
        return tuple(f"+{a.words.get(str(value)) or f'{a.name}={value}'}" for a, value in chosen if value != a.default)

    def setting(self, axis: str) -> Value | None:
        """The value on an axis; None for an option that is not set."""
        value: Value | None = self.options.get(axis) if axis in CASE_OPTIONS else getattr(self, axis)
        return value


_CASE = re.compile(
    r"(?P<workload>[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?)/(?P<mode>[a-z-]+)"
    r"(?::(?P<params>[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+(?:,[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+)*))?"
    r"@(?P<device>[a-z]+(?::[0-9]+)?)/(?P<dtype>[a-z0-9]+)"
    r"(?P<suffixes>(?:\+[a-z0-9=-]+)*)"
)
_SUFFIXES = {word: (axis, value) for axis in _SUFFIXED for value, word in axis.words.items()}
# Of the others a case's text says NAME=VALUE.
_SUFFIXES |= {f"{a.name}=": (a, "") for a in _SUFFIXED if not a.values or len(a.values) > len(a.words) + 1}


def parse_case(text: str) -> Case:
    """Read what `Case.text` writes."""
    if not (found := _CASE.fullmatch(text)):
        raise UsageError(f"'{text}' is not a case", "A case looks like mlp/infer:batch=64@cpu/float32+threads=2")
    params: dict[str, Value] = {}
    settings: dict[str, Any] = {}
    for name, value in re.findall(r"([^,=]+)=([^,]+)", found["params"] or ""):
        _set_once(params, name, parse_value(value), text)
    for suffix in found["suffixes"].split("+")[1:]:
        name, equals, given = suffix.partition("=")
        if name + equals not in _SUFFIXES or (equals and not re.fullmatch(r"[a-z0-9-]+", given)):
            known = ", ".join(f"+{each}…" if each.endswith("=") else f"+{each}" for each in _SUFFIXES)
            raise UsageError(f"'+{suffix}' in '{text}' is not an option of a case", f"Options: {known}")
        axis, word = _SUFFIXES[name + equals]
        _set_once(settings, axis.name, axis.read(given) if equals else word, text)
    options = {name: settings.pop(name) for name in CASE_OPTIONS if name in settings}
    settings |= {name: found[name] for name in ("workload", "mode", "device", "dtype")}
    return Case(params=params, options=options, **settings)


def _set_once(values: dict[str, Any], name: str, value: Any, text: str) -> None:
    if name in values:
        raise UsageError(f"'{text}' sets {name} twice", "Set each parameter and each option once")
    values[name] = value


def parse_value(text: str) -> Value:
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?", text):
        if abs(number := float(text)) == float("inf"):
            raise UsageError(f"'{text}' is too large a number", "Give a smaller one")
        return number
    return {"on": True, "off": False}.get(text, text)
