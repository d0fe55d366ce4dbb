"""ResNet, BERT and ViT are the published models to the last parameter, cost what is said, and learn."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, WrongResultError
from torchmark.measure.check import check_step
from torchmark.workloads import bert_classify, find_workload, resnet50
from torchmark.workloads.contract import Setting
from torchmark.workloads.model import Model, ModelWorkload
from torchmark.workloads.reference import without_drawing

MODELS = {"resnet50": 25_557_032, "bert-classify": 108_311_810, "bert-encode": 109_482_240, "vit-train": 86_567_656}
NAMES = list(MODELS)
pytestmark = pytest.mark.usefixtures("drawn_once")
MODES = [(name, mode) for name in NAMES for mode in find_workload(name).modes]


def model_workload(name: str) -> ModelWorkload:
    workload = find_workload(name)
    assert isinstance(workload, ModelWorkload)
    return workload


def count_weights(name: str, params: object) -> int:
    import torch

    with without_drawing(torch.float32):
        model = model_workload(name).build(params, Setting(mode=find_workload(name).modes[0]))
    return sum(weight.numel() for weight in model.module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_model_has_the_published_number_of_parameters(name: str) -> None:
    assert count_weights(name, find_workload(name).params()) == MODELS[name]


def test_parameters_are_counted_without_building() -> None:
    """Training keeps so many times as many numbers in memory, or moves them, as there are parameters."""
    large = bert_classify.Params(size="large")
    counts = {bert_classify.Params(): MODELS["bert-classify"], large: count_weights("bert-classify", large)}
    for params, parameters in counts.items():
        training, inference = (model_workload("bert-classify").cost(params, mode) for mode in (True, False))
        assert training
        assert inference
        assert training.numbers - inference.numbers == 5 * parameters
    vit = model_workload("vit-train").cost(find_workload("vit-train").params(), training=True)
    assert vit
    assert vit.numbers == 6 * MODELS["vit-train"] + 8 * 3 * 224**2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bert-classify", "vit-train"])
def test_training_learns_the_repeated_batch(name: str, dtype: str) -> None:
    """From what guessing gives, the loss falls; dropout alone would leave it inside the first band."""
    import torch

    torch.manual_seed(0)
    workload = find_workload(name)
    step = workload.prepare(workload.tiny, Setting(mode="train", dtype=dtype))
    losses = [float(step.run()) for _ in range(60)]  # type: ignore[arg-type]
    first, band = (0.69, 0.25) if name == "bert-classify" else (6.9, 1.0)
    assert losses[0] == pytest.approx(first, abs=band)
    assert losses[-1] < 0.8 * losses[0]
    assert step.metrics is not None
    assert step.metrics() == {"loss": losses[-1]}
    assert check_step(step, dtype) is not None  # what is learned by then must not pass for wrong


def test_resnet_learns_the_repeated_batch() -> None:
    """At 64 pixels, because at 32 the last norms have only one number for each image to go by."""
    step = find_workload("resnet50").prepare(resnet50.Params(batch=8, image=64), Setting(mode="train"))
    losses = [float(step.run()) for _ in range(8)]  # type: ignore[arg-type]
    assert losses[0] == pytest.approx(6.9, abs=1.0)
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(("name", "factor"), [("bert-classify", 0.0), ("resnet50", 2.0), ("vit-train", float("nan"))])
def test_a_first_loss_that_is_not_that_of_guessing_is_caught(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it goes wrong in training alone, with dropout and norms by the batch, a few rows would not show it."""
    workload = find_workload(name)
    made = ModelWorkload.made

    def wrong(self: ModelWorkload, params: object, setting: Setting) -> Model:
        def call(forward: Any, inputs: Any) -> Any:
            answer = forward(**inputs)
            answer.loss = answer.loss * factor**forward.training
            return answer

        return replace(made(self, params, setting), call=call)

    monkeypatch.setattr(ModelWorkload, "made", wrong)
    step = workload.prepare(workload.tiny, Setting(mode="train"))
    check_step(step, "float32")
    step.run()
    with pytest.raises(WrongResultError, match="the loss of the first step was"):
        check_step(step, "float32")


def test_a_published_case_that_did_not_fit_is_known_not_to() -> None:
    workload, training = find_workload("bert-classify"), Setting(mode="train")
    largest = bert_classify.Params(size="large", batch=256, sequence=512)
    needed, usual = workload.memory_bytes(largest, training), workload.memory_bytes(bert_classify.Params(), training)
    assert needed is not None
    assert usual is not None
    assert needed > 100e9
    assert 2e9 < usual < 8e9


@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_the_batch_and_training_needs_more(name: str) -> None:
    workload = find_workload(name)
    params = workload.params()
    for mode in workload.modes:
        small, large = (
            workload.memory_bytes(replace(params, batch=batch), Setting(mode=mode)) or 0.0 for batch in (8, 64)
        )
        assert 0 < small < large


class Spoiled(Setting, frozen=True):
    """One value in the first tensor of that size arrives 1% off."""

    numel: int = 0

    def place(self, host: Any) -> Any:
        placed = Setting.place(self, host)
        if placed.numel() == self.numel and placed.is_floating_point():
            placed = placed.clone()
            placed.view(-1)[7] *= 1.01
        return placed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_one_weight_that_is_one_percent_off_is_found(name: str, mode: str, dtype: str) -> None:
    workload = find_workload(name)
    numel = 64 * 64 if name != "resnet50" else 512 * 512 * 9
    step = workload.prepare(workload.tiny, Spoiled(mode=mode, dtype=dtype, numel=numel))
    step.run()
    with pytest.raises(WrongResultError, match="differs from what was put there"):
        check_step(step, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_are_one_percent_off_are_found(name: str) -> None:
    workload = find_workload(name)
    for mode in workload.modes:
        step = workload.prepare(workload.tiny, Setting(mode=mode))
        right = step.outputs
        assert right is not None
        wrong = replace(step, outputs=lambda right=right: [1.01 * each for each in right()])  # type: ignore[misc]
        with pytest.raises(WrongResultError, match="where rounding explains"):
            check_step(wrong, "float32")


@pytest.mark.parametrize("name", ["bert-classify", "resnet50"])
def test_training_in_float16_alone_is_refused(name: str) -> None:
    workload = find_workload(name)
    with pytest.raises(UnsupportedError, match="bfloat16"):
        workload.prepare(workload.tiny, Setting(mode="train", dtype="float16"))


def test_the_kind_of_attention_is_noted() -> None:
    for name in ("bert-classify", "bert-encode", "vit-train"):
        workload = find_workload(name)
        notes = workload.prepare(workload.tiny, Setting(mode=workload.modes[0])).notes
        assert notes["attention"] in ("sdpa", "eager")


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_inputs_of_bert_are_copied_in_every_step_for_any_the_transfer(mode: str) -> None:
    """On the meta device nothing is computed, but what is sent there can be counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sent: list[tuple[int, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "_to_copy" in str(function) and args[0].device.type == "cpu":
                sent.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    workload = find_workload("bert-classify")
    step = workload.prepare(workload.tiny, Setting(mode=mode, device="meta"))
    with Watch(), suppress(RuntimeError):  # the library looks into the mask, and there is nothing to see on this device
        step.run()
    assert sorted(sent) == [(2,), (2, 8), (2, 8)]
