"""A case: a workload with all its settings, and the one way in which that is written and read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from torchmark.errors import UsageError

# A run file may come from anybody: what is longer, larger or more than this is refused while it is being read.
MOST_CASES = 10_000
ALL_CASES = Meta(max_length=MOST_CASES)
SEVERAL = Meta(max_length=64)
Text = Annotated[str, Meta(max_length=10_000)]
Real = Annotated[float, Meta(ge=-1e100, le=1e100)]  # squares and products of what anybody measured are finite
Name = Annotated[str, Meta(max_length=500)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Value = Whole | float | bool | Name
Transfer = Literal["resident", "per-step", "pinned"]
Protocol = Literal["steady", "as-published"]

# Ways to do the same work that only some workloads, devices or processors know, in the order of a case's text.
WAYS = ("layout", "attention", "gradients", "matmul", "isa", "bind", "wait")


class Case(Struct, frozen=True):
    """A workload with all its settings on a device. `params` holds only those that differ from the defaults."""

    workload: Name
    mode: Name
    params: Annotated[dict[Name, Value], SEVERAL] = field(default_factory=dict)
    device: Name = "cpu"
    dtype: Name = "float32"
    compile: Name = "off"
    transfer: Transfer = "resident"
    threads: Count | None = None
    workers: Count = 1
    ways: Annotated[dict[Name, Name], SEVERAL] = field(default_factory=dict)  # only those that differ from the usual
    protocol: Protocol = "steady"  # as-published: timed the way that a publication did, flaws and all

    @property
    def text(self) -> str:
        """The one way a case is written: printed everywhere, accepted everywhere, safe in any shell."""
        return f"{self.task}@{self.device}/{self.dtype}{''.join(self.options)}"

    @property
    def task(self) -> str:
        """The beginning of the text: what is done, wherever and however that may be."""
        params = ",".join(f"{key}={_value_text(self.params[key])}" for key in sorted(self.params))
        return f"{self.workload}/{self.mode}{':' if params else ''}{params}"

    @property
    def options(self) -> tuple[str, ...]:
        """The end of the text: what differs from the usual way to do it."""
        options = (
            {"off": "", "on": "+compile"}.get(self.compile, f"+compile={self.compile}"),
            f"+{self.transfer}" if self.transfer != "resident" else "",
            f"+threads={self.threads}" if self.threads is not None else "",
            f"+workers={self.workers}" if self.workers != 1 else "",
            *(f"+{name}={self.ways[name]}" for name in WAYS if name in self.ways),
            "+as-published" if self.protocol == "as-published" else "",
        )
        return tuple(filter(None, options))


_CASE = re.compile(
    r"(?P<workload>[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?)/(?P<mode>[a-z-]+)"
    r"(?::(?P<params>[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+(?:,[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+)*))?"
    r"@(?P<device>[a-z]+(?::[0-9]+)?)/(?P<dtype>[a-z0-9]+)"
    r"(?P<options>(?:\+[a-z0-9=-]+)*)"
)


def parse_case(text: str) -> Case:
    """Read what `Case.text` writes."""
    found = _CASE.fullmatch(text)
    if not found:
        raise UsageError(f"'{text}' is not a case", "A case looks like mlp/infer:batch=64@cpu/float32+threads=2")
    written = found["options"].split("+")[1:]
    for option in written:
        if not _OPTION.fullmatch(option):
            raise UsageError(f"'+{option}' in '{text}' is not an option of a case", "Options: " + _OPTIONS)
    pairs = [pair.partition("=")[::2] for pair in (found["params"] or "").split(",") if pair]
    params, options = dict(pairs), dict(option.partition("=")[::2] for option in written)
    if len(params) < len(pairs) or len(options) < len(written):
        raise UsageError(f"'{text}' says something twice", "Name each parameter and each option once")
    return Case(
        workload=found["workload"],
        mode=found["mode"],
        params={key: parse_value(value) for key, value in params.items()},
        device=found["device"],
        dtype=found["dtype"],
        compile=(options["compile"] or "on") if "compile" in options else "off",
        transfer=_transfer(text, options),
        threads=int(options["threads"]) if "threads" in options else None,
        workers=int(options.get("workers", "1")),
        ways={name: options[name] for name in WAYS if name in options},
        protocol="as-published" if "as-published" in options else "steady",
    )


def _transfer(text: str, options: dict[str, str]) -> Transfer:
    if "pinned" in options and "per-step" in options:
        raise UsageError(f"'{text}' says twice how data is transferred", "Write +per-step or +pinned")
    return "pinned" if "pinned" in options else "per-step" if "per-step" in options else "resident"


_OPTION = re.compile(
    rf"compile(=[a-z0-9-]+)?|per-step|pinned|as-published|(threads|workers)=[0-9]{{1,9}}|({'|'.join(WAYS)})=[a-z0-9-]+"
)
_OPTIONS = ", ".join(
    [
        *("+compile", "+compile=MODE", "+per-step", "+pinned", "+threads=N", "+workers=N"),
        *(f"+{name}=HOW" for name in WAYS),
        "+as-published",
    ]
)


def parse_value(text: str) -> Value:
    """A parameter's value as typed by a person: a whole number, a number, on/off, or a word."""
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?", text):
        number = float(text)
        if abs(number) == float("inf"):
            raise UsageError(f"'{text}' is not a number that a computer can hold", "Give a smaller one")
        return number
    return {"on": True, "off": False}.get(text, text)


def _value_text(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return repr(value).replace("e+", "e") if isinstance(value, float) else str(value)
