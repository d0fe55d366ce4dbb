"""m1-chips: inference in a loop whose clock starts before the model moves, with gradients on and nothing waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchmark.measure.procedures.contract import Played, Procedure, Run, Task
from torchmark.measure.stopwatch import Stopwatch
from torchmark.records import Case
from torchmark.workloads import find_workload

if TYPE_CHECKING:
    import torch

MOVE = "model to the device"


class M1Chips(Procedure):
    """`no switch` has its input on the device beforehand; `switch` copies input and output in every step."""

    def runs_on(self, case: Case, kind: str) -> bool:
        """Where there is no device to copy to, a switch is no other thing than none."""
        return case.transfer == "resident" or kind != "cpu"

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        if task.case.workload == "venv-ppo":
            return _play_job(task, place, watch)
        model, rows = _make(task, place)
        inputs = rows.to(place) if task.case.transfer == "resident" else rows
        watch.start()
        model.to(place)
        watch.lap(MOVE)
        if task.case.transfer == "resident":

            def step() -> Any:
                return model(inputs)
        else:

            def step() -> Any:
                return _numbers(model(inputs.to(place))).to("cpu")

        for _ in watch.loop("step", task.steps, task.due(task.steps)):
            output = step()  # noqa: F841 -- kept until the next one takes its place, and its graph with it, as it was
        return Played(step, {"autograd graph": _without_graph(step)})


def _make(task: Task, place: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """The workload's own model and input, still on the host."""
    from torchmark.workloads import mlp, resnet50

    setting = task.setting(place)
    if task.case.workload == "mlp":
        model, rows, _ = mlp.make(task.params, setting)
        return model, rows
    model, images = resnet50.make(task.params, setting)
    return model.eval(), images


def _numbers(output: Any) -> torch.Tensor:
    """What the model gave, with or without the library's wrapping."""
    numbers: torch.Tensor = getattr(output, "logits", output)
    return numbers


def _without_graph(step: Run) -> Run:
    import torch

    def run() -> object:
        with torch.no_grad():
            return step()

    return run


def _play_job(task: Task, place: str, watch: Stopwatch) -> Played:
    """The whole job, from building it to the last epoch of its second stage."""
    watch.start()
    step = find_workload(task.case.workload).prepare(task.params, task.setting(place))
    watch.lap("building")
    for _ in watch.loop("venv epoch", step.job_steps, task.due(step.job_steps)):
        step.run()
    for stage in step.stages:
        for _ in watch.loop(stage.name, stage.steps, task.due(stage.steps)):
            stage.run()
    return Played(step.run)


PROCEDURE = M1Chips
