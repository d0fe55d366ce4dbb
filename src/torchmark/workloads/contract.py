"""The interface of a workload: one step of work, the amount of that work, and a check of its numbers."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, Struct

from torchmark.errors import UnsupportedError
from torchmark.records import Work

if TYPE_CHECKING:
    import torch

__all__ = ["ATTENTION", "GRADIENTS", "LAYOUT", "CaseOption", "Count", "NoParams",
           "Pairs", "Setting", "Stage", "Step", "Tensors", "Workload", "size_stages"]  # fmt: skip

Count = Annotated[int, Meta(ge=1, le=1_048_576)]  # of rows, images, tokens, …
Tensors = Sequence["torch.Tensor"]
Pairs = Sequence[tuple["torch.Tensor", "torch.Tensor"]]


class CaseOption(Struct, frozen=True):
    """An option that changes how the same work is done."""

    name: str  # one of records.CASE_OPTIONS
    values: tuple[str, ...]  # the default first


LAYOUT = CaseOption("layout", ("contiguous", "channels-last"))  # followed by `Setting.place` and `feed`
GRADIENTS = CaseOption("gradients", ("inference-mode", "no-grad"))  # followed by `Setting.without_gradients`
ATTENTION = CaseOption("attention", ("sdpa", "eager"))  # the model library's names; the workload passes it on


class NoParams(Struct, frozen=True):
    """Nothing can be set."""


class Setting(Struct, frozen=True):
    """All that a workload must follow except its parameters."""

    mode: str
    device: str = "cpu"
    dtype: str = "float32"
    compile: str = "off"
    transfer: str = "resident"
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    data: str | None = None  # folder with the real data sets; default: synthetic images
    options: dict[str, str] = {}  # those that are not the default

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, self.dtype)  # type: ignore[no-any-return]

    @property
    def item_bytes(self) -> int:
        return int(self.dtype[-2:]) // 8

    def of_all_ranks(self, one: Work) -> Work:
        """The work of all ranks, given that of one."""
        count = self.world_size
        return Work(one.items * count, one.unit, one.flops and one.flops * count, one.bytes and one.bytes * count)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Make torch's own generator repeatable, as for initial weights."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            yield

    def generator(self) -> torch.Generator:
        """For random numbers on the host: every device gets the same."""
        import torch

        return torch.Generator().manual_seed(self.seed)

    def place(self, host: torch.Tensor, device: str = "") -> torch.Tensor:
        """The tensor on the device in this setting's layout and, if it has floating-point numbers, its dtype."""
        import torch

        placed = host.to(device or self.device, self.torch_dtype if host.is_floating_point() else host.dtype)
        is_image = self.options.get("layout") == "channels-last" and placed.ndim == len("NCHW")
        return placed.contiguous(memory_format=torch.channels_last) if is_image else placed

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """The same model on the device."""
        # As `Module.to` does, which knows where a weight must be replaced.
        return model._apply(self.place)  # type: ignore[no-untyped-call,no-any-return]

    def feed(self, host: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Gives a step's input: from the device's memory, or copied from the host every time."""
        if self.transfer == "resident":
            resident = self.place(host)
            return lambda: resident
        kept = self.place(host, "cpu")
        if self.transfer == "per-step":
            return lambda: kept.to(self.device)
        if self.device == "cpu":
            raise UnsupportedError("copies from pinned memory need an accelerator", "Use --transfer per-step")
        pinned = kept.pin_memory()
        return lambda: pinned.to(self.device, non_blocking=True)

    def drain(self, output: torch.Tensor) -> torch.Tensor:
        """A step's output: left on the device, or copied to the host every time."""
        return output if self.transfer == "resident" else output.to("cpu")

    def without_gradients(self, usual: str = "inference-mode") -> AbstractContextManager[Any]:
        """Inference mode or no_grad."""
        import torch

        return torch.no_grad() if self.options.get("gradients", usual) == "no-grad" else torch.inference_mode()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        mode = None if self.compile == "on" else self.compile
        return function if self.compile == "off" else torch.compile(function, mode=mode)

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, exchanging gradients with other ranks, if any. Call it before making the optimizer."""
        if self.world_size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)

    def alone(self, model: torch.nn.Module, run: Callable[[], object]) -> Callable[[], object] | None:
        """The same step without the exchange, to measure what it costs; None with a single rank."""

        def run_alone() -> object:
            with model.no_sync():  # type: ignore[operator]  # what `parallel` returned
                return run()

        return run_alone if self.world_size > 1 else None


class Stage(Struct, frozen=True):  # a part of a job
    name: str
    steps: int  # in the whole job; 0: part of another stage's steps, timed to know its share
    run: Callable[[], object]


class Step(Struct, frozen=True):
    """One unit of timed work. `run` never synchronises, times, prints or reads the clock.

    `outputs` computes on the device, with the function and weights that are timed, `reference` in float64 on the CPU.
    Both return tensors of the same shapes, any number of times, without changing what is timed. Make the reference's
    inputs again from the seed; inside `reference.exactly()` the check learns how large an error rounding explains."""

    run: Callable[[], object]
    work: Work
    outputs: Callable[[], Tensors] | None = None
    reference: Callable[[], Tensors] | None = None
    copies: Callable[[], Pairs] | None = None  # (on the device, as made): must be equal to the last bit
    job_steps: int = 0  # of the whole job; 0: there is no job
    stages: tuple[Stage, ...] = ()  # other parts of the job
    epochs: int = 0  # passes of the job over its data; 0: does not apply
    alone: Callable[[], object] | None = None  # the same step without the other ranks, from `Setting.alone`
    metrics: Callable[[], dict[str, float]] | None = None  # results of the steps so far: loss, accuracy, counts
    notes: dict[str, str] = {}  # choices made while preparing, such as the kind of attention


class Workload(ABC):
    """A kind of work. Raise `version` whenever the work changes, so that results never mix."""

    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = ("infer",)
    tiny: ClassVar[Struct]  # parameters for tests
    params: ClassVar[type[Struct]]  # the type of `tiny`
    version: ClassVar[int] = 1
    needs_torch: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "bfloat16", "float16")
    distributed: ClassVar[bool] = False  # can be run by several workers at once
    default_workers: ClassVar[int] = 1
    options: ClassVar[tuple[CaseOption, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()  # slow modules besides torch, which workers share

    def __init_subclass__(cls) -> None:
        if "tiny" in vars(cls) and "params" not in vars(cls):
            cls.params = type(cls.tiny)

    @classmethod
    def summary(cls) -> str:
        """The first line of its module's docstring."""
        return (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n")[0]

    def check(self, params: Any) -> None:
        """Raise UsageError if these parameters do not go together; called without torch."""
        del params

    def work(self, params: Any, setting: Setting) -> Work | None:
        """The work of one step of all ranks, without torch; None if only `prepare` knows."""
        return None

    def memory_bytes(self, params: Any, setting: Setting) -> float | None:
        """The approximate peak memory of a step of one rank; None if too little to matter."""
        return None

    @abstractmethod
    def prepare(self, params: Any, setting: Setting) -> Step:
        """Build the model and its data, untimed. `params` is an instance of `self.params`."""


def size_stages(
    params: Any, setting: Setting, factor: int, smallest: int, step: Callable[[int], Callable[[], object]]
) -> tuple[Stage, ...]:
    """With `sizes=all`, the same step for smaller sizes: each a `factor`-th of the last, a multiple of the smallest."""
    stages, size = list[Stage](), params.size_bytes
    while params.sizes == "all" and size > smallest:
        size = max(size // factor // smallest, 1) * smallest
        stages.append(Stage(f"{size} bytes", 0, step(size // setting.item_bytes)))
    return tuple(stages)
