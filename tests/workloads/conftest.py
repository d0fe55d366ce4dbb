"""What tests of workloads share."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from torchmark.workloads import encoder, reference, resnet50
from torchmark.workloads.contract import Setting, Step, Tensors
from torchmark.workloads.model import Model, map_tensors


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """In every test."""


_resnets: dict[object, Model] = {}


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy ResNet-50 instead of drawing its 25 million weights again, which takes longer than most tests."""
    import torch

    def build(architecture: str, params: resnet50.Params, setting: Setting) -> Model:
        key = params, setting.mode, torch.get_rng_state().numpy().tobytes()
        if key not in _resnets:
            _resnets[key] = encoder.image_classifier(architecture, params, setting)
        made = _resnets[key]
        return replace(made, module=copy.deepcopy(made.module), inputs=map_tensors(torch.clone, made.inputs))

    monkeypatch.setattr(resnet50, "image_classifier", build)


@pytest.fixture
def rounded_once() -> Callable[[Step], Step]:
    """For steps that have the same reference: how far rounding moves it, which takes most of the time of a check, is
    computed for the first of them. The reference itself is computed for each."""
    known: dict[tuple[float, int], Tensors] = {}

    def sharing(step: Step) -> Step:
        def compute() -> Tensors:
            assert step.reference
            if not reference._rounding:
                return step.reference()
            if reference._rounding[-1] not in known:
                known[reference._rounding[-1]] = step.reference()
            return known[reference._rounding[-1]]

        return replace(step, reference=compute if step.reference else None)

    return sharing
