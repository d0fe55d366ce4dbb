"""Files of every version that was ever written can be read; the mechanism works before it is first needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION
from torchmark.store import RunWriter, load, load_samples
from torchmark.store.upgrade import UPGRADES

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_the_recorded_file_of_every_version_is_read(version: int) -> None:
    path = RECORDED / f"v{version}.jsonl"
    run = load(path)
    assert [result.status for result in run.results] == ["ok", "oom", "interrupted"]
    assert run.results[0].estimate is not None
    assert len(run.results[0].processes) == 2
    assert run.process_spread is not None
    assert load_samples(path)[run.results[0].case.text].keys() == {0, 1}


def test_every_older_version_has_its_upgrade() -> None:
    assert sorted(UPGRADES) == list(range(1, SCHEMA_VERSION))


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version before the first, which called the label `title` and counted processes from 1."""

    def from_zero(line: dict[str, Any]) -> dict[str, Any]:
        if line["kind"] == "header":
            line["header"]["label"] = line["header"].pop("title")
        return line

    monkeypatch.setitem(UPGRADES, 0, from_zero)
    text = (RECORDED / "v1.jsonl").read_text().replace('"schema":1', '"schema":0').replace('"label"', '"title"')
    path = tmp_path / "older.jsonl"
    path.write_text(text)
    return path


def test_an_older_file_is_upgraded_line_by_line(older: Path) -> None:
    assert load(older) == load(RECORDED / "v1.jsonl")


def test_a_damaged_older_file_is_one_clear_error(older: Path) -> None:
    older.write_text(older.read_text().replace('"title"', '"heading"'))
    with pytest.raises(StoreError, match=r"line 1: not a line of schema 0"):
        load(older)


def test_an_older_file_is_never_appended_to(older: Path) -> None:
    with pytest.raises(StoreError, match="older torchmark"):
        RunWriter.resume(older)
