"""From nodes and the options of a run to tasks: one for each node, or one for each number of nodes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchmark.fleet.choice import choose_alike, letters, names
from torchmark.fleet.contract import Node
from torchmark.fleet.plan import Task


def one_each(nodes: Sequence[Node], arguments: Sequence[str], label: str | None, named: bool) -> tuple[Task, ...]:
    """The same run on every node; only where it is asked for does its label tell the node's name."""
    kinds, called = letters(nodes), names(nodes)
    return tuple(
        Task(
            name=called[node.name],
            kind=kinds[node.about],
            nodes=(node.name,),
            arguments=tuple(arguments),
            label=_label(label, node.name if named else called[node.name]),
            about=node.about,
        )
        for node in nodes
    )


def together(
    nodes: Sequence[Node], counts: Sequence[int], arguments: Callable[[int], Sequence[str]], label: str | None
) -> tuple[Task, ...]:
    """For each count one run that so many nodes of one kind share; smaller teams are part of the larger ones."""
    team = choose_alike(nodes, max(counts))
    return tuple(
        Task(
            name=name,
            kind="A",
            nodes=tuple(node.name for node in team[:count]),
            arguments=tuple(arguments(count)),
            label=_label(label, name),
            about=team[0].about,
        )
        for count in counts
        for name in (f"{count}-node{'s' if count > 1 else ''}",)
    )


def equal_threads(nodes: Sequence[Node], workers: Mapping[int, Sequence[int]]) -> int:
    """Threads for every rank of all teams alike: what the fullest node leaves for each of its ranks."""
    fullest = max(count // team for team, counts in workers.items() for count in counts)
    return max(1, min(node.cores for node in nodes) // fullest)


def _label(prefix: str | None, name: str) -> str:
    return f"{prefix}-{name}" if prefix else name
