"""What should be read beside the figures of a run: its cautions, alike ones together."""

from __future__ import annotations

from msgspec import Struct

from torchmark.analyze.grades import grade_of
from torchmark.records import Caution, Result, Run
from torchmark.report.names import Names

# What a good grade answers already: `show --details` has them all the same.
_ANSWERED = frozenset(("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread"))


class Note(Struct, frozen=True):
    """One caution together with all the cases that it is about; none means all of them."""

    kind: str
    cause: str
    cure: str
    cases: tuple[str, ...]


def find_notes(run: Run, names: Names) -> list[Note]:
    """The cautions of all results: alike ones together, the kinds in the order in which they came up."""
    cases: dict[Caution, list[str]] = {}
    for result in run.results:
        for caution in dict.fromkeys(_relevant(result)):
            cases.setdefault(caution, []).append(names.of(result))
    kinds = list(dict.fromkeys(caution.kind for caution in cases))
    ordered = sorted(cases, key=lambda caution: kinds.index(caution.kind))
    figured = {names.of(result) for result in run.results if result.estimate}
    everywhere = figured if len(figured) > 1 else {""}
    return [
        Note(caution.kind, caution.cause, caution.cure, () if everywhere <= set(called) else tuple(called))
        for caution in ordered
        for called in (cases[caution],)
    ]


def _relevant(result: Result) -> list[Caution]:
    grade = grade_of(result)
    # Noise inside a process matters little next to the spread between several of them, which ± tells.
    hidden = _ANSWERED if grade and grade.word == "good" else {"noisy"} if len(result.processes) > 1 else frozenset()
    return [caution for caution in result.cautions if caution.kind not in hidden]
