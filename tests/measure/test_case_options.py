"""Options of a case: what is offered, what each asks of a process, and that the numbers stay the same."""

from __future__ import annotations

import os

import pytest

from torchmark.errors import UnknownName, UnsupportedError
from torchmark.measure.cases import check_case, environment_of, expand, follow, offered
from torchmark.measure.check import check_step
from torchmark.measure.engine import Settings
from torchmark.measure.messages import Measured, MeasureJob
from torchmark.measure.process import Process
from torchmark.records import CASE_OPTIONS, parse_case
from torchmark.workloads import find_workload, names
from torchmark.workloads.contract import Setting

OFFERED = [
    (name, mode, way.name, value)
    for name in names()
    for mode in find_workload(name).modes
    for way in find_workload(name).options
    for value in way.values[1:]
    if mode == "infer" or way.name != "gradients"
    if (name, mode) != ("resnet50", "train")  # the same code as in the other mode, and much slower
]


def test_a_case_leaves_out_options_at_their_default_and_refuses_unknown_ones() -> None:
    case = parse_case("resnet50/infer@cpu/float32+layout=contiguous+matmul=highest+wait=passive")
    assert check_case(case).text == "resnet50/infer@cpu/float32+wait=passive"
    with pytest.raises(UnknownName, match="unknown layout of resnet50 'sideways'"):
        check_case(parse_case("resnet50/infer@cpu/float32+layout=sideways"))
    with pytest.raises(UnknownName, match="unknown option of null/infer 'wait'"):
        check_case(parse_case("null/infer@cpu/float32+wait=passive"))


def test_a_sweep_combines_options_like_everything_else() -> None:
    options = {"layout": ["contiguous,channels-last"], "matmul": ["highest", "high"]}
    texts = [case.text for case in expand(["resnet50"], options)]
    base = "resnet50/infer@cpu/float32"
    assert texts == [
        base,
        f"{base}+matmul=high",
        f"{base}+layout=channels-last",
        f"{base}+layout=channels-last+matmul=high",
    ]


def test_variables_read_at_import_are_separate_from_those_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_of({"bind": "close", "layout": "channels-last", "isa": "avx2"}) == {
        "OMP_PROC_BIND": "CLOSE",
        "OMP_PLACES": "cores",
    }
    assert environment_of({"wait": "passive"}) == {"OMP_WAIT_POLICY": "PASSIVE"}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
    follow({"isa": "avx512-core-bf16"})
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert set(offered(parse_case("bert-encode/infer@cpu/float32"))) <= set(CASE_OPTIONS)


def test_a_worker_of_its_own_environment_has_it_and_no_one_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_FAKE", "step=0.01")
    case = parse_case("null/infer@fake/float32")
    with Process(case, environment={"TORCHMARK_FAKE": "step=0.02"}) as process:
        result = process.ask(MeasureJob(case, Settings(budget_s=1.0)), Measured).result
    assert result.estimate is not None
    assert result.estimate.center_s == pytest.approx(0.02, rel=0.05)
    assert os.environ["TORCHMARK_FAKE"] == "step=0.01"


@pytest.mark.parametrize(("name", "mode", "way", "value"), OFFERED)
def test_every_way_computes_the_right_numbers(name: str, mode: str, way: str, value: str) -> None:
    workload = find_workload(name)
    step = workload.prepare(workload.tiny, Setting(mode=mode, options={way: value}))
    step.run()
    assert check_step(step, "float32") is not None
    if way == "attention":
        assert step.notes["attention"] == value


def test_channels_come_last_in_images_and_in_the_weights_of_convolutions() -> None:
    import torch

    setting = Setting(mode="infer", options={"layout": "channels-last"})
    model = setting.place_model(
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    )
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert setting.feed(torch.rand(2, 3, 4, 4))().is_contiguous(memory_format=torch.channels_last)
    assert model[2].weight.is_contiguous()


def test_pinned_copies_need_an_accelerator() -> None:
    import torch

    with pytest.raises(UnsupportedError, match="need an accelerator"):
        Setting(mode="infer", transfer="pinned").feed(torch.ones(2))
