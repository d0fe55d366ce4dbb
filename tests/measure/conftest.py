"""Real workers that play a script on the fake device."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set what the fake device plays in workers that start from now on."""
    return lambda script: monkeypatch.setenv("TORCHMARK_FAKE", script)
