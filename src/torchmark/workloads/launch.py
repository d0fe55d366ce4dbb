"""One operator on one number: the cost of giving a device the smallest piece of work."""

from torchmark.records import Work
from torchmark.workloads.contract import NoParams, Setting, Step, Workload


class Launch(Workload):
    """Resident: the cost of issuing. Per step: the round trip, as each step waits for its result to reach the host."""

    name = "launch"
    tiny = NoParams()

    def work(self, params: NoParams, setting: Setting) -> Work:
        return Work(items=1, unit="operator")  # a share of peak means nothing for one addition

    def prepare(self, params: NoParams, setting: Setting) -> Step:
        import torch

        generator = setting.generator()
        values = [torch.rand(1, generator=generator).to(setting.torch_dtype) for _ in range(2)]
        one, other, result = map(setting.place, (*values, torch.zeros(1)))
        add = setting.compiled(lambda x, y: torch.add(x, y, out=result))

        def run() -> torch.Tensor:
            return setting.drain(add(one, other))

        expected = values[0].double() + values[1].double()
        return Step(run, self.work(params, setting), outputs=lambda: (run(),), reference=lambda: (expected,))
