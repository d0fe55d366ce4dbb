"""Compare stored runs case by case, and two sides that took turns: the ratio of step times and how sure it is."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from statistics import fmean, median
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze import pairing, spread
from torchmark.analyze.grades import answer_within, band_of, flaws_of, is_published
from torchmark.analyze.pairing import Difference, Pairing, Unpaired
from torchmark.analyze.spread import CHANCE, Interval, Spread, critical, total_variance, variance, with_known
from torchmark.records import BreakEven, Live, Machine, Remark, Result, Run

Answer = Literal["faster", "slower", "same", "similar", "unsure"]  # similar: as far as a published figure can say

# docs/method.md explains these.
DIFFERENT, SAME, SAME_LIVE = 0.01, 0.05, 0.03
EVERYTHING = 700.0  # the log of about the largest float


def answer_of(low: float, high: float, same: float = SAME_LIVE, is_clear: bool | None = None) -> Answer:
    """Whether b is faster, by the interval of its time over a's; `is_clear` replaces the test by that interval."""
    apart = low > 1 + DIFFERENT or high < 1 / (1 + DIFFERENT)
    if apart if is_clear is None else is_clear:
        return "slower" if low * high > 1 else "faster"
    return "same" if not apart and low >= 1 / (1 + same) and high <= 1 + same else "unsure"


def break_even(eager: Result, compiled: Result, saved: float | None = None) -> BreakEven | None:
    """For results that differ in compiling alone; `saved` is per step. None where it never pays off."""
    if not (a := eager.estimate) or not (b := compiled.estimate):
        return None
    spent, saved = b.first_step_s - a.first_step_s, a.center_s - b.center_s if saved is None else saved
    return BreakEven(spent, saved, spent / saved) if saved > 0 and spent > 0 else None


class Row(Struct, frozen=True):
    ratio: float  # the step time of b over a's, or the time of an item where steps differ
    verdict: Answer = "unsure"
    low: float | None = None  # 95% interval of this row alone
    high: float | None = None
    p_value: float | None = None  # of no difference beyond 1%, corrected for the number of rows
    error: float | None = None  # standard error of the log ratio
    freedom: float | None = None
    explained: float = 0.0  # part of the log ratio that other programs may have caused


class Pair(Row, frozen=True, kw_only=True):
    case: str
    basis: str  # of the interval
    a: Result
    b: Result
    differences: tuple[Difference, ...] = ()
    no_interval: str | None = None  # why
    assumed: float | None = None  # of published sides: how far the ratio may be off, as a share
    flaws: tuple[Remark, ...] = ()
    visible: float | None = None  # the smallest difference that would have been called one, as a share


class Family(Row, frozen=True, kw_only=True):  # the geometric mean over the pairs of a workload
    name: str
    count: int


AnyRow = TypeVar("AnyRow", bound=Row)


class Comparison(Struct, frozen=True):
    pairs: tuple[Pair, ...]
    unpaired: tuple[Unpaired, ...]
    families: tuple[Family, ...] = ()
    axis: str | None = None  # what partners differ in on purpose
    visible: float | None = None  # the median over the measured pairs
    visible_worst: float | None = None


def compare_runs(a: Run, b: Run, by: str | None = None) -> Comparison:
    """Whether b is faster than a, for each case that both did; partners may differ in `by`.

    `faster` and `slower` hold over the whole table (Holm); `same` needs an interval within ±5% that touches 1 ± 1%.
    """
    return compare_all((a, b), by)[0]


def compare_all(runs: Sequence[Run], by: str | None = None, places: Sequence[str] = ()) -> tuple[Comparison, ...]:
    """Every other run against the first; the answers hold over all of them together."""
    first, *others = runs
    named = [(places[0], place) for place in places[1:]] if places else [pairing.PLACES] * len(others)
    pairs = zip(others, named, strict=True)
    return _judge_all(_compare(first, other, pairing.pair_runs(first, other, by, both), by) for other, both in pairs)


def compare_within(runs: Sequence[Run], by: str) -> tuple[Comparison, ...]:
    """In each run the cases that differ in `by` alone, against a baseline; the answers hold over all runs."""
    return _judge_all(_compare(run, run, pairing.pair_within(run, by), by) for run in runs)


