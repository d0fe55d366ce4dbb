"""The framework of workloads that run a model: a file gives model, inputs and loss; steps and checks follow."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, UsageError, WrongResultError
from torchmark.records import Work
from torchmark.workloads import reference
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["Cost", "Model", "ModelWorkload", "OptimizerSpec", "guessing"]

COUNTING = "torch._dynamo.utils"  # counting FLOPs imports it, which takes a second
_SPREAD = 3.0  # how much random weights may add to the loss of guessing
_CHECKED_MATRICES = 8  # the last ones: those of all take too long in a large model
_ALIKE = 1e-5  # relative difference of exact computations, parts of which may insist on float32
_HALF_RANGE = 1024.0  # the largest gradient in a check in float16, clear of its smallest numbers


class OptimizerSpec(Struct, frozen=True):
    """One of torch's optimizers, and the formula to check it by."""

    kind: Literal["SGD", "Adam", "AdamW"] = "AdamW"
    rate: float = 1e-4
    momentum: float = 0.0

    def make(self, weights: Iterable[Tensor], scale: float = 1.0) -> torch.optim.Optimizer:
        """For gradients multiplied by `scale`."""
        from torch import optim

        options = {"lr": self.rate / scale, "momentum": self.momentum} if self.kind == "SGD" else {"lr": self.rate}
        return getattr(optim, self.kind)(weights, **options)  # type: ignore[no-any-return]

    def first_move(self, gradient: Tensor) -> Tensor:
        """How far a weight of zero moves in a first step, without decay, momentum and earlier gradients."""
        return -self.rate * (gradient if self.kind == "SGD" else gradient / (gradient.abs() + 1e-8))


class Model(Struct, frozen=True):
    """A model with its inputs on the host. Inputs and targets are tensors, or tuples and dictionaries of them, at any
    depth. A tuple becomes the model's arguments, a dictionary its keyword arguments (integer keys: positional ones)."""

    module: nn.Module
    inputs: Any
    loss: Callable[[Any, Any, Any], Tensor] | None = None  # of answer, inputs, targets; default: `usual_loss`
    optimizer: OptimizerSpec = OptimizerSpec()
    targets: Any = None
    result: Callable[[Any], Any] = lambda answer: answer  # the part of the answer that an inference step returns
    call: Callable[[Callable[..., Any], Any], Any] | None = None  # how to call the model with inputs
    feed: Callable[[], Any] | None = None  # inputs and targets of each step on the host; default: always the same
    few: Callable[[Any, Any], tuple[Any, Any]] | None = None  # inputs and targets of the check; default: two rows
    look: Callable[[Callable[[Any], Any], Any], Tensors] | None = None  # what to check, given `call` and inputs
    first_loss: tuple[float, float] | None = None  # bounds of the first step's loss, for any seed
    loss_scale: float = 0.0  # of the loss in float16, a power of two; 0: float16 training is refused
    reads_loss: bool = False  # copy the loss to the host in every step
    notes: dict[str, str] = {}
    metrics: Callable[[], dict[str, float]] = dict
    job_steps: int = 0  # these three as in `Step`; the stages are given the timed model
    epochs: int = 0
    stages: Callable[[Callable[..., Any]], tuple[Stage, ...]] = lambda _: ()

    def caller(self) -> Callable[[Callable[..., Any], Any], Any]:
        """`call`, or the plain call for this kind of inputs."""
        if self.call:
            return self.call
        if isinstance(self.inputs, tuple | list):
            return lambda forward, given: forward(*given)
        if not isinstance(self.inputs, Mapping):
            return lambda forward, given: forward(given)
        names = [name for name in self.inputs if isinstance(name, str)]
        if not (places := [name for name in self.inputs if name not in names]):
            return lambda forward, given: forward(**given)
        return lambda forward, given: forward(*map(given.get, places), **{name: given[name] for name in names})


class Cost(Struct, frozen=True):
    """The cost of a step, as a plan must know it before torch is imported."""

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


def usual_loss(answer: Any, *_: Any) -> Tensor:
    """The model's own loss if it returns one, else the mean squared difference of its answer from numbers between 1
    and 2: equal ones would give no gradient behind a normalisation."""
    import torch

    if (own := getattr(answer, "loss", None)) is not None:
        return own  # type: ignore[no-any-return]
    squares = []
    for tensor in tensors_of(answer):
        goal = torch.linspace(1, 2, tensor.shape[-1] if tensor.dim() else 1, dtype=tensor.dtype, device=tensor.device)
        squares.append((tensor - goal).square().mean())
    if not squares:
        raise UsageError("the model returns nothing to learn from", "Give a loss function: --loss FILE:FUNCTION")
    return sum(squares[1:], squares[0])


