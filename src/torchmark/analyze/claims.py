"""Sentences about settings of one machine, drawn from pairs of results that differ in that setting alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from torchmark.analyze.comparison import Pair
from torchmark.analyze.pairing import axis_value
from torchmark.analyze.published import is_published

# Published figures have no interval: only what no flaw of their procedure could bring about is passed on.
PUBLISHED_FACTOR = 1.5
WORTHWHILE = 1.1  # a gain smaller than this is not worth a sentence
_SHOWN = 3  # workloads that a sentence lists


class Claim(Struct, frozen=True):
    """A sentence that begins with a small letter, and the cases that it rests on."""

    text: str
    cases: tuple[str, ...]
    published: bool = False


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


def tell_devices(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """Which device for which work."""
    for device, own in _by_other(pairs, "device"):
        base = device_name(own[0].a.case.device)
        entries = _entries(own)
        better = _ranked([entry for entry in entries if entry.speed > WORTHWHILE])
        worse = _ranked([entry for entry in entries if entry.speed < 1 / WORTHWHILE], reverse=False)
        wins = _factors([(entry.name, entry.speed) for entry in better], base)
        losses = _factors([(entry.name, 1 / entry.speed) for entry in worse], device)
        parts = [f"use {device} for {_listed(wins)}"] if wins else []
        parts += [f"{'but ' if wins else 'use '}{base} for {_listed(losses)}"] if losses else []
        if parts:
            yield _claim(", ".join(parts), [*better, *worse])
    yield from _crossings(pairs)


def tell_dtypes(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """What shorter numbers bring."""
    for dtype, own in _by_other(pairs, "dtype"):
        yield from _gains(own, f"{dtype} makes", f"{own[0].a.case.dtype}")


def tell_compile(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """What compiling brings, and after how many steps its own time is won back."""
    for _, own in _by_other(pairs, "compile"):
        for claim in _gains(own, "torch.compile makes", "without"):
            paid = [steps for pair in own if pair.case in claim.cases and (steps := _break_even(pair)) is not None]
            after = f"; compiling pays off after about {float(f'{max(paid):.2g}'):.0f} steps" if paid else ""
            yield Claim(claim.text + after, claim.cases, claim.published)


def tell_batches(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """How much more a larger batch gets out of the machine."""

    def name(value: object) -> str:
        return "the default batch" if value == "default" else f"batch {value}"

    yield from _best_of(pairs, "batch", name, "the rate of")


def tell_threads(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """What more threads bring, or cost."""
    yield from _best_of(pairs, "threads", lambda value: f"{value} thread{'s' if value != 1 else ''}", "the speed of")
    slow = [pair for pair in pairs if _is_clear(pair) and pair.ratio > WORTHWHILE]
    for pair in sorted(slow, key=lambda pair: -pair.ratio)[:1]:
        few, many = axis_value(pair.a, "threads"), axis_value(pair.b, "threads")
        yield _claim(f"{many} threads make {pair.a.case.task} {times(1 / pair.ratio)} as fast as {few}", [pair])


def tell_workers(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """What more workers bring, and how much of each is lost."""
    for entry in (_Entry(pair.a.case.task, (pair,)) for pair in pairs if _is_clear(pair)):
        (pair,) = entry.pairs
        few, many = pair.a.case.workers, pair.b.case.workers
        shares = [pair.b.metrics.get("communication_share")]
        talk = "".join(f", and {share:.0%} of a step is communication" for share in shares if share)
        lone = "one" if few == 1 else str(few)
        fact = f"{many} workers do {times(entry.speed)} the work of {lone} on {entry.name}"
        yield _claim(f"{fact} (efficiency {entry.speed * few / many:.0%}{talk})", [pair])


def tell_transfers(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """What copies to and from the device cost in every step."""
    dear = _ranked([entry for entry in _entries(pairs) if entry.speed < 1], reverse=False)
    cheap = [pair for pair in pairs if pair.verdict == "same" and pair.high is not None]
    costs = [f"{1 / entry.speed - 1:.0%} on {entry.name}" for entry in dear[:_SHOWN]]
    costs += [f"at most {max((pair.high or 1) - 1, 0.001):.1%} on {pair.a.case.task}" for pair in cheap[:_SHOWN]]
    if dear:
        yield _claim(f"per-step copies cost {_listed(costs)}", [*dear, *cheap])


CLAIMS: dict[str, Callable[[Sequence[Pair]], Iterator[Claim]]] = {
    "device": tell_devices,
    "dtype": tell_dtypes,
    "compile": tell_compile,
    "batch": tell_batches,
    "threads": tell_threads,
    "workers": tell_workers,
    "transfer": tell_transfers,
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


def _gains(pairs: Sequence[Pair], makes: str, base: str) -> Iterator[Claim]:
    """'bfloat16 makes bert-classify 1.9× as fast as float32, but matmul 0.45×'"""
    entries = _entries(pairs)
    better = _ranked([entry for entry in entries if entry.speed > WORTHWHILE])
    worse = _ranked([entry for entry in entries if entry.speed < 1 / WORTHWHILE], reverse=False)
    faster = [f"{entry.name} {times(entry.speed)}" for entry in better[:_SHOWN]]
    slower = [f"{entry.name} {times(entry.speed)}" for entry in worse[:_SHOWN]]
    parts = [f"{_listed(faster)} as fast as {base}"] if faster else []
    parts += [f"{_listed(slower)}{'' if faster else f' as fast as {base}'}"] if slower else []
    if parts:
        yield _claim(f"{makes} {', but '.join(parts)}", [*better, *worse])


def _factors(speeds: Sequence[tuple[str, float]], base: str) -> list[str]:
    """'resnet50 (12.5× the CPU)', 'mlp (2.6×)'"""
    (name, speed), *others = speeds or [("", 1.0)]
    first = [f"{name} ({times(speed)} {base})"] if name else []
    return first + [f"{name} ({times(speed)})" for name, speed in others[: _SHOWN - 1]]


def _best_of(pairs: Sequence[Pair], axis: str, name: Callable[[object], str], unit: str) -> Iterator[Claim]:
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
        yield _claim(f"{many} {_gives(many)} {times(1 / pair.ratio)} {unit} {few} on {task}", [pair])


def _gives(subject: str) -> str:
    return "give" if subject.endswith("s") else "gives"


def _crossings(pairs: Sequence[Pair]) -> Iterator[Claim]:
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


def _claim(text: str, rests_on: Sequence[_Entry | Pair]) -> Claim:
    pairs = [pair for each in rests_on for pair in (each.pairs if isinstance(each, _Entry) else (each,))]
    cases = dict.fromkeys(text for pair in pairs for text in (pair.a.case.text, pair.b.case.text))
    return Claim(text, tuple(cases), all(map(_is_published, pairs)))


def device_name(device: str) -> str:
    """A device as a sentence calls it."""
    return "the CPU" if device == "cpu" else device


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