class Side(NamedTuple):  # a log time in one run
    logs: tuple[float, ...]  # of each process
    basis: str
    spread: Spread  # of one process
    doubt: str | None  # why the spread is unknown


def per_item(a: Result, b: Result) -> bool:
    """Whether they are compared by the time of an item, because a step does not do the same amount."""
    return bool(a.work and b.work and a.work.items != b.work.items and min(a.work.items, b.work.items) > 0)


def _sides(results: tuple[Result, Result], spreads: Sequence[float | None]) -> tuple[Side, Side] | None:
    """Both sides as the same estimand, the mean where theirs differ; None where a time is not positive."""
    several = [result.processes or tuple(filter(None, (result.estimate,))) for result in results]
    as_mean = len({estimate.estimand for estimates in several for estimate in estimates}) > 1
    scaled, sides = per_item(*results), []
    for result, estimates, borrowed in zip(results, several, spreads, strict=True):
        times = [each.mean_s if as_mean and each.estimand != "mean" else each.center_s for each in estimates]
        known, count = result.estimate, len(times)
        if known is None or not all(0 < time < math.inf for time in times):
            return None
        only, items = estimates[0], result.work.items if scaled and result.work else 1.0
        logs = tuple(math.log(time / items) for time in times)
        # The spread that the run found for the case, else that of its processes, else a borrowed one.
        own, doubt = Spread(variance(logs) if count > 1 else 0.0, count - 1.0), None
        basis = f"{count} processes" if count > 1 else "a borrowed spread"
        if count == 1 and only.verdict == "as-published":
            basis = doubt = "a published figure" if "printed" in result.settings else "timed as published"
        elif known.spread is not None and known.freedom:
            own = Spread(known.spread**2, known.freedom)
        elif count == 1 and borrowed is not None:
            ends = (only.mean_low_s, only.mean_high_s) if as_mean and only.estimand != "mean" else ()
            within = spread.within_variance(only, *ends)
            own = Spread(math.log1p(borrowed) ** 2 + within, spread.BORROWED_FREEDOM)
        elif count == 1:
            basis, doubt = "one process", "one process, and no spread between processes is known"
        sides.append(Side(logs, basis, own, doubt))
    return sides[0], sides[1]


def explained(result: Result) -> float:
    """How much of a contended log time others may have caused: twice their share, as a step waits for all threads."""
    if result.estimate is None or result.estimate.verdict != "contended":
        return 0.0
    seen = result.estimate.contention
    shares = (seen.wait_share, seen.other_cpu_share, seen.steal_share, seen.throttled_share)
    taken = max(0.0, (seen.probe_dilation or 1.0) - 1.0, *(share or 0.0 for share in shares))
    return -math.log1p(-2 * taken) if taken < 0.499 else EVERYTHING


def _compare(a: Run, b: Run, paired: Pairing, axis: str | None) -> Comparison:
    spreads = [a.process_spread, b.process_spread]
    if a.header.machine == b.header.machine and None in spreads:  # its spread serves both runs
        spreads = [next((each for each in spreads if each is not None), None)] * 2
    apart = 0.0 if a is b else 2 * spread.RUN_SPREAD**2  # the variance between runs
    known, unpaired = list[tuple[Pair, tuple[Side, Side]]](), list[Unpaired]()
    for match in paired.matches:
        if both := _sides(match, spreads):
            known.append((_pair(*match, both, apart, pairing.differences_of(*match, a.header, b.header)), both))
        else:
            unpaired.append(Unpaired(match[0].case.text, "no step time above zero", "refused", *match))
    groups = pairing.grouped(known, lambda each: each[0].a.case.workload)
    families = tuple(_family(name, group, apart) for name, group in groups.items())
    return Comparison(tuple(pair for pair, _ in known), (*unpaired, *paired.unpaired), families, axis)


