"""The headline of a run: its speed in each area, between the next faster and the next slower published machine."""

import math
import re
import shlex
from collections.abc import Sequence
from itertools import product
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze import grades
from torchmark.analyze.pairing import grouped
from torchmark.analyze.wording import listed
from torchmark.records import Case, Result, Run, Value

Figure = Literal["rate", "step", "job"]

NOT_A_NEIGHBOUR = frozenset(("overheated", "unknown-hardware", "unknown-device", "not-comparable"))
FOOTNOTES = {  # flaws that keep a published figure far from what the machine can do
    "slow-convolutions": "published with a torch build whose CPU convolutions were slow",
    "thread-oversubscription": "published with more threads than such small steps can use",
}
LONGEST_SENTENCE = 148  # two lines of 80 columns, with "In short:" in front
_FRACTIONS = {
    "three quarters": 3 / 4, "two thirds": 2 / 3, "half": 1 / 2, "a third": 1 / 3, "a quarter": 1 / 4,
    "a fifth": 1 / 5, "a tenth": 1 / 10, "twice": 2.0,
}  # fmt: skip


class Lead(Struct, frozen=True):  # the representative case of an area
    area: str
    workload: str
    mode: str = "infer"
    params: dict[str, Value] = {}
    figure: Figure = "rate"
    unit: str = ""  # of an item; of a job: its name
    work: str = ""  # the area in a sentence, if that is another word


LEADS = (
    Lead("vision", "resnet50", unit="image"),
    Lead("text", "bert-encode", params={"batch": 4}, unit="sample"),
    Lead("language", "llm-decode", unit="token"),
    Lead("memory", "tensor-add", params={"variant": "as-run"}, unit="add", work="memory-bound work"),
    Lead("small steps", "mlp", params={"outputs": 512}, figure="step"),
    Lead("whole jobs", "mnist-cnn", mode="train", figure="job", unit="MNIST"),
)


class Neighbour(Struct, frozen=True):  # a published machine that did the same work
    name: str  # M1 CPU
    run: str  # m1-chips/M1 CPU
    device: str
    ratio: float  # how many times as fast as this machine
    similar: bool  # the ratio is within both uncertainties
    flaws: tuple[str, ...] = ()  # why the published figure is off


class Area(Struct, frozen=True):
    name: str
    case: str
    figure: Figure
    value: float  # items per second, or seconds of a step or a whole job
    unit: str
    margin: float | None  # half the interval in which a repeat would land, relative
    grade: grades.Grade
    faster: Neighbour | None = None
    slower: Neighbour | None = None


class Block(Struct, frozen=True):
    device: str
    areas: tuple[Area, ...]
    in_short: str = ""


class Command(Struct, frozen=True):
    purpose: str
    command: str


class Headline(Struct, frozen=True):
    blocks: tuple[Block, ...]  # one for each device, the fastest first
    grade: grades.Word  # of the worst area
    confidence: str
    commands: tuple[Command, ...] = ()


class _Found(NamedTuple):
    lead: Lead
    result: Result
    area: Area
    others: tuple[Neighbour, ...]


def build_headline(run: Run, published: Sequence[Run], name: str | None = None) -> Headline | None:
    """None for a run without lead cases. `name`: of the run in the next commands."""
    if run.header.steps or run.header.command.split(" ")[:2] != ["torchmark", "run"]:
        return None
    found, left_out = [], []
    for device, lead in product(dict.fromkeys(result.case.device for result in run.results), LEADS):
        # With the lead's parameters, else the defaults.
        cases = [Case(lead.workload, lead.mode, params, device) for params in (lead.params, dict[str, Value]())]
        same = [[each for each in run.results if replace(each.case, threads=None) == case] for case in cases]
        if leading := next((each[0] for each in same if len(each) == 1), None):
            if each := _found(lead, leading, published):
                found.append(each)
            else:
                left_out.append(f"{lead.area} ({leading.status})")
    if not found:
        return None
    groups = grouped(found, lambda each: each.result.case.device).items()
    blocks = [Block(device, tuple(each.area for each in own), _in_short(device, own)) for device, own in groups]
    for lead in LEADS:  # sort by the first area that all have
        values = [area.value for block in blocks for area in block.areas if area.name == lead.area]
        if len(values) == len(blocks):
            ordered = sorted(zip(values, blocks, strict=True), key=itemgetter(0), reverse=lead.figure == "rate")
            blocks = [block for _, block in ordered]
            break
    names, word = [other.run for each in found for other in each.others], shlex.quote(name or run.header.id)
    machine = "3090" if any("3090" in name for name in names) else shlex.quote(names[0]) if names else ""
    commands = {
        "Details": f"show {word}",
        "Compare": f"compare {word} {machine}" if names else "",
        "Picture": f"report{'' if word == 'last' else f' {word}'} -o card.png",
        "Faster": f"tune {found[0].lead.workload}",
    }
    return Headline(
        blocks=tuple(blocks),
        grade=grades.worst([each.area.grade.word for each in found]),
        confidence=_confidence(found) + (f" Left out: {', '.join(left_out)}." if left_out else ""),
        commands=tuple(Command(name, f"torchmark {command}") for name, command in commands.items() if command),
    )


def times(ratio: float) -> str:
    """46×, 2.3×, 0.67×: published figures bear two digits."""
    return f"{float(f'{ratio:.2g}'):g}×"


