"""A true result has nothing odd about it; one that was touched anywhere is reported, with the place."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import torchmark
from torchmark.analyze.check import check_header, check_result, check_samples
from torchmark.analyze.jobs import extrapolate, sustained_of
from torchmark.analyze.verdict import combine_results
from torchmark.measure.replay import estimate_of
from torchmark.records import Estimate, JobEstimate, Laps, Metered, NumericCheck, Result, StageEstimate, parse_case

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SCRIPTS = [f"stream={stream},step=0.01" for stream in ("iid2", "warm-exp", "bimodal", "heavy-tail", "drift")]


def measured(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Result:
    """One case in a fresh process for each script, by the real engine on the fake device's clock."""
    results = []
    for script in scripts:
        monkeypatch.setenv("TORCHMARK_FAKE", script)
        results.append(torchmark.time_step(lambda: None, "fake", budget_s=1.0))
    return combine_results(results)


@pytest.fixture(scope="module")
def true() -> Result:
    with pytest.MonkeyPatch.context() as patch:
        return measured(patch, *(f"stream=iid2,step=0.01,seed={seed}" for seed in range(3)))


def samples(result: Result) -> dict[int, tuple[float, ...]]:
    return {index: process.samples_s for index, process in enumerate(result.processes)}


def places(result: Result, claimed: Result | None = None) -> set[str]:
    """Where something is odd about a claimed result, whose samples are those of the true one."""
    claimed = claimed or result
    found = [*check_result(claimed, same_method=True), *check_samples(claimed, samples(result), same_method=True)]
    return {each.place for each in found}


@pytest.mark.parametrize("script", [*SCRIPTS, "stream=iid2,step=2e-6,sync=1e-6"])
def test_nothing_is_odd_about_what_the_engine_says(monkeypatch, script: str) -> None:
    result = measured(monkeypatch, f"{script},seed=1", f"{script},seed=2")
    assert places(result) == set()
    alone = combine_results([replace(result, processes=result.processes[:1])])
    assert places(alone) == set()


def changed(result: Result, index: int, **fields: object) -> Result:
    """A process with other figures, and the result computed from it."""
    processes = list(result.processes)
    processes[index] = replace(processes[index], **fields)
    return combine_results([replace(result, processes=(process,)) for process in processes])


@pytest.mark.parametrize(
    "field",
    ["center_s", "median_s", "mean_s", "min_s", "p90_s", "p99_s", "mad_s", "sample_count", "autocorrelation_time"],
)
def test_a_figure_that_its_samples_do_not_give_is_reported(true: Result, field: str) -> None:
    value = getattr(true.processes[1], field)
    lie = changed(true, 1, **{field: value + 1 if field == "sample_count" else value * 0.999})
    assert f"$.result.processes[1].{field}" in places(true, lie)


def test_an_interval_that_is_narrower_than_its_samples_allow_is_reported(true: Result) -> None:
    first = true.processes[0]
    lie = changed(true, 0, low_s=first.center_s * 0.9999, high_s=first.center_s * 1.0001)
    assert {"$.result.processes[0].low_s", "$.result.processes[0].high_s"} <= places(true, lie)


