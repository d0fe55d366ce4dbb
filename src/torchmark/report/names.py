"""Short names of cases: without what the heading says of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.records import Case, Result, Value
from torchmark.report.figures import is_published


class Names(Struct, frozen=True):
    """What rows need not repeat: where most cases ran, and parameters that all have in common."""

    place: str | None = None
    params: Mapping[str, Value] = {}

    @property
    def note(self) -> str | None:
        """What else a heading has to say for such rows."""
        params = Case("", "", dict(self.params)).task.partition(":")[2]
        return f"All with {params.replace(',', ', ')}" if params else None

    @property
    def device(self) -> str | None:
        """The device that most cases used."""
        return self.place.partition("/")[0] if self.place else None

    def of(self, result: Result) -> str:
        """The case as a row calls it."""
        own = {key: value for key, value in result.case.params.items() if key not in self.params}
        case = replace(result.case, params=own)
        if place(result) != self.place:
            return case.text
        return case.task + "".join(option for option in case.options if option != "+as-published")


def names_of(results: Sequence[Result]) -> Names:
    """Names for the rows of one table."""
    return Names(shared_place(results), _shared_params([result.case for result in results]))


def place_note(results: Sequence[Result]) -> str | None:
    """Where the cases ran that do not say it themselves."""
    shared = shared_place(results)
    alike = len(set(map(place, results))) == 1
    return None if shared is None else f"on {shared}{'' if alike else ' unless said otherwise'}"


def place(result: Result) -> str:
    """Where a case runs, and whether as published: what most cases of a run have in common."""
    return f"{result.case.device}/{result.case.dtype}{' as published' if is_published(result) else ''}"


def shared_place(results: Sequence[Result]) -> str | None:
    """The place that most results have in common; None where there is no such."""
    counts = Counter(map(place, results))
    (name, count), *_ = counts.most_common(1) or [("", 0)]
    return name if count > len(results) / 2 else None


def _shared_params(cases: Sequence[Case]) -> dict[str, Value]:
    """Only of one workload, which they were chosen for: the same word may mean something else to another."""
    if len(cases) < 2 or len({case.workload for case in cases}) > 1:
        return {}
    first, *rest = cases
    alike = {
        key for key, value in first.params.items() if all(repr(case.params.get(key)) == repr(value) for case in rest)
    }
    return {key: value for key, value in first.params.items() if key in alike}  # 1 and on are equal, but not alike
