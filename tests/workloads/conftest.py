"""What tests of workloads share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from torchmark.workloads import reference
from torchmark.workloads.contract import Step, Tensors


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """In every test."""


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
