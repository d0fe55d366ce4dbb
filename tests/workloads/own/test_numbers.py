"""What a model of the user's computes is checked, and its work counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchmark import workloads
from torchmark.errors import UnsupportedError, UsageError, WrongResultError
from torchmark.measure.check import check_step
from torchmark.workloads.contract import Setting, Step

Prepare = Callable[..., Step]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("", {"batch": 6}),
    ("two", {"batch": 9}),
    ("two", {}),
    ("by_name", {"batch": 2}),
    ("uneven", {}),
    ("Dense", {"batch": 5, "input": "rows.float.16", "depth": 3}),
    ("Together", {"batch": 7, "input": "float.8"}),
    ("Fresh", {"batch": 7, "input": "float.8"}),
    ("Flatten", {"batch": 5, "input": "float.3x4"}),
    ("ready", {"batch": 5, "input": "float.8"}),
]


@pytest.mark.parametrize(
    ("member", "params", "dtype"),
    [
        (*case, dtype)
        for case in CASES
        for dtype in ("float32", "bfloat16")
        if (case[0], dtype) != ("Fresh", "bfloat16")  # it makes float32 numbers, which need float32 weights
    ],
)
def test_numbers_are_checked_against_float64(
    prepare: Prepare, models: Path, member: str, params: dict[str, Any], dtype: str
) -> None:
    step = prepare(f"{models}:{member}" if member else str(models), dtype=dtype, **params)
    step.run()
    check = check_step(step, dtype)
    assert check is not None
    assert 0 <= check.error <= check.tolerance


@pytest.mark.parametrize(("member", "params"), [("", {}), ("Unused", {"batch": 5, "input": "float.8"}), ("two", {})])
def test_training_learns_and_its_gradients_are_checked(
    prepare: Prepare, models: Path, member: str, params: dict[str, Any]
) -> None:
    step = prepare(f"{models}:{member}" if member else str(models), "train", **params)
    first = step.run()
    for _ in range(5):
        last = step.run()
    assert member == "" or last < first  # with dropout a few steps say nothing
    check = check_step(step, "float32")
    assert check is not None
    assert step.metrics is not None
    assert set(step.metrics()) == {"loss"}


def test_one_weight_that_arrives_wrong_is_caught_in_any_model(
    prepare: Prepare, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_model = Setting.place_model

    def spoil(setting: Setting, model: Any) -> Any:
        placed = place_model(setting, model)
        next(placed.parameters()).data.view(-1)[0] += 0.01
        return placed

    monkeypatch.setattr(Setting, "place_model", spoil)
    for mode in ("infer", "train"):
        with pytest.raises(WrongResultError):
            check_step(prepare(str(models), mode), "float32")


def test_wrong_numbers_are_caught_even_where_rows_depend_on_one_another(prepare: Prepare, models: Path) -> None:
    from msgspec.structs import replace

    step = prepare(f"{models}:Together", batch=7, input="float.8")
    outputs = step.outputs
    assert outputs is not None
    assert outputs()[0].shape == (7, 8)  # all of them: two would not come out the same alone
    with pytest.raises(WrongResultError):
        check_step(replace(step, outputs=lambda: [outputs()[0] * 1.001]), "float32")


def test_what_cannot_be_checked_is_said(prepare: Prepare, models: Path) -> None:
    drawn = prepare(f"{models}:Drawn", batch=5, input="float.8")
    assert check_step(drawn, "float32") is None
    assert drawn.notes["numbers"] == "not checked: the model draws at random"
    for mode in ("infer", "train"):
        short = prepare(f"{models}:Short", mode, batch=5, input="float.8")
        assert check_step(short, "float32") is not None
        assert short.notes["reference"].startswith("float32")
    words = prepare(f"{models}:Words", batch=5, input="float.8")
    with pytest.raises(UnsupportedError, match="no floating-point tensor"):
        check_step(words, "float32")


def test_a_loss_of_ones_own_is_what_is_learned(prepare: Prepare, models: Path, tmp_path: Path) -> None:
    from torchmark.workloads.own.models import write_loss

    losses = tmp_path / "losses.py"
    losses.write_text("def half(answer):\n    return answer['rows'].sum() / 2\n")
    own, other = write_loss(f"{models}:loss"), write_loss(f"{losses}:half")
    assert own.startswith("some.py.loss.")
    for text in (own, other):
        step = prepare(f"{models}:by_name", "train", loss=text)
        step.run()
        assert check_step(step, "float32") is not None
    losses.write_text("def half(answer):\n    return answer['rows'].sum() / 3\n")
    workloads.forget()
    workloads.find_workload(str(models))
    write_loss(f"{losses}:half")
    with pytest.raises(UsageError, match="is not what it was"):
        prepare("some.py:by_name", "train", loss=other)


def test_work_is_counted(prepare: Prepare, models: Path) -> None:
    step = prepare(f"{models}:Dense", batch=10, input="float.16", depth=3)
    assert (step.work.items, step.work.unit) == (10, "sample")
    assert step.work.flops == 2 * 10 * 16 * 16 * 3
    assert step.work.bytes == 4 * ((16 * 16 + 16) * 3 + 2 * 16 + 10 * 16 * 2)
    trained = prepare(f"{models}:Dense", "train", batch=10, input="float.16", depth=3)
    assert trained.work.flops == 2 * 10 * 16 * 16 * (3 + 3 + 2)  # no gradient for what goes in
    assert prepare(f"{models}:uneven").work.unit == "step"
