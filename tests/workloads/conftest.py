"""One thread, so that tests side by side do not wait for one another, and no AMX."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Some virtual machines announce AMX and then die of it, and no promise here is about AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
