"""What stored results say in plain sentences; every sentence is supported by the intervals."""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, Family, Pair, break_even, compare_all, compare_within, overall
from torchmark.analyze.efficiency import LOADING
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.machines import find_outliers
from torchmark.analyze.pairing import axis_value, changed, grouped, join_machines
from torchmark.analyze.wording import listed
from torchmark.records import DISTURBED, NO_ROOM, Remark, Result, Run

PUBLISHED_FACTOR = 1.5  # more than the flaws of a published procedure explain
WORTHWHILE = 1.1  # smaller gains are not mentioned
FIRST_STEP_S, FIRST_STEP_TIMES = 3.0, 10.0
_SHOWN = 3  # workloads that a sentence lists
_AXES = ("device", "dtype", "compile", "batch", "threads", "workers", "transfer")
ORDER = ("runs", "outlier", "device", "disturbed", *_AXES[1:], "loader", "memory", "first-step")


def find_all(runs: Sequence[Run]) -> tuple[Remark, ...]:
    """Everything worth saying about these runs, the most important first; settings are compared on each machine."""
    machines, against = join_machines(runs), []  # against the first run, over all cases
    for run, comparison in zip(runs[1:], compare_all(runs) if len(runs) > 1 else (), strict=True):
        mean = overall(comparison.families)
        if mean and (finding := _about_two(runs[0], run, comparison, mean)):
            against.append((mean.ratio, finding))
    if len(against) > 3:  # the fastest and the slowest
        against.sort(key=itemgetter(0))
        against = [against[0], against[-1]]
    found = [finding for _, finding in against] + [Remark("outlier", each.text) for each in find_outliers(runs)]
    for run in machines:
        own = [*_claims(run), *_about_results(run)]
        own += [] if run.fitting else _memory(run.results)  # its conclusion says it
        name = f"{run.header.label or run.header.id}: " if len(machines) > 1 else ""
        found += [replace(finding, cause=name + finding.cause) for finding in own]
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.kind)))


def _claims(run: Run) -> Iterator[Remark]:
    devices = dict.fromkeys(result.case.device for result in run.results)
    for axis in _AXES:
        values = {getattr(result.case, axis, None) or result.case.params.get(axis) for result in run.results}
        if len(values) < 2:  # faster than comparing
            continue
        (comparison,) = compare_within([run], axis)
        for device in [None] if axis == "device" or len(devices) == 1 else devices:
            pairs = [pair for pair in comparison.pairs if device in (None, pair.a.case.device)]
            for text, rests_on in _sentences(axis, pairs):
                where = f"on {_device_name(device)} {text}" if device else text
                word = where.split()[0]  # bfloat16 and torch.compile are names
                cause = (word.capitalize() if word.isalpha() else word) + where[len(word) :]
                cases = dict.fromkeys(text for pair in rests_on for text in (pair.a.case.text, pair.b.case.text))
                published = all(is_published(pair.a) and is_published(pair.b) for pair in rests_on)
                yield Remark(axis, f"As published, {where}" if published else cause, cases=tuple(cases))


Claim = tuple[str, Sequence[Pair]]  # a sentence and its evidence


def _sentences(axis: str, pairs: Sequence[Pair]) -> Iterator[Claim]:
    clear = [pair for pair in pairs if _is_clear(pair)]
    if axis in ("device", "dtype", "compile"):
        for value, own in grouped(pairs, lambda pair: str(axis_value(pair.b, axis))).items():
            yield from _device_advice(value, own) if axis == "device" else _gains(axis, value, own)
    if axis == "device":
        yield from _crossings(clear)
    best = min((pair for pair in clear if 1 / pair.ratio > WORTHWHILE), key=lambda pair: pair.ratio, default=None)
    if best and axis in ("batch", "threads"):
        values, case = (axis_value(best.a, axis), axis_value(best.b, axis)), best.a.case
        what, named = "rate", ["the default batch" if value == "default" else f"batch {value}" for value in values]
        if axis == "threads":
            what, named = "speed", [f"{value} thread{'s' if value != 1 else ''}" for value in values]
        fewer, more = named
        gives = f"{'give' if more.endswith('s') else 'gives'} {times(1 / best.ratio)}"
        yield f"{more} {gives} the {what} of {fewer} on {case.workload}/{case.mode}", [best]
    if axis == "threads":
        slow = [pair for pair in clear if pair.ratio > WORTHWHILE]
        if pair := max(slow, key=lambda pair: pair.ratio, default=None):
            few, many = axis_value(pair.a, "threads"), axis_value(pair.b, "threads")
            yield f"{many} threads make {pair.a.case.task} {times(1 / pair.ratio)} as fast as {few}", [pair]
    if axis == "workers":
        for pair in clear:
            few, many, share = pair.a.case.workers, pair.b.case.workers, pair.b.metrics.get("communication_share")
            talk = f", and {share:.0%} of a step is communication" if share else ""
            does = f"do {times(1 / pair.ratio)} the work of {'one' if few == 1 else few} on {pair.a.case.task}"
            yield f"{many} workers {does} (efficiency {few / many / pair.ratio:.0%}{talk})", [pair]
    if axis == "transfer":
        costly = sorted((entry for entry in _entries(pairs) if entry.speed < 1), key=lambda entry: entry.speed)
        cheap = [pair for pair in pairs if pair.verdict == "same" and pair.high is not None]
        costs = [f"{1 / entry.speed - 1:.0%} on {entry.name}" for entry in costly[:_SHOWN]]
        costs += [f"at most {max((pair.high or 1) - 1, 0.001):.1%} on {pair.a.case.task}" for pair in cheap[:_SHOWN]]
        if costly:
            yield f"per-step copies cost {listed(costs)}", [*(pair for entry in costly for pair in entry.pairs), *cheap]


