"""The headline: one lead case for each area, between published machines that did the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from leads import LEADS
from msgspec.structs import replace

from torchmark.analyze.grades import Grade
from torchmark.analyze.headline import LONGEST_SENTENCE, Area, Headline, build_headline, times
from torchmark.publications import all_runs
from torchmark.records import Contention, JobEstimate, Remark, Result, Run, RunHeader, Work

JOB = JobEstimate(65.0, 60.0, 70.0, whole=False)


@pytest.fixture
def measured(make_result: Callable[..., Result], make_estimate: Callable[..., Any]) -> Callable[..., Result]:
    def make(text: str, center_s: float, work: Work | None = None, half: float = 0.04, **changes: Any) -> Result:
        estimate = make_estimate(center_s, half, spread=half / 2, **changes.pop("estimated", {}))
        job = JOB if text.startswith("mnist-cnn") else None
        return make_result(text, center_s, estimate=estimate, work=work, job=job, **changes)

    return make


@pytest.fixture
def run(measured: Callable[..., Result], make_header: Callable[..., RunHeader]) -> Run:
    return Run(make_header(tuple(LEADS)), tuple(measured(text, *lead) for text, lead in LEADS.items()))


def built(run: Run) -> Headline:
    found = build_headline(run, all_runs())
    assert found
    return found


def areas(run: Run) -> dict[str, Area]:
    return {area.name: area for area in built(run).blocks[0].areas}


def with_result(run: Run, index: int, result: Result) -> Run:
    return replace(run, results=(*run.results[:index], result, *run.results[index + 1 :]))


def test_every_area_has_its_figure_in_its_unit(run: Run) -> None:
    found = areas(run)
    assert [*found] == ["vision", "text", "language", "memory", "small steps", "whole jobs"]
    assert found["vision"].value == pytest.approx(32 / 2.1)
    assert [area.unit for area in found.values()] == ["image", "sample", "token", "add", "", "MNIST"]
    assert (found["small steps"].figure, found["small steps"].value) == ("step", 1.9e-3)
    assert (found["whole jobs"].figure, found["whole jobs"].value) == ("job", 65.0)
    assert found["vision"].margin == pytest.approx(0.04)
    assert found["vision"].grade == Grade("good")


def test_neighbours_did_the_same_work_and_are_the_nearest(run: Run) -> None:
    found = areas(run)
    faster, slower = found["vision"].faster, found["vision"].slower
    assert faster
    assert slower
    assert (faster.name, faster.run, times(faster.ratio)) == ("Xeon Gold", "m1-chips/Xeon Gold", "1.8×")
    assert (slower.name, times(slower.ratio)) == ("M1 CPU", "0.51×")
    assert slower.flaws == ("published with a torch build whose CPU convolutions were slow",)
    memory = found["memory"]
    assert memory.faster
    assert memory.faster.similar
    assert memory.faster.name == "M1 CPU"
    assert found["language"].faster is found["language"].slower is None
    small = found["small steps"].slower
    assert small
    assert small.flaws == ("published with more threads than such small steps can use",)


def test_whole_jobs_have_no_neighbours_until_images_are_loaded_as_published(run: Run) -> None:
    assert areas(run)["whole jobs"].faster is areas(run)["whole jobs"].slower is None


@pytest.mark.parametrize("kind", ["overheated", "unknown-hardware", "unknown-device", "not-comparable"])
def test_a_machine_without_a_name_or_with_a_worthless_figure_is_no_neighbour(run: Run, kind: str) -> None:
    xeon = next(each for each in all_runs() if each.header.id == "m1-chips/Xeon Gold")
    marked = tuple(replace(each, cautions=(Remark(kind, "a", "b"),)) for each in xeon.results)
    found = build_headline(run, [replace(xeon, results=marked)])
    assert found
    assert found.blocks[0].areas[0].faster is None
    assert {each.run for each in _neighbours(built(run))}.isdisjoint(
        {"simple-add/Server CPU", "simple-add/Tencent Cloud"}
    )


def _neighbours(headline: Headline) -> list[Any]:
    return [each for area in headline.blocks[0].areas for each in (area.faster, area.slower) if each]


@pytest.mark.parametrize(
    "change",
    [{"params": {"batch": 8}}, {"mode": "train"}, {"transfer": "per-step"}, {"dtype": "float16"}, {"compile": "on"}],
)
def test_other_work_is_no_neighbour(run: Run, change: dict[str, Any]) -> None:
    xeon = next(each for each in all_runs() if each.header.id == "m1-chips/Xeon Gold")
    other = tuple(replace(each, case=replace(each.case, **change)) for each in xeon.results)
    found = build_headline(run, [replace(xeon, results=other)])
    assert found
    assert not _neighbours(found)
    newer = tuple(replace(each, version=2) for each in xeon.results)
    found = build_headline(run, [replace(xeon, results=newer)])
    assert found
    assert not _neighbours(found)


def test_the_same_hardware_in_two_publications_counts_once(run: Run) -> None:
    xeon = next(each for each in all_runs() if each.header.id == "m1-chips/Xeon Gold")
    again = replace(xeon, header=replace(xeon.header, id="other/Xeon Gold"))
    found = build_headline(run, [xeon, again])
    assert found
    assert {each.run for each in _neighbours(found)} == {"m1-chips/Xeon Gold"}


def test_without_the_leads_sizes_the_default_stands_for_the_area(run: Run, measured: Callable[..., Result]) -> None:
    other = areas(with_result(run, 4, measured("mlp/infer@cpu/float32", 1.5e-3, Work(128, "sample"))))["small steps"]
    assert other.case == "mlp/infer@cpu/float32"
    assert other.faster is other.slower is None
    text = areas(with_result(run, 1, measured("bert-encode/infer@cpu/float32", 0.13, Work(1, "sample"))))["text"]
    assert text.faster
    assert text.faster.name == "M1 Pro CPU"


def test_nothing_but_a_plain_run_has_a_headline(run: Run, measured: Callable[..., Result]) -> None:
    header = run.header
    for command in ("torchmark tune resnet50", "torchmark fit mlp", "torchmark limits", "torchmark ab mlp", "pytest"):
        assert build_headline(replace(run, header=replace(header, command=command)), all_runs()) is None
    assert build_headline(replace(run, header=replace(header, steps=5)), all_runs()) is None
    assert build_headline(replace(run, results=()), all_runs()) is None
    for text in (
        "resnet50/infer:batch=2@cpu/float32",
        "resnet50/infer@cpu/bfloat16",
        "resnet50/infer@cpu/float32+compile",
        "resnet50/infer@cpu/float32+layout=channels-last",
        "mine.py:Net/infer@cpu/float32",
        "null/infer@cpu/float32",
    ):
        assert build_headline(replace(run, results=(measured(text, 0.1, Work(1, "image")),)), all_runs()) is None


def test_only_measured_areas_are_shown_and_a_failure_is_named(run: Run) -> None:
    one = replace(run, results=run.results[4:5])
    assert [*areas(one)] == ["small steps"]
    assert built(one).confidence == "Nothing disturbed the machine."
    lost = replace(run.results[2], status="skipped", estimate=None)
    found = built(with_result(run, 2, lost))
    assert "language" not in {area.name for area in found.blocks[0].areas}
    assert found.confidence.endswith("Left out: language (skipped).")
    assert "4 of 5 areas are good" in found.confidence


@pytest.mark.parametrize("center_s", [0.0, -2e-8])
def test_a_step_of_no_time_is_no_figure(run: Run, measured: Callable[..., Result], center_s: float) -> None:
    empty = measured("mlp/infer:outputs=512@cpu/float32", center_s, Work(0, "step"))
    found = built(with_result(run, 4, empty))
    assert "small steps" not in {area.name for area in found.blocks[0].areas}
    null = measured("null/infer@cpu/float32", center_s, Work(0, "step"))
    assert built(replace(run, results=(null, *run.results))) == built(run)


def test_the_sentence_is_short_and_names_its_areas(run: Run) -> None:
    (block,) = built(run).blocks
    assert "about a third as fast as the M1 Pro CPU at text" in block.in_short
    assert "similar to the M1 CPU at memory-bound work" in block.in_short
    assert block.in_short.endswith("the RTX 3090 is 36× as fast at vision.")
    assert len(block.in_short) <= LONGEST_SENTENCE


def test_the_confidence_is_that_of_the_worst_area(run: Run, measured: Callable[..., Result]) -> None:
    assert built(replace(run, results=run.results[:5])).confidence == (
        "All 5 areas are good; nothing disturbed the machine."
    )
    wide = with_result(run, 4, measured(*_lead(4), half=0.4))
    found = built(wide)
    assert found.grade == "poor"
    assert "small steps are poor: noisy (measure longer with --budget)" in found.confidence
    busy = measured(*_lead(0), estimated={"contention": Contention(other_cpu_share=0.07)})
    found = built(replace(with_result(run, 0, busy), results=(busy, *run.results[1:5])))
    assert found.grade == "fair"
    assert "vision is fair: contended (stop other programs and run again)" in found.confidence
    assert found.confidence.endswith("others took 7% of the processor.")


def _lead(index: int) -> tuple[str, float, Work]:
    text, (center_s, work) = [*LEADS.items()][index]
    return text, center_s, work


def test_a_job_is_graded_by_its_own_interval(run: Run) -> None:
    job = areas(run)["whole jobs"]
    assert job.margin == pytest.approx(5 / 65)
    assert job.grade.word == "fair"


def test_an_unknown_spread_is_poor_and_has_no_margin(run: Run, make_estimate: Callable[..., Any]) -> None:
    old = replace(run.results[0], estimate=make_estimate(2.1, spread=None))
    found = areas(replace(run, results=(old,)))["vision"]
    assert (found.margin, found.grade.word) == (None, "poor")


def test_devices_have_a_block_each_the_fastest_first(run: Run, measured: Callable[..., Result]) -> None:
    fast = tuple(
        measured(text.replace("@cpu", "@cuda:0"), center_s / 50, work) for text, (center_s, work) in LEADS.items()
    )
    found = built(replace(run, results=(*run.results, *fast)))
    assert [block.device for block in found.blocks] == ["cuda:0", "cpu"]
    assert "CPU at" not in found.blocks[0].in_short  # an accelerator is held against accelerators
    assert found.confidence.lower().count("12 areas") == 1


def test_the_next_commands_name_the_run(run: Run) -> None:
    named = build_headline(run, all_runs(), "last")
    assert named
    assert [f"{each.purpose}: {each.command}" for each in named.commands] == [
        "Details: torchmark show last",
        "Compare: torchmark compare last 3090",
        "Picture: torchmark report -o card.png",
        "Faster: torchmark tune resnet50",
    ]
    odd = build_headline(run, all_runs(), "my runs/a.jsonl")
    assert odd
    assert odd.commands[2].command == "torchmark report 'my runs/a.jsonl' -o card.png"


@pytest.mark.parametrize(
    ("ratio", "text"), [(46.1, "46×"), (2.34, "2.3×"), (0.667, "0.67×"), (0.0612, "0.061×"), (123.4, "120×"), (1, "1×")]
)
def test_factors_have_two_digits(ratio: float, text: str) -> None:
    assert times(ratio) == text
