"""The framework of all workloads that run a model: a file gives model, inputs and loss, the rest is done here."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UsageError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload
from torchmark.workloads.reference import meta_model

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Cost", "Model", "ModelWorkload", "OptimizerSpec", "guessing"]

COUNTING = "torch._dynamo.utils"  # what takes a second to import when FLOPs are counted
_SPREAD = 3.0  # how much random weights may add to the loss of guessing
_ADAM_EPSILON = 1e-8


class OptimizerSpec(Struct, frozen=True):
    """Which of torch's optimizers changes the weights, and the formula to check it by."""

    kind: Literal["SGD", "Adam", "AdamW"] = "AdamW"
    rate: float = 1e-4
    momentum: float = 0.0

    def make(self, weights: Iterable[torch.Tensor], scale: float = 1.0) -> torch.optim.Optimizer:
        """The optimizer, for gradients that are multiplied by `scale`."""
        import torch

        if self.kind == "SGD":
            return torch.optim.SGD(weights, lr=self.rate / scale, momentum=self.momentum)
        return (torch.optim.Adam if self.kind == "Adam" else torch.optim.AdamW)(weights, lr=self.rate)

    def first_move(self, gradient: torch.Tensor) -> torch.Tensor:
        """By how much a weight of zero changes in the first step: no decay, no momentum, and Adam only knows this
        gradient."""
        pace = gradient if self.kind == "SGD" else gradient / (gradient.abs() + _ADAM_EPSILON)
        return -self.rate * pace


class Model(Struct, frozen=True):
    """A model with its inputs on the host, the same for the same seed.

    Inputs and targets are tensors or any nesting of tuples and dictionaries of them. The model is called with a tuple
    as its arguments, with a dictionary as its keyword arguments (integer keys: positional), with a tensor alone.
    """

    module: nn.Module
    inputs: Any
    loss: Callable[[Any, Any, Any], torch.Tensor] | None = None  # of the answer, inputs, targets; None: `usual_loss`
    optimizer: OptimizerSpec = OptimizerSpec()
    targets: Any = None
    result: Callable[[Any], Any] = lambda answer: answer  # of the model's answer: what an inference step returns
    call: Callable[[Callable[..., Any], Any], Any] | None = None  # of the model and inputs, if it is no plain call
    feed: Callable[[], Any] | None = None  # inputs and targets of each step on the host; default: always the same
    few: Callable[[Any, Any], tuple[Any, Any]] | None = None  # inputs and targets of the check; default: two rows
    look: Callable[[Callable[[Any], Any], Any], Tensors] | None = None  # what to check, given `call` and inputs
    first_loss: tuple[float, float] | None = None  # bounds of the first step's loss, whatever the seed
    loss_scale: float = 0.0  # of the loss in float16, a power of two; 0: float16 training is refused
    reads_loss: bool = False  # copy the loss to the host in every step
    notes: dict[str, str] = {}
    metrics: Callable[[], dict[str, float]] = dict


class Cost(Struct, frozen=True):
    """What a step costs, by arithmetic alone: a plan must know it before torch is imported."""

    items: int
    unit: str
    products: int  # multiplications of a forward pass
    numbers: int  # read or written: weights and what the optimizer keeps, inputs, outputs
    products_at_input: int = 0  # those of layers that read the input, whose gradient is not computed
    integers: int = 0  # of eight bytes each, in addition to numbers
    memory: float = 0.0  # numbers in memory at the peak; 0: too few to matter


def guessing(classes: int) -> tuple[float, float]:
    """Bounds of the cross entropy of a model that has learned nothing yet."""
    return max(math.log(classes) - _SPREAD, 0.0), math.log(classes) + _SPREAD


def usual_loss(answer: Any, *_: Any) -> torch.Tensor:
    """The model's own loss if it returns one, else the mean squared difference of what it returns from fixed numbers.

    Those are between 1 and 2 and differ: the squares alone do not change behind a normalisation, and there would be
    nothing to learn, nor any gradient to check.
    """
    import torch

    own = getattr(answer, "loss", None)
    if own is not None:
        return own  # type: ignore[no-any-return]  # a model's own answer
    given = [tensor if tensor.dim() else tensor[None] for tensor in tensors_of(answer)]
    goals = [torch.linspace(1, 2, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device) for tensor in given]
    squares = [(tensor - goal).square().mean() for tensor, goal in zip(given, goals, strict=True)]
    if not squares:
        raise UsageError("the model returns nothing to learn from", "Give a loss function: --loss FILE:FUNCTION")
    return sum(squares[1:], squares[0])


