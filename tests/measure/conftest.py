"""Real workers that play a script on the fake device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchmark.measure import session


@pytest.fixture(autouse=True)
def _short_preheat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warming up takes a second with all cores, and no test asks how fast steps are."""
    monkeypatch.setattr(session, "PREHEAT_S", 0.05)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set what the fake device plays in workers that start from now on."""
    return lambda script: monkeypatch.setenv("TORCHMARK_FAKE", script)
