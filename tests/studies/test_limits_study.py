"""The search for the limits: sizes grow while that pays, a dtype may kill its worker, doubled work takes its time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import asdict, replace

from torchmark.measure.cases import full_params
from torchmark.measure.messages import MeasureJob
from torchmark.measure.session import Finished, Revised
from torchmark.records import Case, DeviceInfo, Machine, Result
from torchmark.studies.limits import Limits, LimitsOptions, array_bytes, plan_cases
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting

GIB = 1 << 30
CPU = DeviceInfo("cpu", "Xeon", memory_bytes=16 * GIB, cache_bytes=32 << 20)
MACHINE = Machine("Xeon", 2, 2, 16, "Linux 6", "3.11", devices=(CPU,))
REQUEST = LimitsOptions(MACHINE, ("float32",))
Seconds = Callable[[Case, float, float], float]  # from a case, its FLOPs and its bytes


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, make_result, make_estimate) -> Callable[..., dict[str, Result]]:
    """The search over workers that take a given time; none or less of it kills them."""

    def search(seconds: Seconds, request: LimitsOptions = REQUEST) -> dict[str, Result]:
        def run(job: MeasureJob, *_: object) -> Result:
            case = job.case
            workload, params = find_workload(case.workload), full_params(case)
            work = workload.work(params, Setting(case.mode, dtype=case.dtype, world_size=case.workers))
            assert work is not None
            taken = seconds(case, work.flops or 0.0, work.bytes or 0.0)
            if taken <= 0:
                return Result(case, "crashed", reason="the worker was ended by SIGILL during first step")
            found = make_estimate(taken)
            return make_result(case.text, estimate=found, processes=(found,), work=work, params=asdict(params))

        monkeypatch.setattr("torchmark.studies.limits.measure_case", run)
        events = Limits(request).events()
        return {event.result.case.text: event.result for event in events if isinstance(event, Finished | Revised)}

    return search


def honest(case: Case, flops: float, byte_count: float) -> float:
    """300 GFLOP/s from size 1024 on, half of that below; 20 GB/s."""
    if case.workload != "matmul":
        return byte_count / 20e9 or 1e-6
    return flops / (300e9 if int(case.params.get("size", 2048)) >= 1024 else 150e9)


def sizes(found: dict[str, Result], dtype: str = "float32") -> list[int]:
    cases = [each.case for each in found.values() if (each.case.workload, each.case.dtype) == ("matmul", dtype)]
    square = [case.params for case in cases if not {"rows", "batch"} & set(case.params)]
    return sorted(int(params.get("size", 2048)) for params in square)


def test_products_double_until_that_brings_nothing(play) -> None:
    found = play(honest)
    assert sizes(found) == [256, 512, 1024, 2048]
    assert len(found["matmul/infer:size=1024@cpu/float32"].processes) == 3
    assert "matmul/infer:rows=64,size=1024@cpu/float32" in found
    assert found["matmul/infer:batch=2,size=1024@cpu/float32"].status == "ok"
    assert {"launch/infer@cpu/float32+per-step", "all-reduce/infer:sizes=all@cpu/float32+workers=2"} <= set(found)
    assert not [each for each in found.values() if "implausible" in (each.estimate.flags if each.estimate else ())]


def test_no_product_is_tried_that_would_take_longer_than_a_second(play) -> None:
    found = play(lambda case, flops, count: honest(case, flops, count) * 20)
    assert sizes(found) == [256, 512, 1024]


def test_a_dtype_without_a_fast_path_ends_after_its_first_product(play) -> None:
    def slow(case: Case, flops: float, count: float) -> float:
        return honest(case, flops, count) * (25 if case.dtype == "float16" else 1)

    found = play(slow, replace(REQUEST, dtypes=("float16", "float32")))
    assert sizes(found, "float16") == [256]
    assert sizes(found) == [256, 512, 1024, 2048]


def test_a_dtype_that_kills_its_worker_costs_only_itself(play) -> None:
    def deadly(case: Case, flops: float, count: float) -> float:
        return 0.0 if case.dtype == "bfloat16" else honest(case, flops, count)

    found = play(deadly, replace(REQUEST, dtypes=("bfloat16", "float32", "float64")))
    dead = found["matmul/infer:size=256@cpu/bfloat16"]
    assert (dead.status, dead.estimate) == ("crashed", None)
    assert "SIGILL" in (dead.reason or "")
    assert sizes(found, "bfloat16") == [256]
    assert sizes(found, "float64") == [256, 512, 1024, 2048]


def test_time_that_does_not_grow_with_the_work_is_implausible(play) -> None:
    """As on a device that does not wait for its work."""

    def folded(case: Case, flops: float, count: float) -> float:
        return 1e-3 if case.workload == "matmul" else honest(case, flops, count)

    found = play(folded)
    (double,) = [each for each in found.values() if each.params.get("batch") == 2]
    assert double.estimate is not None
    assert "implausible" in double.estimate.flags
    assert len(double.processes) == 3
    assert [each.cause for each in double.cautions if each.kind == "implausible"] == [
        "twice the work does not take about twice the time"
    ]


def test_what_no_time_is_left_for_is_skipped_with_the_reason(play) -> None:
    found = play(honest, replace(REQUEST, budget_s=1.0))
    assert {each.status for each in found.values()} == {"skipped"}
    assert set(found) == {case.text for case in plan_cases(REQUEST)}


@pytest.mark.parametrize(
    ("memory", "cache", "expected"),
    [(16 * GIB, 32 << 20, 128 << 20), (16 * GIB, 1 << 20, 64 << 20), (2 * GIB, 512 << 20, 256 << 20)],
)
def test_arrays_are_beyond_all_caches_and_leave_room(memory: int, cache: int, expected: int) -> None:
    assert array_bytes(replace(CPU, memory_bytes=memory, cache_bytes=cache)) == expected


def test_links_and_exchanges_are_asked_for_where_there_are_any() -> None:
    gpus = tuple(DeviceInfo(f"cuda:{index}", "GPU", memory_bytes=16 * GIB) for index in range(2))
    texts = [case.text for case in plan_cases(LimitsOptions(replace(MACHINE, devices=gpus), ("float32",)))]
    copies = [text for text in texts if text.startswith("copy/infer")]
    assert len(copies) == 8
    assert "copy/infer:direction=to-host,pinned=on,size_bytes=268435456,sizes=all@cuda:1/float32" in copies
    assert [text for text in texts if "all-reduce" in text] == ["all-reduce/infer:sizes=all@cuda:0/float32+workers=2"]


def test_in_the_end_everything_is_held_against_the_best_of_all(play) -> None:
    found = play(honest)
    best, small = (found[f"matmul/infer:size={size}@cpu/float32"].peak for size in (1024, 512))
    assert best is not None
    assert small is not None
    assert best.share == pytest.approx(1.0)
    assert small.share == pytest.approx(0.5)


def test_products_that_may_be_shortened_are_tried_both_ways_where_there_is_hardware_for_it() -> None:
    gpu = DeviceInfo("cuda:0", "GPU", memory_bytes=16 * GIB)
    texts = [case.text for case in plan_cases(LimitsOptions(replace(MACHINE, devices=(gpu, CPU)), ("float32",)))]
    assert [text for text in texts if text.startswith("matmul")] == [
        "matmul/infer:size=256@cuda:0/float32",
        "matmul/infer:size=256@cuda:0/float32+matmul=high",
        "matmul/infer:size=256@cpu/float32",
    ]
