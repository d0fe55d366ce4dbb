"""Workers add up their arrays: the least that exchanging gradients can cost."""

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload, size_stages
from torchmark.workloads.reference import exactly

_CHECKED = 64


class Params(Struct, frozen=True):
    size_bytes: Annotated[int, Meta(ge=1024, le=2**34)] = 67_108_864
    sizes: Literal["one", "all"] = "one"  # all: time smaller arrays too, down to a kilobyte


class AllReduce(Workload):
    """The sum of all arrays replaces each. They are zeros, so that they can be added up any number of times."""

    name = "all-reduce"
    tiny = Params(size_bytes=1024)
    distributed = True
    default_workers = 2

    def work(self, params: Params, setting: Setting) -> Work:
        """Bytes are those that every worker must send at least: none if it is alone."""
        size, workers = params.size_bytes // setting.item_bytes * setting.item_bytes, setting.world_size
        return Work(items=1, unit="exchange", flops=0, bytes=2 * (workers - 1) / workers * size)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch
        import torch.distributed as dist

        count = params.size_bytes // setting.item_bytes
        array = setting.place(torch.zeros(count, dtype=setting.torch_dtype))

        def exchange(length: int) -> Callable[[], torch.Tensor]:
            part = array[:length]

            def run() -> torch.Tensor:
                if setting.world_size > 1:
                    dist.all_reduce(part)
                return setting.drain(part)

            return run

        def values() -> torch.Tensor:
            return torch.rand(count, generator=setting.generator()).to(setting.torch_dtype)

        def outputs() -> Tensors:
            array.copy_(setting.place(values()))
            found = run()[-_CHECKED:].clone()
            array.zero_()
            return (found,)

        def reference() -> Tensors:
            one = values()[-_CHECKED:].double()
            with exactly():
                return (sum([one] * (setting.world_size - 1), one),)

        run, stages = exchange(count), size_stages(params, setting, 32, 1024, exchange)
        return Step(run, self.work(params, setting), outputs, reference, stages=stages)
