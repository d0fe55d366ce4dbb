"""Copies between host and device memory: the bandwidth of the link between them, pinned or pageable."""

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from torchmark.errors import UnsupportedError
from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Workload, size_stages

_BLOCK = 262_144  # random numbers that are drawn; a larger tensor repeats them
_CHECKED = 4096


class Params(Struct, frozen=True):
    size_bytes: Annotated[int, Meta(ge=1024, le=268_435_456)] = 67_108_864
    direction: Literal["to-device", "to-host"] = "to-device"
    pinned: bool = False  # whether the host's memory is locked in place
    sizes: Literal["one", "all"] = "one"  # all: time smaller copies too, down to a kilobyte


class Copy(Workload):
    """One copy between two buffers made before, for any transfer setting. A CPU is refused: it has no such link."""

    name = "copy"
    tiny = Params(size_bytes=1024)

    def work(self, params: Params, setting: Setting) -> Work:
        """Bytes are those that cross the link, once."""
        size = params.size_bytes // setting.item_bytes * setting.item_bytes
        return Work(items=1, unit="copy", flops=0, bytes=size)

    def prepare(self, params: Params, setting: Setting) -> Step:
        if setting.device == "cpu":
            cause = "copy measures the link between host and device, and a CPU works in the host's own memory"
            raise UnsupportedError(cause, "Choose an accelerator; for the speed of memory itself run tensor-add")
        return prepare_copy(params, setting)


def prepare_copy(params: Params, setting: Setting) -> Step:
    """The step on any device that torch can copy to."""
    import torch

    def made() -> torch.Tensor:
        count = params.size_bytes // setting.item_bytes
        block = torch.rand(min(count, _BLOCK), generator=setting.generator()).to(setting.torch_dtype)
        return block.repeat(-(-count // len(block)))[:count].clone()

    try:
        host = made().pin_memory() if params.pinned else made()
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedError("the host's memory cannot be pinned here", "Use pinned=off", str(error)) from error
    if params.direction == "to-device":
        source, target = host, torch.zeros_like(host, device=setting.device)
    else:
        source, target = setting.place(host).clone(), torch.zeros_like(host, pin_memory=params.pinned)

    def copy(count: int | None = None) -> Callable[[], torch.Tensor]:
        into, what = target[:count], source[:count]
        return lambda: into.copy_(what, non_blocking=params.pinned)

    run = copy()
    return Step(
        run,
        Copy().work(params, setting),
        outputs=lambda: (run()[-_CHECKED:],),
        reference=lambda: (made()[-_CHECKED:].double(),),
        copies=lambda: ((source, made()), (target, made())),
        stages=size_stages(params, setting, 16, 1024, copy),
    )
