"""The user's own models: a Python file or a transformers configuration file becomes a workload like any other."""

import ast
import copy
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, defstruct
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, UsageError
from torchmark.records import Value
from torchmark.workloads.contract import ATTENTION, GRADIENTS, LAYOUT, Count, Setting, Workload
from torchmark.workloads.model import COUNTING, Model, ModelWorkload, leaves_of, map_tensors, row_count
from torchmark.workloads.own.files import OwnFile, find_file, import_member, split_name

_WRITTEN = r"^[A-Za-z0-9_.-]*$"
_OURS: dict[str, tuple[Any, Value]] = {  # parameters of every function, unless it has one of that name itself
    "batch": (Annotated[int, Meta(ge=0, le=1_048_576)], 0),
    "input": (Annotated[str, Meta(pattern=_WRITTEN, description="what --input says")], ""),
    "loss": (Annotated[str, Meta(pattern=_WRITTEN, description="what --loss says")], ""),
}
_EXAMPLE_FIX = "Return a tensor, a tuple of tensors, or a dictionary from argument names to tensors"
_USUAL = "build"  # the function used if none is named
_REQUIRED = "required"  # in place of a default
# Libraries that workers can share once they are imported, which takes seconds.
_SLOW = ("transformers", "diffusers")
_MODEL_METHODS = ("eval", "train", "to", "float", "half", "bfloat16", "double", "requires_grad_")  # return the model
_KINDS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": Annotated[str, Meta(pattern=r"^[\w.-]+$")]}

Definition = ast.FunctionDef | ast.ClassDef


class Outline(Struct, frozen=True):  # of the part of a file that is measured
    member: str
    is_workload: bool
    summary: str
    about: str
    imports: tuple[str, ...]
    arguments: dict[str, tuple[Any, Value]] = {}  # type and default by name
    needs_input: bool = False  # it never returns an example input with its model


@cache
def load_own(file: OwnFile, member: str) -> Workload:
    if file.path.suffix == ".json":
        if member:
            raise UsageError(f"a configuration file has no part '{member}'", f"Name it alone: {file.name}")
        return _configured(file)
    outline, name = inspect_file(file, member), f"{file.name}:{member}" if member else file.name
    if not outline.is_workload:
        fields = (outline.arguments | _OURS | outline.arguments).items()  # its own first, and in place of ours
        params: Any = defstruct("Params", [(each, *kind) for each, kind in fields], frozen=True)
        has_batch = "batch" in outline.arguments and isinstance(params().batch, int)
        about: dict[str, Any] = {"tiny": params(batch=2) if has_batch else params(), "file": file, "outline": outline}
        about["imports"] = (COUNTING, *outline.imports)
        about["__doc__"] = outline.about or f"The model that {outline.member} makes."
        return _derived(PythonModel, name, file, outline.summary, **about)
    # The file declares a workload, whose version is always that of the file.
    found = import_member(file, outline.member)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise UsageError(f"{outline.member} of {file.name} is no Workload", "Derive it from torchmark's Workload")
    lacks = [name for name in ("tiny", "params") if not isinstance(getattr(found, name, None), type | Struct)]
    lacks += sorted(found.__abstractmethods__)
    if lacks:
        raise UsageError(f"{outline.member} of {file.name} has no {lacks[0]}", "`torchmark new --workload` shows one")
    return _derived(found, name, file)


def _derived(base: type[Workload], name: str, source: OwnFile, summary: str = "", **about: Any) -> Workload:
    given = {"name": name, "version": source.version, "__doc__": base.__doc__, "__module__": base.__module__}
    if summary:
        given["summary"] = lambda _: summary
    return type(base.__name__, (base,), given | about)()  # type: ignore[no-any-return]


