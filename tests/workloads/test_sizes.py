"""Sizes that are timed in addition to the one of a case."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchmark.workloads.contract import Setting, size_stages
from torchmark.workloads.copy import Params


def smaller_sizes(size: int, factor: int, smallest: int) -> list[int]:
    params = Params(size_bytes=size, sizes="all")
    stages = size_stages(params, Setting("infer"), factor, smallest, lambda length: lambda: length)
    assert all(stage.run() == int(stage.name.removesuffix(" bytes")) // 4 for stage in stages)
    return [int(stage.name.removesuffix(" bytes")) for stage in stages]


@given(size=st.integers(1, 2**38), factor=st.integers(2, 64), smallest=st.integers(1, 2**20))
def test_they_fall_evenly_down_to_the_smallest(size: int, factor: int, smallest: int) -> None:
    sizes = [size, *smaller_sizes(size, factor, smallest)]
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(each % smallest == 0 for each in sizes[1:])
    assert all(larger <= factor * (smaller + smallest) for larger, smaller in pairwise(sizes))
    assert size <= smallest or sizes[-1] == smallest


def test_a_copy_is_timed_down_to_a_kilobyte() -> None:
    assert smaller_sizes(268_435_456, 16, 1024) == [16_777_216, 1_048_576, 65_536, 4096, 1024]
