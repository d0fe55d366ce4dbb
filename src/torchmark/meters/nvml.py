"""NVIDIA GPUs by their driver's library: energy, clock, temperature, and why the clock is held down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchmark.meters.contract import Silent, Vitals, VitalsMeter, estimated, unavailable

_SOURCE = "NVML"
# The library's own name of each bit, and what it means. Idle, chosen clocks and the like slow nothing down unasked.
_REASONS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat, by the hardware",
    "HwPowerBrakeSlowdown": "power brake",
}


class Nvml(VitalsMeter):
    """One GPU. What its driver does not tell is None."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        asked = self.read()
        missing = unavailable("this GPU's driver does not tell")
        energy = f"measured by {_SOURCE}: the whole board" if asked.energy_j is not None else missing
        self.provenance = {
            "energy": estimated(_SOURCE) if asked.energy_j is None and self.watts() is not None else energy,
            "clock": missing if asked.clock_hz is None else f"measured by {_SOURCE}",
            "temperature": missing if asked.temperature_c is None else f"measured by {_SOURCE}",
            "throttling": missing if self._reasons() is None else f"measured by {_SOURCE}",
        }

    def read(self) -> Vitals:
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        megahertz = self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM)
        degrees = self._ask("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU)
        return Vitals(
            energy_j=None if millijoules is None else millijoules / 1e3,
            clock_hz=None if megahertz is None else megahertz * 1e6,
            temperature_c=degrees,
            throttle=tuple(self._told(self._reasons() or 0)),
        )

    def watts(self) -> float | None:
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def _reasons(self) -> int | None:
        bits: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 know it by its old name
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return bits

    def _told(self, bits: int) -> Iterator[str]:
        for name, words in _REASONS.items():
            if bits & getattr(self._library, f"nvmlClocksThrottleReason{name}"):
                yield words

    def _ask(self, question: str, *details: int) -> Any:
        try:
            return getattr(self._library, question)(self._handle, *details)
        except (self._library.NVMLError, AttributeError):  # an older binding does not know every question
            return None


def open_nvml(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number; NVML counts all, whatever is hidden from torch."""
    try:
        import pynvml
    except ImportError:
        return Silent("nvidia-ml-py is not installed")
    import torch

    try:
        pynvml.nvmlInit()
        # Only used to find it here and now: who a GPU is by its number is written down nowhere.
        known_as = torch.cuda.get_device_properties(index).uuid
        return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{known_as}"))
    except (pynvml.NVMLError, AttributeError) as error:  # an older torch does not tell which GPU it means
        return Silent(f"NVML refuses ({type(error).__name__})")
