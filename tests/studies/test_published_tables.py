"""Published tables with this machine in a further column: each figure has a counterpart or a reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from torchmark.analyze.jobs import Own, Replicated
from torchmark.publications import find_publication, names
from torchmark.records import JobEstimate, Result, Run
from torchmark.report import render
from torchmark.report.publications import replication_document
from torchmark.studies.replicate import ReplicateOptions, plan_tasks, published_tables, steady_case


@pytest.fixture
def tables_of(make_result: Callable[..., Result], make_estimate: Callable) -> Callable[..., Replicated]:
    """A publication with made-up results on these devices: a step takes 2 ms on the CPU and 1 ms elsewhere."""

    def make(name: str, devices: Sequence[str] = ("cpu",), steady: bool = False) -> Replicated:
        publication = find_publication(name)
        results = []
        for each in plan_tasks(ReplicateOptions((publication,), tuple(devices))):
            step_s = 0.002 if each.case.device == "cpu" else 0.001
            total = step_s * each.steps
            estimate = make_estimate(step_s, verdict="as-published")
            job = JobEstimate(total, total, total, whole=True)
            results.append(make_result(each.case.text, estimate=estimate, job=job, metrics={"folded": 1.0}))
            if steady:
                results.append(make_result(steady_case(each.case).text, step_s / 2))
        return published_tables(publication, results, devices)

    return make


def all_own(replicated: Replicated) -> list[Own]:
    return [own for sheet in replicated.sheets for row in sheet.rows for own in row.own]


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cpu"), ("mps", "cpu"), ("cuda:0", "cuda:1", "cpu")])
@pytest.mark.parametrize("name", names())
def test_every_published_figure_has_a_counterpart_or_a_reason(
    tables_of: Callable[..., Replicated], full_run: Run, name: str, devices: tuple[str, ...]
) -> None:
    replicated = tables_of(name, devices)
    lines = [json.loads(line) for line in render(replication_document(full_run, [replicated]), "jsonl").splitlines()]
    measured = [figure for figure in find_publication(name).figures if figure.kind == "measured"]
    shown = [(line["table"], line["machine"], line["row"], line["printed"]) for line in lines if line["printed"]]
    assert len(set(shown)) == len({id(figure) for figure in measured})
    for sheet in replicated.sheets:
        for row in sheet.rows:
            assert len(row.own) == len(sheet.places)
            assert any(own.value is not None or own.reason for own in row.own)
    assert max(map(len, render(replication_document(full_run, [replicated]), "table", 100).splitlines())) <= 100


def test_rows_that_are_gpus_say_that_there_is_none(tables_of: Callable[..., Replicated]) -> None:
    inference, switch, revive, *_ = tables_of("m1-chips").sheets
    assert inference.places == switch.places == ("this machine",)
    reasons = {row.labels: row.own[0].reason for row in inference.rows}
    assert reasons["M1", "GPU", "MLP"] == "no accelerator here"
    assert reasons["M1", "CPU", "MLP"] == ""
    assert {row.own[0].reason for row in switch.rows} == {"no accelerator here"}
    assert not revive.is_comparable
    assert inference.is_comparable


def test_units_are_those_of_the_tables(tables_of: Callable[..., Replicated]) -> None:
    values = {
        (each.name, row.unit, own.value)
        for each in map(tables_of, names())
        for sheet in each.sheets
        for row in sheet.rows
        for own in row.own
        if own.value is not None
    }
    assert ("m1-chips", "s", 20.0) in values  # 10,000 steps of 2 ms
    assert ("simple-add", "it/s", 500.0) in values
    assert ("m1-gpu-for-ml", "ms/it", 2.0) in values
    assert ("m1-gpu-for-ml", "s/it", 0.002) in values


def test_the_speedup_is_there_where_an_accelerator_is(tables_of: Callable[..., Replicated]) -> None:
    alone, both = tables_of("m1-gpu-for-ml").sheets[0], tables_of("m1-gpu-for-ml", ("cuda:0", "cpu")).sheets[0]
    assert (alone.places, alone.has_speedup) == (("this CPU",), False)
    assert (both.places, both.has_speedup) == (("this CPU", "this cuda:0"), True)
    assert [own.value for own in both.rows[0].own] == [2.0, 1.0]


def test_programs_that_use_no_gpu_are_not_shown_on_one(tables_of: Callable[..., Replicated]) -> None:
    assert tables_of("intel-vs-m2", ("cuda:0", "cpu")).sheets[0].places == ("this CPU",)


def test_the_right_way_stands_next_to_it_in_the_same_unit(tables_of: Callable[..., Replicated]) -> None:
    replicated = tables_of("simple-add", steady=True)
    assert {own.steady for own in all_own(replicated) if own.value} == {1000.0}
    assert {round(bias.share, 6) for bias in replicated.biases} == {1.0}


def test_what_was_never_replayed_says_so(make_result: Callable[..., Result]) -> None:
    publication = find_publication("m1-chips")
    own = all_own(published_tables(publication, [], ["cpu"], all_devices=False))
    assert {each.reason for each in own} == {"not replayed", "not asked for"}
    failed = make_result("mlp/infer:outputs=512@cpu/float32+as-published", status="timeout", reason="late")
    failed = replace(failed, estimate=None)
    assert "late" in {each.reason for each in all_own(published_tables(publication, [failed], ["cpu"]))}
