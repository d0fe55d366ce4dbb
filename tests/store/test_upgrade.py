"""Files of every version that was ever written can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION
from torchmark.store import RunWriter, load, shareable_lines
from torchmark.store.lines import UPGRADES

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_the_recorded_file_of_every_version_is_read(version: int) -> None:
    path = RECORDED / f"v{version}.jsonl"
    run = load(path)
    assert [result.status for result in run.results] == ["ok", "oom", "interrupted"]
    assert run.results[0].estimate is not None
    assert len(run.results[0].processes) == 2
    assert run.process_spread is not None
    assert all(process.samples_s for process in load(path, samples=True).results[0].processes)


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


def test_messages_in_a_file_of_version_1_are_not_shared() -> None:
    """Their reasons hold what other programs said: it is shown on this terminal, and not passed on."""
    path, said = RECORDED / "v1.jsonl", "tried to allocate 17.2 GB with 14.1 GB free"
    assert load(path).results[1].explanation == "out of memory"
    assert load(path, local=True).results[1].explanation == f"out of memory\n{said}"
    assert said not in b"".join(shareable_lines(path)).decode()


@pytest.mark.parametrize(
    ("reason", "upgraded"),
    [
        ("the worker was ended by SIGSEGV during first step", None),
        ("no result after 600 s; it was busy with: check", None),
        ("the run was stopped before its turn", None),
        ("no result after 600 s; it was busy with: clients/bigbank", "it failed"),
        ("model.py, line 3: KeyError: 'hunter' (during build)", "it failed"),
    ],
)
def test_only_what_torchmark_itself_surely_said_is_kept_of_a_reason(reason: str, upgraded: str | None) -> None:
    result = {"status": "crashed", "reason": reason, "cautions": [{"kind": "process-failed", "cause": reason}]}
    result["provenance"] = {"energy": "unavailable because NVML refuses: hunter"}
    reported = UPGRADES[1]({"kind": "finished", "result": result})["result"]
    assert reported["reason"] == reported["cautions"][0]["cause"] == (upgraded or reason)
    assert reported["provenance"] == {"energy": "unavailable because NVML refuses"}
