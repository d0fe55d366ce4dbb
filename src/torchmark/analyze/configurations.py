"""Two cases of the same work as configurations: which settings they differ in, and one with a setting changed."""

from __future__ import annotations

from msgspec.structs import replace

from torchmark.records import WAYS, Case, Value

OPTIONS = ("dtype", "transfer", "threads", "compile")
# In which order settings are told: numbers first, then how they lie in memory, then what is done with them.
_ORDER = ("dtype", "matmul", "isa", "layout", "attention", "gradients", "transfer", "threads", "bind", "wait")
USUAL = "usual"


def setting(case: Case, name: str) -> Value | None:
    """What a case has for an option, a way or a parameter; None where nothing was chosen."""
    if name in OPTIONS:
        value: Value | None = getattr(case, name)
        return value
    return case.ways.get(name, USUAL) if name in WAYS else case.params.get(name)


def changed(case: Case, name: str, value: Value | None) -> Case:
    """The case with one setting changed; the usual way, and no value, leave it to the default."""
    if name in OPTIONS:
        return replace(case, **{name: value})
    if name in WAYS:
        ways = {**case.ways, name: str(value)}
        return replace(case, ways={each: how for each, how in ways.items() if how != USUAL})
    params = {**case.params, name: value}
    return replace(case, params={each: given for each, given in params.items() if given is not None})


def differing(a: Case, b: Case) -> tuple[str, ...]:
    """The settings that are not the same, in the order in which they are told."""
    names = dict.fromkeys((*_ORDER, *sorted({*a.params, *b.params}), *OPTIONS))
    return tuple(name for name in names if setting(a, name) != setting(b, name))


def same_precision(a: Case, b: Case) -> bool:
    """Whether both compute in numbers of the same length."""
    return all(setting(a, name) == setting(b, name) for name in ("dtype", "matmul"))


def told(name: str, value: Value | None) -> str:
    """A setting as a sentence names it: bfloat16, channels-last, compile, threads=1."""
    if name == "compile":
        return {"on": "compile", "off": "no compile"}.get(str(value), f"compile={value}")
    if name in ("dtype", "layout", "transfer", "gradients"):
        return str(value)
    return f"{name}={'default' if value is None else value}"


def name_of(case: Case, default: Case) -> str:
    """A configuration by what makes it differ from the default."""
    return " + ".join(told(name, setting(case, name)) for name in differing(default, case)) or "default"
