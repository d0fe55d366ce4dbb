"""Which sources tell the energy, clock and heat of a device, by the name that torch has for it."""

from __future__ import annotations

import sys
from pathlib import Path

from torchmark.meters import heat
from torchmark.meters.contract import ROOT, Meter, Nothing, Vitals, VitalsMeter
from torchmark.meters.rapl import open_rapl


class Chip(VitalsMeter):
    """A processor, or a chip with processor and GPU in one: each quantity has a meter of its own."""

    def __init__(
        self, energy: Meter[float], clock: Meter[float], temperature: Meter[float], throttling: Meter[int]
    ) -> None:
        self._energy, self._clock, self._temperature, self._throttling = energy, clock, temperature, throttling
        self.provenance = {
            "energy": energy.provenance,
            "clock": clock.provenance,
            "temperature": temperature.provenance,
            "throttling": throttling.provenance,
        }

    def read(self) -> Vitals:
        return Vitals(
            energy_j=self._energy.read(),
            clock_hz=self._clock.read(),
            temperature_c=self._temperature.read(),
            thermal_count=self._throttling.read(),
        )


def open_vitals(device: str, root: Path = ROOT) -> VitalsMeter:
    """What can be read of this device here."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        return _open_cuda(int(number or 0))
    if kind == "xpu":
        from torchmark.meters.level_zero import open_level_zero

        return open_level_zero(int(number or 0))
    if kind == "mps":
        silent = "macOS tells it to nobody but root"
        return Chip(_open_apple(), Nothing(silent), Nothing(silent), Nothing(silent))
    energy = _open_apple() if sys.platform == "darwin" else open_rapl(root)
    return Chip(energy, heat.open_clock(root), heat.open_temperature(root), heat.open_throttling(root))


def _open_cuda(index: int) -> VitalsMeter:
    """ROCm's GPUs carry the same name in torch."""
    import torch

    if torch.version.hip is not None:
        from torchmark.meters.zeus import open_amd

        return open_amd(index)
    from torchmark.meters.nvml import open_nvml

    return open_nvml(index)


def _open_apple() -> Meter[float]:
    from torchmark.meters.zeus import open_apple

    return open_apple()