class PythonModel(ModelWorkload):
    options = (LAYOUT, GRADIENTS)
    rows_are_independent = False  # unknown
    file: OwnFile
    outline: Outline

    def check(self, params: Any) -> None:
        missing = [name for name in self.outline.arguments if getattr(params, name) == _REQUIRED]
        if missing:
            fix = f"Give it: -p {missing[0]}=…, or write a function that makes the model without such arguments"
            raise UsageError(f"{self.name} needs a value for {missing[0]}", fix)
        self._inputs(params, has_example=not self.outline.needs_input)
        if loss := self._ours(params, "loss"):
            find_loss(loss)

    def build(self, params: Any, setting: Setting) -> Model:
        import torch

        function: Any = import_member(self.file, self.outline.member)
        if isinstance(function, torch.nn.Module):  # the model itself, which several builds must not share
            given: Any = copy.deepcopy(function)
        else:
            given = function(**{name: getattr(params, name) for name in self.outline.arguments})
        model, example = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(model, torch.nn.Module):
            fix = "It must return a torch.nn.Module, alone or with an example input: return model, input"
            raise UsageError(f"{self.name} gives a {type(model).__name__}", fix)
        loss = self._ours(params, "loss")
        if shapes := self._inputs(params, has_example=example is not None):
            generator, rows = setting.generator(), enumerate(join_batch(params.batch, shapes))
            inputs: Any = {shape.name or place: make_tensor(shape, generator) for place, shape in rows}
        else:
            inputs = _resized(_checked_example(example), self._ours(params, "batch") or 0)
        return Model(model, inputs, loss=import_loss(loss) if loss else None)

    def _inputs(self, params: Any, has_example: bool) -> tuple["Tensor", ...]:
        if (shapes := parse_tensors(self._ours(params, "input") or "")) or has_example:
            return shapes
        raise UsageError(f"{self.name} needs --input, such as --input 'float32[8,3,224,224]'", HELP)

    def _ours(self, params: Any, name: str) -> Any:
        return None if name in self.outline.arguments else getattr(params, name)


def write_loss(typed: str) -> str:
    """`FILE:FUNCTION` as a case writes it: the file's name, the function, the file's version."""
    named = split_name(typed)
    if not named or not named[1]:
        raise UsageError(f"'{typed}' names no function", "Write FILE:FUNCTION, as in --loss my_model.py:loss")
    file = find_file(named[0])
    return f"{file.name}.{named[1]}.{file.version:08x}"


def find_loss(text: str) -> tuple[OwnFile, str]:
    """Read what `write_loss` writes."""
    found = re.fullmatch(r"(?P<file>.+\.py)\.(?P<member>[A-Za-z_]\w*)\.(?P<version>[0-9a-f]{8})", text, re.ASCII)
    if not found:
        raise UsageError(f"'{text}' is not a loss", "Give it with --loss FILE:FUNCTION")
    file = find_file(found["file"])
    if file.version != int(found["version"], 16):
        raise UsageError(f"{file.name} is not what it was when '{text}' was written", "Give it with --loss again")
    return file, found["member"]


def import_loss(text: str) -> Callable[..., Any]:
    """That function, given the model's answer and as many of the inputs as it takes."""
    function: Any = import_member(*find_loss(text))
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    count = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    most = None if inspect.Parameter.VAR_POSITIONAL in kinds else count
    return lambda answer, inputs, _: function(*(answer, *leaves_of(inputs))[:most])


def _checked_example(example: object) -> Any:
    import torch

    if isinstance(example, torch.Tensor):
        return example
    if not isinstance(example, tuple | list | Mapping):
        raise UsageError(f"the example input is a {type(example).__name__}", _EXAMPLE_FIX)
    values = tuple(example.values() if isinstance(example, Mapping) else example)
    wrong = [f"a {type(value).__name__}" for value in values if not isinstance(value, torch.Tensor)]
    if wrong or not values:
        raise UsageError(f"the example input holds {wrong[0] if wrong else 'nothing'}", _EXAMPLE_FIX)
    return dict(zip(map(str, example), values, strict=True)) if isinstance(example, Mapping) else values


def _resized(inputs: Any, batch: int) -> Any:
    rows = row_count(inputs)
    if not batch or batch == rows:
        return inputs
    if not rows:
        sizes = " and ".join("×".join(map(str, tensor.shape)) or "one number" for tensor in leaves_of(inputs))
        raise UsageError(f"the batch cannot be changed: the inputs are {sizes}", "Leave -p batch out")
    return map_tensors(lambda tensor: tensor[[row % rows for row in range(batch)]], inputs)


# The inputs of a model: as a person types them, as a case writes them, and as tensors.

