"""The workload, functions and classes of a Python file, read without running it, as importing torch takes seconds."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from torchmark.errors import UsageError
from torchmark.records import Value
from torchmark.workloads.own.files import OwnFile

USUAL = "build"  # the function that is taken where none is named
REQUIRED = "required"  # stands where a default would
# Libraries that all workers can share once they are imported: they take seconds, and run nothing while imported.
_SLOW = ("transformers", "diffusers")
_MODEL_METHODS = ("eval", "train", "to", "float", "half", "bfloat16", "double", "requires_grad_")  # return the model
_KINDS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": Annotated[str, Meta(pattern=r"^[\w.-]+$")]}

Definition = ast.FunctionDef | ast.ClassDef


class Outline(Struct, frozen=True):
    """The part of a file that is measured."""

    member: str
    is_workload: bool
    summary: str
    about: str
    arguments: tuple[tuple[str, Any, Value], ...] = ()  # what it can be given: name, kind of value, default
    imports: tuple[str, ...] = ()
    needs_input: bool = False  # it certainly makes a model without an example of its input


def inspect_file(file: OwnFile, member: str) -> Outline:
    """What that member of the file is; without one, its workload or its function `build`."""
    try:
        tree = ast.parse(file.text)
    except SyntaxError as error:
        place = f"{file.name}, line {error.lineno}" if error.lineno else file.name
        raise UsageError(f"{place}: {type(error).__name__}: {error.msg}", "Fix it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # endless nesting
        raise UsageError(f"{file.name} cannot be read as Python: {error}", "Fix it") from error
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    workloads = {
        name: node
        for name, node in definitions.items()
        for base in (node.bases if isinstance(node, ast.ClassDef) else [])
        if ast.unparse(base).rpartition(".")[2] in ("Workload", "ModelWorkload")
    }
    taken = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    bound = {each.id for each in targets if isinstance(each, ast.Name)}
    bound |= {each.asname or each.name for node in taken for each in node.names}
    if not member and len(workloads) != 1 and (workloads or USUAL not in definitions):
        problem = "several workloads" if workloads else f"neither a workload nor a function '{USUAL}'"
        raise UsageError(f"{file.name} has {problem}", _fix(file, workloads or definitions))
    chosen = member or next(iter(workloads), USUAL)
    node = definitions.get(chosen)
    if node is None and chosen not in bound:
        raise UsageError(f"{file.name} has no '{chosen}'", _fix(file, definitions))
    about = (node and ast.get_docstring(node)) or ""
    opening = ast.get_docstring(tree) or about or f"{chosen} of {file.name}."
    modules = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in taken if not node.level]
    slow = tuple(dict.fromkeys(name for name in modules if name.partition(".")[0] in _SLOW))
    found = Outline(chosen, chosen in workloads, opening.partition("\n")[0], about, imports=slow)
    if node is None or found.is_workload:
        return found
    return replace(found, arguments=tuple(_arguments(node)), needs_input=not _may_give_pair(node, definitions))


def _fix(file: OwnFile, definitions: Iterable[str]) -> str:
    public = [f"{file.name}:{name}" for name in definitions if not name.startswith("_")]
    usual = f"Write a function '{USUAL}' that returns a model: `torchmark new` shows how"
    return "Say which part to take: " + ", ".join(public[:8]) if public else usual


def _arguments(node: Definition) -> Iterator[tuple[str, Any, Value]]:
    """What can be written on a command line. The rest stays at its default; without one it cannot be had."""
    is_method = isinstance(node, ast.ClassDef)
    functions = [each for each in (node.body if is_method else [node]) if isinstance(each, ast.FunctionDef)]
    function = next((each for each in functions if not is_method or each.name == "__init__"), None)
    if function is None:
        return
    named = function.args
    positional = [*named.posonlyargs, *named.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(named.defaults)), *named.defaults]
    pairs = [*zip(positional, defaults, strict=True)][int(is_method) :]
    for argument, default in (*pairs, *zip(named.kwonlyargs, named.kw_defaults, strict=True)):
        kind = _KINDS.get(ast.unparse(argument.annotation).strip("'\"") if argument.annotation else "")
        if default is None:
            required = kind | Literal["required"] if kind in (int, float, bool) else kind or int | float | bool | str
            yield argument.arg, required, REQUIRED
            continue
        with suppress(ValueError, TypeError, SyntaxError):
            value = ast.literal_eval(default)
            if isinstance(value, int | float | bool | str):  # a command line can say it
                kind = kind or _KINDS[type(value).__name__]
                yield argument.arg, kind, float(value) if kind is float else value


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

    def may_be_pair(value: ast.expr, known: dict[str, list[ast.expr]]) -> bool:
        match value:
            case ast.Name(name) if name in known:
                return any(may_be_pair(each, {}) for each in known[name])
            case ast.Call(ast.Name(name)) if name in others:
                return _may_give_pair(others[name], others)
            case ast.Call(ast.Attribute(model, method)) if method in _MODEL_METHODS:
                return may_be_pair(model, known)
            case ast.Call(function):
                return not ast.unparse(function).rpartition(".")[2][:1].isupper()  # classes make one thing
        return True

    return not given or any(may_be_pair(value, assigned) for value in given)