class _Entry(Struct, frozen=True):  # a workload, or one case of it
    name: str
    pairs: tuple[Pair, ...]

    @property
    def speed(self) -> float:
        return math.exp(-math.fsum(math.log(pair.ratio) for pair in self.pairs) / len(self.pairs))


def times(speed: float) -> str:
    """12.5×"""
    if speed < 2:
        return f"{speed:.2g}×" if speed < 0.1 else f"{speed:.2f}×"
    return f"{speed:.1f}×" if speed < 10 else f"{speed:.3g}×" if speed < 100 else f"{speed:.0f}×"


def _device_advice(device: str, pairs: Sequence[Pair]) -> Iterator[Claim]:
    """'use cuda:0 for resnet50 (12.5× the CPU), mlp (2.6×)'"""
    base, (better, worse, rests_on) = _device_name(pairs[0].a.case.device), _split(pairs)
    parts: list[str] = []
    for entries, own, other in ((better, device, f" {base}"), (worse, base, f" {device}")):
        factors = [(each.name, times(max(each.speed, 1 / each.speed))) for each in entries[:_SHOWN]]
        named = [f"{name} ({factor}{'' if index else other})" for index, (name, factor) in enumerate(factors)]
        parts += [f"{'but' if parts else 'use'} {own} for {listed(named)}"] if named else []
    if parts:
        yield ", ".join(parts), rests_on


def _gains(axis: str, value: str, pairs: Sequence[Pair]) -> Iterator[Claim]:
    """'bfloat16 makes bert-classify 1.9× as fast as float32, but matmul 0.45×'"""
    makes, base = (f"{value} makes", pairs[0].a.case.dtype) if axis == "dtype" else ("torch.compile makes", "without")
    better, worse, rests_on = _split(pairs)
    parts = [listed([f"{each.name} {times(each.speed)}" for each in own[:_SHOWN]]) for own in (better, worse) if own]
    if not parts:
        return
    parts[0] += f" as fast as {base}"
    paid = [even.steps for pair in rests_on if (even := break_even(pair.a, pair.b))]
    after = f"; compiling pays off after about {float(f'{max(paid):.2g}'):.0f} steps" if paid else ""
    yield f"{makes} {', but '.join(parts)}{after if axis == 'compile' else ''}", rests_on


def _crossings(clear: Sequence[Pair]) -> Iterator[Claim]:
    def key(pair: Pair) -> tuple[str, ...]:
        others = sorted((name, str(value)) for name, value in pair.a.case.params.items() if name != "batch")
        return pair.a.case.workload, pair.a.case.mode, pair.b.case.device, str(others)

    counted = [pair for pair in clear if isinstance(axis_value(pair.a, "batch"), int)]
    for (workload, mode, device, _), own in grouped(counted, key).items():
        own.sort(key=lambda pair: float(axis_value(pair.a, "batch")))
        wins = [pair.ratio < 1 for pair in own]
        if wins == sorted(wins) and len(set(wins)) == 2:
            last, first = (axis_value(own[wins.index(True) - step].a, "batch") for step in (1, 0))
            base = _device_name(own[0].a.case.device)
            yield f"on {workload}/{mode} {base} wins up to batch {last}, {device} from batch {first}", own


def _is_clear(pair: Pair) -> bool:
    if is_published(pair.a) and is_published(pair.b):
        return max(pair.ratio, 1 / pair.ratio) >= PUBLISHED_FACTOR
    return pair.verdict in ("faster", "slower")


def _entries(pairs: Sequence[Pair]) -> Iterator[_Entry]:
    """One for a workload if most of its cases are clear and agree; else one for each clear case."""
    for name, own in grouped(pairs, lambda pair: pair.a.case.workload).items():
        clear = [pair for pair in own if _is_clear(pair)]
        if 2 * len(clear) > len(own) and len({pair.ratio > 1 for pair in clear}) == 1:
            yield _Entry(name if len(clear) == len(own) else f"most of {name}", tuple(clear))
        else:
            yield from (_Entry(pair.a.case.task, (pair,)) for pair in clear)


