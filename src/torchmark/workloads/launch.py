"""One operator on one number: what it costs to hand the smallest piece of work to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Tensors, Workload

if TYPE_CHECKING:
    import torch


class Params(Struct, frozen=True):
    """Nothing can be set."""


class Launch(Workload):
    """Resident, the result stays where it is: the cost of issuing. Per step, it is brought to the host every time, and
    the next one waits for that: the whole way there and back."""

    name = "launch"
    params = Params
    tiny = Params()

    def work(self, params: Params, setting: Setting) -> Work:
        del params, setting
        # An addition and twelve bytes: its share of a machine's best means nothing.
        return Work(items=1, unit="operator")

    def prepare(self, params: Params, setting: Setting) -> Step:
        import torch

        one, other = (setting.place(value) for value in _values(setting))
        result = setting.place(torch.zeros(1))
        add = setting.compiled(lambda x, y: torch.add(x, y, out=result))

        def run() -> torch.Tensor:
            return setting.drain(add(one, other))

        def expected() -> Tensors:
            first, second = (value.double() for value in _values(setting))
            return (first + second,)

        return Step(run=run, work=self.work(params, setting), outputs=lambda: (run(),), reference=expected)


def _values(setting: Setting) -> Tensors:
    import torch

    generator = setting.generator()
    return [torch.rand(1, generator=generator).to(setting.torch_dtype) for _ in range(2)]
