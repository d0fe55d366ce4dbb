"""A file of the user's with many models, and a process that knows no file yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchmark import workloads
from torchmark.measure.cases import read_params
from torchmark.workloads.contract import Setting, Step


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "my models" / "some.py"
    path.parent.mkdir()
    path.write_text(Path(__file__).with_name("some_models.txt").read_text())
    return path


@pytest.fixture
def prepare() -> Callable[..., Step]:
    """A workload's step, from its name, a mode, a dtype and parameters."""

    def made(name: str, mode: str = "infer", dtype: str = "float32", **params: Any) -> Step:
        workload = workloads.find_workload(name)
        given = read_params(workload, params)
        workload.check(given)
        return workload.prepare(given, Setting(mode=mode, dtype=dtype))

    return made
