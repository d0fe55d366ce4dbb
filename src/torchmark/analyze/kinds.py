"""What machines of one kind have in common: one figure for each case, over all of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from torchmark.records import Result, Run


class KindRow(Struct, frozen=True):
    """One case on one kind of machine."""

    case: str
    kind: str
    machines: int  # that have a figure
    step_s: float | None  # the median over them
    low_s: float | None = None  # of one machine its interval, else the fastest and the slowest
    high_s: float | None = None
    rate: float | None = None  # items per second
    unit: str = ""
    verdicts: tuple[
        str, ...
    ] = ()  # the most frequent first, with counts where they differ; those without a figure last

    @property
    def spread(self) -> float | None:
        """Half the way from the lowest to the highest, as a share of the middle."""
        if not self.step_s or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / 2 / self.step_s


def tabulate(members: Iterable[tuple[str, Run]]) -> tuple[KindRow, ...]:
    """Every case with its kinds, in the order in which they come up. Members are runs, each with its kind."""
    found: dict[str, dict[str, list[Result]]] = {}
    kinds: dict[str, None] = {}
    for kind, run in members:
        kinds.setdefault(kind)
        for result in run.results:
            found.setdefault(result.case.text, {}).setdefault(kind, []).append(result)
    return tuple(
        _row(case, kind, results[kind]) for case, results in found.items() for kind in kinds if kind in results
    )


def _row(case: str, kind: str, results: list[Result]) -> KindRow:
    good = [result for result in results if result.status == "ok" and result.estimate]
    estimates = [result.estimate for result in good if result.estimate]
    said = Counter(estimate.verdict for estimate in estimates).most_common()
    failed = Counter(result.status for result in results if result not in good).most_common()
    several = len(said) + len(failed) > 1
    verdicts = tuple(f"{name} {count}" if several else name for name, count in (*said, *failed))
    if not estimates:
        return KindRow(case, kind, 0, None, verdicts=verdicts)
    times = [estimate.center_s for estimate in estimates]
    step_s, alone, work = statistics.median(times), len(times) == 1, good[0].work
    return KindRow(
        case=case,
        kind=kind,
        machines=len(times),
        step_s=step_s,
        low_s=estimates[0].low_s if alone else min(times),
        high_s=estimates[0].high_s if alone else max(times),
        rate=work.items / step_s if work and work.items and step_s > 0 else None,
        unit=work.unit if work else "",
        verdicts=verdicts,
    )
