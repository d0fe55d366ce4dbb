"""A model from a Python file: a function or class that makes it, with its arguments as parameters."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, defstruct

from torchmark.errors import UsageError
from torchmark.workloads.contract import GRADIENTS, LAYOUT, Setting, Workload
from torchmark.workloads.model import COUNTING, Model, ModelWorkload, leaves_of, map_tensors, row_count
from torchmark.workloads.own.files import OwnFile, find_file, import_file, split_name
from torchmark.workloads.own.shapes import HELP, join_batch, make_tensor, parse_tensors
from torchmark.workloads.own.static_inspection import REQUIRED, Outline

_WRITTEN = r"^[A-Za-z0-9_.-]*$"
_INPUT = Annotated[str, Meta(pattern=_WRITTEN, description="what --input says")]
_LOSS = Annotated[str, Meta(pattern=_WRITTEN, description="what --loss says")]
_BATCH = Annotated[int, Meta(ge=0, le=1_048_576)]
_TINY_BATCH = 2
_EXAMPLE_FIX = "Return a tensor, a tuple of tensors, or a dictionary from argument names to tensors"
_REQUIRED_FIX = "Give it: -p {}=…, or write a function without such arguments that makes the model"


class PythonModel(ModelWorkload):
    """A model from a function or a class of the user's."""

    options = (LAYOUT, GRADIENTS)
    rows_are_independent = False  # unknown
    file: OwnFile
    outline: Outline

    @classmethod
    def summary(cls) -> str:
        return cls.outline.summary

    def check(self, params: Any) -> None:
        missing = [each.name for each in self.outline.arguments if getattr(params, each.name) == REQUIRED]
        if missing:
            raise UsageError(f"{self.outline.member} needs a value for {missing[0]}", _REQUIRED_FIX.format(missing[0]))
        if "input" not in self._own and not parse_tensors(params.input) and self.outline.needs_input:
            raise self._no_input()
        if params.loss and "loss" not in self._own:
            find_loss(params.loss)

    def build(self, params: Any, setting: Setting) -> Model:
        import torch

        function = _member(self.file, self.outline.member)
        if isinstance(function, torch.nn.Module):  # the model itself, which several builds must not share
            given: Any = copy.deepcopy(function)
        else:
            given = function(**{name: getattr(params, name) for name in self._own})
        model, example = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"{self.outline.member} of {self.file.name} gives a {type(model).__name__}",
                "It must return a torch.nn.Module, alone or with an example input: return model, input",
            )
        loss = "" if "loss" in self._own else params.loss
        return Model(model, self._inputs(params, example, setting), loss=import_loss(loss) if loss else None)

    def _inputs(self, params: Any, example: object, setting: Setting) -> Any:
        shapes = () if "input" in self._own else parse_tensors(params.input)
        if shapes:
            generator = setting.generator()
            tensors = [make_tensor(shape, generator) for shape in join_batch(params.batch, shapes)]
            names = [shape.name or place for place, shape in enumerate(shapes)]
            return dict(zip(names, tensors, strict=True))
        if example is None:
            raise self._no_input()
        return _resized(_checked_example(example), 0 if "batch" in self._own else params.batch)

    def _no_input(self) -> UsageError:
        return UsageError(f"{self.outline.member} needs --input, such as --input 'float32[8,3,224,224]'", HELP)

    @property
    def _own(self) -> tuple[str, ...]:
        """Parameters that are the function's own."""
        return tuple(argument.name for argument in self.outline.arguments)


def model_from(file: OwnFile, member: str, outline: Outline) -> PythonModel:
    """The workload that the function or class makes; `member` as it was named, if it was."""
    own: list[tuple[str, Any, Any]] = [(each.name, each.kind, each.default) for each in outline.arguments]
    names = [name for name, *_ in own]
    ours: list[tuple[str, Any, Any]] = [("batch", _BATCH, 0), ("input", _INPUT, ""), ("loss", _LOSS, "")]
    params: Any = defstruct("Params", [*own, *(each for each in ours if each[0] not in names)], frozen=True)
    sized = "batch" in names and isinstance(params().batch, int)
    about = {
        "__doc__": outline.about or f"The model that {outline.member} makes.",
        "name": f"{file.name}:{member}" if member else file.name,
        "params": params,
        "tiny": params(batch=_TINY_BATCH) if sized else params(),
        "version": file.version,
        "imports": (COUNTING, *outline.imports),
        "file": file,
        "outline": outline,
    }
    made: PythonModel = type("OwnModel", (PythonModel,), about)()
    return made