class ModelWorkload(Workload):
    """A workload that is a model: only `build` is required."""

    modes: ClassVar[tuple[str, ...]] = ("infer", "train")
    distributed = True
    usual_gradients: ClassVar[str] = "inference-mode"
    rows_are_independent: ClassVar[bool] = True  # results of two rows do not depend on others; False: find out
    filled: ClassVar[bool] = False  # too large to draw every weight and to hold all in float64

    @abstractmethod
    def build(self, params: Any, setting: Setting) -> Model:
        """The model and its inputs, with random numbers from torch's own generator or `setting.generator()`."""

    def cost(self, params: Any, training: bool) -> Cost | None:
        """Of a step of one rank, without torch; None: it is counted when the model is built."""
        return None

    def work(self, params: Any, setting: Setting) -> Work | None:
        training = setting.mode == "train"
        if (cost := self.cost(params, training)) is None:
            return None
        flops = 2 * (3 * cost.products - cost.products_at_input if training else cost.products)
        size = cost.numbers * setting.item_bytes + 8 * cost.integers
        return setting.of_all_ranks(Work(cost.items, cost.unit, flops, size))

    def memory_bytes(self, params: Any, setting: Setting) -> float | None:
        cost = self.cost(params, setting.mode == "train")
        return cost.memory * setting.item_bytes if cost and cost.memory else None

    def made(self, params: Any, setting: Setting) -> Model:
        """The model and its inputs on the host, in the setting's dtype."""
        with reference.without_drawing(setting.torch_dtype) if self.filled else setting.seeded():
            model = self.build(params, setting)
        if self.filled:
            reference.fill(model.module, setting)
        else:
            model.module.to(setting.torch_dtype)
        inputs, targets = _in_dtype((model.inputs, model.targets), setting.torch_dtype)
        return replace(model, inputs=inputs, targets=targets)

    def prepare(self, params: Any, setting: Setting) -> Step:
        kind = Training if setting.mode == "train" else Inference
        return kind(self, params, setting, self.made(params, setting)).step()


