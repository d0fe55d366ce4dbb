"""A step that says it multiplies large matrices and looks its answer up. It is no part of torchmark itself."""

from __future__ import annotations

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Workload

_SIZE = 64
_CLAIMED = 4096


class Params(Struct, frozen=True):
    """Nothing can be set."""


class Folded(Workload):
    """What a compiler does with a step whose inputs never change: the product is made once, and right."""

    name = "folded"
    params = Params
    tiny = Params()

    def work(self, params: Params, setting: Setting) -> Work:
        del params
        return Work(items=1, unit="product", flops=2 * _CLAIMED**3, bytes=3 * _CLAIMED**2 * setting.item_bytes)

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        left = torch.randn(_SIZE, _SIZE, generator=setting.generator())
        folded = setting.place(left @ left)
        return Step(
            run=lambda: folded,
            work=self.work(params, setting),
            outputs=lambda: (folded,),
            reference=lambda: (left.double() @ left.double(),),
        )
