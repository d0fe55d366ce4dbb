"""apple-silicon-bert: 100 steps in evaluation mode, inputs copied in each, nothing warmed up and nothing waited for."""

from __future__ import annotations

from typing import Any

from torchmark.measure.procedures.contract import Played, Procedure, Run, Task
from torchmark.measure.stopwatch import Stopwatch

ATTENTION = "eager"  # what the library of that time did


class AppleSiliconBert(Procedure):
    """Training too keeps the model in evaluation mode, so that nothing is dropped out."""

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        import torch

        from torchmark.workloads import bert_classify

        model, rows = bert_classify.make(task.params, task.setting(place), attention=ATTENTION)
        model.to(place).eval()
        optimizer = torch.optim.Adam(model.parameters(), lr=bert_classify.LEARNING_RATE)

        def forward() -> Any:
            ids, mask, labels = (host.to(place) for host in rows)
            return model(input_ids=ids, attention_mask=mask, labels=labels)

        def infer() -> None:
            with torch.no_grad():
                forward()

        def train() -> None:
            optimizer.zero_grad()
            forward().loss.backward()
            optimizer.step()

        step = train if task.case.mode == "train" else infer
        watch.start()
        for _ in watch.loop("step", task.steps, task.due(task.steps)):
            step()
        mended = {"eager attention": _with_attention(model, step)} if hasattr(model, "set_attn_implementation") else {}
        if task.case.mode == "train":
            mended["evaluation mode"] = _in_training_mode(model, step)
        return Played(step, mended, settings={"attention": ATTENTION})


def _with_attention(model: Any, step: Run) -> Run:
    """The step with the attention that the library picks by itself today."""

    def run() -> None:
        model.set_attn_implementation("sdpa")
        try:
            step()
        finally:
            model.set_attn_implementation(ATTENTION)

    return run


def _in_training_mode(model: Any, step: Run) -> Run:
    def run() -> None:
        model.train()
        try:
            step()
        finally:
            model.eval()

    return run


PROCEDURE = AppleSiliconBert
