"""What a gate says in words: its answer, why, and what could have been seen."""

from __future__ import annotations

from collections.abc import Sequence

from torchmark.analyze.comparison import Family
from torchmark.analyze.gates import Gate
from torchmark.report import ratios, units

OPTION = "--fail-if-slower"
_SHOWN = 5  # cases that a message names


def gate_lines(gate: Gate, complaints: Sequence[str] = (), option: str = OPTION) -> list[str]:
    """The answer and why, one line each."""
    limit = units.percent(gate.limit)
    seen = f"differences under {units.percent(gate.visible)} would not be visible" if gate.visible is not None else ""
    if gate.word == "FAIL":
        return [*(f"FAIL: {text}" for text in complaints), *([seen] if seen else [])]
    if gate.word == "PASS":
        return [f"PASS: nothing is slower by more than {limit}; {seen}"]
    where = f" in {_some([pair.b.case.text for pair in gate.blind])}" if gate.blind else ""
    first = f"INCONCLUSIVE: a slowdown of {limit} would not be visible{where}; {seen or 'no interval is known'}"
    return [first, _way_out(gate, option)]


def complaints_of(gate: Gate) -> list[str]:
    """What a gate on stored runs fails for."""
    slower = [
        f"{row.name if isinstance(row, Family) else row.b.case.text} ({ratios.speed(row)})" for row in gate.slower
    ]
    lost = [f"{each.case} ({each.reason})" for each in gate.lost]
    found = {f"slower by more than {units.percent(gate.limit)}": slower, "failed or missing now": lost}
    return [f"{title}: {_some(names)}" for title, names in found.items() if names]


def _way_out(gate: Gate, option: str) -> str:
    if gate.decidable is None:
        return "no limit can be decided by this data; measure in more processes"
    return f"{option} {gate.decidable:.0%} can be decided by this data; for less, measure in more processes"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
