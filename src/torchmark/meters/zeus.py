"""AMD GPUs and Apple chips, through the zeus library, which is an optional extra: `pip install torchmark[energy]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmark.meters.contract import (
    QUANTITIES,
    Meter,
    Nothing,
    Silent,
    Vitals,
    VitalsMeter,
    estimated,
    unavailable,
)

_ABSENT = "zeus is not installed: pip install torchmark with its extra energy"
_APPLE_PARTS = ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj")


class AmdGpu(VitalsMeter):
    """One GPU under ROCm. zeus tries the energy counter first, and does not offer one that is wrong."""

    def __init__(self, gpus: Any, index: int) -> None:
        self._gpus, self._index = gpus, index
        self._counts = bool(_answer(lambda: gpus.supports_get_total_energy_consumption(index)))
        self.provenance = dict.fromkeys(QUANTITIES, unavailable("zeus does not tell"))
        if self._counts:
            self.provenance["energy"] = "measured by AMD SMI, through zeus"
        elif self.watts() is not None:
            self.provenance["energy"] = estimated("AMD SMI")
        if self.read().temperature_c is not None:
            self.provenance["temperature"] = "measured by AMD SMI, through zeus"

    def read(self) -> Vitals:
        millijoules = _answer(lambda: self._gpus.get_total_energy_consumption(self._index)) if self._counts else None
        degrees = _answer(lambda: self._gpus.get_gpu_temperature(self._index))
        return Vitals(energy_j=None if millijoules is None else millijoules / 1e3, temperature_c=degrees)

    def watts(self) -> float | None:
        milliwatts = _answer(lambda: self._gpus.get_instant_power_usage(self._index))
        if milliwatts is None:  # some boards know an average only
            milliwatts = _answer(lambda: self._gpus.get_average_power_usage(self._index))
        return None if milliwatts is None else milliwatts / 1e3


class AppleChip(Meter[float]):
    """Joules that the whole chip took: processor, GPU, neural engine and memory."""

    name = "energy"
    source = "the chip's own counters, through zeus: processor, GPU and memory"

    def __init__(self, chip: Any) -> None:
        self._chip = chip

    def read(self) -> float | None:
        seen = _answer(self._chip.get_total_energy_consumption)
        parts = [getattr(seen, part, None) for part in _APPLE_PARTS]
        known = [part for part in parts if part is not None]
        return sum(known) / 1e3 if known else None


def open_amd(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number; zeus hides the same ones as ROCm does."""
    try:
        from zeus.device import get_gpus
    except ImportError:
        return Silent(_ABSENT)
    gpus = _answer(get_gpus)
    return AmdGpu(gpus, index) if gpus is not None else Silent("zeus finds no AMD GPU here")


def open_apple() -> Meter[float]:
    """The energy of an Apple chip."""
    try:
        from zeus.device import get_soc
    except ImportError:
        return Nothing(_ABSENT)
    chip = _answer(get_soc)
    return AppleChip(chip) if chip is not None else Nothing("zeus finds no Apple chip here")


def _answer(question: Callable[[], Any]) -> Any:
    """None for whatever goes wrong inside: each maker's library has errors of its own, and none may end a run."""
    try:
        return question()
    except Exception:
        return None
