"""The way of the data through the modules is the one that docs/architecture.md shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

import torchmark
from torchmark.measure.cases import expand
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.messages import Measured, MeasureJob
from torchmark.measure.pipeline import measure
from torchmark.measure.session import Finished, Plan
from torchmark.records import Block, Case, Estimate, Result
from torchmark.store import RunWriter
from torchmark.workloads.contract import Step

SOURCE = Path(torchmark.__file__).parent
DATA = (Block, Case, Estimate, Finished, MeasureJob, Measured, Plan, Result, Step)
MOST = 25
_OPTIMIZED = 1  # the flag of functions, which the bodies of modules and classes lack


def modules_with_data(call: Callable[[], object]) -> list[str]:
    """The modules with functions that take or return cases, jobs, steps, blocks, estimates or results."""
    found: dict[str, None] = {}

    def is_data(value: Any) -> bool:
        first = value[0] if isinstance(value, tuple | list) and value else value
        return isinstance(first, DATA)

    def look(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(SOURCE)) or not code.co_flags & _OPTIMIZED:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names] if event == "call" else [value]
        if event in ("call", "return") and any(map(is_data, values)):
            found[Path(code.co_filename).relative_to(SOURCE).with_suffix("").as_posix()] = None

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


class StopHere(Exception):  # noqa: N818 -- not an error: everything is stored
    """The run has ended."""


def test_the_way_of_the_data_is_the_documented_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: RunWriter) -> None:
        raise StopHere

    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(RunWriter, "seal", stop)
    arguments = ["run", "mlp", "--tiny", "--device", "cpu", "--rigor", "quick", "--steps", "3", "--share"]

    def parent() -> None:
        from torchmark.cli.run import run

        with pytest.raises(StopHere):
            run.main(arguments[1:], standalone_mode=False)

    (case,) = expand(["mlp"], {"device": ["cpu"]}, tiny=True)
    job = MeasureJob(case, replace(DEFAULTS, budget_s=0.3))
    used = [*modules_with_data(parent), *modules_with_data(lambda: measure(job, lambda _: None))]
    between = sorted({name for name in used if not name.startswith(("cli", "store", "report"))} - {"case", "records"})
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## The way of the data")[1].split("\n## ")[0]
    documented = sorted(re.findall(r"^\| `([a-z_/]+)` \|", section, re.MULTILINE))
    assert between == documented
    assert len(between) <= MOST


def test_the_tables_and_the_diagram_have_every_package() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.name for path in SOURCE.glob("[a-z]*.py")}
    first, _, rest = page.partition("## Imports go one way")
    assert all(f"`{name}/`" in first for name in packages)
    assert all(f"`{name}`" in first for name in modules)
    diagram = rest.split("```")[1]
    assert packages <= set(re.findall(r"[a-z]+", diagram))
