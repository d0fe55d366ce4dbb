"""Goes through long arrays: the bandwidth of a device's memory, and of its caches where arrays are short."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload, size_stages

_ROW = 4096  # numbers that are drawn; an array repeats them
_FACTOR = 0.5
_CHECKED = 64  # values at the end of an array
# Of each kind: arrays, passes over an array, and operations for each number.
_AMOUNTS = {"read": (1, 1, 1), "copy": (2, 2, 0), "triad": (3, 3, 2), "update": (1, 2, 1)}


class Params(Struct, frozen=True):
    size_bytes: Annotated[int, Meta(ge=4096, le=2**38)] = 268_435_456  # of one array
    kind: Literal["read", "copy", "triad", "update"] = "triad"
    sizes: Literal["one", "all"] = "one"  # all: time shorter arrays too, an eighth each time


class Bandwidth(Workload):
    """`read` adds all numbers up, `copy` copies them, `triad` adds one array to a multiple of another, `update` turns
    the signs of one in place. Bytes are those that must be read or written. A CPU that fetches what it overwrites moves
    more in `copy` and `triad`, but not in `update`, which therefore comes closest to the memory's speed."""

    name = "bandwidth"
    tiny = Params(size_bytes=4096)

    def work(self, params: Params, setting: Setting) -> Work:
        count, (_, passes, operations) = params.size_bytes // setting.item_bytes, _AMOUNTS[params.kind]
        return Work(items=1, unit="pass", flops=operations * count, bytes=passes * count * setting.item_bytes)

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        return _AMOUNTS[params.kind][0] * params.size_bytes

    def prepare(self, params: Params, setting: Setting) -> Step:
        import numpy
        import torch

        count, generator, drain = params.size_bytes // setting.item_bytes, setting.generator(), setting.drain
        one, other = (torch.rand(_ROW, generator=generator).to(setting.torch_dtype) for _ in range(2))
        into = torch.zeros(_ROW, dtype=setting.torch_dtype)  # where results are written
        kinds: dict[str, tuple[list[torch.Tensor], Callable[..., Any]]] = {
            "read": ([one], torch.sum),
            "copy": ([one, into], lambda x, into: into.copy_(x)),
            "triad": ([one, other, into], lambda x, y, into: torch.add(x, y, alpha=_FACTOR, out=into)),
            "update": ([one], torch.neg_),
        }
        (rows, compute), arrays = kinds[params.kind], []
        if params.kind != "copy":  # already one call of the device's copy
            compute = setting.compiled(compute)
        for row in rows:  # written in place, as drawing gigabytes takes longer than measuring
            array = torch.empty(-(-count // _ROW), _ROW, dtype=setting.torch_dtype, device=setting.device)
            arrays.append(array.copy_(setting.place(row)).view(-1)[:count])

        def step(length: int) -> Callable[[], torch.Tensor]:
            parts = [array[:length] for array in arrays]
            return lambda: drain(compute(*parts))

        def outputs() -> Tensors:
            if params.kind != "update":
                return (run().reshape(-1)[-_CHECKED:],)
            # Turned twice, so that all is as it was.
            before = arrays[0][-_CHECKED:].clone()
            after = run().reshape(-1)[-_CHECKED:].clone()
            run()
            return (after * before.sign().to(after.device),)

        def reference() -> Tensors:
            x, y = one.double().numpy(), other.double().numpy()
            whole, rest = divmod(count, _ROW)
            end = numpy.arange(max(count - _CHECKED, 0), count) % _ROW
            triad = x[end] + _FACTOR * y[end]
            every = {"read": [whole * x.sum() + x[:rest].sum()], "copy": x[end], "triad": triad, "update": -x[end]}
            return (torch.tensor(every[params.kind]),)

        run, stages = step(count), size_stages(params, setting, 8, 262_144, step)
        return Step(run, self.work(params, setting), outputs, reference, stages=stages)
