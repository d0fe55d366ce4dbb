"""What stored results say in plain sentences; nothing is said that the intervals do not bear out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.claims import CLAIMS, PUBLISHED_FACTOR, Claim, device_name, times
from torchmark.analyze.comparison import Comparison, compare_all, compare_within, overall
from torchmark.analyze.grades import grade_of
from torchmark.analyze.outliers import find_outliers
from torchmark.analyze.pairing import join_machines
from torchmark.analyze.published import is_published
from torchmark.analyze.roofline import LOADING
from torchmark.records import NO_ROOM, Case, Result, Run

BUSY = ("contended", "throttled")
FIRST_STEP_S = 3.0  # a first step shorter than this is nobody's concern
FIRST_STEP_TIMES = 10.0
LOADING_SHARE = 0.2  # of a step, from which waiting for data is worth a word
MANY_RUNS = 3  # of more than these only the fastest and the slowest are told
ORDER = (
    "runs", "outlier", "device", "disturbed", "dtype", "compile", "batch", "threads", "workers",
    "transfer", "loader", "memory", "first-step",
)  # fmt: skip


class Finding(Struct, frozen=True):
    """One sentence, what it is about, and the cases that it rests on."""

    kind: str
    text: str
    cases: tuple[str, ...]


def find_all(runs: Sequence[Run]) -> tuple[Finding, ...]:
    """Everything worth saying about these runs, the most important first.

    Settings are compared inside each machine, with the same evidence that is asked of any comparison; published
    figures have no intervals, so a sentence about them says that it is theirs.
    """
    machines = join_machines(runs)
    found = _about_runs(runs) if len(runs) > 1 else []
    found += [Finding("outlier", each.text, ()) for each in find_outliers(runs)]
    for run in machines:
        own = [*_claims(run), *_observations(run)]
        own = [finding for finding in own if finding.kind != "memory" or not run.fitting]  # its conclusion says it
        name = f"{run.header.label or run.header.id}: " if len(machines) > 1 else ""
        found += [replace(finding, text=name + finding.text) for finding in own]
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.kind)))


def _claims(run: Run) -> Iterator[Finding]:
    """Devices against each other first, then settings, of every device by itself."""
    devices = dict.fromkeys(result.case.device for result in run.results)
    for axis, tell in CLAIMS.items():
        if len({_value(result, axis) for result in run.results}) < 2:
            continue
        (comparison,) = compare_within([run], axis)
        if axis == "device" or len(devices) == 1:
            yield from (_finding(axis, claim) for claim in tell(comparison.pairs))
            continue
        for device in devices:
            own = [pair for pair in comparison.pairs if pair.a.case.device == device]
            where = f"on {device_name(device)} "
            yield from (_finding(axis, replace(claim, text=where + claim.text)) for claim in tell(own))


def _value(result: Result, axis: str) -> object:
    """A quick look, so that axes on which nothing varies cost nothing."""
    return getattr(result.case, axis, None) or result.case.params.get(axis)


def _finding(kind: str, claim: Claim) -> Finding:
    if claim.published:
        return Finding(kind, f"As published, {claim.text}", claim.cases)
    word = claim.text.split()[0]
    begin = word.capitalize() if word.isalpha() else word  # bfloat16 and torch.compile are names
    return Finding(kind, begin + claim.text[len(word) :], claim.cases)


def _about_runs(runs: Sequence[Run]) -> list[Finding]:
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


def _about_two(first: Run, second: Run, comparison: Comparison) -> Finding | None:
    """The faster one first. Figures without an interval count only where they were published, and are called so."""
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
    return Finding("runs", text, tuple(pair.case for pair in comparison.pairs))


def _observations(run: Run) -> Iterator[Finding]:
    """What single results say of themselves."""
    yield from _disturbed(run.results)
    yield from _loading(run.results)
    yield from _memory(run.results)
    yield from _first_steps(run.results)


def _disturbed(results: Sequence[Result]) -> Iterator[Finding]:
    causes = {"contended": "a busy machine", "throttled": "heat or power limits"}
    for verdict in BUSY:
        told = [each for each in results if each.estimate and each.estimate.verdict == verdict]
        cases = [each.case for each in told if (grade := grade_of(each)) and grade.word != "good"]
        if cases:
            more = f" and {len(cases) - 1} more were" if len(cases) > 1 else " was"
            again = "them" if len(cases) > 1 else "it"
            text = f"{cases[0].task}{more} slowed by {causes[verdict]}: measure {again} again"
            yield Finding("disturbed", text, tuple(case.text for case in cases))


def _loading(results: Sequence[Result]) -> Iterator[Finding]:
    """Shares that are worth a word at either end of the intervals; loaders that work ahead hide a part of them."""
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
        yield Finding("loader", f"Fetching data takes up to {listed}", tuple(cases))


def _memory(results: Sequence[Result]) -> Iterator[Finding]:
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
            yield Finding("memory", fact, (last[2].text, first[2].text))


def _first_steps(results: Sequence[Result]) -> Iterator[Finding]:
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
        yield Finding(
            "first-step", f"The first step of {result.case.task} took {seconds:.3g} s, {rest}", (result.case.text,)
        )
