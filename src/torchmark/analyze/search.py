"""Searches for the fastest settings, and for the largest and the most efficient size that fits: their arithmetic."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from torchmark.analyze.comparison import DIFFERENT, LOOK_CONFIDENCE, answer_of, break_even, ratio_interval
from torchmark.analyze.grades import grade_of, is_contended
from torchmark.analyze.pairing import changed, differing, grouped, same_precision, setting, settings_text
from torchmark.analyze.spread import CHANCE, Interval, critical, relative_spread
from torchmark.records import BreakEven, Case, Contribution, Fitting, Result, Run, Tried, Tuning

# docs/method.md explains these.
HOPELESS, BEATEN, DOUBTFUL = 1.5, 1.25, 1.15
ENOUGH_ROUNDS, MOST_ROUNDS = 4, 8
LAST_CONFIDENCE, WORTH_CONFIDENCE = 0.9, 0.8
CLOSE = 1.05  # times as slow as the leader: too close to call after a few rounds
LEAST_FREEDOM = 3  # of the noise, for an answer
WIDEST = 2.0  # the high end of a useful interval over its low end

Results = Mapping[str, Result]  # by candidate
Scores = Mapping[str, float]  # log seconds per item, by candidate; only differences within rounds count
Round = Scores


def recall_tuning(run: Run) -> Tuning:
    """In the present form: older versions named a winner that was not confirmed."""
    assert run.tuning is not None
    tuning, default = run.tuning, run.tuning.default
    tuning = replace(tuning, same_precision=tuning.same_precision or default)
    is_confirmed = tuning.gain is not None or tuning.winner == default
    return tuning if is_confirmed else replace(tuning, winner=default, unconfirmed=tuning.winner)


class Noise(NamedTuple):
    deviation: float  # of the logarithms of a candidate's turns
    freedom: int


def scores(rounds: Sequence[Round]) -> tuple[dict[str, float], Noise]:
    """Every candidate's time on one logarithmic scale, even if they only share rivals, and the noise."""
    names = list(dict.fromkeys(name for each in rounds for name in each))
    turns = [(index, name, value) for index, each in enumerate(rounds) for name, value in each.items()]
    if not turns:
        return {}, Noise(0.0, 0)
    rows, values = np.zeros((len(turns), len(names) + len(rounds))), np.array([turn[2] for turn in turns])
    for row, (index, name, _) in zip(rows, turns, strict=True):
        row[names.index(name)] = row[len(names) + index] = 1.0
    found, _, rank, _ = np.linalg.lstsq(rows, values, rcond=None)
    freedom, rest = len(turns) - int(rank), values - rows @ found
    noise = Noise(math.sqrt(float(rest @ rest) / freedom) if freedom else 0.0, freedom)
    return dict(zip(names, map(float, found), strict=False)), noise


def lead(rounds: Sequence[Round], name: str, other: str) -> tuple[float, ...]:
    """How much longer a candidate took than another in each round of both, as a logarithm."""
    return tuple(each[name] - each[other] for each in rounds if name in each and other in each)


def survivors(rounds: Sequence[Round], field: Sequence[str], incumbent: str) -> list[str]:
    """The better half of the field. The incumbent stays until it is clearly beaten."""
    found, _ = scores([{name: each[name] for name in field if name in each} for each in rounds])
    ranked, half = sorted(field, key=found.__getitem__), math.ceil(len(field) / 2)
    best = found[ranked[0]]
    kept = [name for name in ranked[:half] if found[name] - best < math.log(HOPELESS)]
    if incumbent in field and incumbent not in kept and found[incumbent] - best < math.log(BEATEN):
        return [*kept[: max(1, half - 1)], incumbent]
    return kept


