"""Every workload, found by itself, keeps the contract in every mode, dtype and way of transfer."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torchmark import workloads
from torchmark.errors import UnsupportedError, WrongResultError
from torchmark.measure.cases import list_parameters
from torchmark.measure.check import check_step
from torchmark.workloads.contract import Setting, Step, Workload
from torchmark.workloads.model import ModelWorkload, count_flops, count_work
from torchmark.workloads.reference import without_drawing

NAMES = workloads.names()
FORBIDDEN_CALLS = {"synchronize", "print", "perf_counter", "monotonic", "process_time", "sleep", "item", "tolist"}
MOST_BYTES = 200_000_000
FORBIDDEN_MODULES = {"time", "timeit", "datetime", "torchmark.devices", "torchmark.measure"}


def forms(workload: Workload) -> list[msgspec.Struct]:
    """The tiny parameters with every choice that is offered by name, as far as it stays small."""
    choices = [(each.name, choice) for each in list_parameters(workload) for choice in each.choices]
    others = [msgspec.structs.replace(workload.tiny, **{name: choice}) for name, choice in choices]
    settings = [Setting(mode=mode) for mode in workload.modes]
    small = [each for each in others if max(workload.memory_bytes(each, how) or 0 for how in settings) < MOST_BYTES]
    return [workload.tiny, *(each for each in small if each != workload.tiny)]


CASES = [
    pytest.param(name, params, mode, dtype, id=f"{name}-{index}-{mode}-{dtype}")
    for name in NAMES
    for index, params in enumerate(forms(workloads.find_workload(name)))
    for mode in workloads.find_workload(name).modes
    for dtype in workloads.find_workload(name).dtypes
]


def prepare(name: str, params: msgspec.Struct, **settings: object) -> Step:
    try:
        return workloads.find_workload(name).prepare(params, Setting(**settings))
    except UnsupportedError as error:
        # Only what is known to be refused may be left out; a workload that refuses more must fail here.
        if name != "copy" and settings.get("dtype") != "float16":
            raise
        pytest.skip(str(error))


def run_seeded(step: Step) -> Any:
    """Training may drop out at random: the same for both that are compared."""
    import torch

    torch.manual_seed(0)
    return step.run()


def values(step: Step) -> list[list[float]]:
    return [output.double().flatten().tolist() for output in step.outputs()] if step.outputs else []


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize(("name", "params", "mode", "dtype"), CASES)
def test_a_step_runs_and_computes_the_right_numbers(
    name: str, params: msgspec.Struct, mode: str, dtype: str, rounded_once: Callable[[Step], Step]
) -> None:
    for transfer in ("resident", "per-step"):
        step = rounded_once(prepare(name, params, mode=mode, dtype=dtype, transfer=transfer))
        run_seeded(step)
        run_seeded(step)
        check = check_step(step, dtype)
        if step.outputs is not None:
            assert check is not None
            assert check.error <= check.tolerance < 0.2
        work = step.work
        assert workloads.find_workload(name).work(params, Setting(mode=mode, dtype=dtype)) in (work, None)
        assert work.unit.islower()
        for amount in (work.items, work.flops, work.bytes):
            assert amount is None or (math.isfinite(amount) and amount >= 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(name: str) -> None:
    workload = workloads.find_workload(name)
    for mode in workload.modes:
        first, again, other = (values(prepare(name, workload.tiny, mode=mode, seed=seed)) for seed in (3, 3, 4))
        assert first == again
        assert not first or first != other


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("name", NAMES)
def test_checking_changes_nothing_about_what_is_timed(name: str) -> None:
    workload = workloads.find_workload(name)
    for mode in workload.modes:
        checked, left_alone = (prepare(name, workload.tiny, mode=mode) for _ in range(2))
        for step in (checked, left_alone):
            run_seeded(step)
        check_step(checked, "float32")
        seen, expected = run_seeded(checked), run_seeded(left_alone)
        assert seen is expected is None or bool((seen == expected).all())


@pytest.mark.parametrize("name", NAMES)
def test_each_declares_what_the_tool_shows_and_stores(name: str) -> None:
    workload = workloads.find_workload(name)
    assert workload.summary().endswith(".")
    assert len(workload.summary()) <= 120
    assert workload.__doc__
    assert workload.version >= 1
    assert workload.modes
    assert isinstance(workload.tiny, workload.params)
    for parameter in list_parameters(workload):
        assert isinstance(parameter.default, int | float | bool | str)
        assert parameter.choices or "from" in parameter.takes or "above" in parameter.takes or "on" in parameter.takes


@pytest.mark.parametrize("name", NAMES)
def test_no_workload_synchronises_times_or_prints(name: str) -> None:
    source = Path(sys.modules[type(workloads.find_workload(name)).__module__].__file__ or "").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            assert called not in FORBIDDEN_CALLS, f"line {node.lineno} calls {called}"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not FORBIDDEN_MODULES.intersection(names)


def test_finding_workloads_and_running_null_imports_no_torch() -> None:
    program = (
        "import sys; from torchmark import workloads; from torchmark.workloads.contract import Setting\n"
        "found = [workloads.find_workload(name) for name in workloads.names()]\n"
        "[each.work(each.params(), Setting(mode=mode)) for each in found for mode in each.modes]\n"
        "null = workloads.find_workload('null'); null.prepare(null.tiny, Setting(mode='infer')).run()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Alone it exchanges nothing, and each of several workers does not send twice as much with twice as many of them.
SHARED = [
    name
    for name in NAMES
    if (found := workloads.find_workload(name)).distributed
    and name != "all-reduce"
    and found.work(found.tiny, Setting(mode=found.modes[0]))
]


@pytest.mark.parametrize("name", SHARED)
def test_the_work_of_several_ranks_is_that_of_all_of_them_together(name: str) -> None:
    workload = workloads.find_workload(name)
    for mode in workload.modes:
        one, two = (workload.work(workload.params(), Setting(mode=mode, world_size=count)) for count in (1, 2))
        assert one is not None
        assert two is not None
        assert (two.items, two.flops, two.bytes) == (2 * one.items, 2 * (one.flops or 0), 2 * (one.bytes or 0))
        assert two.unit == one.unit


MODELS = {name: model for name in NAMES if isinstance(model := workloads.find_workload(name), ModelWorkload)}
COUNTED = [  # torch cannot count the products of a step of decoding, which fills a cache
    (name, mode)
    for name, model in MODELS.items()
    if type(model).cost != ModelWorkload.cost and name != "llm-decode"
    for mode in model.modes
]


@pytest.mark.parametrize(("name", "mode"), COUNTED)
def test_flops_known_without_torch_agree_with_those_that_torch_counts(name: str, mode: str) -> None:
    import torch

    workload, setting = workloads.find_workload(name), Setting(mode=mode)
    assert isinstance(workload, ModelWorkload)
    params = workload.tiny if name.startswith(("mnist", "cifar")) else workload.params()  # images take long to make
    if name == "lstm":  # Torch counts step by step, and passes nothing back to the first state: 1% of so few steps.
        params = msgspec.structs.replace(params, sequence=16)
    with without_drawing(torch.float32):
        model = workload.build(params, setting)
    if name == "bert-classify":  # the library looks into the mask, and there is nothing to see without memory
        del model.inputs["attention_mask"]
    known, counted = workload.work(params, setting), count_work(model, setting)
    assert known is not None
    assert known.flops == pytest.approx(counted.flops, rel=0.02)
    assert known.unit != counted.unit or known.items == counted.items


def test_flops_of_a_product_are_those_that_torch_counts() -> None:
    workload = workloads.find_workload("matmul")
    step = workload.prepare(workload.tiny, Setting(mode="infer"))
    assert step.work.flops == count_flops(step.run)


TRAININGS = [name for name in NAMES if "train" in workloads.find_workload(name).modes]
IN_SHORT = [name for name in TRAININGS if name != "venv-ppo"]  # it is not offered in short formats


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in TRAININGS), *((name, "bfloat16") for name in IN_SHORT)]
)
def test_an_optimiser_that_does_nothing_is_caught(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        monkeypatch.setattr(kind, "step", lambda *_: None)
    workload = workloads.find_workload(name)
    step = workload.prepare(workload.tiny, Setting(mode="train", dtype=dtype))
    step.run()
    with pytest.raises(WrongResultError, match="where rounding explains"):
        check_step(step, dtype)


# Filled models are placed another way and have such a test of their own.
MODELS = [
    name
    for name in NAMES
    if (isinstance(found := workloads.find_workload(name), ModelWorkload) and not found.filled) or name == "venv-ppo"
]


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("name", MODELS)
def test_one_weight_that_arrives_one_percent_off_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.find_workload(name)
    place_model, spoiled = Setting.place_model, []

    def spoil(setting: Setting, model: Any) -> Any:
        placed = place_model(setting, model)
        if not spoiled:
            spoiled.append(max(placed.parameters(), key=lambda weight: weight.numel()))
            numbers = spoiled[0].data.view(-1)
            numbers[numbers.abs().argmax()] *= 1.01
        return placed

    monkeypatch.setattr(Setting, "place_model", spoil)
    step = workload.prepare(workload.tiny, Setting(mode=workload.modes[0]))
    assert spoiled, "no model was placed on the device"
    with pytest.raises(WrongResultError):
        check_step(step, "float32")


def test_compiled_steps_compute_the_right_numbers() -> None:
    for name in ("matmul", "mlp"):  # one compilation takes 10 s and more, so that not every workload can have one here
        workload = workloads.find_workload(name)
        for params in forms(workload):
            for mode in workload.modes:
                step = prepare(name, params, mode=mode, compile="on")
                step.run()
                check_step(step, "float32")