HELP = "Write float32[8,3,224,224], int64[8,128]<30522 or input_ids=int64[8,128]<30522"
DTYPES = ("float", "int64", "int32", "int16", "int8", "uint8", "bool")
_LARGEST = {f"int{bits}": 2 ** (bits - 1) - 1 for bits in (8, 16, 32, 64)} | {"uint8": 255, "bool": 2}
_TYPED_FORM = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=)?\s*(?P<dtype>[a-z0-9]+)\s*\[(?P<shape>[\d\s,]*)\]"
    r"\s*(?:<\s*(?P<limit>\d{1,19}))?\s*"
)
_WRITTEN_FORM = re.compile(
    rf"(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\.)?(?P<dtype>{'|'.join(DTYPES)})"
    r"\.(?P<shape>x|\d{1,19}(?:x\d{1,19})*)(?:\.(?P<limit>\d{1,19}))?"
)


class Tensor(Struct, frozen=True):
    dtype: str  # `float` is the dtype of the case
    shape: tuple[int, ...]
    limit: int | None = None  # its numbers stay below this
    name: str | None = None  # of the argument that takes it


def read_tensor(typed: str) -> Tensor:
    """What a person types: `float32[8,3,224,224]`, `input_ids=int64[8,128]<30522`."""
    return _parse(typed, _TYPED_FORM, ",", HELP)


def parse_tensors(text: str) -> tuple[Tensor, ...]:
    """Read what `write_tensors` writes."""
    return tuple(_parse(each, _WRITTEN_FORM, "x", "Give it with --input: " + HELP) for each in text.split("..") if text)


def write_tensors(tensors: Sequence[Tensor]) -> str:
    """All inputs of a model in one word, which no shell needs quoted."""
    parts = [(each.name, each.dtype, "x".join(map(str, each.shape)) or "x", each.limit) for each in tensors]
    return "..".join(".".join(str(part) for part in each if part is not None) for each in parts)


