"""Sizes that are timed beside the one of a case, because what is small goes another way than what is large."""

from __future__ import annotations


def smaller_sizes(size: int, factor: int, smallest: int) -> list[int]:
    """Each a `factor`-th of the one before, as a multiple of the smallest, which comes last."""
    sizes = []
    while size > smallest:
        size = max(size // factor // smallest, 1) * smallest
        sizes.append(size)
    return sizes
