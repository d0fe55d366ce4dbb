"""The headline of a run: its speed in each area, between the next faster and the next slower published machine."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.analyze.grades import (
    Grade,
    Word,
    answer_within,
    band_of,
    flaws_of,
    grade_of,
    is_published,
    margin_of,
    taken_share,
    worst,
)
from torchmark.analyze.wording import listed
from torchmark.records import Case, Estimate, Result, Run, Value

Figure = Literal["rate", "step", "job"]

QUIET_SHARE = 0.02  # of the processor, that others may take unnoticed
NOT_A_NEIGHBOUR = frozenset(("overheated", "unknown-hardware", "unknown-device", "not-comparable"))
# Flaws that make a published figure far from what the machine can do, in a few words.
FOOTNOTES = {
    "slow-convolutions": "published with a torch build whose CPU convolutions were slow",
    "thread-oversubscription": "published with more threads than such small steps can use",
}
LONGEST_SENTENCE = 148  # two lines of 80 columns, with "In short:" in front


class Lead(Struct, frozen=True):
    """The representative case of an area."""

    area: str
    workload: str
    mode: str = "infer"
    params: dict[str, Value] = field(default_factory=dict)
    figure: Figure = "rate"
    unit: str = ""  # of an item; of a job: its name
    work: str = ""  # the area as a sentence names it, where that is another word


LEADS = (
    Lead("vision", "resnet50", unit="image"),
    Lead("text", "bert-encode", params={"batch": 4}, unit="sample"),
    Lead("language", "llm-decode", unit="token"),
    Lead("memory", "tensor-add", params={"variant": "as-run"}, unit="add", work="memory-bound work"),
    Lead("small steps", "mlp", params={"outputs": 512}, figure="step"),
    Lead("whole jobs", "mnist-cnn", mode="train", figure="job", unit="MNIST"),
)


class Neighbour(Struct, frozen=True):
    """A published machine that did the same work."""

    name: str  # M1 CPU
    run: str  # m1-chips/M1 CPU
    device: str
    ratio: float  # how many times as fast as this machine
    similar: bool  # the ratio lies inside both uncertainties
    flaws: tuple[str, ...] = ()  # known reasons why the published figure is off


class Area(Struct, frozen=True):
    """One figure: items per second, or seconds of a step or of a whole job."""

    name: str
    case: str
    figure: Figure
    value: float
    unit: str
    margin: float | None  # half the interval in which a repeat would land, relative; None: unknown
    grade: Grade
    faster: Neighbour | None = None
    slower: Neighbour | None = None


class Block(Struct, frozen=True):
    """The areas of one device."""

    device: str
    areas: tuple[Area, ...]
    in_short: str = ""


class Command(Struct, frozen=True):
    """What to type next."""

    purpose: str
    command: str


class Headline(Struct, frozen=True):
    """What a run says at first sight: one block for each device, the fastest first."""

    blocks: tuple[Block, ...]
    grade: Word  # of the worst area
    confidence: str
    commands: tuple[Command, ...] = ()


class _Found(Struct, frozen=True):
    """The measured lead of an area, with all published machines that did the same work."""

    lead: Lead
    result: Result
    area: Area
    others: tuple[Neighbour, ...] = ()


def build_headline(run: Run, published: Sequence[Run], name: str | None = None) -> Headline | None:
    """The headline; None where no lead case was measured, or where the run is no plain `torchmark run`.

    `name` is what the next commands call the run.
    """
    if run.header.steps or run.header.command.split(" ")[:2] != ["torchmark", "run"]:
        return None
    leads = [(lead, result) for device in _devices(run) for lead, result in _leads(run, device)]
    found = [_found(lead, result, published) for lead, result in leads if _has_figure(lead, result)]
    if not found:
        return None
    own = {device: [each for each in found if each.result.case.device == device] for device in _devices(run)}
    blocks = [Block(name, tuple(each.area for each in group), _in_short(name, group)) for name, group in own.items()]
    left_out = [(lead.area, result) for lead, result in leads if not _has_figure(lead, result)]
    return Headline(
        blocks=tuple(_fastest_first(blocks)),
        grade=worst([each.area.grade.word for each in found]),
        confidence=_confidence(found, left_out),
        commands=tuple(_commands(found, name or run.header.id)),
    )


def times(ratio: float) -> str:
    """46×, 2.3×, 0.67×: two digits, as a published figure bears no more."""
    return f"{float(f'{ratio:.2g}'):g}×"


def _devices(run: Run) -> list[str]:
    return _unique(result.case.device for result in run.results)


def _leads(run: Run, device: str) -> Iterator[tuple[Lead, Result]]:
    """The representative result of each area: with the lead's parameters, else with the defaults."""
    for lead in LEADS:
        alike = [
            each
            for each in run.results
            if each.case == Case(lead.workload, lead.mode, each.case.params, device, threads=each.case.threads)
        ]
        for params in (lead.params, {}):
            found = [each for each in alike if each.case.params == params]
            if len(found) == 1:
                yield lead, found[0]
                break


