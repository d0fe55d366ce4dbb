"""Copies arrive whole and are refused where there is no link; LSTM counts its work rightly and learns."""

from __future__ import annotations

import pytest

from torchmark.errors import UnsupportedError
from torchmark.measure.check import check_step
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting
from torchmark.workloads.copy import Params as CopyParams
from torchmark.workloads.copy import prepare_copy
from torchmark.workloads.lstm import Lstm
from torchmark.workloads.lstm import Params as LstmParams


def test_copy_is_refused_on_the_cpu_with_its_reason() -> None:
    with pytest.raises(UnsupportedError, match="a CPU works in the host's own memory"):
        find_workload("copy").prepare(CopyParams(), Setting(mode="infer"))


@pytest.mark.parametrize("direction", ["to-device", "to-host"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_arrives_whole_and_is_separate(direction: str, dtype: str) -> None:
    params = CopyParams(size_bytes=3_000_000, direction=direction)  # type: ignore[arg-type]
    step = prepare_copy(params, Setting(mode="infer", dtype=dtype))
    arrived = step.run()
    assert arrived.nbytes == step.work.bytes == 3_000_000  # type: ignore[attr-defined]
    assert check_step(step, dtype) is not None
    first, second = (pair[0] for pair in step.copies())  # type: ignore[misc]
    assert first.data_ptr() != second.data_ptr()


def test_a_copy_to_the_device_lands_there() -> None:
    step = prepare_copy(CopyParams(), Setting(mode="infer", device="meta"))
    assert step.run().device.type == "meta"  # type: ignore[attr-defined]
    assert step.work.bytes == 64 * 1024**2


def test_lstm_has_the_parameters_of_its_layers() -> None:
    from torch import nn

    model = nn.LSTM(1024, 512, 4, device="meta")
    assert sum(weight.numel() for weight in model.parameters()) == 9_453_568
    cost, rows = Lstm().cost(LstmParams(), training=False), 8 * 128
    assert cost.numbers == 9_453_568 + rows * (1024 + 512)


def test_lstm_learns() -> None:
    step = find_workload("lstm").prepare(LstmParams(batch=2, sequence=3, layers=1), Setting(mode="train"))
    losses = [float(step.run()) for _ in range(20)]  # type: ignore[arg-type]
    assert losses[-1] < 0.95 * losses[0]
    assert step.metrics is not None
    assert step.metrics() == {"loss": losses[-1]}