def split_batch(tensors: Sequence[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
    """The first size of all inputs, and the inputs without it; 0 if it differs."""
    first = {tensor.shape[:1] for tensor in tensors}
    if len(first) != 1 or first == {()}:
        return 0, tuple(tensors)
    return tensors[0].shape[0], tuple(replace(tensor, shape=tensor.shape[1:]) for tensor in tensors)


def join_batch(batch: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(replace(tensor, shape=(batch, *tensor.shape)) if batch else tensor for tensor in tensors)


def make_tensor(tensor: Tensor, generator: Any) -> Any:
    """Random numbers: normal ones, or integers below the limit, by default 2, as any table has two rows."""
    import torch

    if tensor.dtype == "float":
        return torch.randn(tensor.shape, generator=generator)
    return torch.randint(0, tensor.limit or 2, tensor.shape, generator=generator).to(getattr(torch, tensor.dtype))


def _parse(text: str, form: re.Pattern[str], separator: str, fix: str) -> Tensor:
    found = form.fullmatch(text)
    if not found:
        raise UsageError(f"'{text}' is not an input", fix)
    sizes = [] if found["shape"].strip() in ("", "x") else found["shape"].split(separator)
    if not all(size.strip().isdigit() for size in sizes):
        raise UsageError(f"'{text}' has a size that is no number", HELP)
    dtype, limit = found["dtype"], int(found["limit"]) if found["limit"] else None
    tensor = Tensor("float" if dtype == "float32" else dtype, tuple(map(int, sizes)), limit, found["name"])
    if dtype in ("float64", "bfloat16", "float16"):
        raise UsageError(f"'{text}': inputs take the dtype of the case", f"Write float32[…] and --dtype {dtype}")
    if tensor.dtype not in DTYPES or tensor.name in DTYPES:
        raise UsageError(f"'{text}' is of no kind that is known", f"Valid: float32, {', '.join(DTYPES[1:])}")
    if 0 in tensor.shape or math.prod(tensor.shape) > 2**40:
        raise UsageError(f"'{text}' has no size that a tensor can have", HELP)
    if tensor.limit is not None and not 1 <= tensor.limit <= _LARGEST.get(tensor.dtype, 0):
        raise UsageError(f"'{text}' cannot stay below {tensor.limit}", "Whole numbers can, from 1 on")
    return tensor


# Python files, read without running them, as importing torch takes seconds.


def inspect_file(file: OwnFile, member: str) -> Outline:
    """By default the file's workload or its function `build`."""
    try:
        tree = ast.parse(file.text)
    except SyntaxError as error:
        place = f"{file.name}, line {error.lineno}" if error.lineno else file.name
        raise UsageError(f"{place}: {type(error).__name__}: {error.msg}", "Fix it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # endless nesting
        raise UsageError(f"{file.name} cannot be read as Python: {error}", "Fix it") from error
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    workloads = [
        name
        for name, node in definitions.items()
        for base in getattr(node, "bases", ())
        if ast.unparse(base).rpartition(".")[2] in ("Workload", "ModelWorkload")
    ]
    taken = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    bound = {each.id for each in targets if isinstance(each, ast.Name)}
    bound |= {each.asname or each.name for node in taken for each in node.names}
    if not member and len(workloads) != 1 and (workloads or _USUAL not in definitions):
        problem = "several workloads" if workloads else f"neither a workload nor a function '{_USUAL}'"
        raise UsageError(f"{file.name} has {problem}", _fix(file, workloads or definitions))
    chosen = member or next(iter(workloads), _USUAL)
    node = definitions.get(chosen)
    if node is None and chosen not in bound:
        raise UsageError(f"{file.name} has no '{chosen}'", _fix(file, definitions))
    about = (node and ast.get_docstring(node)) or ""
    summary = (ast.get_docstring(tree) or about or f"{chosen} of {file.name}.").partition("\n")[0]
    modules = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in taken if not node.level]
    slow = tuple(dict.fromkeys(name for name in modules if name.partition(".")[0] in _SLOW))
    if node is None or chosen in workloads:
        return Outline(chosen, chosen in workloads, summary, about, slow)
    return Outline(chosen, False, summary, about, slow, dict(_arguments(node)), not _may_give_pair(node, definitions))


def _fix(file: OwnFile, definitions: Iterable[str]) -> str:
    public = [f"{file.name}:{name}" for name in definitions if not name.startswith("_")]
    usual = f"Write a function '{_USUAL}' that returns a model: `torchmark new` shows how"
    return "Say which part to take: " + ", ".join(public[:8]) if public else usual


def _arguments(node: Definition) -> Iterator[tuple[str, tuple[Any, Value]]]:
    """The arguments that a command line can set; others keep their defaults."""
    is_method = isinstance(node, ast.ClassDef)
    functions = [each for each in (node.body if is_method else [node]) if isinstance(each, ast.FunctionDef)]
    function = next((each for each in functions if not is_method or each.name == "__init__"), None)
    if function is None:
        return
    named = function.args
    positional = [*named.posonlyargs, *named.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(named.defaults)), *named.defaults]
    pairs = [*zip(positional, defaults, strict=True)][int(is_method) :]  # without `self`
    for argument, default in (*pairs, *zip(named.kwonlyargs, named.kw_defaults, strict=True)):
        kind = _KINDS.get(ast.unparse(argument.annotation).strip("'\"") if argument.annotation else "")
        if default is None:
            required = kind | Literal["required"] if kind in (int, float, bool) else kind or int | float | bool | str
            yield argument.arg, (required, _REQUIRED)
            continue
        with suppress(ValueError, TypeError, SyntaxError):
            value = ast.literal_eval(default)
            if isinstance(value, int | float | bool | str):  # a command line can say it
                kind = kind or _KINDS[type(value).__name__]
                yield argument.arg, (kind, float(value) if kind is float else value)


def _may_give_pair(node: Definition, definitions: dict[str, Definition]) -> bool:
    """Whether it may return a model with an example input; True if that cannot be known."""
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


# Configuration files.

Task = Literal["features", "sequence-classification", "token-classification", "question-answering",
               "masked-lm", "causal-lm", "seq2seq-lm", "image-classification"]  # fmt: skip
_ENDINGS = {"LMHeadModel": "causal-lm", "ForConditionalGeneration": "seq2seq-lm"}  # other names, in `architectures`
_LEFT_OUT = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")  # no part of the work


class ConfiguredModel(ModelWorkload):
    """Random weights, inputs and, in training, labels; the model's own loss if it has one."""

    imports = (COUNTING, "transformers")
    rows_are_independent = False  # unknown
    config: dict[str, Any]

    def check(self, params: Any) -> None:
        most = _positions(self.config)
        if hasattr(params, "sequence") and most and params.sequence > most:
            raise UsageError(f"{self.name} has no more than {most} positions", f"Give it: -p sequence={most}")

    def build(self, params: Any, setting: Setting) -> Model:
        import transformers

        kind, task, attention = self.config["model_type"], params.task, setting.options.get("attention")
        if kind not in transformers.CONFIG_MAPPING:
            cause = f"transformers {transformers.__version__} does not know this model type"
            raise UnsupportedError(cause, "Install a later one", kind)
        fields = {name: value for name, value in self.config.items() if name not in _LEFT_OUT}
        config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
        if task == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # decoders look for the end of a text by it
        head = "For" + task.title().replace("-", "").replace("Lm", "LM") if task != "features" else ""
        chosen = {"attn_implementation": attention} if attention else {}
        try:
            model = getattr(transformers, f"AutoModel{head}").from_config(config, trust_remote_code=False, **chosen)
        except ValueError as error:
            if "Unrecognized configuration" not in str(error):
                raise
            raise UnsupportedError(f"a {kind} has no head for {task}", "Choose another with --task") from error
        if model.main_input_name != ("pixel_values" if hasattr(params, "image") else "input_ids"):
            cause = f"a {kind} takes {model.main_input_name}, which torchmark cannot generate"
            fix = "Write a function that returns the model and an example input: `torchmark new` shows how"
            raise UnsupportedError(cause, fix)
        generator, tensors = setting.generator(), _tensors(params, model.config, setting.mode == "train")
        inputs = {each.name: make_tensor(each, generator) for each in tensors}
        attention = str(getattr(model.config, "_attn_implementation", None) or "none")
        return Model(model, inputs, notes={"architecture": type(model).__name__, "attention": attention})


def _configured(file: OwnFile) -> Workload:
    try:
        config = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.name} is not JSON: {error}", "Name a config.json of a model") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{file.name} describes no model: it has no model_type", "Name a config.json of transformers")
    images, pixels = "image_size" in config or "num_channels" in config, config.get("image_size")
    usual = pixels if isinstance(pixels, int) else 224
    size = ("image", Count, usual) if images else ("sequence", Count, min(128, _positions(config) or 128))
    saved = config.get("architectures")
    name = saved[0] if isinstance(saved, list) and saved and isinstance(saved[0], str) else ""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.rpartition("For")[2]).lower()
    found = [task for ending, task in _ENDINGS.items() if name.endswith(ending)]
    usual_task = next(iter(found), words if words in get_args(Task) else "features")
    params = defstruct("Params", [("task", Task, usual_task), ("batch", Count, 8), size], frozen=True)
    tiny = params(batch=2) if images else params(batch=2, sequence=8)
    options = (LAYOUT, ATTENTION, GRADIENTS) if images else (ATTENTION, GRADIENTS)
    summary = f"{config['model_type']} from a configuration file, with random weights."
    return _derived(ConfiguredModel, file.name, file, summary, tiny=tiny, config=config, options=options)


