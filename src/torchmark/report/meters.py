"""What meters said of a result, and how a case that was kept going came through, in words that every report shares."""

from __future__ import annotations

from collections.abc import Iterator

from torchmark.analyze.energy import item_energy, step_energy
from torchmark.records import Metered, Result, Run
from torchmark.report import units

NOTABLE = 0.01  # a change that is worth a word
VAGUE = 0.1  # an interval that reaches so far says nothing
ESTIMATED = "estimated"


def energy(result: Result) -> str:
    """The energy of one item; of a step where a step is worth nothing else."""
    joules, unit = item_energy(result), result.work.unit if result.work else ""
    if joules is None:
        joules, unit = step_energy(result.estimate) if result.estimate else None, "step"
    mark = "~" if result.provenance.get("energy", "").startswith(ESTIMATED) else ""
    return units.NOTHING if joules is None else f"{mark}{units.energy(joules)}/{unit}"


def knows_energy(result: Result) -> bool:
    return bool(result.estimate and result.estimate.metered.mean_w is not None)


def rows(result: Result) -> Iterator[tuple[str, str]]:
    """Everything that was read, each with where it comes from, or why it is not there."""
    seen = result.estimate.metered if result.estimate else Metered()
    texts = {
        "energy": _power(result, seen),
        "clock": f"{_gigahertz(seen.clock_hz[1])} at last, at most {_gigahertz(seen.clock_hz[0])}"
        if seen.clock_hz
        else "",
        "temperature": f"{seen.temperature_c[0]:.0f} °C at first, at most {seen.temperature_c[1]:.0f} °C"
        if seen.temperature_c
        else "",
        "throttling": ", ".join(seen.throttle),
    }
    for name, source in result.provenance.items():
        known, text = name in texts, texts.pop(name, "")
        if known or source.startswith("unavailable"):  # what contention rests on is told with it
            yield name, f"{text} ({source})" if text else source
    yield from ((name, text) for name, text in texts.items() if text)
    if seen.major_faults:
        yield "from disk", f"{seen.major_faults} pages"


def _power(result: Result, seen: Metered) -> str:
    if seen.mean_w is None or result.estimate is None:
        return ""
    peak = f" (peak {units.power(seen.peak_w)})" if seen.peak_w is not None else ""
    step = units.energy(step_energy(result.estimate))
    each = f", {energy(result)}" if item_energy(result) is not None else ""
    return f"{units.power(seen.mean_w)}{peak}, {step}/step{each}"


def _gigahertz(hertz: float) -> str:
    return f"{hertz / 1e9:.2f} GHz"


def sustained(run: Run) -> list[tuple[Result, str]]:
    """Of every case that was kept going: its first seconds against its last."""
    return [(result, sustained_text(result)) for result in run.results if result.sustained]


def sustained_text(result: Result) -> str:
    """2.53 ms a step in the first 10 s, 2.71 ms in the last: 7.1% slower (6.8% to 7.5%), +3.2% a minute"""
    found = result.sustained
    if found is None or found.first_s <= 0:
        return ""
    change, (low, high) = found.last_s / found.first_s - 1, found.interval
    window = units.duration(found.window_s)
    ends = f"{units.duration(found.first_s)} a step in the first {window}, {units.duration(found.last_s)} in the last"
    if low <= 0 <= high and max(-low, high) > VAGUE:
        return f"{ends}: too noisy to tell them apart ({_signed(low)} to {_signed(high)})"
    if low <= 0 <= high or abs(change) < NOTABLE:
        return f"{ends}: the same within {units.percent(max(abs(low), abs(high)))}"
    word = "slower" if change > 0 else "faster"
    between = " to ".join(units.percent(abs(bound)) for bound in sorted((low, high), key=abs))
    slope = f"{_signed(found.slope)} a minute"
    cause = found.cause or ("no meter shows why" if change > 0 else "")
    return f"{ends}: {units.percent(abs(change))} {word} ({between}), {slope}" + (f"; {cause}" if cause else "")


def _signed(share: float) -> str:
    return ("+" if share >= 0 else "") + units.percent(share)
