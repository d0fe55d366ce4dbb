"""Does nothing: measures the harness itself."""

from torchmark.records import Work
from torchmark.workloads.contract import NoParams, Setting, Step, Workload


class Null(Workload):
    """One call of a function that returns at once, on any device, without torch."""

    name = "null"
    tiny = NoParams()
    needs_torch = False

    def work(self, params: NoParams, setting: Setting) -> Work:
        return Work(items=0, unit="step", flops=0, bytes=0)  # no rate

    def prepare(self, params: NoParams, setting: Setting) -> Step:
        return Step(run=lambda: None, work=self.work(params, setting))
