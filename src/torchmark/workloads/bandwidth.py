"""Goes through long arrays: what the memory of a device carries, and its caches where they are short."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload, smaller_sizes

if TYPE_CHECKING:
    import torch

_ROW = 4096  # numbers that are drawn; an array repeats them
_FACTOR = 0.5
_CHECKED = 64  # values at the end of an array
_SHORTEST = 262_144  # bytes of an array
_SHORTER = 8

_ARRAYS = {"read": 1, "copy": 2, "triad": 3, "update": 1}
_TRAFFIC = {"read": 1, "copy": 2, "triad": 3, "update": 2}  # times that an array is read or written
_FLOPS = {"read": 1, "copy": 0, "triad": 2, "update": 1}  # for each number


class Params(Struct, frozen=True):
    """Bytes of one array, what is done with them, and whether shorter arrays, an eighth each time, are timed too."""

    size_bytes: Annotated[int, Meta(ge=4096, le=2**38)] = 268_435_456
    kind: Literal["read", "copy", "triad", "update"] = "triad"
    sizes: Literal["one", "all"] = "one"


class Bandwidth(Workload):
    """`read` adds all numbers up, `copy` copies them, `triad` adds one array to a multiple of another, `update` turns
    the signs of one in place.

    Bytes are those that must be read or written. A CPU that fetches what it is about to overwrite moves more of them in
    `copy` and `triad`, but not in `update`, which therefore comes closest to what memory can do.
    """

    name = "bandwidth"
    params = Params
    tiny = Params(size_bytes=4096)

    def work(self, params: Params, setting: Setting) -> Work:
        count = _count(params.size_bytes, setting)
        return Work(
            items=1,
            unit="pass",
            flops=_FLOPS[params.kind] * count,
            bytes=_TRAFFIC[params.kind] * count * setting.item_bytes,
        )

    def memory_bytes(self, params: Params, setting: Setting) -> float:
        del setting
        return _ARRAYS[params.kind] * params.size_bytes

    def prepare(self, params: Params, setting: Setting) -> Step:
        arrays = _Arrays(_count(params.size_bytes, setting), params.kind, setting)
        shorter = smaller_sizes(params.size_bytes, _SHORTER, _SHORTEST) if params.sizes == "all" else []
        return Step(
            run=arrays.step(),
            work=self.work(params, setting),
            outputs=arrays.turned if params.kind == "update" else arrays.outputs,
            reference=arrays.reference,
            stages=tuple(Stage(f"{size} bytes", 0, arrays.step(_count(size, setting))) for size in shorter),
        )


class _Arrays:
    """Arrays on the device whose rows all hold the same numbers; steps may use the beginning of them."""

    def __init__(self, count: int, kind: str, setting: Setting) -> None:
        self._count, self._kind, self._setting = count, kind, setting
        self._arrays = [_repeated(row, count, setting) for row in self._rows()[: _ARRAYS[kind]]]

    def step(self, count: int | None = None) -> Callable[[], torch.Tensor]:
        import torch

        drain = self._setting.drain
        first, second, third = (*(array[: count or self._count] for array in self._arrays), None, None)[:3]
        assert first is not None
        if self._kind == "read":
            add_up = self._setting.compiled(torch.sum)
            return lambda: drain(add_up(first))
        if self._kind == "update":
            turn = self._setting.compiled(torch.neg_)
            return lambda: drain(turn(first))
        if self._kind == "copy":
            assert second is not None
            return lambda: drain(second.copy_(first))
        triad = self._setting.compiled(lambda x, y, into: torch.add(x, y, alpha=_FACTOR, out=into))
        return lambda: drain(triad(first, second, third))

    def outputs(self) -> Tensors:
        result = self.step()()
        return (result.reshape(-1)[-_CHECKED:],)

    def turned(self) -> Tensors:
        """The same numbers with the other sign; turned twice, so that all is as it was."""
        run = self.step()
        before = self._arrays[0][-_CHECKED:].clone()
        after = run().reshape(-1)[-_CHECKED:].clone()
        run()
        return (after * before.sign().to(after.device),)

    def reference(self) -> Tensors:
        """By numpy in float64, from the rows alone."""
        import numpy
        import torch

        one, other = (row.double().numpy() for row in self._rows()[:2])
        whole, rest = divmod(self._count, _ROW)
        if self._kind == "read":
            return (torch.tensor([whole * one.sum() + one[:rest].sum()]),)
        end = numpy.arange(self._count - min(_CHECKED, self._count), self._count) % _ROW
        if self._kind == "update":
            return (torch.from_numpy(-one[end]),)
        return (torch.from_numpy(one[end] + (_FACTOR * other[end] if self._kind == "triad" else 0.0)),)

    def _rows(self) -> Tensors:
        """Different numbers for what is read, zeros for what is written."""
        import torch

        generator = self._setting.generator()
        drawn = [torch.rand(_ROW, generator=generator).to(self._setting.torch_dtype) for _ in range(2)]
        zeros = torch.zeros(_ROW, dtype=self._setting.torch_dtype)
        return [drawn[0], zeros] if self._kind == "copy" else [*drawn, zeros]


def _repeated(row: torch.Tensor, count: int, setting: Setting) -> torch.Tensor:
    """Written in place, because drawing or concatenating gigabytes would take longer than measuring with them."""
    import torch

    array = torch.empty(-(-count // _ROW), _ROW, dtype=setting.torch_dtype, device=setting.device)
    return array.copy_(setting.place(row)).view(-1)[:count]


def _count(size_bytes: int, setting: Setting) -> int:
    return size_bytes // setting.item_bytes
