"""Which nodes take part, which are of one kind, and what they are called where their names are nobody's business."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from torchmark.errors import UsageError
from torchmark.fleet.contract import Node


def choose(nodes: Sequence[Node], count: int | None = None, each_kind: bool = False) -> tuple[Node, ...]:
    """All nodes, so many of them, or one of each kind; those that can work at once come first, then in order."""
    ready = sorted(nodes, key=lambda node: (node.obstacle is not None, not node.idle))
    if each_kind:
        firsts = {node.about: node for node in reversed(ready)}
        return tuple(node for node in nodes if node in firsts.values())
    if count is None:
        return tuple(nodes)
    usable = [node for node in ready if node.obstacle is None]
    if count > len(usable):
        raise UsageError(f"there are {len(usable)} nodes that take jobs, not {count}", "Ask for fewer with --nodes")
    chosen = usable[:count]
    return tuple(node for node in nodes if node in chosen)


def choose_alike(nodes: Sequence[Node], count: int) -> tuple[Node, ...]:
    """So many nodes of one kind, for work that they share: the slowest would make the others wait."""
    kinds: dict[str, list[Node]] = {}
    for node in nodes:
        if node.obstacle is None:
            kinds.setdefault(node.about, []).append(node)
    alike = max(kinds.values(), key=len, default=[])
    if len(alike) < count:
        raise UsageError(
            f"{count} nodes of one kind are needed, and there are {len(alike)} that take jobs",
            "Ask for fewer with --together",
        )
    return tuple(alike[:count])


def letters(nodes: Iterable[Node]) -> dict[str, str]:
    """A letter for each kind, in the order in which they come up: A to Z, then AA."""
    kinds = dict.fromkeys(node.about for node in nodes)
    return {kind: _letter(number) for number, kind in enumerate(kinds)}


def names(nodes: Sequence[Node]) -> dict[str, str]:
    """What each node is called, by its real name: the letter of its kind and a number, A1."""
    kinds = letters(nodes)
    counts: dict[str, int] = {}
    called = {}
    for node in nodes:
        kind = kinds[node.about]
        counts[kind] = counts.get(kind, 0) + 1
        called[node.name] = f"{kind}{counts[kind]}"
    return called


def _letter(number: int) -> str:
    more, last = divmod(number, len(ascii_uppercase))
    return (_letter(more - 1) if more else "") + ascii_uppercase[last]
