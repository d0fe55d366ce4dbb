"""Nodes are read, chosen and named rightly from any answer of a scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.errors import UsageError
from torchmark.fleet.folder import JobOutcome, Node
from torchmark.fleet.jobs import choose, equal_threads, one_each, together
from torchmark.fleet.slurm import read_node, with_features

SINFO = """\
n1|gpu|idle|64|515000|gpu:a100:4(S:0-1)|2|16|2|amd,ib|none
n2|gpu|mixed|64|515000|gpu:a100:4(S:0-1)|2|16|2|amd,ib|none
n3|gpu|drained|64|515000|gpu:a100:4(S:0-1)|2|16|2|amd,ib|bad fan, see ticket
n4|gpu|idle*|32|191000+|(null)|2|16|1|(null)|Not responding
n5|gpu|idle~|32|191000|(null)|2|16|1|(null)|none"""
NODES = tuple(read_node(line.split("|", 10)) for line in SINFO.splitlines())


def test_what_a_scheduler_says_of_nodes_is_understood() -> None:
    assert [node.cores for node in NODES] == [64, 64, 64, 32, 32]
    assert [node.idle for node in NODES] == [True, False, False, False, False]
    assert [node.obstacle for node in NODES] == [
        None,
        None,
        JobOutcome("unavailable", "drained", "bad fan, see ticket"),
        JobOutcome("unavailable", "idle and does not answer", "Not responding"),
        None,
    ]
    assert NODES[0].about == "2×16×2 cores, 503 GiB, gpu:a100:4, amd,ib"
    assert len({node.about for node in NODES}) == 2


def test_all_some_or_one_of_each_kind() -> None:
    assert choose(NODES) == NODES
    assert [node.name for node in choose(NODES[1::-1], count=1)] == ["n1"]  # the one that can begin at once
    assert [node.name for node in choose(NODES, each_kind=True)] == ["n1", "n5"]
    with pytest.raises(UsageError, match="3 nodes that take jobs, not 4"):
        choose(NODES, count=4)


def test_a_team_is_of_one_kind() -> None:
    with pytest.raises(UsageError, match="3 nodes of one kind are needed"):
        together(NODES, {1: [], 3: []}, None)
    tasks = together(NODES, {size: [f"--workers={size}"] for size in (1, 2)}, "night")
    assert [(task.name, task.label, task.nodes) for task in tasks] == [
        ("1-node", "night-1-node", ("n1",)),
        ("2-nodes", "night-2-nodes", ("n1", "n2")),
    ]


def test_names_of_nodes_stay_private_unless_they_are_asked_for() -> None:
    tasks = one_each(NODES, [], None, named=False)
    assert [task.nodes for task in tasks] == [("n1",), ("n2",), ("n3",), ("n4",), ("n5",)]
    assert [task.name for task in tasks] == [task.label for task in tasks] == ["A1", "A2", "A3", "B1", "B2"]
    assert [task.label for task in one_each(NODES[:1], [], "night", named=True)] == ["night-n1"]
    assert one_each(NODES[:1], [], "night", named=True)[0].name == "A1"  # files are sent around, too


@given(st.integers(1, 800))
def test_every_kind_has_a_letter_of_its_own(count: int) -> None:
    nodes = [Node(str(number), str(number), 1) for number in range(count)]
    found = [task.kind for task in one_each(nodes, [], None, named=False)]
    assert len(set(found)) == count
    assert all(letter.isalpha() for letter in found)
    assert found[0] == "A"
    assert count < 28 or found[25:28] == ["Z", "AA", "AB"]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [("amd", ["n1", "n2", "n3"]), ("amd&ib", ["n1", "n2", "n3"]), ("amd|ib", ["n1", "n2", "n3"])],
)
def test_constraints_choose_by_features(constraint: str, expected: list[str]) -> None:
    assert [node.name for node in with_features(constraint, NODES)] == expected


@pytest.mark.parametrize(("constraint", "words"), [("intel", "unknown feature"), ("[a*2]", "is no constraint")])
def test_constraints_that_nothing_meets_are_explained(constraint: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        with_features(constraint, NODES)


def test_ranks_of_all_teams_have_as_many_threads() -> None:
    assert equal_threads(NODES[:2], {1: [1, 2, 4], 2: [2, 4]}) == 16
    assert equal_threads(NODES[:2], {1: [128]}) == 1


@pytest.mark.parametrize(
    ("code", "state"), [(0, "done"), (3, "done"), (4, "failed"), (70, "failed"), (137, "killed"), (-9, "killed")]
)
def test_exit_codes_report_how_a_job_ended(code: int, state: str) -> None:
    assert JobOutcome.of_exit(code).state == state
