"""NVIDIA's bindings and everything above them, on a library that is made up: the driver's own is not here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from torchmark import meters
from torchmark.devices.streams import stream
from torchmark.measure.engine import Settings, measure_steps
from torchmark.meters import open_vitals

pynvml = pytest.importorskip("pynvml")
UUID = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"
SUCCESS, NOT_SUPPORTED, NOT_FOUND = 0, 3, 6
HEAT, POWER_LIMIT, IDLE = 0x20, 0x4, 0x1


class Library:
    """What the bindings load with ctypes: functions that answer through pointers and return a code."""

    def __init__(self) -> None:
        self.answers: dict[str, int | None] = {
            "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
            "nvmlDeviceGetPowerUsage": 250_000,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrentClocksEventReasons": POWER_LIMIT | IDLE,
        }

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlInitWithFlags":
            return lambda _flags: SUCCESS
        if name == "nvmlDeviceGetHandleByUUID":
            return lambda uuid, handle: self._answer(handle, 77 if uuid.value == f"GPU-{UUID}".encode() else None)
        if name not in self.answers:
            raise AttributeError(name)  # as of a driver that is older than the question

        def ask(handle: Any, *details: Any) -> int:
            assert handle.value == 77
            return self._answer(details[-1], self.answers[name])

        return ask

    @staticmethod
    def _answer(pointer: Any, value: int | None) -> int:
        if value is None:
            return NOT_SUPPORTED
        pointer._obj.value = value
        return SUCCESS


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """In the place of libnvidia-ml, below the real bindings; torch sees one GPU."""
    import torch

    library = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(uuid=UUID))
    return library


def read(device: str) -> dict[str, Any]:
    return {name: meter.read() for name, meter in open_vitals(device).items()}


@pytest.mark.usefixtures("library")
def test_a_gpu_reports_everything_in_base_units() -> None:
    seen = read("cuda:0")
    assert seen == {
        "energy": 1000.0,
        "clock": 1.98e9,
        "temperature": 61,
        "throttling": ("power limit",),
    }  # not for being idle
    sources = meters.provenance("cuda:0")
    assert sources["energy"] == "measured by NVML: the whole board"
    assert sources["throttling"] == "measured by NVML"


def test_an_older_driver_is_asked_by_the_older_name(library: Library) -> None:
    library.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = HEAT
    del library.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    assert read("cuda:0")["throttling"] == ("heat",)


def test_a_gpu_without_a_counter_is_estimated_from_its_power(library: Library) -> None:
    library.answers["nvmlDeviceGetTotalEnergyConsumption"] = None
    meter = open_vitals("cuda:0")["energy"]
    assert (meter.read(), meter.watts()) == (None, 250.0)
    assert meter.provenance.startswith("estimated from power that NVML reported")
    library.answers["nvmlDeviceGetPowerUsage"] = None
    assert meters.provenance("cuda:0")["energy"].startswith("unavailable because")


@pytest.mark.usefixtures("library")
def test_a_gpu_that_nvml_does_not_know_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(uuid="another"))
    assert "unavailable because NVML refuses (NVMLError_NotSupported)" in meters.provenance("cuda:0")["energy"]
    assert read("cuda:0")["energy"] is None


def test_without_the_drivers_library_the_reason_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_name: str) -> None:
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)
    assert meters.provenance("cuda:0")["energy"] == "unavailable because NVML refuses (NVMLError_LibraryNotFound)"


@pytest.mark.parametrize(
    ("reasons", "clock", "verdict"),
    [(HEAT, 1500, "throttled"), (IDLE, 1980, "slowing"), (POWER_LIMIT, 1980, "slowing")],
    ids=["heat", "no evidence", "a limit that always held"],
)
def test_what_the_driver_says_decides_between_throttled_and_slowing(
    library: Library, reasons: int, clock: int, verdict: str
) -> None:
    """Steps of 50 ms become slower by a fifth, while the driver reports this."""
    now, steps = 0.0, iter((0.05 * stream("throttle", np.random.default_rng(1), 2000)).tolist())
    library.answers["nvmlDeviceGetCurrentClocksEventReasons"] = reasons if reasons == POWER_LIMIT else 0

    def time_block(count: int) -> float:
        nonlocal now
        seconds = sum(next(steps) for _ in range(count))
        if seconds > 1.1 * 0.05 * count:
            library.answers |= {"nvmlDeviceGetCurrentClocksEventReasons": reasons, "nvmlDeviceGetClockInfo": clock}
        now += seconds
        library.answers["nvmlDeviceGetTotalEnergyConsumption"] = int(1_000_000 + 200_000 * now)
        return seconds

    read = meters.open_conditions(root=meters.ROOT / "nowhere", device="cuda:0")
    found = measure_steps(
        time_block,
        clock=lambda: now,
        conditions=lambda: at(now, read()),
        glance=lambda: at(now, read()),
        settings=Settings(budget_s=20.0),
    )
    assert found.verdict == verdict
    assert found.metered.mean_w == pytest.approx(200, rel=0.02)
    if verdict == "throttled":
        assert found.evidence == (
            "the device held its clock down: heat",
            "the clock fell from 1.98 to 1.50 GHz",
        )


def at(now: float, conditions: Any) -> Any:
    """The clock here is made up, so that what others really took would be out of all proportion."""
    return replace(conditions, at_s=now, other_cpu_s=0.0, wait_s=0.0, major_fault_count=0)
