"""Every sentence follows from the results, and none is said that the intervals do not bear out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.findings import find_all
from torchmark.records import (
    Contention,
    Estimate,
    JobEstimate,
    Machine,
    Result,
    Run,
    RunHeader,
    StageEstimate,
    Trend,
    Work,
    parse_case,
)

MACHINE = Machine("cpu", 2, 2, 8, "Linux", "3.11")


def estimate(center: float, half: float = 0.002, **changes: Any) -> Estimate:
    low, high = center * (1 - half), center * (1 + half)
    fields: dict[str, Any] = {"mean_s": center, "mean_low_s": low, "mean_high_s": high}
    first = changes.pop("first_step_s", 2 * center)
    verdict = changes.pop("verdict", "stable")
    return Estimate(center, low, high, "median", verdict, first, 100.0, 0, Trend(0, 0), **(fields | changes))


def result(text: str, center: float, spread: float = 0.005, **changes: Any) -> Result:
    known = {key: changes.pop(key) for key in ("verdict", "first_step_s") if key in changes}
    processes = tuple(estimate(center * (1 + step * spread), **known) for step in (-1, 0, 1))
    case = parse_case(text)
    batch = case.params.get("batch", 32)
    fields: dict[str, Any] = {"work": Work(float(batch) * case.workers, "sample"), "params": {"batch": batch}}
    return Result(case, "ok", estimate=estimate(center, **known), processes=processes, **(fields | changes))


def run_of(*results: Result, name: str = "mine", **changes: Any) -> Run:
    header = RunHeader("0a1b", "2026", MACHINE, (), "torchmark run", "0", label=name)
    return Run(header, results, **changes)


def sentences(*results: Result) -> dict[str, str]:
    return {finding.kind: finding.cause for finding in find_all([run_of(*results)])}


def test_which_device_for_which_work() -> None:
    found = find_all(
        [
            run_of(
                result("resnet50/infer@cpu/float32", 1.25),
                result("resnet50/infer@mps/float32", 0.1),
                result("bert-encode/infer@cpu/float32", 0.3),
                result("bert-encode/infer@mps/float32", 0.1),
                result("venv-ppo/train@cpu/float32", 1.0),
                result("venv-ppo/train@mps/float32", 11.0),
            )
        ]
    )
    assert [finding.cause for finding in found] == [
        "Use mps for resnet50 (12.5× the CPU) and bert-encode (3.0×), but the CPU for venv-ppo (11× mps)"
    ]
    assert "venv-ppo/train@mps/float32" in found[0].cases


def test_from_which_batch_on_a_device_wins() -> None:
    pairs = [("16", 1e-3, 3e-3), ("64", 4e-3, 3.2e-3), ("256", 16e-3, 4e-3)]
    rows = [result(f"mlp/infer:batch={size}@cpu/float32", cpu) for size, cpu, _ in pairs]
    rows += [result(f"mlp/infer:batch={size}@mps/float32", gpu) for size, _, gpu in pairs]
    texts = [finding.cause for finding in find_all([run_of(*rows)])]
    assert "On mlp/infer the CPU wins up to batch 16, mps from batch 64" in texts


@pytest.mark.parametrize(
    ("first", "second", "kind", "text"),
    [
        (
            ("mlp/infer@mps/float32", 1e-3),
            ("mlp/infer@mps/float32+per-step", 1.9e-3),
            "transfer",
            "per-step copies cost 90% on mlp",
        ),
        (
            ("mlp/infer:batch=16@cpu/float32", 1e-3),
            ("mlp/infer:batch=64@cpu/float32", 1.9e-3),
            "batch",
            "Batch 64 gives 2.1× the rate of batch 16 on mlp/infer",
        ),
        (
            ("matmul/infer@cpu/float32", 1e-3),
            ("matmul/infer@cpu/bfloat16", 2.2e-3),
            "dtype",
            "bfloat16 makes matmul 0.45× as fast as float32",
        ),
        (
            ("lstm/infer@cpu/float32+threads=1", 2e-3),
            ("lstm/infer@cpu/float32+threads=2", 1e-3),
            "threads",
            "2 threads give 2.0× the speed of 1 thread on lstm/infer",
        ),
        (
            ("lstm/infer@cpu/float32+threads=1", 1e-3),
            ("lstm/infer@cpu/float32+threads=20", 10e-3),
            "threads",
            "20 threads make lstm/infer 0.1× as fast as 1",
        ),
        (
            ("mlp/train@cpu/float32", 1e-3),
            ("mlp/train@cpu/float32+workers=4", 2e-3),
            "workers",
            "4 workers do 2.0× the work of one on mlp/train (efficiency 50%)",
        ),
    ],
)
def test_settings_are_reported_in_words(first, second, kind: str, text: str) -> None:
    assert sentences(result(*first), result(*second)) == {kind: text}


def test_settings_are_reported_for_each_device_by_itself() -> None:
    rows = [
        result(f"matmul/infer@{device}/{dtype}", center)
        for device, dtype, center in (
            ("cpu", "float32", 1.0),
            ("cpu", "bfloat16", 2.2),
            ("mps", "float32", 0.1),
            ("mps", "bfloat16", 0.05),
        )
    ]
    texts = [finding.cause for finding in find_all([run_of(*rows)]) if finding.kind == "dtype"]
    assert texts == [
        "On the CPU bfloat16 makes matmul 0.45× as fast as float32",
        "On mps bfloat16 makes matmul 2.0× as fast as float32",
    ]


def test_compiling_is_weighed_against_its_own_time() -> None:
    found = sentences(
        result("lstm/infer@cpu/float32", 2e-3, first_step_s=0.01),
        result("lstm/infer@cpu/float32+compile", 1e-3, first_step_s=15.01),
    )
    expected = "torch.compile makes lstm 2.0× as fast as without; compiling pays off after about 15000 steps"
    assert found["compile"] == expected


@given(st.floats(0.9, 1.1), st.floats(0.12, 0.3))
def test_nothing_is_claimed_where_processes_disagree_by_more(ratio: float, spread: float) -> None:
    assert sentences(result("mlp/infer@cpu/float32", 1e-3, spread), result("mlp/infer@mps/float32", ratio * 1e-3)) == {}


def test_one_process_needs_the_spread_of_its_run() -> None:
    rows = [
        replace(result(text, center), processes=())
        for text, center in (("mlp/infer@cpu/float32", 1e-3), ("mlp/infer@mps/float32", 1.2e-3))
    ]
    assert find_all([run_of(*rows)]) == ()
    assert find_all([run_of(*rows, process_spread=0.1)]) == ()
    assert find_all([run_of(*rows, process_spread=0.005)])[0].kind == "device"


def test_a_disturbed_row_supports_only_what_disturbance_cannot_explain() -> None:
    busy = result("mlp/infer@cpu/float32", 2e-3)
    seen = estimate(2e-3, verdict="contended", contention=Contention(wait_share=0.3))
    busy = replace(busy, estimate=seen)
    assert sentences(busy, result("mlp/infer@mps/float32", 1e-3)) == {
        "disturbed": "mlp/infer was slowed by a busy machine: measure it again"
    }
    assert "device" in sentences(busy, result("mlp/infer@mps/float32", 0.1e-3))


def test_what_single_results_say() -> None:
    stages = (StageEstimate("step", 100, 1e-3, 1e-3, 1e-3), StageEstimate("load batch", 0, 6e-4, 5.9e-4, 6.1e-4))
    loading = result("mnist-cnn/train@cpu/float32", 1e-3, job=JobEstimate(0.1, 0.1, 0.1, False, stages))
    slow = result("resnet50/infer@cpu/float32", 0.1, first_step_s=8.0)
    fits = result("bert-classify/train:batch=64@mps/float32", 1.0)
    large = Result(parse_case("bert-classify/train:batch=256@mps/float32"), "oom")
    assert sentences(loading, slow, fits, large) == {
        "loader": "Fetching data takes up to 60% of a step of mnist-cnn/train",
        "memory": "bert-classify/train fits into mps with batch 64, and not with 256",
        "first-step": "The first step of resnet50/infer took 8 s, 80× as long as a later one",
    }


def test_a_device_with_an_odd_name_is_no_error() -> None:
    """A stranger's file may hold any name, and need not be a case that can be typed."""
    fits, large = (parse_case(f"bert-classify/train:batch={size}@mps/float32") for size in (64, 256))
    odd = [replace(case, device="a/b@c:d+e") for case in (fits, large)]
    assert "memory" in sentences(replace(result(fits.text, 1.0), case=odd[0]), Result(odd[1], "oom"))


