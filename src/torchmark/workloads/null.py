"""Does nothing: what is measured is the harness itself."""

from __future__ import annotations

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Step, Workload


class Params(Struct, frozen=True):
    """Nothing can be set."""


class Null(Workload):
    """One call of a function that returns at once, on any device, without torch."""

    name = "null"
    params = Params
    tiny = Params()
    needs_torch = False

    def work(self, params: Params, setting: Setting) -> Work:
        del params, setting
        # Zero items: nothing is done, so a rate of it would say nothing.
        return Work(items=0, unit="step", flops=0, bytes=0)

    def prepare(self, params: Params, setting: Setting) -> Step:
        return Step(run=_nothing, work=self.work(params, setting))


def _nothing() -> None:
    return None
