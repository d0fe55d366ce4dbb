"""ResNet, BERT and ViT are the published models to the last parameter, cost what is said, and learn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.errors import UnsupportedError, WrongResultError
from torchmark.measure.check import check_step
from torchmark.workloads import bert_classify, bert_encode, find_workload, resnet50, vit_train
from torchmark.workloads.contract import Setting
from torchmark.workloads.flops import count_flops

Build = Callable[[], Any]
NAMES = ["resnet50", "bert-classify", "bert-encode", "vit-train"]
MODES = [(name, mode) for name in NAMES for mode in find_workload(name).modes]

# How to build each model, what it is fed (on the meta device), and what it then holds.
MODELS: dict[str, tuple[Build, int]] = {
    "resnet50": (resnet50.make_model, 25_557_032),
    "bert-classify": (lambda: bert_classify.make_model(bert_classify.Params()), 108_311_810),
    "bert-encode": (lambda: bert_encode.make_model(bert_encode.Params()), 109_482_240),
    "vit-train": (lambda: vit_train.make_model(vit_train.Params()), 86_567_656),
}


def on_meta(build: Build) -> Any:
    import torch

    with torch.device("meta"):
        return build()


@pytest.mark.parametrize("name", NAMES)
def test_the_model_has_the_published_number_of_parameters(name: str) -> None:
    build, published = MODELS[name]
    assert sum(weight.numel() for weight in on_meta(build).parameters()) == published


def test_parameters_are_counted_without_building() -> None:
    assert MODELS["resnet50"][1] == resnet50.PARAMETERS
    assert bert_classify.parameter_count(bert_classify.Params()) == MODELS["bert-classify"][1]
    assert bert_encode.parameter_count(bert_encode.Params()) == MODELS["bert-encode"][1]
    assert vit_train.parameter_count(vit_train.Params()) == MODELS["vit-train"][1]
    large = bert_classify.Params(size="large")
    built = on_meta(lambda: bert_classify.make_model(large))
    assert bert_classify.parameter_count(large) == sum(weight.numel() for weight in built.parameters())


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_flops_agree_with_what_torch_counts(name: str, mode: str) -> None:
    import torch

    model = on_meta(MODELS[name][0])
    params = find_workload(name).params()
    batch = params.batch  # type: ignore[attr-defined]
    with torch.device("meta"):
        if name in ("resnet50", "vit-train"):
            given = {"pixel_values": torch.rand(batch, 3, 224, 224)}
        else:
            given = {"input_ids": torch.zeros(batch, 128, dtype=torch.long)}
        labels = torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        if mode == "train":
            model.train()(**given, labels=labels).loss.backward()
        else:
            with torch.no_grad():
                model.eval()(**given)

    work = find_workload(name).work(params, Setting(mode=mode))
    assert work is not None
    assert work.flops == pytest.approx(count_flops(step), rel=0.02)


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
    module = sys.modules[type(workload).__module__]
    loss = module._loss
    monkeypatch.setattr(module, "_loss", lambda forward, *batch: loss(forward, *batch) * factor**forward.training)
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
def test_the_inputs_of_bert_are_copied_in_every_step_whatever_the_transfer(mode: str) -> None:
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