def verdict(
    rounds: Sequence[Round], challenger: str, incumbent: str, noise: Noise
) -> Literal["faster", "not faster", "unsure"]:
    logs = lead(rounds, challenger, incumbent)
    if len(logs) < 2 or noise.freedom < LEAST_FREEDOM:
        return "unsure"
    center, error = sum(logs) / len(logs), noise.deviation * math.sqrt(2 / len(logs))
    is_last = len(logs) >= MOST_ROUNDS
    # More than 95%, as there are several looks, at candidates chosen by the first rounds.
    reach = critical(noise.freedom, 1 - (LAST_CONFIDENCE if is_last else LOOK_CONFIDENCE)) * error
    low, high = math.exp(center - reach), math.exp(center + reach)
    if answer_of(low, high) == "faster":
        return "faster"
    is_behind = center > -math.log(1 + DIFFERENT) and len(logs) >= ENOUGH_ROUNDS
    return "not faster" if is_last or is_behind or low > 1 / (1 + DIFFERENT) else "unsure"


def best_at_precision(default: Case, cases: Mapping[str, Case], found: Scores) -> Case:
    alike = [text for text in found if same_precision(cases[text], default)]
    best = min(alike, key=found.__getitem__, default=default.text)
    gained = found.get(default.text, 0.0) - found.get(best, 0.0)
    return cases[best] if gained > math.log(1 + DIFFERENT) else default


def best_of_each_precision(default: Case, cases: Mapping[str, Case], found: Scores) -> list[Case]:
    """The simplest of about the fastest in every number format, the fastest format first."""
    ranked, fastest = (cases[text] for text in sorted(found, key=found.__getitem__)), min(found.values(), default=0.0)
    groups = grouped(ranked, lambda case: (setting(case, "dtype"), setting(case, "matmul"))).values()
    best = [simplest(default, group, found) for group in groups]
    return [case for case in best if found[case.text] - fastest < math.log(BEATEN) or same_precision(case, default)]


def simplest(default: Case, cases: Sequence[Case], found: Scores) -> Case:
    """The one that changes least, of those about as fast as the fastest."""
    best = min(found[case.text] for case in cases)
    equal = [case for case in cases if found[case.text] - best < math.log(CLOSE)]
    return min(equal, key=lambda case: (len(differing(default, case)), found[case.text]))


def contributions(default: Case, winner: Case, found: Scores) -> tuple[Contribution, ...]:
    """The gains of single settings on the way to the winner, as far as they were tried; they multiply."""
    return tuple(Contribution(settings_text(winner, names), gain) for names, gain in _way(default, winner, found))


def core_of(default: Case, winner: Case, found: Scores) -> Case:
    """The winner without settings that gained little; a number format keeps the instructions that it needs."""
    brought = {name: gain for names, gain in _way(default, winner, found) for name in names}
    for name in differing(default, winner):
        without = _with_settings_of(winner, default, [name])
        if without.text in found:
            brought[name] = math.exp(found[without.text] - found[winner.text])
    if brought.get("dtype", 1.0) > 1.0 and "isa" in brought:
        brought["isa"] = brought["dtype"]
    return _with_settings_of(winner, default, [name for name, gain in brought.items() if gain < DOUBTFUL])


def _way(default: Case, winner: Case, found: Scores) -> Iterator[tuple[tuple[str, ...], float]]:
    here = default
    while here.text != winner.text:
        names = differing(here, winner)
        sets = [names[first : first + count] for count in (1, 2) for first in range(len(names) - count + 1)]
        chosen = next((each for each in sets if _with_settings_of(here, winner, each).text in found), names)
        there = _with_settings_of(here, winner, chosen)
        yield chosen, math.exp(found[here.text] - found[there.text])
        here = there


def _with_settings_of(case: Case, other: Case, names: Sequence[str]) -> Case:
    for name in names:
        case = changed(case, name, setting(other, name))
    return case


def step_scaled(default: Result, result: Result, gain: float) -> float:
    """The step time by the default's and the gain, as each was disturbed in rounds of its own."""
    assert default.estimate is not None
    items, usual_items = (each.work.items if each.work and each.work.items else 1.0 for each in (result, default))
    return default.estimate.center_s / gain * items / usual_items


def seen_gain(default: Case, case: Case, found: Scores) -> float | None:
    return math.exp(found[default.text] - found[case.text]) if {default.text, case.text} <= found.keys() else None


