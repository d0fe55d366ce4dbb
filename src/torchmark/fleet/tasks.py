"""From nodes and the options of a run to tasks: one for each node, or one for each number of nodes that work together.

Tasks have names that do not contain the names of nodes, which stay private.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import ascii_uppercase

from torchmark.errors import UsageError
from torchmark.fleet.engine import Node
from torchmark.fleet.folder import Task


def choose(nodes: Sequence[Node], count: int | None = None, each_kind: bool = False) -> tuple[Node, ...]:
    """All nodes, a number of them, or one of each kind; those that can start at once are preferred."""
    ready = sorted(nodes, key=lambda node: (node.obstacle is not None, not node.idle))
    if each_kind:
        chosen = list({node.about: node for node in reversed(ready)}.values())
    elif count is None:
        return tuple(nodes)
    else:
        usable = [node for node in ready if node.obstacle is None]
        if count > len(usable):
            raise UsageError(f"there are {len(usable)} nodes that take jobs, not {count}", "Ask for fewer with --nodes")
        chosen = usable[:count]
    return tuple(node for node in nodes if node in chosen)


def choose_alike(nodes: Sequence[Node], count: int) -> tuple[Node, ...]:
    """A number of nodes of one kind, for shared work: the slowest would make the others wait."""
    kinds: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.obstacle is None:
            kinds[node.about].append(node)
    alike = max(kinds.values(), key=len, default=[])
    if len(alike) < count:
        raise UsageError(
            f"{count} nodes of one kind are needed, and there are {len(alike)} that take jobs",
            "Ask for fewer with --together",
        )
    return tuple(alike[:count])


def letters(nodes: Iterable[Node]) -> dict[str, str]:
    """A letter for each kind, in order of appearance: A to Z, then AA."""
    kinds = dict.fromkeys(node.about for node in nodes)
    return {kind: _letter(number) for number, kind in enumerate(kinds)}


def _letter(number: int) -> str:
    more, last = divmod(number, len(ascii_uppercase))
    return (_letter(more - 1) if more else "") + ascii_uppercase[last]


def names(nodes: Sequence[Node]) -> dict[str, str]:
    """The public name of each node by its real one: the letter of its kind and a number, A1."""
    kinds, counts = letters(nodes), defaultdict[str, int](int)
    public = {}
    for node in nodes:
        counts[node.about] += 1
        public[node.name] = f"{kinds[node.about]}{counts[node.about]}"
    return public


def one_each(nodes: Sequence[Node], arguments: Sequence[str], label: str | None, named: bool) -> tuple[Task, ...]:
    """The same run on every node; labels contain the names of nodes only if `named`."""
    kinds, public = letters(nodes), names(nodes)
    return tuple(
        Task(
            name=public[node.name],
            kind=kinds[node.about],
            nodes=(node.name,),
            arguments=tuple(arguments),
            label=_label(label, node.name if named else public[node.name]),
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
    """The same number of threads for every rank of all teams: what the fullest node has for each of its ranks."""
    fullest = max(count // team for team, counts in workers.items() for count in counts)
    return max(1, min(node.cores for node in nodes) // fullest)


def _label(prefix: str | None, name: str) -> str:
    return f"{prefix}-{name}" if prefix else name
