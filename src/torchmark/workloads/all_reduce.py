"""Workers add up an array that each of them has: what exchanging gradients can cost at best."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload, smaller_sizes
from torchmark.workloads.reference import exactly

if TYPE_CHECKING:
    import torch

_CHECKED = 64
_SMALLEST = 1024  # bytes
_SMALLER = 32


class Params(Struct, frozen=True):
    """Bytes of the array, and whether smaller ones, down to a kilobyte, are timed too."""

    size_bytes: Annotated[int, Meta(ge=1024, le=2**34)] = 67_108_864
    sizes: Literal["one", "all"] = "one"


class AllReduce(Workload):
    """The sum of all arrays takes the place of each. They are zeros: their sum can be added up as often as wanted."""

    name = "all-reduce"
    params = Params
    tiny = Params(size_bytes=1024)
    distributed = True
    default_workers = 2

    def work(self, params: Params, setting: Setting) -> Work:
        """Bytes are those that every worker must send at least: nothing where it is alone."""
        size, workers = _count(params.size_bytes, setting) * setting.item_bytes, setting.world_size
        return Work(items=1, unit="exchange", flops=0, bytes=2 * (workers - 1) / workers * size)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        array = setting.place(torch.zeros(_count(params.size_bytes, setting), dtype=setting.torch_dtype))
        run = _exchange(array, setting)

        def outputs() -> Tensors:
            array.copy_(setting.place(_values(params, setting)))
            found = run()[-_CHECKED:].clone()
            array.zero_()
            return (found,)

        def reference() -> Tensors:
            values = _values(params, setting)[-_CHECKED:].double()
            with exactly():
                return (sum([values] * (setting.world_size - 1), values),)

        smaller = smaller_sizes(params.size_bytes, _SMALLER, _SMALLEST) if params.sizes == "all" else []
        return Step(
            run=run,
            work=self.work(params, setting),
            outputs=outputs,
            reference=reference,
            stages=tuple(
                Stage(f"{size} bytes", 0, _exchange(array[: _count(size, setting)], setting)) for size in smaller
            ),
        )


def _exchange(array: torch.Tensor, setting: Setting) -> Callable[[], torch.Tensor]:
    import torch.distributed as dist

    def run() -> torch.Tensor:
        if setting.world_size > 1:
            dist.all_reduce(array)
        return setting.drain(array)

    return run


def _values(params: Params, setting: Setting) -> torch.Tensor:
    """Made from the seed, so that every worker has the same and knows what they add up to."""
    import torch

    return torch.rand(_count(params.size_bytes, setting), generator=setting.generator()).to(setting.torch_dtype)


def _count(size_bytes: int, setting: Setting) -> int:
    return size_bytes // setting.item_bytes
