"""The limits of a device are found again on the same machine with the same torch, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from torchmark.records import DeviceInfo, Machine
from torchmark.store import find_limits, home, keep_limits

CPU, GPU = DeviceInfo("cpu", "Xeon", cores=2), DeviceInfo("cuda:0", "A100", driver="550")
MACHINE = Machine("Xeon", 2, 2, 16, "Linux 6", "3.11.7", torch="2.13.0", devices=(CPU, GPU))


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    home().mkdir()
    path = home() / "run.jsonl"
    path.touch()
    return path


def test_each_device_has_its_own(run: Path) -> None:
    assert find_limits(MACHINE, CPU) == []
    keep_limits(MACHINE, CPU, run)
    assert find_limits(MACHINE, CPU) == [run]
    assert find_limits(MACHINE, GPU) == []
    assert find_limits(replace(MACHINE, devices=(CPU,), on_battery=True, python="3.12"), CPU) == [run]


@pytest.mark.parametrize("change", [{"torch": "2.14.0"}, {"physical_cores": 4}, {"cpu": "EPYC"}, {"memory_gib": 32}])
def test_another_machine_or_torch_has_other_limits(run: Path, change: dict[str, object]) -> None:
    keep_limits(MACHINE, CPU, run)
    assert find_limits(replace(MACHINE, **change), CPU) == []


def test_the_latest_count_and_a_file_that_is_gone_holds_none(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mine.jsonl"
    elsewhere.touch()
    for path in (run, elsewhere):
        keep_limits(MACHINE, CPU, path)
        assert find_limits(MACHINE, CPU) == [path]
    elsewhere.unlink()
    assert find_limits(MACHINE, CPU) == []


def test_a_spoilt_note_holds_none(run: Path) -> None:
    keep_limits(MACHINE, CPU, run)
    (note,) = (home() / "limits").iterdir()
    for content in (b"\xff\xfe", b"a\0b", b"x" * 10_000, b""):
        note.write_bytes(content)
        assert find_limits(MACHINE, CPU) == []


def test_limits_of_some_dtypes_only_stand_next_to_those_of_the_others(run: Path, tmp_path: Path) -> None:
    some = [tmp_path / f"{number}.jsonl" for number in range(10)]
    keep_limits(MACHINE, CPU, run)
    for path in some:
        path.touch()
        keep_limits(MACHINE, CPU, path, alongside=True)
        keep_limits(MACHINE, CPU, path, alongside=True)
    assert find_limits(MACHINE, CPU) == some[:1:-1]  # eight at most, the newest first
    keep_limits(MACHINE, CPU, run)
    assert find_limits(MACHINE, CPU) == [run]
