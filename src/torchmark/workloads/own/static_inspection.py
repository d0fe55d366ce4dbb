"""What a Python file holds, read without running it: its workload, its functions and classes, what they can be given.

Running it would import torch, which takes seconds that a plan, a list or a mistake in an option should not cost.
"""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from torchmark.errors import UsageError
from torchmark.workloads.own.files import OwnFile

USUAL = "build"  # the function that is taken where none is named
REQUIRED = "required"  # stands where a default would
# Libraries that all workers can share once they are imported: they take seconds, and run nothing while imported.
_SLOW = ("transformers", "diffusers")
_MODEL_METHODS = ("eval", "train", "to", "float", "half", "bfloat16", "double", "requires_grad_")  # return the model
_KINDS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": Annotated[str, Meta(pattern=r"^[\w.-]+$")]}
_ANY = int | float | bool | str

Definition = ast.FunctionDef | ast.ClassDef


class Argument(Struct, frozen=True):
    """One thing that a function or class can be given: what kind of value, and the one that it has otherwise."""

    name: str
    kind: Any
    default: int | float | bool | str


class Outline(Struct, frozen=True):
    """The part of a file that is measured."""

    member: str
    is_workload: bool
    summary: str
    about: str
    arguments: tuple[Argument, ...] = ()
    imports: tuple[str, ...] = ()
    needs_input: bool = False  # it certainly makes a model without an example of its input


def outline(file: OwnFile, member: str) -> Outline:
    """What that member of the file is; without one, its workload or its function `build`."""
    tree = _parse(file)
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    workloads = [name for name, node in definitions.items() if _is_workload(node)]
    chosen = member or _usual(file, definitions, workloads)
    node = definitions.get(chosen)
    if node is None and chosen not in _bound(tree):
        raise UsageError(f"{file.name} has no '{chosen}'", _fix(file, definitions))
    about = (node and ast.get_docstring(node)) or ""
    opening = ast.get_docstring(tree) or about or f"{chosen} of {file.name}."
    return Outline(
        member=chosen,
        is_workload=chosen in workloads,
        summary=opening.partition("\n")[0],
        about=about,
        arguments=() if node is None or chosen in workloads else tuple(_arguments(node)),
        imports=_slow_imports(tree),
        needs_input=node is not None and chosen not in workloads and not _may_give_pair(node, definitions),
    )


def _parse(file: OwnFile) -> ast.Module:
    try:
        return ast.parse(file.text)
    except SyntaxError as error:
        place = f"{file.name}, line {error.lineno}" if error.lineno else file.name
        raise UsageError(f"{place}: {type(error).__name__}: {error.msg}", "Fix it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # endless nesting
        raise UsageError(f"{file.name} cannot be read as Python: {error}", "Fix it") from error


def _is_workload(node: Definition) -> bool:
    bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
    return any(base.rpartition(".")[2] in ("Workload", "ModelWorkload") for base in bases)


def _usual(file: OwnFile, definitions: dict[str, Definition], workloads: list[str]) -> str:
    if len(workloads) == 1:
        return workloads[0]
    if not workloads and USUAL in definitions:
        return USUAL
    problem = "several workloads" if workloads else f"neither a workload nor a function '{USUAL}'"
    raise UsageError(
        f"{file.name} has {problem}", _fix(file, {name: definitions[name] for name in workloads} or definitions)
    )


def _fix(file: OwnFile, definitions: dict[str, Definition]) -> str:
    public = [name for name in definitions if not name.startswith("_")]
    if not public:
        return f"Write a function '{USUAL}' that returns a model: `torchmark new` shows how"
    return "Say which part to take: " + ", ".join(f"{file.name}:{name}" for name in public[:8])


def _bound(tree: ast.Module) -> set[str]:
    """Names that the file gets without defining them: by an import or an assignment."""
    names = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def _arguments(node: Definition) -> list[Argument]:
    """What can be written on a command line. The rest stays at its default; without one it cannot be had."""
    function = node if isinstance(node, ast.FunctionDef) else _constructor(node)
    if function is None:
        return []
    named = function.args
    positional = [*named.posonlyargs, *named.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(named.defaults))
    pairs = [*zip(positional, [*missing, *named.defaults], strict=True)][int(function is not node) :]
    pairs += zip(named.kwonlyargs, named.kw_defaults, strict=True)
    found = [_argument(argument, default) for argument, default in pairs]
    return [argument for argument in found if argument is not None]


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    return made[0] if made else None


def _argument(argument: ast.arg, default: ast.expr | None) -> Argument | None:
    written = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
    value = UNSET if default is None else _constant(default)
    if value is None:  # something that no command line can say
        return None
    kind = _KINDS.get(written) or (_ANY if value is UNSET else _KINDS[type(value).__name__])
    if isinstance(value, UnsetType):
        return Argument(argument.arg, kind | Literal["required"] if kind in (int, float, bool) else kind, REQUIRED)
    return Argument(argument.arg, kind, float(value) if kind is float else value)


def _constant(node: ast.expr) -> int | float | bool | str | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, int | float | bool | str) else None


def _slow_imports(tree: ast.Module) -> tuple[str, ...]:
    found = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    found += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    return tuple(dict.fromkeys(name for name in found if name.partition(".")[0] in _SLOW))


def _may_give_pair(node: Definition, definitions: dict[str, Definition]) -> bool:
    """Whether calling it may give a model together with an example input; True where that cannot be known."""
    if isinstance(node, ast.ClassDef):
        return False
    inner = [each for part in node.body for each in ast.walk(part)]
    if any(isinstance(each, ast.FunctionDef | ast.Lambda | ast.Yield) for each in inner):
        return True  # some of the returns are not its own
    assigned: dict[str, list[ast.expr]] = {}
    for each in inner:
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            assigned.setdefault(each.targets[0].id, []).append(each.value)
    given = [each.value for each in inner if isinstance(each, ast.Return) and each.value]
    others = {name: other for name, other in definitions.items() if other is not node}
    return not given or any(_may_be_pair(value, assigned, others) for value in given)


def _may_be_pair(value: ast.expr, assigned: dict[str, list[ast.expr]], definitions: dict[str, Definition]) -> bool:
    if isinstance(value, ast.Name) and value.id in assigned:
        return any(_may_be_pair(each, {}, definitions) for each in assigned[value.id])
    if not isinstance(value, ast.Call):
        return True
    if isinstance(value.func, ast.Name) and value.func.id in definitions:
        return _may_give_pair(definitions[value.func.id], definitions)
    if isinstance(value.func, ast.Attribute) and value.func.attr in _MODEL_METHODS:
        return _may_be_pair(value.func.value, assigned, definitions)
    return not ast.unparse(value.func).rpartition(".")[2][:1].isupper()  # classes make one thing
