"""What would spoil a run is found before it begins: a device that was named must work, one that was found may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmark.measure import machine
from torchmark.measure.messages import Message, Refused
from torchmark.records import parse_case

LOADING = parse_case("dataloader/infer@cpu/float32")
PLAIN = parse_case("dataloader/infer:loader_workers=0@cpu/float32")


def test_a_device_that_was_only_found_and_fails_is_left_out_with_a_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_devices", lambda: ("cuda:77", "cpu"))  # a driver that promises too much
    (found,) = machine.survey_here(lambda _: None, None)
    assert [device.name for device in found.machine.devices] == ["cpu"]
    assert "cuda:77" in found.cautions[-1].cause


def test_a_device_that_was_named_and_fails_ends_it() -> None:
    heard: list[Message] = []
    assert [*machine.survey_here(heard.append, ["cuda:77", "cpu"])] == []
    (refused,) = heard
    assert isinstance(refused, Refused)
    assert "cuda:77" in refused.cause


def test_shared_memory_matters_only_to_cases_that_load_in_processes(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(machine, "SHARED_BYTES", 1 << 80)
    (caution,) = machine.judge_shared_memory([PLAIN, LOADING], tmp_path)
    assert caution.kind == "shared-memory"
    assert [*machine.judge_shared_memory([PLAIN], tmp_path)] == []
    assert [*machine.judge_shared_memory([LOADING], tmp_path / "dev")] == []


def test_the_fake_device_needs_no_look_around() -> None:
    described, cautions = machine.look_around(["fake"], [parse_case("null/infer@fake/float32")])
    assert ([device.name for device in described.devices], cautions) == (["fake"], ())