def test_a_task_that_waits_for_its_data_is_named_once() -> None:
    def loading(case: str, loading_s: float) -> Result:
        stages = (StageEstimate("load batch", 0, loading_s, loading_s, loading_s),)
        return result(case, 1e-3, job=JobEstimate(0.1, 0.1, 0.1, False, stages))

    rows = [loading(f"mnist-cnn/train@cpu/float32+threads={threads}", threads * 3e-4) for threads in (1, 2)]
    (found,) = [finding for finding in find_all([run_of(*rows)]) if finding.kind == "loader"]
    assert found.cause == "Fetching data takes up to 60% of a step of mnist-cnn/train"
    assert found.cases == tuple(row.case.text for row in rows)


def test_published_figures_are_called_so() -> None:
    def published(text: str, center: float) -> Result:
        return replace(result(text, center, verdict="as-published"), processes=())

    found = sentences(
        published("resnet50/infer@cpu/float32+as-published", 4.2),
        published("resnet50/infer@mps/float32+as-published", 0.054),
        published("mlp/infer@cpu/float32+as-published", 1.0),
        published("mlp/infer@mps/float32+as-published", 0.9),
    )
    assert found == {"device": "As published, use mps for resnet50 (77.8× the CPU)"}


def test_runs_are_compared_over_all_their_cases() -> None:
    texts = ("mlp/infer@cpu/float32", "lstm/infer@cpu/float32", "lstm/train@cpu/float32")
    slow = run_of(*(result(text, 3e-3) for text in texts), name="old")
    fast = run_of(*(result(text, center) for text, center in zip(texts, (1e-3, 2e-3, 2e-3), strict=True)), name="new")
    expected = "new is 2.1× as fast as old over 3 cases (geometric mean), from 1.50× on lstm to 3.0× on mlp"
    assert find_all([slow, fast])[0].cause == expected
    assert find_all([fast, slow])[0].cause == expected
    assert find_all([slow, slow])[0].cause == "old and old are equally fast within 5% over 3 cases (geometric mean)"
    noisy = run_of(*(result(text, 3.1e-3, 0.2) for text in texts), name="noisy")
    assert [finding for finding in find_all([slow, noisy]) if finding.kind == "runs"] == []
    many = find_all([slow, *(run_of(*(result(text, n * 1e-4) for text in texts), name=str(n)) for n in range(1, 9))])
    assert [finding.cause.split()[0] for finding in many if finding.kind == "runs"] == ["1", "8"]
