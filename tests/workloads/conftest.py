"""What tests of workloads share."""

from __future__ import annotations

import pytest

from torchmark.measure import check


@pytest.fixture(autouse=True)
def _one_thread_and_draw(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of large models draws rounding errors as often as there is time: here once, on any machine."""
    del one_thread
    monkeypatch.setattr(check, "_DRAWING_S", 0.0)
