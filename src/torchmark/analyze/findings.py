"""What stored results say in plain sentences; every sentence is supported by the intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.comparison import Comparison, Pair, compare_all, compare_within, overall
from torchmark.analyze.grades import grade_of, is_published
from torchmark.analyze.machines import find_outliers
from torchmark.analyze.pairing import axis_value, join_machines
from torchmark.analyze.roofline import LOADING
from torchmark.analyze.wording import listed
from torchmark.records import DISTURBED, NO_ROOM, Case, Remark, Result, Run

# Published figures have no interval: only what no flaw of their procedure could bring about is passed on.
PUBLISHED_FACTOR = 1.5
PUBLISHED, MEASURED = "published", "measured"  # what a claim rests on, until it gets the kind of a finding
WORTHWHILE = 1.1  # smaller gains are not mentioned
_SHOWN = 3  # workloads that a sentence lists


class _Entry(Struct, frozen=True):
    """A workload, or one case of it, with the speeds that were found: how many times as fast as the baseline."""

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


def _claims_by_devices(pairs: Sequence[Pair]) -> Iterator[Remark]:
    for device, own in _by_other(pairs, "device"):
        base = device_name(own[0].a.case.device)
        entries = _entries(own)
        better = _ranked([entry for entry in entries if entry.speed > WORTHWHILE])
        worse = _ranked([entry for entry in entries if entry.speed < 1 / WORTHWHILE], reverse=False)
        wins = _factors([(entry.name, entry.speed) for entry in better], base)
        losses = _factors([(entry.name, 1 / entry.speed) for entry in worse], device)
        parts = [f"use {device} for {listed(wins)}"] if wins else []
        parts += [f"{'but ' if wins else 'use '}{base} for {listed(losses)}"] if losses else []
        if parts:
            yield _claim(", ".join(parts), [*better, *worse])
    yield from _crossings(pairs)


def _claims_by_dtypes(pairs: Sequence[Pair]) -> Iterator[Remark]:
    for dtype, own in _by_other(pairs, "dtype"):
        yield from _gains(own, f"{dtype} makes", f"{own[0].a.case.dtype}")


def _claims_by_compile(pairs: Sequence[Pair]) -> Iterator[Remark]:
    """What compiling brings, and after how many steps its own time is won back."""
    for _, own in _by_other(pairs, "compile"):
        for claim in _gains(own, "torch.compile makes", "without"):
            paid = [steps for pair in own if pair.case in claim.cases and (steps := _break_even(pair)) is not None]
            after = f"; compiling pays off after about {float(f'{max(paid):.2g}'):.0f} steps" if paid else ""
            yield replace(claim, cause=claim.cause + after)


def _claims_by_batches(pairs: Sequence[Pair]) -> Iterator[Remark]:
    """How much more a larger batch gets out of the machine."""

    def name(value: object) -> str:
        return "the default batch" if value == "default" else f"batch {value}"

    yield from _best_of(pairs, "batch", name, "the rate of")


def _claims_by_threads(pairs: Sequence[Pair]) -> Iterator[Remark]:
    yield from _best_of(pairs, "threads", lambda value: f"{value} thread{'s' if value != 1 else ''}", "the speed of")
    slow = [pair for pair in pairs if _is_clear(pair) and pair.ratio > WORTHWHILE]
    for pair in sorted(slow, key=lambda pair: -pair.ratio)[:1]:
        few, many = axis_value(pair.a, "threads"), axis_value(pair.b, "threads")
        yield _claim(f"{many} threads make {pair.a.case.task} {times(1 / pair.ratio)} as fast as {few}", [pair])


def _claims_by_workers(pairs: Sequence[Pair]) -> Iterator[Remark]:
    for entry in (_Entry(pair.a.case.task, (pair,)) for pair in pairs if _is_clear(pair)):
        (pair,) = entry.pairs
        few, many = pair.a.case.workers, pair.b.case.workers
        shares = [pair.b.metrics.get("communication_share")]
        talk = "".join(f", and {share:.0%} of a step is communication" for share in shares if share)
        lone = "one" if few == 1 else str(few)
        fact = f"{many} workers do {times(entry.speed)} the work of {lone} on {entry.name}"
        yield _claim(f"{fact} (efficiency {entry.speed * few / many:.0%}{talk})", [pair])


def _claims_by_transfers(pairs: Sequence[Pair]) -> Iterator[Remark]:
    costly = _ranked([entry for entry in _entries(pairs) if entry.speed < 1], reverse=False)
    cheap = [pair for pair in pairs if pair.verdict == "same" and pair.high is not None]
    costs = [f"{1 / entry.speed - 1:.0%} on {entry.name}" for entry in costly[:_SHOWN]]
    costs += [f"at most {max((pair.high or 1) - 1, 0.001):.1%} on {pair.a.case.task}" for pair in cheap[:_SHOWN]]
    if costly:
        yield _claim(f"per-step copies cost {listed(costs)}", [*costly, *cheap])


_CLAIMS: dict[str, Callable[[Sequence[Pair]], Iterator[Remark]]] = {
    "device": _claims_by_devices,
    "dtype": _claims_by_dtypes,
    "compile": _claims_by_compile,
    "batch": _claims_by_batches,
    "threads": _claims_by_threads,
    "workers": _claims_by_workers,
    "transfer": _claims_by_transfers,
}


def _is_clear(pair: Pair) -> bool:
    """Whether the difference is more than chance, a busy machine or a flawed procedure can explain."""
    if _is_published(pair):
        return max(pair.ratio, 1 / pair.ratio) >= PUBLISHED_FACTOR
    return pair.verdict in ("faster", "slower")


def _is_published(pair: Pair) -> bool:
    return all(map(is_published, (pair.a, pair.b)))


def _entries(pairs: Sequence[Pair]) -> list[_Entry]:
    """One for a workload where most cases are clear and none of those disagrees; else one for each clear case."""
    families: dict[str, list[Pair]] = {}
    for pair in pairs:
        families.setdefault(pair.a.case.workload, []).append(pair)
    entries = []
    for name, own in families.items():
        clear = [pair for pair in own if _is_clear(pair)]
        if 2 * len(clear) > len(own) and len({pair.ratio > 1 for pair in clear}) == 1:
            entries.append(_Entry(name if len(clear) == len(own) else f"most of {name}", tuple(clear)))
        else:
            entries += [_Entry(pair.a.case.task, (pair,)) for pair in clear]
    return entries


def _gains(pairs: Sequence[Pair], makes: str, base: str) -> Iterator[Remark]:
    """'bfloat16 makes bert-classify 1.9× as fast as float32, but matmul 0.45×'"""
    entries = _entries(pairs)
    better = _ranked([entry for entry in entries if entry.speed > WORTHWHILE])
    worse = _ranked([entry for entry in entries if entry.speed < 1 / WORTHWHILE], reverse=False)
    faster = [f"{entry.name} {times(entry.speed)}" for entry in better[:_SHOWN]]
    slower = [f"{entry.name} {times(entry.speed)}" for entry in worse[:_SHOWN]]
    parts = [f"{listed(faster)} as fast as {base}"] if faster else []
    parts += [f"{listed(slower)}{'' if faster else f' as fast as {base}'}"] if slower else []
    if parts:
        yield _claim(f"{makes} {', but '.join(parts)}", [*better, *worse])


def _factors(speeds: Sequence[tuple[str, float]], base: str) -> list[str]:
    """'resnet50 (12.5× the CPU)', 'mlp (2.6×)'"""
    (name, speed), *others = speeds or [("", 1.0)]
    first = [f"{name} ({times(speed)} {base})"] if name else []
    return first + [f"{name} ({times(speed)})" for name, speed in others[: _SHOWN - 1]]


def _best_of(pairs: Sequence[Pair], axis: str, name: Callable[[object], str], unit: str) -> Iterator[Remark]:
    """Of each group that shares a baseline the value that gains most; the most striking group speaks for all."""
    clear = [pair for pair in pairs if _is_clear(pair) and 1 / pair.ratio > WORTHWHILE]
    best: dict[str, Pair] = {}
    for pair in clear:
        known = best.get(pair.case)
        if known is None or pair.ratio < known.ratio:
            best[pair.case] = pair
    for pair in sorted(best.values(), key=lambda pair: pair.ratio)[:1]:
        few, many = name(axis_value(pair.a, axis)), name(axis_value(pair.b, axis))
        task = f"{pair.a.case.workload}/{pair.a.case.mode}"
        gives = "give" if many.endswith("s") else "gives"
        yield _claim(f"{many} {gives} {times(1 / pair.ratio)} {unit} {few} on {task}", [pair])


def _crossings(pairs: Sequence[Pair]) -> Iterator[Remark]:
    """From which batch on another device wins, where it does not win from the first."""
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in pairs:
        if _is_clear(pair) and isinstance(axis_value(pair.a, "batch"), int):
            others = sorted((name, str(value)) for name, value in pair.a.case.params.items() if name != "batch")
            key = (pair.a.case.workload, pair.a.case.mode, pair.b.case.device, str(others))
            groups.setdefault(key, []).append(pair)
    for (workload, mode, device, _), own in groups.items():
        own.sort(key=lambda pair: float(axis_value(pair.a, "batch")))
        wins = [pair.ratio < 1 for pair in own]
        if wins == sorted(wins) and len(set(wins)) == 2:
            last, first = (axis_value(own[wins.index(True) - step].a, "batch") for step in (1, 0))
            base = device_name(own[0].a.case.device)
            yield _claim(f"on {workload}/{mode} {base} wins up to batch {last}, {device} from batch {first}", own)


def _break_even(pair: Pair) -> float | None:
    """Steps after which the time that compiling took is won back."""
    eager, compiled = pair.a.estimate, pair.b.estimate
    if not eager or not compiled or compiled.center_s >= eager.center_s:
        return None
    spent = compiled.first_step_s - eager.first_step_s
    return spent / (eager.center_s - compiled.center_s) if spent > 0 else None


def _by_other(pairs: Sequence[Pair], axis: str) -> Iterator[tuple[str, list[Pair]]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(str(axis_value(pair.b, axis)), []).append(pair)
    yield from groups.items()


def _ranked(entries: Sequence[_Entry], reverse: bool = True) -> list[_Entry]:
    return sorted(entries, key=lambda entry: entry.speed, reverse=reverse)


def _claim(text: str, rests_on: Sequence[_Entry | Pair]) -> Remark:
    pairs = [pair for each in rests_on for pair in (each.pairs if isinstance(each, _Entry) else (each,))]
    cases = dict.fromkeys(text for pair in pairs for text in (pair.a.case.text, pair.b.case.text))
    return Remark(PUBLISHED if all(map(_is_published, pairs)) else MEASURED, text, cases=tuple(cases))


def device_name(device: str) -> str:
    """A device as a sentence calls it."""
    return "the CPU" if device == "cpu" else device


FIRST_STEP_S = 3.0  # a shorter first step is not mentioned
FIRST_STEP_TIMES = 10.0
LOADING_SHARE = 0.2  # of a step, from which waiting for data is mentioned
MANY_RUNS = 3  # of more runs only the fastest and the slowest are mentioned
ORDER = (
    "runs", "outlier", "device", "disturbed", "dtype", "compile", "batch", "threads", "workers",
    "transfer", "loader", "memory", "first-step",
)  # fmt: skip


def find_all(runs: Sequence[Run]) -> tuple[Remark, ...]:
    """Everything worth saying about these runs, the most important first.

    Settings are compared inside each machine, with the same evidence that is asked of any comparison; published
    figures have no intervals, so a sentence about them says that it is theirs.
    """
    machines = join_machines(runs)
    found = _about_runs(runs) if len(runs) > 1 else []
    found += [Remark("outlier", each.text) for each in find_outliers(runs)]
    for run in machines:
        own = [*_claims(run), *_observations(run)]
        own = [finding for finding in own if finding.kind != "memory" or not run.fitting]  # its conclusion says it
        name = f"{run.header.label or run.header.id}: " if len(machines) > 1 else ""
        found += [replace(finding, cause=name + finding.cause) for finding in own]
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.kind)))


def _claims(run: Run) -> Iterator[Remark]:
    """Compare devices first, then settings on each device."""
    devices = dict.fromkeys(result.case.device for result in run.results)
    for axis, find in _CLAIMS.items():
        values = {getattr(result.case, axis, None) or result.case.params.get(axis) for result in run.results}
        if len(values) < 2:  # nothing varies, which is cheaper to see here
            continue
        (comparison,) = compare_within([run], axis)
        if axis == "device" or len(devices) == 1:
            yield from (_finding(axis, claim) for claim in find(comparison.pairs))
            continue
        for device in devices:
            own = [pair for pair in comparison.pairs if pair.a.case.device == device]
            where = f"on {device_name(device)} "
            yield from (_finding(axis, replace(claim, cause=where + claim.cause)) for claim in find(own))


def _finding(kind: str, claim: Remark) -> Remark:
    if claim.kind == PUBLISHED:
        return replace(claim, kind=kind, cause=f"As published, {claim.cause}")
    word = claim.cause.split()[0]
    begin = word.capitalize() if word.isalpha() else word  # bfloat16 and torch.compile are names
    return replace(claim, kind=kind, cause=begin + claim.cause[len(word) :])


def _about_runs(runs: Sequence[Run]) -> list[Remark]:
    """How every later run compares with the first, over all their cases; of many the fastest and the slowest."""
    found = [
        (comparison, finding)
        for run, comparison in zip(runs[1:], compare_all(runs), strict=True)
        if (finding := _about_two(runs[0], run, comparison))
    ]
    if len(found) > MANY_RUNS:
        found.sort(key=lambda each: mean.ratio if (mean := overall(each[0].families)) else 1.0)
        found = [found[0], found[-1]]
    return [finding for _, finding in found]


def _about_two(first: Run, second: Run, comparison: Comparison) -> Remark | None:
    """Name the faster run first. Figures without an interval count only if published, and are marked so."""
    mean = overall(comparison.families)
    if mean is None:
        return None
    published = all(is_published(pair.a) or is_published(pair.b) for pair in comparison.pairs)
    factor = max(mean.ratio, 1 / mean.ratio)
    names = [run.header.label or run.header.id for run in (first, second)]
    over = f"over {mean.count} cases (geometric mean)" if mean.count > 1 else f"on {comparison.pairs[0].a.case.task}"
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
    text += "; as published, without an interval" if published else ""
    return Remark("runs", text, cases=tuple(pair.case for pair in comparison.pairs))


def _observations(run: Run) -> Iterator[Remark]:
    yield from _disturbed(run.results)
    yield from _loading(run.results)
    yield from _memory(run.results)
    yield from _first_steps(run.results)


def _disturbed(results: Sequence[Result]) -> Iterator[Remark]:
    causes = {"contended": "a busy machine", "throttled": "heat or power limits"}
    for verdict in DISTURBED:
        slowed = [each for each in results if each.estimate and each.estimate.verdict == verdict]
        cases = [each.case for each in slowed if (grade := grade_of(each)) and grade.word != "good"]
        if cases:
            more = f" and {len(cases) - 1} more were" if len(cases) > 1 else " was"
            again = "them" if len(cases) > 1 else "it"
            text = f"{cases[0].task}{more} slowed by {causes[verdict]}: measure {again} again"
            yield Remark("disturbed", text, cases=tuple(case.text for case in cases))


def _loading(results: Sequence[Result]) -> Iterator[Remark]:
    """Shares that matter at both ends of their intervals; loaders that work ahead hide a part of them."""
    shares: dict[str, float] = {}
    cases: list[str] = []
    for result in results:
        stages = [stage for stage in result.job.stages if stage.name == LOADING] if result.job else []
        if stages and result.estimate and stages[0].low_s > LOADING_SHARE * result.estimate.mean_high_s > 0:
            task, share = result.case.task, stages[0].center_s / result.estimate.mean_s
            shares[task] = max(share, shares.get(task, 0.0))
            cases.append(result.case.text)
    if shares:
        listed = ", ".join(f"{share:.0%} of a step of {task}" for task, share in shares.items())
        yield Remark("loader", f"Fetching data takes up to {listed}", cases=tuple(cases))


def _memory(results: Sequence[Result]) -> Iterator[Remark]:
    """The batch that still fits where a larger one did not."""
    fits: dict[str, list[tuple[float, bool, Case]]] = {}
    for result in results:
        batch = result.params.get("batch", result.case.params.get("batch"))
        if isinstance(batch, int) and result.status in ("ok", *NO_ROOM):
            others = {name: value for name, value in result.case.params.items() if name != "batch"}
            case = replace(result.case, params=others)
            fits.setdefault(case.text, []).append((batch, result.status == "ok", result.case))
    for found in fits.values():
        good, bad = ([each for each in found if each[1] is fine] for fine in (True, False))
        last, first = max(good, default=None, key=itemgetter(0)), min(bad, default=None, key=itemgetter(0))
        if last and first and last[0] < first[0]:
            case = replace(last[2], params={name: each for name, each in last[2].params.items() if name != "batch"})
            fact = f"{case.task} fits into {case.device} with batch {last[0]:g}, and not with {first[0]:g}"
            yield Remark("memory", fact, cases=(last[2].text, first[2].text))


def _first_steps(results: Sequence[Result]) -> Iterator[Remark]:
    slow = [
        (result.estimate.first_step_s, result)
        for result in results
        if result.estimate
        and result.case.compile == "off"
        and result.estimate.first_step_s > max(FIRST_STEP_S, FIRST_STEP_TIMES * result.estimate.center_s)
    ]
    if slow:
        seconds, result = max(slow, key=lambda each: each[0])
        assert result.estimate is not None
        rest = f"{times(seconds / max(result.estimate.center_s, 1e-9))} as long as a later one"
        yield Remark(
            "first-step",
            f"The first step of {result.case.task} took {seconds:.3g} s, {rest}",
            cases=(result.case.text,),
        )
