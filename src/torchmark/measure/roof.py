"""The ceilings of a run under way: those that were known before, and those that it finds itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from torchmark.analyze.cautions import cautions_of
from torchmark.analyze.roofline import IMPLAUSIBLE, Ceilings, case_again, ceilings_of, merge, with_peak
from torchmark.records import Case, Result

MeasureAgain = Callable[[Case], Result]
TRIES = 3  # a busy machine can hide what it can do once, a result that is wrong stays wrong


class Roof:
    """Says of every result how close it comes to the machine's best; doubts the ceiling before it doubts the result."""

    def __init__(self, known: Ceilings, measure_again: MeasureAgain) -> None:
        self._known, self._measure_again = known, measure_again
        self._results: dict[str, Result] = {}
        self._again: set[str] = set()

    def remember(self, result: Result) -> None:
        """A result that was there before this run went on."""
        self._results[result.case.text] = result

    def judge(self, result: Result) -> Result:
        """The result with its share of the peak. Where that is too good, its ceiling is measured again first."""
        text = result.case.text
        self._results[text] = result
        judged = self._with_peak(result)
        if text not in self._again:
            for _ in range(TRIES):
                case = case_again(judged, self._ceilings) if _is_too_good(judged) else None
                if case is None:
                    break
                self._again.add(text)
                self._known = merge(self._known, ceilings_of([self._measure_again(case)]))
                judged = self._with_peak(result)
        return self._told(judged)

    def revised(self) -> Iterator[Result]:
        """All results now that all ceilings are known. Use it at the end."""
        for result in tuple(self._results.values()):  # a ceiling that is found to be higher changes the others
            self.judge(result)
        for result in tuple(self._results.values()):
            yield self._told(self._with_peak(result))

    @property
    def _ceilings(self) -> Ceilings:
        return merge(self._known, ceilings_of(self._results.values()))

    def _with_peak(self, result: Result) -> Result:
        return with_peak(result, self._ceilings, again=result.case.text in self._again)

    def _told(self, judged: Result) -> Result:
        told = replace(judged, cautions=cautions_of(judged))
        self._results[told.case.text] = told
        return told


def _is_too_good(judged: Result) -> bool:
    return judged.peak is not None and judged.peak.share > IMPLAUSIBLE
