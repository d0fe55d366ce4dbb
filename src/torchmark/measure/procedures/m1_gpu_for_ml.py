"""m1-gpu-for-ml: the mean of 50 forward passes with gradients on, and the pace of a progress bar over one image."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from torchmark.measure.foresight import FLOPS_PER_S
from torchmark.measure.procedures.contract import Played, Procedure, Task
from torchmark.measure.stopwatch import Stopwatch
from torchmark.records import Case
from torchmark.workloads import find_workload

UNET_FLOPS = 1.6e12  # of one iteration at 512 × 512; it takes torch to know this exactly


class M1GpuForMl(Procedure):
    """One model served all four sizes of BERT in one process, the smallest first."""

    def __init__(self) -> None:
        self._model: Any = None

    def shares_process(self, case: Case) -> bool:
        return case.workload == "bert-encode"

    def made(self, task: Task) -> int:
        """The scheduler takes one more than it is asked for; the bar does not count it."""
        return task.steps + 1 if task.case.workload == "stable-diffusion" else task.steps

    def step_cost_s(self, task: Task) -> float:
        if task.case.workload == "stable-diffusion":
            return float(UNET_FLOPS * (task.params.size / 512) ** 2 / FLOPS_PER_S)
        return super().step_cost_s(task)

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        return (self._paint if task.case.workload == "stable-diffusion" else self._encode)(task, place, watch)

    def _encode(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        from torchmark.workloads import bert_encode

        if self._model is None:
            with task.setting(place).seeded():
                self._model = bert_encode.make_model(task.params).to(place).eval()
        model, ids = self._model, bert_encode.make_ids(task.params.batch, task.params).to(place)

        def step() -> Any:
            return model(input_ids=ids)

        def mended() -> Any:
            with torch.no_grad():
                return model(input_ids=ids)

        watch.start()
        for _ in watch.loop("step", task.steps, self.steps(task)):
            outputs = step()  # noqa: F841 -- kept until the next one takes its place, and its graph with it, as it was
        return Played(step, {"autograd graph": mended}, settings={"attention": model.config._attn_implementation})

    def _paint(self, task: Task, place: str, watch: Stopwatch) -> Played:
        """A pass of one step to warm up, then the loop."""
        # Decoding comes after the bar has ended and is no part of its pace, so its network is not even built.
        params = replace(task.params, decode=False)
        step = find_workload(task.case.workload).prepare(params, task.setting(place))
        step.run()
        watch.start()
        for _ in watch.loop("step", self.made(task), self.steps(task)):
            step.run()
        return Played(step.run, settings=dict(step.notes))


PROCEDURE = M1GpuForMl