def _has_figure(lead: Lead, result: Result) -> bool:
    return grade_of(result) is not None and _estimate(lead, result).center_s > 0


def _estimate(lead: Lead, result: Result) -> Estimate:
    """Of the step or, for a job, of the job: its interval is at least as wide as that of its steps."""
    found, job = result.estimate, result.job
    assert found is not None
    if lead.figure != "job":
        return found
    if job is None or job.seconds <= 0:
        return replace(found, center_s=0.0)
    half = max(found.precision * job.seconds, (job.high_s - job.low_s) / 2)
    return replace(found, center_s=job.seconds, low_s=job.seconds - half, high_s=job.seconds + half)


def _found(lead: Lead, result: Result, published: Sequence[Run]) -> _Found:
    estimate = _estimate(lead, result)
    grade = grade_of(replace(result, estimate=estimate))
    assert grade is not None
    items = result.work.items if result.work and lead.figure == "rate" else 0.0
    others = [] if lead.figure == "job" else _neighbours(result, published)
    area = Area(
        name=lead.area,
        case=result.case.text,
        figure=lead.figure if items or lead.figure != "rate" else "step",
        value=items / estimate.center_s if items else estimate.center_s,
        unit=lead.unit,
        margin=margin_of(estimate),
        grade=grade,
        faster=min((each for each in others if each.ratio >= 1), key=lambda each: each.ratio, default=None),
        slower=max((each for each in others if each.ratio < 1), key=lambda each: each.ratio, default=None),
    )
    return _Found(lead, result, area, tuple(others))


def _neighbours(result: Result, published: Sequence[Run]) -> list[Neighbour]:
    """All published machines with a name that did the same work; one that was published twice counts once."""
    found: dict[str, Neighbour] = {}
    for run in published:
        for other in run.results:
            if _is_equal_work(result, other):
                hardware, name = _names(run, other)
                found.setdefault(hardware, _neighbour(result, other, name, run.header.id))
    return list(found.values())


def _is_equal_work(ours: Result, other: Result) -> bool:
    if other.status != "ok" or other.estimate is None or other.estimate.center_s <= 0 or not is_published(other):
        return False
    same = replace(other.case, device=ours.case.device, threads=ours.case.threads, protocol="steady") == ours.case
    kinds = {caution.kind for caution in other.cautions}
    items = [each.work.items for each in (ours, other) if each.work]
    return same and other.version == ours.version and len(set(items)) <= 1 and not kinds & NOT_A_NEIGHBOUR


def _names(run: Run, result: Result) -> tuple[str, str]:
    """The hardware without its maker, and its display name: the publication's where that is shorter."""
    own = run.header.id.rpartition("/")[2]
    model = next((info.model for info in run.header.machine.devices if info.name == result.case.device), own)
    plain = re.sub(r"\b(NVIDIA|GeForce|Intel|AMD|Apple) +|[,(].*", "", model).strip()
    kind = {"cpu": " CPU", "mps": " GPU"}.get(result.case.device, "") if model.startswith("Apple") else ""
    hardware = plain + kind
    return hardware, own if hardware.startswith(own) else hardware


def _neighbour(ours: Result, other: Result, name: str, run: str) -> Neighbour:
    assert ours.estimate is not None
    assert other.estimate is not None
    ratio = ours.estimate.center_s / other.estimate.center_s
    return Neighbour(
        name=name,
        run=run,
        device=other.case.device,
        ratio=ratio,
        similar=answer_within(1 / ratio, band_of(ours, other)) == "similar",
        flaws=tuple(FOOTNOTES[flaw.kind] for flaw in flaws_of(other) if flaw.kind in FOOTNOTES),
    )


def _fastest_first(blocks: Sequence[Block]) -> list[Block]:
    """Sort by the first area that all have: speeds of several areas are never averaged."""
    blocks = [block for block in blocks if block.areas]
    figures = [{area.name: area for area in block.areas} for block in blocks]
    for lead in LEADS:
        if all(lead.area in each for each in figures):
            order = [each[lead.area].value * (-1 if lead.figure == "rate" else 1) for each in figures]
            return [block for _, block in sorted(zip(order, blocks, strict=True), key=lambda each: each[0])]
    return blocks


