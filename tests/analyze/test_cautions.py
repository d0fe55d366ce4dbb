"""Every reason for doubt has a cause in words, with the figures that were seen, and a fix."""

from __future__ import annotations

import pytest

from torchmark.analyze.verdict import cautions_of
from torchmark.analyze.wording import counted
from torchmark.records import VERDICTS, Contention


@pytest.mark.parametrize("verdict", [verdict for verdict in VERDICTS if verdict not in ("stable", "as-published")])
def test_every_verdict_against_a_figure_is_explained(verdict: str, make_result, make_estimate) -> None:
    doubtful = make_estimate(verdict=verdict, evidence=("this was seen", "and that"))
    (caution,) = cautions_of(make_result(estimate=doubtful))
    assert (caution.kind, caution.cause) == (verdict, "this was seen; and that")
    assert caution.fix


def test_nothing_is_judged_about_a_figure_that_allows_no_judgement(make_result, make_estimate) -> None:
    one = make_estimate(verdict="as-published", sample_count=1)
    assert cautions_of(make_result(estimate=one)) == ()


def test_a_stable_result_needs_no_caution_and_a_failed_one_has_a_reason_instead(make_result, make_estimate) -> None:
    assert cautions_of(make_result()) == ()
    assert cautions_of(make_result(status="oom", estimate=None)) == ()
    assert cautions_of(make_result(estimate=make_estimate(flags=("single-process",)))) == ()


@pytest.mark.parametrize(
    "flag", ["oversubscribed", "launch-bound", "bimodal", "paging", "on-battery", "implausible", "cpu-fallback"]
)
def test_a_flag_that_changes_the_figure_is_explained(flag: str, make_result, make_estimate) -> None:
    (caution,) = cautions_of(make_result(estimate=make_estimate(flags=(flag,))))
    assert caution.kind == flag
    assert caution.cause
    assert caution.fix


def test_the_cause_has_the_figures(make_result, make_estimate) -> None:
    waited = make_estimate(flags=("oversubscribed",), contention=Contention(wait_share=0.25))
    assert "25% of the time" in cautions_of(make_result(estimate=waited))[0].cause
    idle = make_estimate(4e-5, flags=("launch-bound",), device_step_s=4e-5, wall_step_s=1e-4)
    assert "only 40% of the time" in cautions_of(make_result(estimate=idle))[0].cause


def test_few_samples_and_processes_that_differ_are_reported(make_result, make_estimate) -> None:
    (few,) = cautions_of(make_result(estimate=make_estimate(sample_count=4)))
    assert (few.kind, "only 4 samples" in few.cause) == ("few-samples", True)
    (one,) = cautions_of(make_result(estimate=make_estimate(sample_count=1)))
    assert "only 1 sample fitted" in one.cause
    processes = tuple(map(make_estimate, (1.0, 1.1, 1.25)))
    (spread,) = cautions_of(make_result(processes=processes))
    assert spread.kind == "process-spread"
    assert "3 fresh processes differ by 11%" in spread.cause
    assert cautions_of(make_result(processes=processes[:1])) == ()


def test_samples_that_were_counted_beforehand_did_not_run_out_of_budget(make_result, make_estimate) -> None:
    (few,) = cautions_of(make_result(estimate=make_estimate(sample_count=5), settings={"steps": 5}))
    assert few.cause == "5 samples, as asked for with --steps: too few for a reliable ±"
    assert "--budget" not in few.fix


def test_fewer_launches_are_advised_only_where_they_can_be_had(make_result, make_estimate) -> None:
    bound = make_estimate(flags=("launch-bound",))
    (on_cpu,) = cautions_of(make_result(estimate=bound, metrics={"operators": 1.0}))
    assert on_cpu.fix == "Try a larger batch or --compile on"
    assert "its 1 operator takes" in on_cpu.cause
    (on_gpu,) = cautions_of(make_result("mlp/infer@cuda:0/float32", estimate=bound, metrics={"operators": 7.0}))
    assert on_gpu.fix == "Try a larger batch, --compile on or the CPU"
    assert "its 7 operators takes" in on_gpu.cause
    (compiled,) = cautions_of(make_result("mlp/infer@cpu/float32+compile", estimate=bound))
    assert compiled.fix == "Try a larger batch"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "pass", "1 pass"),
        (2, "pass", "2 passes"),
        (0, "copy", "0 copies"),
        (3, "key", "3 keys"),
        (2.0, "box", "2 boxes"),
    ],
)
def test_nouns_agree_with_their_number(count: float, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_processes_that_fall_into_two_groups_are_counted(make_result, make_estimate) -> None:
    times = (1.0, 1.001, 0.999, 1.002, 1.28, 1.281)
    found = cautions_of(make_result(processes=tuple(make_estimate(seconds) for seconds in times)))
    (spread,) = [caution for caution in found if caution.kind == "process-spread"]
    assert spread.cause == "2 of 6 processes took 28% more time than the others"
