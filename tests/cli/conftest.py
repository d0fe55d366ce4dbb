"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmark.measure import session


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of a test stay in a folder of its own, behind a lock of its own, on a terminal of the usual width. Devices
    are hardly warmed up, as no test asks how fast steps are."""
    monkeypatch.setattr(session, "PREHEAT_S", 0.05)
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TORCHMARK_DEBUG", raising=False)
    return tmp_path / "home"