def workload_from(file: OwnFile, member: str, outline: Outline) -> Workload:
    """The workload that the file itself declares. Its version is that of the file, whatever it says."""
    found = _member(file, outline.member)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise UsageError(f"{outline.member} of {file.name} is no Workload", "Derive it from torchmark's Workload")
    missing = [name for name in ("params", "tiny") if not isinstance(getattr(found, name, None), type | Struct)]
    if missing or inspect.isabstract(found):
        lacks = missing[0] if missing else sorted(found.__abstractmethods__)[0]
        raise UsageError(f"{outline.member} of {file.name} has no {lacks}", "`torchmark new --workload` shows one")
    name = f"{file.name}:{member}" if member else file.name
    about = {"__doc__": found.__doc__, "__module__": found.__module__, "name": name, "version": file.version}
    return type(found.__name__, (found,), about)()  # type: ignore[no-any-return]


def write_loss(typed: str) -> str:
    """`FILE:FUNCTION` as a case writes it: by the file's name, with its version."""
    named = split_name(typed)
    if not named or not named[1]:
        raise UsageError(f"'{typed}' names no function", "Write FILE:FUNCTION, as in --loss my_model.py:loss")
    file = find_file(named[0])
    return f"{file.name}.{named[1]}.{file.version:08x}"


def find_loss(text: str) -> tuple[OwnFile, str]:
    """The file and the function that such a text means."""
    found = re.fullmatch(r"(?P<file>.+\.py)\.(?P<member>[A-Za-z_]\w*)\.(?P<version>[0-9a-f]{8})", text, re.ASCII)
    if not found:
        raise UsageError(f"'{text}' is not a loss", "Give it with --loss FILE:FUNCTION")
    file = find_file(found["file"])
    if file.version != int(found["version"], 16):
        raise UsageError(f"{file.name} is not what it was when '{text}' was written", "Give it with --loss again")
    return file, found["member"]


def import_loss(text: str) -> Callable[..., Any]:
    """That function, given the model's answer and as many of the inputs as it takes."""
    function = _member(*find_loss(text))
    count = _takes(function)
    return lambda answer, inputs, _: function(*(answer, *leaves_of(inputs))[:count])


def _takes(function: Callable[..., Any]) -> int | None:
    """How many values a function can be given; None: any number."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def _member(file: OwnFile, name: str) -> Any:
    found = getattr(import_file(file), name, None)
    if not callable(found):
        raise UsageError(f"{file.name} has no function or class '{name}'", "Name one that it has")
    return found


def _checked_example(example: object) -> Any:
    import torch

    if isinstance(example, torch.Tensor):
        return example
    if not isinstance(example, tuple | list | Mapping):
        raise UsageError(f"the example input is a {type(example).__name__}", _EXAMPLE_FIX)
    values = list(example.values()) if isinstance(example, Mapping) else list(example)
    wrong = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
    if wrong or not values:
        raise UsageError(f"the example input holds {f'a {wrong[0]}' if wrong else 'nothing'}", _EXAMPLE_FIX)
    return dict(zip(map(str, example), values, strict=True)) if isinstance(example, Mapping) else tuple(values)


def _resized(inputs: Any, batch: int) -> Any:
    """The example with so many rows: its own again and again."""
    rows = row_count(inputs)
    if not batch or batch == rows:
        return inputs
    if not rows:
        sizes = " and ".join("×".join(map(str, tensor.shape)) or "one number" for tensor in leaves_of(inputs))
        raise UsageError(f"the batch cannot be changed: the inputs are {sizes}", "Leave -p batch out")
    return map_tensors(lambda tensor: tensor[[row % rows for row in range(batch)]], inputs)
