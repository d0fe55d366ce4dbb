"""Real workers that play a script on the fake device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import forkserver

import pytest


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set what the fake device plays in workers that start from now on."""

    def set_script(script: str) -> None:
        monkeypatch.setenv("TORCHMARK_FAKE", script)
        _new_server()

    yield set_script
    _new_server()


def _new_server() -> None:
    """Workers are forked from a server that keeps the environment it was started with."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