def _in_short(device: str, found: Sequence[_Found]) -> str:
    """How it relates to the nearest machine of its kind in each area, and to the fastest accelerator."""
    relations: dict[str, list[str]] = {}
    for each in found:
        alike = [other for other in each.others if (other.device == "cpu") == (device == "cpu") and not other.flaws]
        if alike:
            nearest = min(alike, key=lambda other: abs(math.log(other.ratio)))
            relations.setdefault(_relation(nearest), []).append(each.lead.work or each.lead.area)
    parts = [f"{relation} at {listed(areas)}" for relation, areas in relations.items()]
    best = _accelerator(found)
    repeated = f" at {best.rpartition(' at ')[2]}"
    while parts and len(_sentence(parts, best)) > LONGEST_SENTENCE:
        parts.remove(next((part for part in parts if part.endswith(repeated)), parts[-1]))
    return _sentence(parts, best)


def _sentence(parts: Sequence[str], best: str) -> str:
    text = "; ".join(part for part in (", ".join(parts), best) if part)
    return f"{text}." if text else ""


def _relation(other: Neighbour) -> str:
    if other.similar:
        return f"similar to the {other.name}"
    speed = 1 / other.ratio
    fractions = {"three quarters": 3 / 4, "two thirds": 2 / 3, "half": 1 / 2, "a third": 1 / 3, "a quarter": 1 / 4}
    fractions |= {"a fifth": 1 / 5, "a tenth": 1 / 10, "twice": 2.0}
    word, value = min(fractions.items(), key=lambda each: abs(math.log(each[1] / speed)))
    close = abs(math.log(value / speed)) < 0.12
    return f"about {word if close else times(speed)} as fast as the {other.name}"


def _accelerator(found: Sequence[_Found]) -> str:
    """The fastest one in the first area in which any is known to be faster; a card of its own before a chip's part."""
    for each in found:
        faster = [other for other in each.others if other.device != "cpu" and other.ratio > 1 and not other.similar]
        if faster:
            best = max(faster, key=lambda other: (other.device == "cuda", other.ratio))
            return f"the {best.name} is {times(best.ratio)} as fast at {each.lead.work or each.lead.area}"
    return ""


def _confidence(found: Sequence[_Found], left_out: Sequence[tuple[str, Result]]) -> str:
    """How many areas are good, what keeps the worst from it, and whether anything disturbed the machine."""
    areas = [each.area for each in found]
    good = sum(area.grade.word == "good" for area in areas)
    parts = [] if len(areas) == 1 else [f"{'all' if good == len(areas) else f'{good} of'} {len(areas)} areas are good"]
    parts += _shortcomings(areas)
    taken = max(taken_share(each.result.estimate.contention) for each in found if each.result.estimate)
    quiet = taken <= QUIET_SHARE
    parts.append("nothing disturbed the machine" if quiet else f"others took {taken:.0%} of the processor")
    missing = f" Left out: {', '.join(f'{area} ({result.status})' for area, result in left_out)}." if left_out else ""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}.{missing}"


def _shortcomings(areas: Sequence[Area]) -> list[str]:
    """What keeps the areas with the worst grade from a better one, and the fix."""
    word = worst([area.grade.word for area in areas])
    alike: dict[str, list[Area]] = {}
    for area in (each for each in areas if each.grade.word == word != "good"):
        alike.setdefault(area.grade.fix, []).append(area)
    causes = {fix: listed(_unique(area.grade.cause for area in same)) for fix, same in alike.items()}
    return [f"{_subject([area.name for area in same])} {word}: {causes[fix]} ({fix})" for fix, same in alike.items()]


def _subject(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} {'are' if names[0].endswith('s') else 'is'}"
    return f"{listed(names) if len(names) == 2 else f'{len(names)} areas'} are"


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _commands(found: Sequence[_Found], name: str) -> Iterator[Command]:
    word = shlex.quote(name)
    yield Command("Details", f"torchmark show {word}")
    names = [other.run for each in found for other in each.others]
    if names:
        machine = "3090" if any("3090" in name for name in names) else shlex.quote(names[0])
        yield Command("Compare", f"torchmark compare {word} {machine}")
    yield Command("Picture", f"torchmark report{'' if name == 'last' else f' {word}'} -o card.png")
    yield Command("Faster", f"torchmark tune {found[0].lead.workload}")
