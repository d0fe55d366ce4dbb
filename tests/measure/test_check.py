"""Wrong numbers are found and named; rounding is not called wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.errors import WrongResultError
from torchmark.measure.check import check_step
from torchmark.records import Work
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Step

pytestmark = pytest.mark.usefixtures("one_thread")


class Careless(Setting, frozen=True):
    """Spoils tensors of one shape on their way to the device: all values, or a single one, by 1%."""

    shape: tuple[int, ...] = ()
    element: int | None = None

    def place(self, host: Any) -> Any:
        placed = Setting.place(self, host)
        if tuple(host.shape) != self.shape:
            return placed
        placed = placed.clone()
        placed.view(-1)[slice(None) if self.element is None else self.element] *= 1.01
        return placed


def step_of(outputs: list[Any], reference: list[Any], **changes: Any) -> Step:
    import torch

    given, expected = ([torch.tensor(values) for values in side] for side in (outputs, reference))
    return Step(lambda: None, Work(1, "step"), lambda: given, lambda: expected, **changes)


def prepared(name: str, setting: Setting) -> Step:
    workload = find_workload(name)
    return workload.prepare(workload.tiny, setting)


LAYERS = [(512, 1024), (512, 512), (2, 512)]


@pytest.mark.parametrize("element", [0, 77, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("name", "shape"), [*(("mlp", shape) for shape in LAYERS), ("matmul", (1, 24, 24))])
def test_one_weight_that_is_one_percent_off_is_found(
    name: str, shape: tuple[int, ...], dtype: str, element: int
) -> None:
    setting = Careless(mode="infer", dtype=dtype, shape=shape, element=element)
    with pytest.raises(WrongResultError, match="differs from what was put there"):
        check_step(prepared(name, setting), dtype)


@pytest.mark.parametrize("element", [0, 77, -1])
@pytest.mark.parametrize("shape", LAYERS)
def test_one_wrong_weight_is_found_in_training_too(shape: tuple[int, ...], element: int) -> None:
    setting = Careless(mode="train", shape=shape, element=element)
    with pytest.raises(WrongResultError, match="differs from what was put there"):
        check_step(prepared("mlp", setting), "float32")


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        *(("mlp", dtype, shape) for dtype in ("float32", "float64") for shape in LAYERS),
        *(("matmul", dtype, (1, 24, 24)) for dtype in ("float32", "float64", "bfloat16", "float16")),
    ],
)
def test_the_outputs_alone_show_a_matrix_that_is_one_percent_off(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    step = prepared(name, Careless(mode="infer", dtype=dtype, shape=shape))
    right = prepared(name, Setting(mode="infer", dtype=dtype))
    with pytest.raises(WrongResultError, match="where rounding explains"):
        check_step(replace(step, copies=None, reference=right.reference), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_that_does_not_learn_is_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: None)
    with pytest.raises(WrongResultError, match=r"output \d+ of 4 is off"):
        check_step(prepared("mlp", Setting(mode="train", dtype=dtype)), dtype)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_rounding_is_not_called_wrong_for_any_the_seed(mode: str, dtype: str, seed: int) -> None:
    check = check_step(prepared("mlp", Setting(mode=mode, dtype=dtype, seed=seed)), dtype)
    assert check is not None
    assert check.error < 0.8 * check.tolerance


def test_shorter_numbers_in_float32_products_widen_the_tolerance() -> None:
    import torch

    step = step_of([[1.0001, 2.0]], [[1.0, 2.0]])
    with pytest.raises(WrongResultError):
        check_step(step, "float32")
    torch.set_float32_matmul_precision("high")
    try:
        assert check_step(step, "float32") is not None
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("outputs", "reference", "message"),
    [
        ([[1.0, math.nan]], [[1.0, 2.0]], "the output holds NaN in 1 of 2 places"),
        ([[1.0], [math.inf]], [[1.0], [2.0]], "output 2 of 2 is infinite in 1 of 1 places"),
        ([[1.0]], [[math.nan]], "the reference of the output holds NaN"),
        ([[1.0, 2.0]], [[1.0]], "has the shape 2 instead of 1"),
        ([[1.0]], [[1.0], [2.0]], "gave 1 outputs where 2 were due"),
        ([[1.0, 2.1]], [[1.0, 2.0]], "the output is off by 0.0"),
        ([[1e-9]], [[0.0]], "the output is off by inf"),
        ([[0.0, 0.0]], [[1.0, 2.0]], "the output is off by 1 "),
    ],
)
def test_the_message_says_which_output_and_how_far(outputs: Any, reference: Any, message: str) -> None:
    with pytest.raises(WrongResultError, match=message) as caught:
        check_step(step_of(outputs, reference), "float32")
    assert caught.value.fix


def test_equal_outputs_pass_and_nothing_to_compare_is_no_check() -> None:
    check = check_step(step_of([[1.0, 2.0], [0.0]], [[1.0, 2.0], [0.0]]), "float32")
    assert check is not None
    assert check.error == 0.0
    assert check_step(Step(lambda: None, Work(0, "step")), "float32") is None