def _pair(a: Result, b: Result, sides: tuple[Side, Side], apart: float, differences: tuple[Difference, ...]) -> Pair:
    first, second = sides
    difference = min(max(fmean(second.logs) - fmean(first.logs), -EVERYTHING), EVERYTHING)
    ratio, doubt, blame = math.exp(difference), first.doubt or second.doubt, explained(b if difference > 0 else a)
    basis = f"{first.basis} against {second.basis}"
    pair = Pair(ratio, explained=blame, case=a.case.text, basis=basis, a=a, b=b, differences=differences)
    if is_published(a) or is_published(b):
        band, flaws = band_of(a, b), tuple(dict.fromkeys((*flaws_of(a), *flaws_of(b))))
        basis, verdict = "the assumed uncertainty of published figures", answer_within(ratio, band)
        return replace(pair, basis=basis, verdict=verdict, assumed=band, flaws=flaws, visible=band)
    if doubt:
        return replace(pair, no_interval=doubt)
    drift = spread.DRIFT**2 if apart else 0.0  # cases of one run share the state of the machine
    parts = [(own.variance / len(logs) + drift * own.variance, own.freedom) for logs, _, own, _ in sides]
    return _with_interval(pair, with_known(*total_variance(parts), apart))


def _family(name: str, cases: Sequence[tuple[Pair, tuple[Side, Side]]], apart: float) -> Family:
    pairs, count = [pair for pair, _ in cases], len(cases)
    center = math.fsum(math.log(pair.ratio) for pair in pairs) / count
    blame = math.fsum(explained(pair.b if center > 0 else pair.a) for pair in pairs) / count
    family = Family(math.exp(center), explained=blame, name=name, count=count)
    bands = [pair.assumed for pair in pairs if pair.assumed is not None]
    if bands:  # the errors of published figures may all point the same way
        return replace(family, verdict=answer_within(family.ratio, fmean(bands)))
    known = [(pair.error, pair.freedom) for pair in pairs if pair.error is not None and pair.freedom is not None]
    if len(known) < count:
        return family
    # What disturbs a round of processes is common to its cases, so the means of rounds differ by more than the cases.
    rounds = [[fmean(logs) for logs in zip(*(both[side].logs for _, both in cases), strict=False)] for side in (0, 1)]
    if count == 1 or min(map(len, rounds)) < 2:  # the correlation of the errors is unknown: assume the worst
        error, freedom = math.fsum(error for error, _ in known) / count, min(freedom for _, freedom in known)
        return _with_interval(family, Spread(error**2, freedom))
    own = total_variance([(error**2 / count**2, freedom) for error, freedom in known])
    together = total_variance([(variance(means) / len(means), len(means) - 1.0) for means in rounds])
    beyond = max(together.variance - own.variance, 0.0), together.freedom
    return _with_interval(family, total_variance([own, beyond, (apart, math.inf)]))


def overall(families: Sequence[Family]) -> Family | None:
    """The geometric mean over workloads, whose errors are independent except for the variance between runs."""
    if not families:
        return None
    count = len(families)
    center = math.fsum(math.log(family.ratio) for family in families) / count
    blame = math.fsum(family.explained for family in families) / count
    cases = sum(family.count for family in families)
    mean = Family(math.exp(center), explained=blame, name="all workloads", count=cases)
    parts = [((each.error / count) ** 2, each.freedom or 1.0) for each in families if each.error is not None]
    if len(parts) < count:
        return mean
    return next(_judge([_with_interval(mean, with_known(*total_variance(parts), 2 * spread.RUN_SPREAD**2))]))


def _with_interval(row: AnyRow, known: Spread) -> AnyRow:
    error, center = math.sqrt(known.variance), math.log(row.ratio)
    reach = error * critical(known.freedom, CHANCE)
    low, high = math.exp(max(center - reach, -EVERYTHING)), math.exp(min(center + reach, EVERYTHING))
    row = replace(row, low=low, high=high, error=error, freedom=min(known.freedom, spread.MOST_FREEDOM))
    return replace(row, p_value=_chance(row, DIFFERENT))


def _chance(row: Row, share: float) -> float:
    """The probability of such a difference if the true one were no larger than `share`."""
    excess = abs(math.log(row.ratio)) - row.explained - math.log1p(share)
    if not row.error or excess <= 0:
        return 0.0 if excess > 0 else 1.0
    return spread.two_sided(excess / row.error, row.freedom or 1.0)[0]