class ModelWorkload(Workload):
    """A workload that is a model: give it `build`, and everything else follows."""

    modes: ClassVar[tuple[str, ...]] = ("infer", "train")
    distributed = True
    usual_gradients: ClassVar[str] = "inference-mode"
    rows_are_independent: ClassVar[bool] = True  # two rows come out the same without the others; False: find out
    filled: ClassVar[bool] = False  # too large to draw every weight and to hold all of them in float64

    @abstractmethod
    def build(self, params: Any, setting: Setting) -> Model:
        """Make the model and its inputs, with random numbers from torch's own generator or `setting.generator()`."""

    def cost(self, params: Any, training: bool) -> Cost | None:
        """The cost of a step of one rank, without torch; None: it is counted when the model is built."""
        del params, training
        return None

    def work(self, params: Any, setting: Setting) -> Work | None:
        training = setting.mode == "train"
        cost = self.cost(params, training)
        if cost is None:
            return None
        flops = 2 * (3 * cost.products - cost.products_at_input if training else cost.products)
        size = cost.numbers * setting.item_bytes + 8 * cost.integers
        return setting.of_all_ranks(Work(cost.items, cost.unit, flops, size))

    def memory_bytes(self, params: Any, setting: Setting) -> float | None:
        cost = self.cost(params, setting.mode == "train")
        return cost.memory * setting.item_bytes if cost and cost.memory else None

    def made(self, params: Any, setting: Setting) -> Model:
        """The model and its inputs on the host, in the setting's dtype."""
        if self.filled:
            from torchmark.workloads.filling import fill, without_drawing

            with without_drawing(setting.torch_dtype):
                model = self.build(params, setting)
            fill(model.module, setting)
        else:
            with setting.seeded():
                model = self.build(params, setting)
            model.module.to(setting.torch_dtype)
        inputs, targets = map_tensors(
            lambda each: each.to(setting.torch_dtype) if each.is_floating_point() else each,
            (model.inputs, model.targets),
        )
        return replace(model, inputs=inputs, targets=targets)

    def prepare(self, params: Any, setting: Setting) -> Step:
        from torchmark.workloads.model_step import Inference

        model = self.made(params, setting)
        if setting.mode == "train":
            return self.training(model, params, setting)[0]
        return Inference(self, model, setting).step(self.work(params, setting) or count_work(model, setting))

    def training(self, model: Model, params: Any, setting: Setting) -> tuple[Step, Callable[..., Any]]:
        """The training step of a model that `made` returned, and the model as the step calls it."""
        from torchmark.workloads.model_step import Training

        work = self.work(params, setting) or count_work(model, setting)
        training = Training(self, model, setting, cache(lambda: self.made(params, setting).module))
        return training.step(work), training.forward


def count_work(model: Model, setting: Setting) -> Work:
    """Rows, floating-point operations and bytes of one step of all workers, counted on tensors without memory."""
    rows, outputs = row_count(model.inputs), list[Any]()
    training = setting.mode == "train"
    flops = _count_model(model, training, outputs)
    integers = sum(each.numel() for each in leaves_of(model.inputs) if not each.is_floating_point())
    # Numbers read or written for each weight: in training also its gradient and the two that Adam keeps.
    numbers = _weights_read(model.module, integers) * (7 if training else 1)
    numbers += sum(each.numel() for each in (*leaves_of(model.inputs), *outputs))
    return setting.of_all_ranks(Work(rows or 1, "sample" if rows else "step", flops, numbers * setting.item_bytes))


def _count_model(model: Model, training: bool, outputs: list[Any]) -> float | None:
    """None if the model does not run without numbers, because it looks at them."""
    import torch

    def step() -> None:
        bare = meta_model(model.module).train(training)
        inputs, targets = map_tensors(lambda each: each.to("meta"), (model.inputs, model.targets))
        with torch.set_grad_enabled(training):
            answer = caller(model)(bare, inputs)
            if training:
                (model.loss or usual_loss)(answer, inputs, targets).backward()  # type: ignore[no-untyped-call]
            else:
                outputs.extend(tensors_of(model.result(answer)))

    try:
        return count_flops(step) or None
    except Exception:  # whatever the model may do
        return None


def count_flops(step: Callable[[], object]) -> float:
    """The matrix products, convolutions and attention in a step on meta tensors: there every operator is seen, while on
    the CPU fused attention and LSTM hide their products from the counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def _weights_read(model: nn.Module, looked_up: int) -> int:
    """The numbers of all weights; of a table only the rows that are looked up, one for each integer input."""
    from torch import nn

    tables = {id(each.weight): each.weight for each in model.modules() if isinstance(each, nn.Embedding)}
    dense = {id(each.weight) for each in model.modules() if isinstance(each, nn.Linear)}
    count = 0
    for weight in model.parameters():
        is_table = id(weight) in tables and id(weight) not in dense
        count += min(looked_up, weight.shape[0]) * weight.shape[1] if is_table else weight.numel()
    return count


def caller(model: Model) -> Callable[[Callable[..., Any], Any], Any]:
    """How to call the model, decided once."""
    import torch

    inputs = model.inputs
    if model.call:
        return model.call
    if isinstance(inputs, torch.Tensor):
        return lambda forward, given: forward(given)
    if not isinstance(inputs, Mapping):
        return lambda forward, given: forward(*given)
    names = [name for name in inputs if isinstance(name, str)]
    if len(names) == len(inputs):
        return lambda forward, given: forward(**given)
    positions = [name for name in inputs if not isinstance(name, str)]
    return lambda forward, given: forward(*(given[each] for each in positions), **{name: given[name] for name in names})


def map_tensors(change: Callable[[Any], Any], values: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda each: change(each) if isinstance(each, torch.Tensor) else each, values)


def row_count(inputs: Any) -> int:
    """The size that all tensors begin with; 0 if they do not begin alike."""
    first = {tuple(tensor.shape[:1]) for tensor in leaves_of(inputs)}
    return next(iter(first))[0] if len(first) == 1 and first != {()} else 0


def tensors_of(answer: object) -> list[torch.Tensor]:
    """Every tensor of floating-point numbers in what a model returns, however it is wrapped."""
    return [tensor for tensor in leaves_of(answer) if tensor.is_floating_point() and tensor.numel()]


def leaves_of(answer: object) -> Iterator[torch.Tensor]:
    """Every tensor in a value."""
    import dataclasses

    import torch

    parts: Iterable[object] = ()
    if isinstance(answer, torch.Tensor):
        yield answer
    elif isinstance(answer, Mapping):
        parts = answer.values()
    elif isinstance(answer, tuple | list):
        parts = answer
    elif dataclasses.is_dataclass(answer):
        parts = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
    for part in parts:
        yield from leaves_of(part)
