"""A fleet as text: who stands how, one table for all, and no name of a node unless it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from torchmark.records import Estimate, Result, Run, RunHeader, Work
from torchmark.report import render
from torchmark.report.machines import Member, gathered_document, status_document

CASES = ("mlp/infer@cpu/float32", "bert-classify/train:batch=16,sequence=128@cpu/float32+compile")


@pytest.fixture
def members(make_result: Callable[..., Result], make_header: Callable[..., RunHeader]) -> list[Member]:
    def run(label: str, factor: float) -> Run:
        results = tuple(make_result(case, 0.01 * factor) for case in CASES)
        return Run(make_header(CASES, label=label, id=label), results)

    slow = {7: 1.1}
    done = [
        Member(f"A{number}", "A", "2 cores", "done", run=run(f"A{number}", slow.get(number, 1 + number / 1e4)))
        for number in range(1, 13)
    ]
    lost = Member("B1", "B", "4 cores", "unavailable", "drained: bad \x1b[31mfan", names=("rack7-node3",))
    return [*done, lost]


@pytest.mark.parametrize("width", [80, 120])
def test_one_table_says_it_all_and_fits(members: list[Member], width: int) -> None:
    text = render(gathered_document(members), "table", width)
    assert max(map(len, text.splitlines())) <= width
    assert "13 nodes of 2 kinds: 12 done, 1 unavailable" in text
    assert "A7 is 10% slower than its 11 peers" in text
    assert "drained: bad [31mfan" in text
    assert "rack7" not in text
    assert "\x1b" not in text
    assert "stable" in text


def test_markdown_and_json_report_the_same(members: list[Member]) -> None:
    assert "A7 is 10% slower than its 11 peers" in render(gathered_document(members), "md")
    reported = json.loads(render(gathered_document(members), "json"))
    assert [node["state"] for node in reported["nodes"]] == ["done"] * 12 + ["unavailable"]
    assert reported["outliers"][0]["label"] == "A7"
    assert len(reported["runs"]) == 12
    assert render(gathered_document(members), "csv").count("\n") == 1 + 12 * 2
    assert render(gathered_document(members), "jsonl").count("\n") == 12 * 2


def test_the_state_of_every_job_fits_into_a_terminal(members: list[Member]) -> None:
    text = render(status_document(members), "table", 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "rack7-node3" in text  # given only where names are asked for
    assert "2/2" in text
    assert json.loads(render(status_document(members), "json"))["nodes"][-1]["names"] == ["rack7-node3"]


def test_teams_of_nodes_give_a_scaling_table(
    make_result: Callable[..., Result], make_header: Callable[..., RunHeader], make_estimate: Callable[..., Estimate]
) -> None:
    def team(nodes: int, *workers: int) -> Member:
        results = tuple(
            make_result(
                f"mlp/train@cpu/float32+threads=1{f'+workers={count}' if count > 1 else ''}",
                estimate=make_estimate(0.01 * nodes, verdict="contended" if count == 4 else "stable"),
                work=Work(128 * count, "sample"),
                settings={"threads": 1} | ({"nodes": nodes} if count > 1 else {}),
            )
            for count in workers
        )
        run = Run(make_header(label=f"{nodes}-nodes", id=str(nodes)), results)
        return Member(f"{nodes}-nodes", "A", "2 cores", "done", nodes=nodes, run=run)

    members = [team(1, 1, 2), team(2, 2, 4)]
    (scaling,) = json.loads(render(gathered_document(members), "json"))["scaling"]
    assert [(row["nodes"], row["workers"]) for row in scaling["rows"]] == [(1, 1), (1, 2), (2, 2), (2, 4)]
    assert [row["efficiency"] for row in scaling["rows"]] == [1.0, 1.0, 0.5, 0.5]
    for form in ("table", "md", "html"):
        text = render(gathered_document(members), form)
        assert "Every rank has 1 thread, in all rows" in text
        assert "nodes" in text
        assert "50%" in text
        assert "2-nodes with 4 workers" in text.partition("contended")[2]


def test_teams_without_a_figure_say_why(
    make_result: Callable[..., Result], make_header: Callable[..., RunHeader]
) -> None:
    skipped = make_result("mlp/train@cpu/float32", status="skipped", estimate=None, reason="4 s are left")
    run = Run(make_header(label="1-node", id="1"), (skipped,))
    teams = [Member("1-node", "A", "2 cores", "done", run=run), Member("2-nodes", "A", "2 cores", "done", nodes=2)]
    text = render(gathered_document(teams), "table")
    assert "1-node: mlp/train" in text.partition("skipped")[2]
    assert "4 s are left" in text