def find_break_even(default: Case, winner: Case, results: Results, firsts: Results, found: Scores) -> BreakEven | None:
    """By the first case compiled like the winner, as later ones use its cache, and its uncompiled twin."""
    usual = results.get(default.text)
    if winner.compile == "off" or not usual or usual.status != "ok":
        return None
    shared = ("compile", "dtype", "matmul", "layout")
    for first in firsts.values():
        twin = results.get(changed(first.case, "compile", "off").text)
        alike = all(setting(first.case, name) == setting(winner, name) for name in shared)
        if alike and twin and twin.status == first.status == "ok":
            gains = [seen_gain(default, each.case, found) for each in (twin, first)]
            steps_s = [step_scaled(usual, twin, gain) for gain in gains if gain]
            return break_even(twin, first, steps_s[0] - steps_s[1]) if len(steps_s) == 2 else None
    return None


class Settled(Struct, frozen=True):
    default: Case
    leader: Case
    pairs: tuple[tuple[float, ...], ...] = ()  # `leads` of the leader over the default
    rival: Case | None = None  # measured in the same rounds
    behind: float = 0.0  # how much longer the rival takes than the leader, as a logarithm

    @property
    def gain(self) -> Interval | None:
        found = ratio_interval(self.pairs, 1 - CHANCE)
        return Interval(1 / found.center, 1 / found.high, 1 / found.low) if found else None

    @property
    def is_confirmed(self) -> bool:
        """Whether the leader is faster beyond chance, and its gain is known well."""
        gain = self.gain
        return gain is not None and gain.low > 1 + DIFFERENT and gain.high <= WIDEST * gain.low

    def placed(self, found: Scores) -> dict[str, float]:
        """The scores, corrected by what was measured again."""
        placed, gain, leader, rival = dict(found), self.gain, self.leader.text, self.rival and self.rival.text
        if rival in placed and rival:
            placed.setdefault(leader, placed[rival] - self.behind)
        if leader in placed and gain:
            placed[self.default.text] = placed[leader] + math.log(gain.center)
        if leader in placed and rival:
            placed[rival] = placed[leader] + self.behind
        return placed


def settle(default: Case, core: Case, winner: Case, bouts: Sequence[Sequence[Round]]) -> Settled:
    """The winner of the search, or its core if the rest is not worth it and the core is faster than the default."""
    confidence = WORTH_CONFIDENCE if same_precision(core, winner) else 1 - CHANCE  # shorter numbers have a price
    whole = Settled(default, winner, leads(bouts, winner, default))
    worth = ratio_interval(leads(bouts, winner, core), confidence)
    if core.text in (winner.text, default.text) or worth is None:
        return whole
    whole = replace(whole, rival=core, behind=-math.log(worth.center))
    less = Settled(default, core, leads(bouts, core, default), winner, math.log(worth.center))
    is_worth_it = worth.high < 1 and worth.center < 1 / (1 + DIFFERENT)
    return whole if is_worth_it or (whole.is_confirmed and not less.is_confirmed) else less


def leads(bouts: Sequence[Sequence[Round]], case: Case, other: Case) -> tuple[tuple[float, ...], ...]:
    return tuple(logs for rounds in bouts if (logs := lead(rounds, case.text, other.text)))


# docs/method.md explains these.
TRIES, RATE_TRIES, EFFICIENT, CONTENDING = 3, 2, 0.97, 0.85
RISING = 1.05  # times the least memory, above which the size decides


class Probe(Tried, frozen=True, kw_only=True):
    result: Result  # of all tries together

    @property
    def fits(self) -> bool:
        return self.result.status == "ok"


class MemoryModel(Struct, frozen=True):  # bytes = fixed + per_item × size
    fixed: float
    per_item: float
    error: float  # how far the worst of the sizes behind it is off

    def size_for(self, limit_bytes: float) -> float:
        return (limit_bytes - self.fixed) / self.per_item


def recall_probes(run: Run) -> list[Probe]:
    results, tried = {result.case.text: result for result in run.results}, run.fitting.tried if run.fitting else ()
    return [Probe(*astuple(each), result=results[each.case]) for each in tried if each.case in results]


def recall_model(found: Fitting) -> MemoryModel | None:
    fixed, per_item = found.fixed_bytes, found.item_bytes
    return None if fixed is None or per_item is None else MemoryModel(fixed, per_item, found.line_error)