def _found(lead: Lead, result: Result, published: Sequence[Run]) -> _Found | None:
    estimate, job = result.estimate, result.job
    if estimate is not None and lead.figure == "job":  # no more precise than its steps
        seconds = job.seconds if job else 0.0
        half = max(estimate.precision * seconds, (job.high_s - job.low_s) / 2 if job else 0.0)
        estimate = replace(estimate, center_s=seconds, low_s=seconds - half, high_s=seconds + half)
    grade = grades.grade_of(replace(result, estimate=estimate))
    if grade is None or estimate is None or estimate.center_s <= 0:
        return None
    items = result.work.items if result.work and lead.figure == "rate" else 0.0
    others: dict[str, Neighbour] = {}  # by name, as some were published twice
    for run in published if lead.figure != "job" else ():
        for other in run.results:
            if neighbour := _neighbour(result, other, run):
                others.setdefault(*neighbour)
    figure: Figure = lead.figure if items or lead.figure != "rate" else "step"
    value, margin = items / estimate.center_s if items else estimate.center_s, grades.margin_of(estimate)
    faster = min((each for each in others.values() if each.ratio >= 1), key=attrgetter("ratio"), default=None)
    slower = max((each for each in others.values() if each.ratio < 1), key=attrgetter("ratio"), default=None)
    area = Area(lead.area, result.case.text, figure, value, lead.unit, margin, grade, faster, slower)
    return _Found(lead, result, area, tuple(others.values()))


def _neighbour(ours: Result, other: Result, run: Run) -> tuple[str, Neighbour] | None:
    """The hardware of a published machine that did the same work; its name is the publication's where shorter."""
    case, estimate, device = ours.case, other.estimate, other.case.device
    if other.status != "ok" or not ours.estimate or not estimate or estimate.center_s <= 0:
        return None
    same = replace(other.case, device=case.device, threads=case.threads, protocol="steady") == case
    items = {each.work.items for each in (ours, other) if each.work}
    differs = not same or other.version != ours.version or len(items) > 1 or not grades.is_published(other)
    if differs or NOT_A_NEIGHBOUR.intersection(caution.kind for caution in other.cautions):
        return None
    own = run.header.id.rpartition("/")[2]
    model = next((info.model for info in run.header.machine.devices if info.name == device), own)
    kind = {"cpu": " CPU", "mps": " GPU"}.get(device, "") if model.startswith("Apple") else ""
    hardware = re.sub(r"\b(NVIDIA|GeForce|Intel|AMD|Apple) +|[,(].*", "", model).strip() + kind
    name, ratio = own if hardware.startswith(own) else hardware, ours.estimate.center_s / estimate.center_s
    similar = grades.answer_within(1 / ratio, grades.band_of(ours, other)) == "similar"
    flaws = tuple(FOOTNOTES[flaw.kind] for flaw in grades.flaws_of(other) if flaw.kind in FOOTNOTES)
    return hardware, Neighbour(name, run.header.id, device, ratio, similar, flaws)


def _in_short(device: str, found: Sequence[_Found]) -> str:
    # The nearest machine of its kind in each area, and the fastest accelerator, preferably a card of its own, in the
    # first area where one is faster.
    relations, best = dict[str, list[str]](), ""
    for each in found:
        alike = [other for other in each.others if (other.device == "cpu") == (device == "cpu") and not other.flaws]
        if alike:
            near = min(alike, key=lambda other: abs(math.log(other.ratio)))
            away = {word: abs(math.log(value * near.ratio)) for word, value in _FRACTIONS.items()}
            word = min(away, key=away.__getitem__)
            about = f"about {word if away[word] < 0.12 else times(1 / near.ratio)} as fast as"
            relation = f"{'similar to' if near.similar else about} the {near.name}"
            relations.setdefault(relation, []).append(each.lead.work or each.lead.area)
        faster = [other for other in each.others if other.device != "cpu" and other.ratio > 1 and not other.similar]
        if faster and not best:
            fastest = max(faster, key=lambda other: (other.device == "cuda", other.ratio))
            best = f"the {fastest.name} is {times(fastest.ratio)} as fast at {each.lead.work or each.lead.area}"
    parts, repeated = [f"{name} at {listed(areas)}" for name, areas in relations.items()], best.rpartition(" at ")[2]
    while True:
        text = "; ".join(filter(None, (", ".join(parts), best)))
        if not parts or len(text) < LONGEST_SENTENCE:
            return f"{text}." if text else ""
        parts.remove(next((part for part in parts if part.endswith(f" at {repeated}")), parts[-1]))


def _confidence(found: Sequence[_Found]) -> str:
    areas = [each.area for each in found]
    words = [area.grade.word for area in areas]
    good, word = words.count("good"), grades.worst(words)
    parts = [] if len(areas) == 1 else [f"{'all' if good == len(areas) else f'{good} of'} {len(areas)} areas are good"]
    short = [area for area in areas if area.grade.word == word != "good"]
    for fix, alike in grouped(short, lambda area: area.grade.fix).items():
        names, causes = [area.name for area in alike], listed([*dict.fromkeys(area.grade.cause for area in alike)])
        subject = listed(names) if len(names) < 3 else f"{len(names)} areas"
        verb = "is" if len(names) == 1 and not names[0].endswith("s") else "are"
        parts.append(f"{subject} {verb} {word}: {causes} ({fix})")
    taken = max(grades.taken_share(each.result.estimate.contention) for each in found if each.result.estimate)
    parts.append("nothing disturbed the machine" if taken <= 0.02 else f"others took {taken:.0%} of the processor")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