def _split(pairs: Sequence[Pair]) -> tuple[list[_Entry], list[_Entry], list[Pair]]:
    """What is notably faster, the fastest first, what is notably slower, the slowest first, and their pairs."""
    entries = sorted(_entries(pairs), key=lambda entry: entry.speed)
    better = sorted((each for each in entries if each.speed > WORTHWHILE), key=lambda entry: -entry.speed)
    worse = [each for each in entries if each.speed < 1 / WORTHWHILE]
    return better, worse, [pair for entry in (*better, *worse) for pair in entry.pairs]


def _device_name(device: str) -> str:
    return "the CPU" if device == "cpu" else device


def _about_two(first: Run, second: Run, comparison: Comparison, mean: Family) -> Remark | None:
    pairs, factor = comparison.pairs, max(mean.ratio, 1 / mean.ratio)
    published = all(is_published(pair.a) or is_published(pair.b) for pair in pairs)
    names = [run.header.label or run.header.id for run in (first, second)]
    over = f"over {mean.count} cases (geometric mean)" if mean.count > 1 else f"on {pairs[0].a.case.task}"
    if mean.verdict == "same":
        text = f"{names[0]} and {names[1]} are equally fast within 5% {over}"
    elif mean.verdict != "unsure" or (published and factor >= PUBLISHED_FACTOR):
        winner, loser = names if mean.ratio > 1 else names[::-1]
        text = f"{winner} is {times(factor)} as fast as {loser} {over}"
        speeds = sorted((each.ratio if mean.ratio > 1 else 1 / each.ratio, each.name) for each in comparison.families)
        if len(speeds) > 1:
            (least, slow), *_, (most, fast) = speeds
            text += f", from {times(least)} on {slow} to {times(most)} on {fast}"
    else:
        return None
    marked = "; as published, without an interval" if published else ""
    return Remark("runs", text + marked, cases=tuple(pair.case for pair in pairs))


def _about_results(run: Run) -> Iterator[Remark]:
    results = run.results
    for verdict, cause in zip(DISTURBED, ("a busy machine", "heat or power limits"), strict=True):
        slowed = [each for each in results if each.estimate and each.estimate.verdict == verdict]
        if cases := [each.case for each in slowed if (grade := grade_of(each)) and grade.word != "good"]:
            more, again = (f" and {len(cases) - 1} more were", "them") if len(cases) > 1 else (" was", "it")
            text = f"{cases[0].task}{more} slowed by {cause}: measure {again} again"
            yield Remark("disturbed", text, cases=tuple(case.text for case in cases))
    shares, loading = dict[str, float](), list[str]()
    for result in results:
        stages = [stage for stage in result.job.stages if stage.name == LOADING] if result.job else []
        # A share matters if it does at both ends of its interval. Loaders that work ahead hide a part of it.
        if stages and result.estimate and stages[0].low_s > 0.2 * result.estimate.mean_high_s > 0:
            task, share = result.case.task, stages[0].center_s / result.estimate.mean_s
            shares[task] = max(share, shares.get(task, 0.0))
            loading.append(result.case.text)
    if shares:
        parts = ", ".join(f"{share:.0%} of a step of {task}" for task, share in shares.items())
        yield Remark("loader", f"Fetching data takes up to {parts}", cases=tuple(loading))
    eager = [(result.case, result.estimate) for result in results if result.case.compile == "off"]
    known = [(found.first_step_s, found.center_s, case) for case, found in eager if found]
    slow = [each for each in known if each[0] > max(FIRST_STEP_S, FIRST_STEP_TIMES * each[1])]
    for first_s, step_s, case in sorted(slow, key=itemgetter(0), reverse=True)[:1]:
        rest = f"{times(first_s / max(step_s, 1e-9))} as long as a later one"
        text = f"The first step of {case.task} took {first_s:.3g} s, {rest}"
        yield Remark("first-step", text, cases=(case.text,))


def _memory(results: Sequence[Result]) -> Iterator[Remark]:
    tried = [(result.params.get("batch", result.case.params.get("batch")), result) for result in results]
    sizes = [(size, r) for size, r in tried if isinstance(size, int) and r.status in ("ok", *NO_ROOM)]
    for text, found in grouped(sizes, lambda each: changed(each[1].case, "batch", None).text).items():
        last = max((each for each in found if each[1].status == "ok"), default=None, key=itemgetter(0))
        first = min((each for each in found if each[1].status != "ok"), default=None, key=itemgetter(0))
        if last and first and last[0] < first[0]:
            task, device = text.split("@")[0], last[1].case.device
            fact = f"{task} fits into {device} with batch {last[0]:g}, and not with {first[0]:g}"
            yield Remark("memory", fact, cases=(last[1].case.text, first[1].case.text))
