"""What a step and an item take in energy, from the power that the meters saw."""

from __future__ import annotations

from torchmark.records import Estimate, Result


def step_energy(estimate: Estimate) -> float | None:
    """Joules of one step: the power while they ran, over the time of one by the host's clock."""
    power, wall_s = estimate.metered.mean_w, estimate.wall_step_s or estimate.center_s
    return None if power is None or wall_s <= 0 else power * wall_s


def item_energy(result: Result) -> float | None:
    """Joules of one item."""
    joules = step_energy(result.estimate) if result.estimate else None
    items = result.work.items if result.work else 0.0
    return joules / items if joules is not None and items > 0 else None