class Inference:
    """A forward pass, and its check against the same model in float64 with a few rows."""

    def __init__(self, workload: ModelWorkload, params: Any, setting: Setting, model: Model) -> None:
        import torch

        self.workload, self.setting, self.model = workload, setting, model
        self.work = workload.work(params, setting) or count_work(model, setting)
        self.call, self.notes = model.caller(), dict(model.notes)
        self.look = model.look or (lambda run, inputs: tensors_of(model.result(run(inputs))))
        self.dtype = torch.float64  # of the reference
        self.losses: list[Tensor] = []  # of the first training step and the last one
        both, training = (model.inputs, model.targets), setting.mode == "train"
        two_are_enough = workload.rows_are_independent or training
        few = model.few(*both) if model.few else _two_rows(both) if two_are_enough else both
        self.inputs, self.targets = map_tensors(torch.clone, few)  # models may write into their inputs
        copies = reference.recorded(model.module)
        # Tables of a filled model keep their precision: bfloat16 would place far tokens wrongly.
        placed = model.module.to(setting.device) if workload.filled else setting.place_model(model.module)
        self.module = placed.train(training)
        before = copies() if training else ()  # a step changes them
        self.copies = lambda: before or copies()
        self.shared = setting.parallel(self.module) if training else self.module
        self.forward = setting.compiled(self.shared)
        self.feed = _feeder(setting, both if training else model.inputs, model.feed)

    def step(self) -> Step:
        run, model = self.runner(), self.model
        return Step(
            run,
            self.work,
            outputs=lambda: self.outputs() if self.is_checked else (),
            reference=lambda: self.reference() if self.is_checked else (),
            copies=self.copies,
            job_steps=model.job_steps,
            stages=model.stages(self.forward),
            epochs=model.epochs,
            alone=self.setting.alone(self.shared, run) if self.setting.mode == "train" else None,
            metrics=lambda: ({"loss": float(self.losses[-1])} if self.losses else {}) | model.metrics(),
            notes=self.notes,
        )

    @contextmanager
    def exact(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module in the dtype of the reference, which is computed inside."""
        exact = reference.exact_model(module, by_layer=self.workload.filled)
        with reference.exactly(self.dtype):
            yield exact.to(self.dtype).eval()

    def computed(self, inputs: Any) -> Tensors:
        with self.exact(self.module) as exact, self.setting.without_gradients():
            return self.look(partial(self.call, exact), _in_dtype(inputs, self.dtype))

    @cached_property
    def is_checked(self) -> bool:
        """False if the model draws at random. Finds the dtype of the reference."""
        import torch

        if self.workload.rows_are_independent:
            return True
        few = _two_rows(self.inputs)
        try:
            first = self.computed(few)
        except RuntimeError as error:
            if "type" not in str(error):  # all complaints about a dtype contain the word
                raise
            self.dtype = torch.float32
            self.notes["reference"] = "float32, which the model insists on"
            first = self.computed(few)
        if not first:
            raise UnsupportedError("the model returns no floating-point tensor", "Let it return what it computes")
        if not _alike(first, self.computed(few)):
            self.notes["numbers"] = "not checked: the model draws at random"
        return "numbers" not in self.notes

    def runner(self) -> Callable[[], object]:
        import torch

        forward, feed, call, setting = self.forward, self.feed, self.call, self.setting
        result, usual, resident = self.model.result, self.workload.usual_gradients, setting.transfer == "resident"

        def drain(given: Any) -> Any:
            if resident:
                return given
            return setting.drain(given) if isinstance(given, torch.Tensor) else [*map(setting.drain, leaves_of(given))]

        def run() -> Any:
            with setting.without_gradients(usual):
                return drain(result(call(forward, feed())))

        return run

    def outputs(self) -> Tensors:
        """By the timed function, with the whole batch unless `look` replaces it."""
        with self.setting.without_gradients(self.workload.usual_gradients):
            found = self.look(partial(self.call, self.forward), self.feed())
        if self.model.look or not self.by_row or not row_count(self.model.inputs):
            return found
        return [_ends(tensor) if tensor.dim() else tensor for tensor in found]

    def reference(self) -> Tensors:
        return self.computed(_two_rows(self.inputs) if self.by_row and not self.model.few else self.inputs)

    @cached_property
    def by_row(self) -> bool:
        """Whether two rows stand for all."""
        if self.workload.rows_are_independent:
            return True
        if (count := row_count(self.inputs)) <= 2:
            return False
        two = self.computed(_two_rows(self.inputs))
        three = self.computed(map_tensors(lambda each: each[[0, 1, count - 1]], self.inputs))
        return all(each.dim() and len(each) == 3 for each in three) and _alike(two, [each[[0, 2]] for each in three])


class Training(Inference):
    """Forward, loss, backward, and a step of the optimizer."""

    def __init__(self, workload: ModelWorkload, params: Any, setting: Setting, model: Model) -> None:
        import torch

        self.scale = model.loss_scale if setting.dtype == "float16" else 1.0
        if not self.scale:
            raise UnsupportedError("training in float16 alone does not stay finite", "Train in bfloat16 or float32")
        if not any(weight.requires_grad for weight in model.module.parameters()):
            raise UnsupportedError("the model has no weights to train", "Measure it with --mode infer")
        super().__init__(workload, params, setting, model)
        # Checks run norms without a batch, where later weights let values grow past all bounds: they use the first.
        goes_by_batches = any(getattr(each, "running_mean", None) is not None for each in self.module.modules())
        self.remake = cache(lambda: workload.made(params, setting).module) if goes_by_batches else None
        self.optimizer = model.optimizer.make(self.module.parameters(), self.scale)
        self.gradient = setting.place(torch.tensor(self.scale)) if self.scale != 1 else None

    def runner(self) -> Callable[[], object]:
        setting, feed = self.setting, self.feed

        def run() -> Tensor:
            inputs, targets = feed()
            self.optimizer.zero_grad()
            loss = self.loss(self.forward, inputs, targets)
            loss.backward(self.gradient)  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses[1:] = [loss.detach()]
            if self.model.reads_loss:
                float(self.losses[-1])
            return setting.drain(self.losses[-1])

        return run

    def loss(self, forward: Callable[..., Any], inputs: Any, targets: Any) -> Tensor:
        return (self.model.loss or usual_loss)(self.call(forward, inputs), inputs, targets)

    def outputs(self) -> Tensors:
        """Loss, gradients and movements for a few rows, on all ranks together."""
        # A timed step's loss, with dropout and norms by the batch, has no reference, but must be near guessing.
        if self.losses and self.model.first_loss:
            (low, high), found = self.model.first_loss, float(self.losses[0])
            if not low < found < high:
                bounds = f"of a model that has learned nothing it is between {low:.3g} and {high:.3g}"
                fix = "Do not train in this dtype on this device before you know why"
                raise WrongResultError(f"the loss of the first step was {found:.3g}; {bounds}", fix)
        setting, optimizer = self.setting, self.optimizer
        inputs, targets = map_tensors(setting.place, (self.inputs, self.targets))
        optimizer.zero_grad()
        with _steady(self.module, self.remake):
            loss = self.loss(self.forward, inputs, targets)
            checked = _checked_weights(self.module)
            # Ranks check the same rows with different factors, 1 on average: results are right only after an exchange,
            # which needs the gradients of all weights.
            wanted = checked if setting.world_size == 1 else None
            factor = 2 * (setting.rank + 1) / (setting.world_size + 1)
            (factor * loss).backward(self.gradient, inputs=wanted)  # type: ignore[no-untyped-call]
            weights = [weight for weight in checked if weight.grad is not None]
            gradients = [weight.grad for weight in weights]
            optimizer.zero_grad()  # the optimizer leaves weights without a gradient alone
            factors = [_HALF_RANGE / float(each.abs().max() + 1e-7) if self.scale != 1 else 1.0 for each in gradients]
            scaled = [gradient * factor for gradient, factor in zip(gradients, factors, strict=True)]
            descents = first_descents([optimizer], weights, scaled)
        descents = [each / factor**2 / self.scale for each, factor in zip(descents, factors, strict=True)]
        return _summary(loss, [gradient.cpu().double() / self.scale for gradient in gradients], descents)

    def reference(self) -> Tensors:
        import torch

        with self.exact(self.remake() if self.remake else self.module) as exact:
            loss = self.loss(exact, *_in_dtype((self.inputs, self.targets), self.dtype))
            found = torch.autograd.grad(loss, _checked_weights(exact), allow_unused=True)
            gradients = [each.double() for each in found if each is not None]
            return _summary(loss, gradients, [each * self.model.optimizer.first_move(each) for each in gradients])


def _checked_weights(model: nn.Module) -> list[Any]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [each for each in weights if each.ndim > 1]
    return [*(each for each in weights if each.ndim <= 1), *matrices[-_CHECKED_MATRICES:]]


def _summary(loss: Tensor, gradients: Tensors, descents: Tensors) -> Tensors:
    """Loss, lengths of the gradients and of the last one's columns, and how far each weight's step lowers the loss.
    Single elements may be rounding alone: next to the kink of a ReLU, or moved by Adam as far as any other."""
    import torch

    lengths, depths = torch.stack([each.norm() for each in gradients]), torch.stack([each.sum() for each in descents])
    return [loss.detach(), lengths, gradients[-1].reshape(-1, *gradients[-1].shape[1:]).norm(dim=0), depths]


def first_descents(optimizers: Sequence[torch.optim.Optimizer], weights: Sequence[Any], gradients: Tensors) -> Tensors:
    """Gradient times movement of every weight in a first step from zero, where rounding loses little; all is undone."""
    kept = [weight.detach().clone() for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.detach().zero_()
        weight.grad = gradient
    for optimizer in optimizers:
        state, optimizer.state = optimizer.state, defaultdict(dict)
        optimizer.step()
        optimizer.state = state
        optimizer.zero_grad()
    pairs = zip(weights, gradients, strict=True)
    moved = [weight.detach().cpu().double() * gradient.cpu().double() for weight, gradient in pairs]
    load_values(weights, kept)
    return moved


@contextmanager
def _steady(model: nn.Module, start: Callable[[], nn.Module] | None) -> Iterator[None]:
    """Without dropout and norms by the batch, and with the weights that `start` makes."""
    import torch

    tensors = [*model.parameters(), *model.buffers()] if start else []
    kept = [each.detach().clone() for each in tensors]
    model.eval()
    for each in model.modules():
        if isinstance(each, torch.nn.RNNBase) and not each.dropout:
            each.train()  # it computes the same, but some devices have no backward pass otherwise
    if start:
        made = start()
        load_values(tensors, [*made.parameters(), *made.buffers()])
    try:
        yield
    finally:
        model.train()
        load_values(tensors, kept)


def load_values(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value)


def _feeder(setting: Setting, values: Any, feed: Callable[[], Any] | None) -> Callable[[], Any]:
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    if feed:
        return lambda: map_tensors(setting.place, feed())
    if setting.transfer == "resident":
        resident = map_tensors(setting.place, values)
        return lambda: resident
    if isinstance(values, torch.Tensor):
        return setting.feed(values)
    leaves, shape = tree_flatten(values)
    feeds = [setting.feed(each) if isinstance(each, torch.Tensor) else lambda each=each: each for each in leaves]
    return lambda: tree_unflatten([each() for each in feeds], shape)


def _ends(tensor: Tensor) -> Tensor:
    """The first row and the last, or the only one."""
    return tensor[:: max(len(tensor) - 1, 1)]


def _two_rows(values: Any) -> Any:
    return map_tensors(_ends, values) if row_count(values) else values


def _in_dtype(values: Any, dtype: torch.dtype) -> Any:
    """Copies of the tensors, floating-point ones in this dtype."""
    return map_tensors(lambda each: each.to(dtype if each.is_floating_point() else each.dtype, copy=True), values)


def _alike(first: Tensors, second: Tensors) -> bool:
    return len(first) == len(second) and all(
        one.shape == other.shape
        and one.allclose(other, rtol=_ALIKE, atol=_ALIKE * float(one.abs().max()), equal_nan=True)
        for one, other in zip(first, second, strict=True)
    )


def count_work(model: Model, setting: Setting) -> Work:
    """The work of a step of all workers, counted on tensors without memory."""
    import torch

    rows, outputs, training = row_count(model.inputs), list[Any](), setting.mode == "train"

    def step() -> None:
        bare = reference.copied(model.module, lambda each: each.detach().to("meta")).train(training)
        inputs, targets = map_tensors(lambda each: each.to("meta"), (model.inputs, model.targets))
        with torch.set_grad_enabled(training):
            answer = model.caller()(bare, inputs)
            if training:
                (model.loss or usual_loss)(answer, inputs, targets).backward()  # type: ignore[no-untyped-call]
            else:
                outputs.extend(tensors_of(model.result(answer)))

    flops = None
    with suppress(Exception):  # a model may look at its numbers
        flops = count_flops(step) or None
    integers = sum(each.numel() for each in leaves_of(model.inputs) if not each.is_floating_point())
    # Of a table only the rows that are looked up are read, one for each integer input.
    tables = {id(each.weight) for each in model.module.modules() if isinstance(each, torch.nn.Embedding)}
    tables -= {id(each.weight) for each in model.module.modules() if isinstance(each, torch.nn.Linear)}
    numbers = sum(
        min(integers, each.shape[0]) * each.shape[1] if id(each) in tables else each.numel()
        for each in model.module.parameters()
    )
    # Training also reads or writes gradients and the two numbers that Adam keeps.
    numbers = numbers * (7 if training else 1) + sum(each.numel() for each in (*leaves_of(model.inputs), *outputs))
    return setting.of_all_ranks(Work(rows or 1, "sample" if rows else "step", flops, numbers * setting.item_bytes))


def count_flops(step: Callable[[], object]) -> float:
    """Count a step, which needs meta tensors: on the CPU fused attention and LSTM hide their products."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def map_tensors(change: Callable[[Any], Any], values: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, change, values)


def row_count(inputs: Any) -> int:
    """The first size of all tensors; 0 if they differ."""
    first = {tuple(tensor.shape[:1]) for tensor in leaves_of(inputs)}
    return next(iter(first))[0] if len(first) == 1 and first != {()} else 0


def tensors_of(answer: object) -> list[Tensor]:
    return [tensor for tensor in leaves_of(answer) if tensor.is_floating_point() and tensor.numel()]


def leaves_of(answer: object) -> Iterator[Tensor]:
    import torch

    parts: Iterable[object] = answer if isinstance(answer, tuple | list) else ()
    if isinstance(answer, torch.Tensor):
        yield answer
    elif isinstance(answer, Mapping):
        parts = answer.values()
    elif dataclasses.is_dataclass(answer):
        parts = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
    for part in parts:
        yield from leaves_of(part)
