"""Comparisons are fair to both runs, and an answer is given only where there is evidence for it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.analyze.comparison import (
    compare_all,
    compare_runs,
    compare_within,
    gate_runs,
    holm,
    overall,
)
from torchmark.analyze.grades import flaws_of, uncertainty_of
from torchmark.records import Contention, Estimate, Machine, Remark, Result, Run, RunHeader, Trend, Work, parse_case

MACHINE = Machine("cpu", 2, 2, 8, "Linux", "3.11")
TEXTS = [f"mlp/infer:batch={size}@cpu/float32" for size in (1, 2, 3, 4)]
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "similar": "similar", "unsure": "unsure"}

times = st.floats(1e-7, 1e2)
half_widths = st.floats(0, 0.2)
tables = st.lists(st.lists(st.tuples(times, half_widths), min_size=1, max_size=5), min_size=1, max_size=4)
spreads = st.none() | st.floats(0, 0.3)


def estimate(center: float, half: float = 0.001, estimand: str = "median") -> Estimate:
    return Estimate(
        center, center * (1 - half), center * (1 + half), estimand, "stable", center, 100.0, 0, Trend(0, 0),
        mean_s=center * 1.1, mean_low_s=center * 1.09, mean_high_s=center * 1.11,
    )  # fmt: skip


def run_of(*rows: list[tuple[float, float]], spread: float | None = None, cpu: str = "cpu") -> Run:
    machine = Machine(cpu, 2, 2, 8, "Linux", "3.11")
    results = []
    for text, row in zip(TEXTS, rows, strict=False):
        processes = tuple(estimate(*each) for each in row)
        several = processes if len(processes) > 1 else ()
        results.append(Result(parse_case(text), "ok", estimate=processes[0], processes=several))
    return Run(RunHeader("x", "2026", machine, tuple(TEXTS), "torchmark run", "0"), tuple(results), spread)


def processes(center: float, *offsets: float) -> list[tuple[float, float]]:
    return [(center * math.exp(offset), 0.001) for offset in offsets]


QUIET = (-0.002, 0.0, 0.002)


@given(tables, tables, spreads, spreads)
def test_swapping_the_runs_turns_every_answer_over(first, second, a_spread, b_spread) -> None:
    a, b = run_of(*first, spread=a_spread), run_of(*second, spread=b_spread, cpu="other")
    there, back = compare_runs(a, b), compare_runs(b, a)
    assert len(there.pairs) == len(back.pairs)
    for pair, mirrored in zip(there.pairs, back.pairs, strict=True):
        assert pair.case == mirrored.case
        assert pair.ratio == pytest.approx(1 / mirrored.ratio)
        assert pair.verdict == OPPOSITE[mirrored.verdict]
        assert pair.p_value == (None if mirrored.p_value is None else pytest.approx(mirrored.p_value))
        if pair.low is not None and 1e-100 < pair.low < 1e100:
            assert pair.low == pytest.approx(1 / mirrored.high)


@given(tables, spreads)
def test_a_run_never_differs_from_itself(table, spread) -> None:
    run = run_of(*table, spread=spread)
    for pair in compare_runs(run, run).pairs:
        assert pair.ratio == 1
        assert pair.verdict in ("same", "unsure")


@given(tables, tables, spreads, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(first, second, spread, scale) -> None:
    def scaled(table):
        return [[(center * scale, half) for center, half in row] for row in table]

    plain = compare_runs(run_of(*first, spread=spread), run_of(*second, spread=spread))
    other = compare_runs(run_of(*scaled(first), spread=spread), run_of(*scaled(second), spread=spread))
    for pair, again in zip(plain.pairs, other.pairs, strict=True):
        assert pair.ratio == pytest.approx(again.ratio)
        assert (pair.low is None) == (again.low is None)
        assert pair.p_value == (None if again.p_value is None else pytest.approx(again.p_value, abs=1e-6))


def test_clear_differences_are_reported_and_equal_times_are_the_same() -> None:
    a = run_of(*(processes(1e-3, *QUIET) for _ in range(3)))
    b = run_of(processes(0.8e-3, *QUIET), processes(1.2e-3, *QUIET), processes(1e-3, *QUIET))
    assert [pair.verdict for pair in compare_runs(a, b).pairs] == ["faster", "slower", "same"]


def test_a_difference_of_less_than_one_percent_is_no_difference() -> None:
    quiet = (-0.0001, 0.0, 0.0001)
    (pair,) = compare_runs(run_of(processes(1e-3, *quiet)), run_of(processes(1.008e-3, *quiet))).pairs
    assert pair.verdict == "same"
    assert 1 - pair.low > 0.015  # two runs differ by that much as wholes, however well their processes agree


def test_processes_that_disagree_leave_it_open() -> None:
    wide = (-0.1, 0.0, 0.1)
    (pair,) = compare_runs(run_of(processes(1e-3, *wide)), run_of(processes(1.05e-3, *wide))).pairs
    assert pair.verdict == "unsure"
    assert pair.low < 1 < pair.high


def test_one_process_alone_gives_no_answer_however_tight_its_interval() -> None:
    (pair,) = compare_runs(run_of([(1e-3, 1e-5)]), run_of([(2e-3, 1e-5)])).pairs
    assert (pair.ratio, pair.verdict, pair.low, pair.p_value) == (pytest.approx(2), "unsure", None, None)


def test_one_process_borrows_the_spread_of_its_machine() -> None:
    (pair,) = compare_runs(run_of([(1e-3, 1e-5)], spread=0.05), run_of([(2e-3, 1e-5)])).pairs
    assert pair.verdict == "slower"
    (pair,) = compare_runs(run_of([(1e-3, 1e-5)], spread=0.05), run_of([(1.1e-3, 1e-5)])).pairs
    assert pair.verdict == "unsure"
    (pair,) = compare_runs(run_of([(1e-3, 1e-5)], spread=0.05), run_of([(2e-3, 1e-5)], cpu="other")).pairs
    assert pair.verdict == "unsure"


def test_a_median_is_never_held_against_a_mean() -> None:
    a = run_of(processes(1e-3, *QUIET))
    (result,) = a.results
    means = tuple(estimate(each.mean_s, estimand="mean") for each in result.processes)
    means = tuple(Estimate(**{**_fields(mean), "mean_s": mean.center_s}) for mean in means)
    b = Run(a.header, (Result(result.case, "ok", estimate=means[0], processes=means),))
    (pair,) = compare_runs(a, b).pairs
    assert pair.ratio == pytest.approx(1)


def _fields(record: Estimate) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_what_cannot_be_paired_says_why() -> None:
    row = processes(1e-3, *QUIET)
    a = run_of(row, row, row)
    results = list(run_of(row, row, row, row).results)
    results[0] = Result(results[0].case, "oom")
    results[1] = Result(results[1].case, "ok", version=2, estimate=results[1].estimate)
    b = Run(a.header, tuple(results[:2] + results[3:]))
    unpaired = compare_runs(a, b).unpaired
    reasons = {each.case: each.reason.partition(";")[0] for each in unpaired}
    assert reasons == {
        TEXTS[0]: "oom in the second run",
        TEXTS[1]: "the work changed: version 1 in the first run, 2 in the second run",
        TEXTS[2]: "not in the second run",
        TEXTS[3]: "not in the first run",
    }
    assert {each.case for each in gate_runs([compare_runs(a, b)], 0.05).lost} == {TEXTS[0], TEXTS[2]}


def test_a_time_of_zero_cannot_be_compared() -> None:
    a = run_of([(0.0, 0.0)], spread=0.1)
    assert compare_runs(a, a).pairs == ()
    assert "above zero" in compare_runs(a, a).unpaired[0].reason


@given(st.lists(st.floats(0, 1), max_size=8))
def test_the_correction_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(new >= old for new, old in zip(corrected, p_values, strict=True))
    assert all(0 <= new <= 1 for new in corrected)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [corrected[index] for index in order] == sorted(corrected)


def test_equal_machines_are_rarely_called_different_and_the_interval_covers() -> None:
    """Four cases a table, three processes a side, processes that spread by 5%: 1000 comparisons of equals."""
    chance = random.Random(1)

    def draw() -> Run:
        return run_of(*(processes(1e-3, *(chance.gauss(0, 0.05) for _ in range(3))) for _ in TEXTS))

    pairs = [compare_runs(draw(), draw()).pairs for _ in range(1000)]
    assert sum(any(pair.verdict in ("faster", "slower") for pair in table) for table in pairs) <= 65
    covered = sum(pair.low <= 1 <= pair.high for table in pairs for pair in table)
    assert covered >= 0.94 * 4000


def published(center: float, *kinds: str, steps: int = 1000) -> Run:
    figure = Estimate(
        center, center, center, "mean", "as-published", 0.0, 1.0, 0, Trend(0, 0), mean_s=center, block_size=steps
    )
    cautions = tuple(Remark(kind, f"because {kind}", "") for kind in kinds)
    case = parse_case(TEXTS[0] + "+as-published")
    return Run(run_of().header, (Result(case, "ok", estimate=figure, cautions=cautions),), 0.05)


@pytest.mark.parametrize(
    ("center", "verdict"), [(10e-3, "slower"), (1.3e-3, "similar"), (0.95e-3, "similar"), (0.8e-3, "faster")]
)
def test_a_published_figure_is_judged_by_its_assumed_uncertainty(center: float, verdict: str) -> None:
    (pair,) = compare_runs(run_of(processes(1e-3, *QUIET)), published(center)).pairs
    assert (pair.ratio, pair.low) == (pytest.approx(center / 1.1e-3, rel=0.01), None)
    assert (pair.verdict, pair.no_interval) == (verdict, None)
    assert pair.visible == pair.assumed == pytest.approx(math.hypot(0.15, 0.15))  # a spread that is unknown, too
    back = compare_runs(published(center), run_of(processes(1e-3, *QUIET)))
    assert back.pairs[0].verdict == OPPOSITE[verdict]
    assert back.families[0].verdict == OPPOSITE[verdict]
    assert back.visible is None  # there was nothing to see


def test_notes_widen_the_assumed_uncertainty_and_only_flaws_are_footnotes() -> None:
    def result(*kinds: str, steps: int = 1000) -> Result:
        return published(1e-3, *kinds, steps=steps).results[0]

    assert uncertainty_of(result()) == uncertainty_of(result("slow-convolutions")) == pytest.approx(0.15)
    assert uncertainty_of(result("rounded")) == pytest.approx(math.hypot(0.15, 0.125))
    assert uncertainty_of(result("warm-up-counted")) < uncertainty_of(result("warm-up-counted", steps=50))
    assert [flaw.kind for flaw in flaws_of(result("other-shape", "rounded", "new-kind"))] == ["rounded", "new-kind"]
    measured = run_of(processes(1e-3, *QUIET)).results[0]
    assert flaws_of(replace(measured, cautions=result("rounded").cautions)) == ()
    known = replace(measured, estimate=replace(measured.estimate, spread=0.01))
    assert uncertainty_of(known) == pytest.approx(known.estimate.precision)


def test_a_gate_on_a_published_figure_allows_for_its_uncertainty() -> None:
    mine = run_of(processes(1e-3, *QUIET))
    assert gate_runs([compare_runs(published(0.5e-3), mine)], 0.05).word == "FAIL"
    assert gate_runs([compare_runs(published(1e-3), mine)], 0.05).word == "INCONCLUSIVE"
    assert gate_runs([compare_runs(published(1e-3), mine)], 0.25).word == "PASS"


@given(tables, tables, st.floats(0.001, 0.3))
def test_what_exceeds_the_visible_difference_is_called_one(first, second, spread) -> None:
    comparison = compare_runs(run_of(*first, spread=spread), run_of(*second, spread=spread))
    for pair in comparison.pairs:
        if abs(math.log(pair.ratio)) > math.log1p(pair.visible) * (1 + 1e-9):
            assert pair.verdict in ("faster", "slower")
    if comparison.pairs:
        assert 0.01 <= comparison.visible <= comparison.visible_worst


def test_a_gate_passes_only_where_it_could_have_failed() -> None:
    quiet, wide = processes(1e-3, *QUIET), processes(1e-3, -0.1, 0.0, 0.1)
    passed = gate_runs([compare_runs(run_of(quiet), run_of(quiet))], 0.05)
    assert (passed.word, passed.blind) == ("PASS", ())
    assert passed.visible < 0.05
    blind = gate_runs([compare_runs(run_of(quiet, wide), run_of(quiet, wide))], 0.05)
    assert blind.word == "INCONCLUSIVE"
    assert TEXTS[1] in [pair.case for pair in blind.blind]
    assert blind.visible > 0.05
    assert blind.decidable is not None
    again = gate_runs([compare_runs(run_of(quiet, wide), run_of(quiet, wide))], blind.decidable)
    assert again.word == "PASS"
    slow = run_of(processes(1.3e-3, *QUIET), wide)
    assert gate_runs([compare_runs(run_of(quiet, quiet), slow)], 0.05).word == "FAIL"
    alone = gate_runs([compare_runs(run_of([(1e-3, 1e-5)]), run_of([(1e-3, 1e-5)]))], 0.05)
    assert (alone.word, alone.visible, alone.decidable) == ("INCONCLUSIVE", None, None)


def test_unknown_memory_is_not_zero() -> None:
    a, b = run_of(processes(1e-3, *QUIET)), published(1e-3)
    machine = Machine("M1", 8, 8, 0, "", "")
    b = replace(b, header=replace(b.header, machine=machine))
    (pair,) = compare_runs(a, b).pairs
    assert "machine cpu (2 cores, 8 GiB) → M1 (8 cores)" in [each.text for each in pair.differences]


def test_more_work_in_a_step_is_compared_by_the_item() -> None:
    def result(workers: int, center: float) -> Result:
        several = tuple(estimate(*each) for each in processes(center, *QUIET))
        case = parse_case(f"mlp/train@cpu/float32+workers={workers}")
        return Result(case, "ok", estimate=several[0], processes=several, work=Work(64.0 * workers, "sample"))

    run = Run(run_of().header, (result(1, 1e-3), result(4, 2e-3)))
    ((pair,),) = (comparison.pairs for comparison in compare_within([run], "workers"))
    assert (pair.ratio, pair.verdict) == (pytest.approx(0.5), "faster")
    assert pair.differences[0].text == "workers 1 → 4"


def busy(run: Run, share: float) -> Run:
    """The same run, had others been seen to take that share of the processor."""
    seen = replace(run.results[0].estimate, verdict="contended", contention=Contention(other_cpu_share=share))
    return replace(run, results=(replace(run.results[0], estimate=seen),))


def test_being_kept_busy_explains_slowness_and_never_speed() -> None:
    a, b = run_of(processes(1e-3, *QUIET)), run_of(processes(1.3e-3, *QUIET))
    assert compare_runs(a, b).pairs[0].verdict == "slower"
    assert compare_runs(a, busy(b, 0.03)).pairs[0].verdict == "slower"
    assert compare_runs(a, busy(b, 0.2)).pairs[0].verdict == "unsure"
    assert compare_runs(a, busy(b, 0.9)).pairs[0].verdict == "unsure"
    assert compare_runs(busy(a, 0.9), b).pairs[0].verdict == "slower"
    assert gate_runs([compare_runs(a, b)], 0.05).slower
    assert not gate_runs([compare_runs(a, busy(b, 0.2))], 0.05).slower


@given(tables, tables, spreads)
def test_the_mean_of_a_family_is_the_ratio_of_geometric_means(first, second, spread) -> None:
    comparison = compare_runs(run_of(*first, spread=spread), run_of(*second, spread=spread))
    if comparison.pairs:
        (family,) = comparison.families
        logs = [math.log(pair.ratio) for pair in comparison.pairs]
        assert family.count == len(logs)
        assert family.ratio == pytest.approx(math.exp(math.fsum(logs) / len(logs)))
        assert overall(comparison.families).ratio == pytest.approx(family.ratio)
        assert (family.low is None) == any(pair.low is None for pair in comparison.pairs)


@given(tables, tables, spreads)
def test_swapping_the_runs_turns_the_families_over(first, second, spread) -> None:
    a, b = run_of(*first, spread=spread), run_of(*second, spread=spread)
    for family, mirrored in zip(compare_runs(a, b).families, compare_runs(b, a).families, strict=True):
        assert family.ratio == pytest.approx(1 / mirrored.ratio)
        assert family.verdict == OPPOSITE[mirrored.verdict]


def test_a_family_is_surer_than_its_cases_unless_whole_rounds_were_disturbed() -> None:
    """Four cases that are 10% slower, processes that spread by 5%: no case is clear, the workload is."""
    offsets = [(-0.05, 0.0, 0.05), (0.05, -0.05, 0.0), (0.0, 0.05, -0.05), (0.05, 0.0, -0.05)]
    alone = [run_of(*(processes(center, *each) for each in offsets)) for center in (1e-3, 1.1e-3)]
    comparison = compare_runs(*alone)
    assert {pair.verdict for pair in comparison.pairs} == {"unsure"}
    assert comparison.families[0].verdict == "slower"
    together = [run_of(*(processes(center, -0.05, 0.0, 0.05) for _ in offsets)) for center in (1e-3, 1.1e-3)]
    assert compare_runs(*together).families[0].verdict == "unsure"


def test_with_more_runs_every_answer_needs_more_evidence() -> None:
    rows = [processes(1e-3, -0.01, 0.0, 0.01)]
    a, b = run_of(*rows), run_of(processes(1.06e-3, -0.01, 0.0, 0.01))
    assert compare_runs(a, b).pairs[0].verdict == "slower"
    many = compare_all([a, *[b] * 40])
    assert len(many) == 40
    assert {pair.verdict for comparison in many for pair in comparison.pairs} == {"unsure"}


def test_slower_by_more_than_a_share_is_distinguished_from_slower() -> None:
    a = run_of(processes(1e-3, *QUIET), processes(1e-3, *QUIET))
    b = run_of(processes(1.04e-3, *QUIET), processes(1.2e-3, *QUIET))
    comparison = compare_runs(a, b)
    assert [pair.verdict for pair in comparison.pairs] == ["slower", "slower"]
    found = gate_runs([comparison], 0.05).slower
    assert [row.ratio > 1.1 for row in found] == [True, True]  # the case and its workload
    assert gate_runs([comparison], 0.05).slower[0].case == TEXTS[1]
    assert gate_runs([comparison], 0.3).slower == ()
    assert gate_runs([compare_runs(b, a)], 0.01).slower == ()


@given(tables, tables, spreads, st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_a_larger_allowance_never_finds_more(first, second, spread, one, other) -> None:
    comparison = compare_runs(run_of(*first, spread=spread), run_of(*second, spread=spread))
    small, large = sorted((one, other))
    assert len(gate_runs([comparison], large).slower) <= len(gate_runs([comparison], small).slower)
    assert all(row.low > 1 + small for row in gate_runs([comparison], small).slower)
