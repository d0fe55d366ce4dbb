"""Whether anything but work passed between two moments: sleep, a clock that was set, a process that was stopped."""

from __future__ import annotations

from torchmark.records import Moment

CLOCKS_AGREE_S = 0.1  # a clock is set, and a machine sleeps, by more than this
CLOCKS_AGREE_SHARE = 0.001  # clocks that nobody sets run apart by less than this


def was_paused(before: Moment, after: Moment) -> bool:
    """A time between these moments says nothing about the work, however plausible it looks."""
    steady_s = after.steady_s - before.steady_s
    others = [after.wall_s - before.wall_s]
    if before.boot_s is not None and after.boot_s is not None:
        others.append(after.boot_s - before.boot_s)
    allowed_s = max(CLOCKS_AGREE_S, CLOCKS_AGREE_SHARE * steady_s)
    return after.stops != before.stops or any(abs(other_s - steady_s) > allowed_s for other_s in others)