def holm(p_values: Sequence[float]) -> list[float]:
    count, order = len(p_values), sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = accumulate((min(1.0, (count - rank) * p_values[index]) for rank, index in enumerate(order)), max)
    return [p_value for _, p_value in sorted(zip(order, corrected, strict=True))]


def _judge(rows: Sequence[AnyRow]) -> Iterator[AnyRow]:
    """Add verdicts that hold over all rows together, and the difference that each pair would have shown."""
    p_values = [row.p_value for row in rows if row.p_value is not None]
    corrected = iter(holm(p_values))
    for row in rows:
        if row.p_value is not None and row.low is not None and row.high is not None:
            p_value = next(corrected)
            row = replace(row, p_value=p_value, verdict=answer_of(row.low, row.high, SAME, p_value < CHANCE))
        if isinstance(row, Pair) and row.error is not None and row.freedom is not None:
            reach = row.error * critical(row.freedom, CHANCE / len(p_values))
            row = replace(row, visible=math.expm1(min(math.log1p(DIFFERENT) + row.explained + reach, EVERYTHING)))
        yield row


def _judge_all(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    comparisons, judged = tuple(comparisons), []
    pairs = _judge([pair for each in comparisons for pair in each.pairs])
    families = _judge([family for each in comparisons for family in each.families])
    for each in comparisons:
        own = tuple(islice(pairs, len(each.pairs)))
        known = [pair.visible for pair in own if pair.visible is not None and pair.assumed is None]
        found = replace(each, pairs=own, families=tuple(islice(families, len(each.families))))
        judged.append(replace(found, visible=median(known), visible_worst=max(known)) if known else found)
    return tuple(judged)


class LiveSide(Struct, frozen=True):
    result: Result
    python: str
    machine: Machine | None = None  # None: it failed before it reported one
    packages: dict[str, str] = {}  # versions
    environment: dict[str, str] = {}  # set for this side alone
    last_words: tuple[str, ...] = ()  # of the output of a process that failed


Rounds = Sequence[Sequence[float]]  # the log ratios of every pair of processes
Stopped = Literal["clear", "precise", "pairs", "budget", "failed", "interrupted"]
LOOKS = (5, 7, 10, 14, 20, 28, 40)  # counts of pairs at which it may stop
LOOK_CONFIDENCE = 0.99  # of 200,000 simulated series, 95.4% hold the truth at all seven looks


class LiveComparison(Struct, frozen=True):
    a: LiveSide
    b: LiveSide
    verdict: Answer
    stopped: Stopped
    ratio: float | None = None  # as of a Row
    low: float | None = None
    high: float | None = None
    ratios: tuple[float, ...] = ()  # one for each pair of processes
    duration_s: float = 0.0

    def conclusion(self, side: str) -> Live:
        kept = {name: getattr(self, name) for name in ("verdict", "stopped", "ratio", "low", "high", "ratios")}
        return Live(self.a.result.case, self.b.result.case, side, **kept)

    @property
    def failed(self) -> bool:
        return any(side.result.status != "ok" for side in (self.a, self.b))


def ratio_interval(pairs: Rounds, confidence: float = LOOK_CONFIDENCE) -> Interval | None:
    count = len(pairs)
    if count < 2:
        return None
    centers = [float(median(rounds)) for rounds in pairs]
    # A few pairs may agree by chance more closely than the median of each is known.
    inside = [
        math.pi / 2 * (spread.MAD_TO_DEVIATION * median(abs(each - middle) for each in rounds)) ** 2 / len(rounds)
        for rounds, middle in zip(pairs, centers, strict=True)
    ]
    center = fmean(centers)
    reach = critical(count - 1, 1 - confidence) * math.sqrt(max(variance(centers), fmean(inside)) / count)
    return Interval(math.exp(center), math.exp(center - reach), math.exp(min(center + reach, EVERYTHING)))


def why_stop(pairs: Rounds, target: float | None = None, limit: float | None = None) -> Stopped | None:
    """At a fixed look: the target precision is reached, or without a target the answer is clear."""
    found = ratio_interval(pairs) if len(pairs) in LOOKS else None
    if found is None:
        return None
    last: Stopped | None = "pairs" if len(pairs) == LOOKS[-1] else None
    if target is not None:
        return "precise" if found.precision <= target else last
    decided = limit is None or found.low > 1 + limit or found.high <= 1 + limit
    return "clear" if decided and answer_of(found.low, found.high) != "unsure" else last


def live_differences(a: LiveSide, b: LiveSide) -> tuple[Difference, ...]:
    def facts(side: LiveSide) -> list[Mapping[str, Any]]:
        result, machine = side.result, side.machine
        case = {name: getattr(result.case, name) for name in ("device", "dtype", "compile", "transfer")}
        case |= {"threads": result.settings.get("threads", result.case.threads)} | result.case.options
        names = {"torch": "torch", "built for": "torch_build", "python": "python"}
        software = {name: getattr(machine, field) for name, field in names.items()} | side.packages if machine else {}
        return [case, {"interpreter": side.python}, side.environment, software, result.settings]

    found: dict[str, Difference] = {}
    parts = enumerate(zip(facts(a), facts(b), strict=True))
    known = [both for index, both in parts if index < 3 or all(both)]  # a side that failed may have no facts
    for name, *values in pairing.differing_facts(known):
        first, second = ("-" if value is None else pairing.written(value) for value in values)
        found.setdefault(name.lower(), Difference(name, first, second))
    return tuple(found.values())


Word = Literal["PASS", "FAIL", "INCONCLUSIVE"]


class Gate(Struct, frozen=True):
    word: Word  # PASS: a difference of the limit would have been visible
    limit: float
    visible: float | None = None  # the worst of the smallest visible differences; None: nothing could be seen
    decidable: float | None = None  # the smallest limit that this data decides
    slower: tuple[Pair | Family, ...] = ()
    lost: tuple[Unpaired, ...] = ()
    blind: tuple[Pair, ...] = ()  # in which such a difference would not be visible


def gate_runs(comparisons: Sequence[Comparison], limit: float, inside: bool = False) -> Gate:
    """Whether a case, or a workload with several, is slower beyond chance, or missing unless `inside` one run."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    families = [each for comparison in comparisons for each in comparison.families if each.count > 1]
    rows: list[Pair | Family] = [*pairs, *families]
    measured = [row for row in rows if row.error is not None]
    chances = holm([_chance(each, limit) if each.ratio > 1 else 1.0 for each in measured])
    slower = [each for each, chance in zip(measured, chances, strict=True) if chance < CHANCE]
    slower += [pair for pair in pairs if pair.assumed is not None and pair.ratio > (1 + limit) * (1 + pair.assumed)]
    kinds = ("failed",) if inside else ("failed", "missing")
    unpaired = (each for comparison in comparisons for each in comparison.unpaired if each.kind in kinds)
    lost = tuple(each for each in unpaired if each.a and each.a.status == "ok")
    blind = tuple(pair for pair in pairs if pair.visible is None or pair.visible > limit)
    visible = max((math.inf if pair.visible is None else pair.visible for pair in pairs), default=math.inf)
    word: Word = "FAIL" if slower or lost else "INCONCLUSIVE" if blind else "PASS"
    return Gate(word, limit, visible if visible < math.inf else None, _decidable(visible), tuple(slower), lost, blind)


def gate_live(found: LiveComparison, limit: float) -> Gate:
    """B must be shown to be slower by more than the limit, or not to be."""
    failed = found.b.result.status not in ("ok", "interrupted")
    if found.ratio is None or found.low is None or found.high is None:
        return Gate("FAIL" if failed else "INCONCLUSIVE", limit)
    slower, undecided = found.low > 1 + limit, found.high > 1 + limit
    word: Word = "FAIL" if slower or failed else "INCONCLUSIVE" if undecided else "PASS"
    return Gate(word, limit, found.high / found.ratio * (1 + DIFFERENT) - 1, _decidable(found.high - 1))


def _decidable(share: float) -> float | None:
    percent = max(math.ceil(share * 100 - 1e-9), 1) if share < 1 else 100
    return percent / 100 if percent < 100 else None