def _positions(config: dict[str, Any]) -> int | None:
    found = config.get("max_position_embeddings") or config.get("n_positions")
    return found if isinstance(found, int) and found > 0 else None


def _tensors(params: Any, config: Any, training: bool) -> list[Tensor]:
    rows: tuple[int, ...] = (params.batch,)
    if hasattr(params, "image"):
        pixels = (*rows, getattr(config, "num_channels", 3), params.image, params.image)
        labelled = training and params.task == "image-classification"
        labels = [Tensor("int64", rows, config.num_labels, "labels")] if labelled else []
        return [Tensor("float", pixels, name="pixel_values"), *labels]
    words = (*rows, params.sequence)
    task, text = params.task if training else "", (words, config.vocab_size)
    given = {"input_ids": text}
    if getattr(config, "is_encoder_decoder", False) and task != "seq2seq-lm":
        given["decoder_input_ids"] = text
    if task == "question-answering":
        given |= {f"{end}_positions": (rows, params.sequence) for end in ("start", "end")}
    elif task.endswith("-classification"):
        given["labels"] = (words if task.startswith("token") else rows, config.num_labels)
    elif task.endswith("-lm"):
        given["labels"] = text
    return [Tensor("int64", shape, limit, name) for name, (shape, limit) in given.items()]
