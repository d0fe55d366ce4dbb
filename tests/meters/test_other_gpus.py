"""Intel's, AMD's and Apple's meters, through libraries that are made up after the real ones."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchmark.meters import open_vitals, provenance


@pytest.fixture
def intel(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    import torch

    answers: dict[str, Any] = {"power_draw": 120.5, "clock_rate": 1550.0, "temperature": 48.0}

    def answer(name: str) -> Any:
        def ask(index: int) -> float:
            assert index == 1
            if isinstance(answers[name], Exception):
                raise answers[name]
            return float(answers[name])

        return ask

    for name in answers:
        monkeypatch.setattr(torch.xpu, name, answer(name))
    monkeypatch.setitem(sys.modules, "pyzes", ModuleType("pyzes"))
    return answers


def test_an_intel_gpu_reports_clock_and_heat_and_its_power_when_asked(intel: dict[str, Any]) -> None:
    meter = open_vitals("xpu:1")
    assert [each.read() for each in meter.values()] == [None, 1.55e9, 48.0, None]
    assert meter["energy"].watts() == 120.5
    assert meter["energy"].provenance == "estimated from power that Level Zero reported during untimed steps"
    assert meter["throttling"].provenance == "unavailable because torch does not report it"
    assert intel


def test_what_an_intel_gpu_reports_to_root_alone_is_unavailable(intel: dict[str, Any]) -> None:
    intel["power_draw"] = RuntimeError("GPU power draw querying is not available. Try running with elevated privileges")
    meter = open_vitals("xpu:1")
    assert meter["energy"].watts() is None
    assert meter["energy"].provenance.startswith("unavailable because")
    assert meter["clock"].provenance == "measured by Level Zero"


def test_without_pyzes_an_intel_gpu_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyzes", None)
    assert "pyzes is not installed" in provenance("xpu:0")["energy"]


@pytest.fixture
def zeus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package and the part of it that is used; what is put on it is found."""
    device = ModuleType("zeus.device")
    package = ModuleType("zeus")
    package.device = device  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus", package)
    monkeypatch.setitem(sys.modules, "zeus.device", device)
    device.get_gpus = device.get_soc = lambda: 1 / 0  # type: ignore[attr-defined]
    return device


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "hip", "6.4")


def refuse(_index: int) -> int:
    raise ValueError("not supported on this GPU")


@pytest.mark.usefixtures("rocm")
def test_an_amd_gpu_counts_its_energy(zeus: ModuleType) -> None:
    zeus.get_gpus = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        supports_get_total_energy_consumption=lambda index: index == 2,
        get_total_energy_consumption=lambda _index: 5_500,
        get_gpu_temperature=lambda _index: 71,
    )
    meter = open_vitals("cuda:2")
    assert (meter["energy"].read(), meter["temperature"].read()) == (5.5, 71)
    assert meter["energy"].provenance == "measured by AMD SMI through zeus"
    assert meter["clock"].provenance == "unavailable because zeus does not report it"


@pytest.mark.usefixtures("rocm")
def test_an_amd_gpu_whose_counter_is_wrong_is_estimated_from_its_average_power(zeus: ModuleType) -> None:
    zeus.get_gpus = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        supports_get_total_energy_consumption=lambda _index: False,
        get_instant_power_usage=refuse,
        get_average_power_usage=lambda _index: 310_000,
        get_gpu_temperature=refuse,
    )
    meter = open_vitals("cuda:0")
    assert (meter["energy"].read(), meter["energy"].watts()) == (None, 310.0)
    assert meter["energy"].provenance.startswith("estimated")
    assert meter["temperature"].provenance.startswith("unavailable")


def test_an_apple_chip_counts_all_its_parts(zeus: ModuleType) -> None:
    seen = SimpleNamespace(cpu_total_mj=1_000, gpu_mj=2_500, gpu_sram_mj=None, dram_mj=500, ane_mj=0)
    zeus.get_soc = lambda: SimpleNamespace(get_total_energy_consumption=lambda: seen)  # type: ignore[attr-defined]
    meter = open_vitals("mps")
    assert meter["energy"].read() == 4.0
    assert "through zeus" in meter["energy"].provenance
    assert meter["clock"].provenance.startswith("unavailable because macOS")


@pytest.mark.usefixtures("rocm")
def test_without_zeus_or_a_chip_that_it_knows_the_reason_is_named(
    zeus: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zeus
    assert provenance("cuda:0")["energy"] == "unavailable because zeus finds no AMD GPU here"
    assert provenance("mps")["energy"] == "unavailable because zeus finds no Apple chip here"
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    assert "extra energy" in provenance("cuda:0")["energy"]
    assert "extra energy" in provenance("mps")["energy"]