def rate_center_s(result: Result) -> tuple[float, str]:
    """The step time of a size, of undisturbed processes if there are any, and why it is unreliable."""
    calm = [each for each in result.processes if not is_contended(each)] or list(result.processes)
    centers, low_s, high_s = [each.center_s for each in calm], min(e.low_s for e in calm), max(e.high_s for e in calm)
    center_s, spread = sum(centers) / len(centers), relative_spread(centers)
    joined = replace(calm[0], center_s=center_s, low_s=low_s, high_s=high_s, spread=spread)
    grade = grade_of(replace(result, estimate=joined))
    return center_s, grade.cause if grade and grade.word == "poor" else ""


def usual_step(size: int) -> int:
    """How exact an answer is worth its time: about 3%, in a power of two."""
    return 1 if size < 64 else 2 ** int(math.log2(size / 32))


def bracket(probes: Sequence[Probe], lowest: int, highest: int) -> tuple[int, int]:
    """The largest size that fits, and the smallest above it that does not; else one beyond the limits."""
    fails = min((each.size for each in probes if not each.fits), default=highest + 1)
    return max((each.size for each in probes if each.fits and each.size < fails), default=lowest - 1), fails


def next_size(
    probes: Sequence[Probe], lowest: int, highest: int, limit_bytes: float, step: int | None = None
) -> int | None:
    """What to try next, by doubling, the memory model or bisection; None if the answer is known to one step."""
    low, high = bracket(probes, lowest, highest)
    if low < lowest:
        return None if high <= lowest else lowest
    fine = step or usual_step(low)
    if high - low <= fine or low >= highest:
        return None
    model = fit_memory(probes)
    guess = int(model.size_for(limit_bytes)) if model else None
    if high > highest and (guess is None or 2 * low <= guess):
        return min(2 * low, highest)
    tried, near = {each.size for each in probes}, sum(each.size > low / 2 for each in probes)
    for size in (guess, guess + fine) if guess is not None and near < 5 else ():  # later, halving is safer
        if low + fine <= size <= high - fine and size not in tried:
            return size
    return min(max((low + min(high, 2 * low + 1)) // 2, low + 1), highest)


def fit_memory(probes: Sequence[Probe]) -> MemoryModel | None:
    """A line through the peaks that rise with the size; None for too few of them."""
    points = sorted((each.size, max(each.peaks)) for each in probes if each.fits and any(each.peaks))
    least = min((held for _, held in points), default=0.0)
    rising = [point for point in points if point[1] > RISING * least]
    if len(rising) < 2:
        return None
    sizes, held = np.array(rising, dtype=float).T
    per_item, fixed = map(float, np.polyfit(sizes, held, 1))
    error = float(np.max(np.abs(fixed + per_item * sizes - held) / held))
    return MemoryModel(fixed, per_item, error) if per_item > 0 else None


def doubtful(probes: Sequence[Probe]) -> list[Probe]:
    """Unreliable sizes that may be the most efficient one."""
    decisive = _deciding(probes)
    return [each for each in probes if each.fits and each.doubt and (each in decisive or each.doubt == "contended")]


def most_efficient(probes: Sequence[Probe]) -> int | None:
    """The smallest size whose rate is as good as the highest."""
    return min((each.size for each in _reaching(EFFICIENT, probes)), default=None)


def next_contender(probes: Sequence[Probe]) -> int | None:
    limits = ((_deciding(probes), RATE_TRIES), (doubtful(probes), TRIES))
    return min((each.size for due, most in limits for each in due if each.tries < most), default=None)


def _deciding(probes: Sequence[Probe]) -> list[Probe]:
    near, efficient = _reaching(CONTENDING, probes), most_efficient(probes)
    highest = max(near, key=lambda each: each.rate or 0.0, default=None)
    return [each for each in near if each is highest or (efficient is not None and each.size <= efficient)]


def _reaching(share: float, probes: Sequence[Probe]) -> list[Probe]:
    rates = [each.rate or 0.0 if each.fits else 0.0 for each in probes]
    return [each for each, rate in zip(probes, rates, strict=True) if rate and rate >= share * max(rates)]