def test_a_cut_that_leaves_out_what_is_slow_is_reported(true: Result) -> None:
    count = true.processes[0].sample_count
    assert "$.result.processes[0].warmup_cut" in places(true, changed(true, 0, warmup_cut=count // 2 + 1))
    assert places(true, changed(true, 0, warmup_cut=true.processes[0].warmup_cut + 20))


def test_samples_that_are_all_faster_do_not_fit_the_time_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled as a whole, everything agrees but the clock."""
    true = measured(monkeypatch, "stream=iid2,step=0.01")

    def tenth(estimate: Estimate) -> Estimate:
        names = [name for name in Estimate.__struct_fields__ if name.endswith("_s") and name != "duration_s"]
        scaled = {name: _scaled(getattr(estimate, name)) for name in names}
        return replace(estimate, **scaled)

    process = replace(tenth(true.processes[0]), duration_s=300.0)
    lie = combine_results([replace(true, case=replace(true.case, device="cpu"), processes=(process,))])
    assert places(lie) == {"$.result.processes[0].duration_s"}
    fast = replace(process, duration_s=0.01)
    lie = combine_results([replace(true, case=replace(true.case, device="cpu"), processes=(fast,))])
    assert places(lie) == {"$.result.processes[0].duration_s"}


def _scaled(value: float | tuple[float, ...] | None) -> object:
    if isinstance(value, tuple):
        return tuple(each / 10 for each in value)
    return None if value is None else value / 10


CHANGES: dict[str, tuple[Callable[[Result], Result], str]] = {
    "centre": (lambda r: replace(r, estimate=replace(r.estimate, center_s=0.009, low_s=0.0089)), "estimate.center_s"),
    "interval": (lambda r: replace(r, estimate=replace(r.estimate, low_s=r.estimate.center_s)), "estimate.low_s"),
    "outside": (lambda r: replace(r, estimate=replace(r.estimate, high_s=0.001)), "estimate.center_s"),
    "verdict": (lambda r: replace(r, estimate=replace(r.estimate, verdict="drifting")), "estimate.verdict"),
    "count": (lambda r: replace(r, estimate=replace(r.estimate, sample_count=7)), "estimate.sample_count"),
    "nothing": (lambda r: replace(r, estimate=None), "estimate"),
    "no process": (lambda r: replace(r, processes=()), "processes"),
    "numbers": (lambda r: replace(r, numeric=NumericCheck(1e-2, 1e-5, "x")), "numeric"),
    "phases": (lambda r: replace(r, phases_s={"build": -1.0}), "phases_s.build"),
    "steps": (lambda r: replace(r, phases_s={"steps": 0.01}, case=replace(r.case, device="cpu")), "phases_s.steps"),
    "reason": (lambda r: replace(r, status="oom"), "reason"),
    "power": (
        lambda r: replace(r, estimate=replace(r.estimate, metered=Metered(mean_w=-3.0))),
        "estimate.metered.mean_w",
    ),
    "job": (lambda r: replace(r, job=JobEstimate(9.0, 8.0, 10.0, False, (stage(r, 3),))), "job.seconds"),
}


def stage(result: Result, steps: int) -> StageEstimate:
    assert result.estimate is not None
    return StageEstimate("step", steps, result.estimate.mean_s, 0.0, 1.0)


@pytest.mark.parametrize("name", CHANGES)
def test_a_result_that_contradicts_itself_is_reported(true: Result, name: str) -> None:
    change, place = CHANGES[name]
    assert f"$.result.{place}" in places(true, change(true))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e99, -1e99])
def test_no_figure_is_too_odd_to_be_looked_at(true: Result, value: float) -> None:
    for name in Estimate.__struct_fields__:
        if isinstance(getattr(true.processes[0], name), float):
            lie = replace(true.processes[0], **{name: value})
            claimed = replace(
                true, processes=(lie, *true.processes[1:]), estimate=replace(true.estimate, **{name: value})
            )
            assert all(each.cause for each in check_result(claimed, same_method=True))
            assert all(each.cause for each in check_samples(claimed, samples(true), same_method=True))
    odd = replace(true.processes[0], samples_s=(value,) * true.processes[0].sample_count)
    assert places(true) == set()
    assert all(each.cause for each in check_samples(true, {0: odd.samples_s}, same_method=True))


def test_an_interval_by_another_method_is_left_alone(true: Result) -> None:
    assert true.estimate is not None
    other = replace(true, estimate=replace(true.estimate, low_s=true.estimate.low_s * 0.9))
    assert places(true, other)
    assert list(check_result(other, same_method=False)) == []


def test_the_ends_of_a_case_that_was_kept_going_follow_from_its_samples(true: Result) -> None:
    alone = combine_results([replace(true, processes=true.processes[:1])])
    kept = replace(alone, sustained=sustained_of(alone.processes[0]))
    assert kept.sustained is not None
    assert places(kept) == set()
    lie = replace(kept, sustained=replace(kept.sustained, last_s=0.02))
    assert places(kept, lie) == {"$.result.sustained.last_s"}


def replayed(count: int, published: int, endless: bool = False) -> Result:
    """What a replay says that took so many of the published steps; the first ones were slow."""
    dice = random.Random(count)
    seconds = [0.01 * (1 + dice.random() / 10) + 0.05 * (number < 3) for number in range(count)]
    stages = (Laps("model to the device", [0.5]), Laps("step", seconds, published, is_work=True))
    job = extrapolate(stages)
    procedure, task = SimpleNamespace(endless=endless), SimpleNamespace(steps=published)
    estimate = estimate_of(procedure, task, stages, job)  # type: ignore[arg-type]  # of these it needs no more
    return Result(
        parse_case("mlp/infer@cpu/float32+as-published"), "ok", estimate=estimate, job=None if endless else job
    )


def replay_places(claimed: Result, true: Result) -> set[str]:
    assert true.estimate is not None
    samples = {0: true.estimate.samples_s}
    return {each.place for each in (*check_result(claimed, True), *check_samples(claimed, samples, same_method=True))}


SHARES = [(1, 1), (1, 100), (5, 100), (50, 1000), (100, 100)]


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize(("count", "published"), SHARES)
def test_nothing_is_odd_about_what_a_replay_says(count: int, published: int, endless: bool) -> None:
    true = replayed(count, published, endless)
    assert replay_places(true, true) == set()


def faster(job: JobEstimate | None) -> JobEstimate | None:
    """A tenth of the time, in all its parts."""
    if job is None:
        return None
    stages = tuple(replace(each, center_s=each.center_s / 10, low_s=0.0, high_s=each.high_s) for each in job.stages)
    return replace(job, seconds=job.seconds / 10, low_s=0.0, stages=stages)


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize(("count", "published"), SHARES[2:])
def test_a_replay_that_its_laps_do_not_give_is_reported(count: int, published: int, endless: bool) -> None:
    true = replayed(count, published, endless)
    estimate = true.estimate
    assert estimate is not None
    center_s = estimate.center_s * 0.9
    lies: dict[str, Result] = {
        "estimate.center_s": replace(
            true, estimate=replace(estimate, center_s=center_s, low_s=center_s, high_s=center_s)
        ),
        **{
            f"estimate.{name}": replace(true, estimate=replace(estimate, **{name: getattr(estimate, name) * 0.9}))
            for name in ("first_step_s", "median_s", "min_s")
        },
        "estimate.duration_s": replace(true, estimate=replace(estimate, duration_s=1e-3)),
        "estimate.sample_count": replace(true, estimate=replace(estimate, sample_count=count + 1)),
    }
    if not endless:
        lies["job.stages"] = replace(true, job=faster(true.job))
        lies["job.seconds"] = replace(true, job=replace(true.job, seconds=1.0, low_s=0.5))
    assert {place for place, lie in lies.items() if f"$.result.{place}" not in replay_places(lie, true)} == set()


@pytest.mark.parametrize("value", [0.0, -1.0, 1e99, -1e99])
def test_no_lap_is_too_odd_to_be_looked_at(value: float) -> None:
    true = replayed(50, 1000)
    assert [*check_samples(true, {0: (value,) * 50}, same_method=True)]
    assert [*check_samples(true, {0: ()}, same_method=True)]


def test_the_steps_of_a_job_are_those_that_were_measured(true: Result) -> None:
    first, *others = true.processes
    main = StageEstimate("step", 10, first.mean_s, first.mean_low_s, first.mean_high_s)
    total = 10 * first.mean_s
    job = JobEstimate(total, total, total, False, (main,))
    assert places(true, replace(true, job=job)) == set()
    lie = replace(job, seconds=total / 2, low_s=0.0, stages=(replace(main, center_s=main.center_s / 2),))
    assert places(true, replace(true, job=lie)) == {"$.result.job.stages"}
    assert others


def test_samples_of_more_processes_than_there_are_are_reported(true: Result) -> None:
    more = samples(true) | {3: (0.01,) * 40}
    assert [each.place for each in check_samples(true, more, same_method=False)] == ["$.result.processes"]


def test_a_sound_header_has_nothing_odd(make_header) -> None:
    assert list(check_header(make_header(("mlp/infer@cpu/float32",)), NOW)) == []


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("created", {"created": "yesterday"}),
        ("created", {"created": "1999-12-31T23:59:59Z"}),
        ("created", {"created": (NOW + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")}),
        ("cases", {"cases": ("mlp/infer@cpu/float32",) * 2}),
        ("cases", {"cases": ("what is this",)}),
        ("machine.devices", {"cases": ("mlp/infer@cuda:0/float32",)}),
        ("processes", {"processes": -4}),
    ],
)
def test_a_header_that_cannot_be_is_reported(make_header, place: str, change: dict[str, object]) -> None:
    header = make_header(**({"cases": ("mlp/infer@cpu/float32",)} | change))
    assert {each.place for each in check_header(header, NOW)} == {f"$.header.{place}"}


def test_a_machine_that_cannot_be_is_reported(make_header) -> None:
    machine = make_header().machine
    odd = [
        replace(machine, physical_cores=8, logical_cores=4),
        replace(machine, memory_gib=0),
        replace(machine, torch="?"),
    ]
    assert all(list(check_header(make_header(machine=each), NOW)) for each in odd)
