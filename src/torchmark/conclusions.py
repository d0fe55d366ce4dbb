"""The conclusions of `tune`, `fit`, `limits` and `ab`, as stored at the end of their runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from torchmark.case import ALL_CASES, SEVERAL, Case, Name, Real, Text, Whole


class Contribution(Struct, frozen=True):
    """What one setting, or several that were only tried together, brought: how many times as fast with it."""

    setting: Text
    gain: Real


class BreakEven(Struct, frozen=True):
    """When compiling has paid for itself."""

    compiling_s: Real
    saved_s: Real  # in every step
    steps: Real


class Tuning(Struct, frozen=True):
    """What a search for the fastest settings came to: how many times as fast as the default, with a 95% interval over
    pairs of fresh processes."""

    case: Case  # the default
    winner: Case  # the default itself, where nothing was confirmed to be faster
    gain: Real | None = None  # of the winner, or of what was not confirmed; None: fewer than two pairs
    low: Real | None = None
    high: Real | None = None
    pairs: Whole = 0
    unconfirmed: Case | None = None  # what led the search, but was not confirmed to be faster
    disturbed: Whole = 0  # pairs that do not count, because other programs took too much of the processor
    same_precision: Case | None = None  # the best of those that compute in the default's own numbers
    same_precision_gain: Real | None = None  # as the search saw it
    contributions: Annotated[tuple[Contribution, ...], SEVERAL] = ()
    break_even: BreakEven | None = None
    relative: Annotated[dict[Text, Real], ALL_CASES] = field(default_factory=dict)  # gain by case, as the search saw it
    stopped: Literal["done", "budget", "interrupted"] = "done"
    duration_s: Real = 0.0


class Tried(Struct, frozen=True):
    """One size that a search for what fits has tried."""

    case: Text
    size: Whole
    rate: Real | None = None  # items a second
    tries: Whole = 1
    peaks: Annotated[tuple[Real, ...], SEVERAL] = ()  # bytes, of each try that has one
    doubt: Name = ""  # why no conclusion may rest on its rate


class Fitting(Struct, frozen=True):
    """What a search for the largest size that fits came to."""

    case: Case  # its own size does not matter
    parameter: Name  # that counts the size
    limit_bytes: Real
    bound: Name  # what ended it above: memory, the parameter, time
    largest: Whole | None = None  # None: not even the smallest fits
    tries: Whole = 0  # processes in which the largest fitted, each time
    efficient: Whole | None = None  # the smallest size whose rate is as good as any
    fixed_bytes: Real | None = None  # memory is this and so much for each item; None: no such line is known
    item_bytes: Real | None = None
    line_error: Real = 0.0  # how far the worst of the sizes behind that line is off
    unit: Name = "item"
    step: Whole = 1
    tried: Annotated[tuple[Tried, ...], ALL_CASES] = ()
    duration_s: Real = 0.0


class Limiting(Struct, frozen=True):
    """What a search for a machine's limits came to."""

    kept: bool  # whether later results are held against them
    why: Literal["", "tiny", "incomplete", "doubted", "disturbed"] = ""  # they are not
    missing: Annotated[tuple[Name, ...], SEVERAL] = ()  # limits that were disturbed, and so are not kept


class Live(Struct, frozen=True):
    """What a live comparison of two sides came to: the step time of b over that of a, with a 95% interval."""

    a: Case
    b: Case
    side: Name  # that this run is: A or B
    verdict: Literal["faster", "slower", "same", "unsure"]
    stopped: Literal["clear", "precise", "pairs", "budget", "failed", "interrupted"]
    ratio: Real | None = None
    low: Real | None = None
    high: Real | None = None
    ratios: Annotated[tuple[Real, ...], SEVERAL] = ()  # one for each pair of processes


Conclusion = Tuning | Fitting | Limiting | Live
