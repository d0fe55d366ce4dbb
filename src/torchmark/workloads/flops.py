"""Counts the floating-point operations of a step on the meta device, where nothing is computed."""

from __future__ import annotations

from collections.abc import Callable


def count_flops(step: Callable[[], object]) -> float:
    """What matrix products, convolutions and attention in this step add up to.

    The step must work on meta tensors: there every operator is seen, while on the CPU fused attention and LSTM hide
    their products from the counter.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())
