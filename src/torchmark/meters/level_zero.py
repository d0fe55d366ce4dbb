"""Intel GPUs by Level Zero, through torch: power, clock and temperature."""

from __future__ import annotations

from collections.abc import Callable

from torchmark.meters.contract import QUANTITIES, Silent, Vitals, VitalsMeter, estimated, unavailable

_SOURCE = "Level Zero"


class LevelZero(VitalsMeter):
    """One GPU. Torch tells its power over a tenth of a second, and no energy."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.provenance = dict.fromkeys(QUANTITIES, unavailable("torch does not tell"))
        asked = self.read()
        known = {"clock": asked.clock_hz, "temperature": asked.temperature_c}
        self.provenance |= {name: f"measured by {_SOURCE}" for name, value in known.items() if value is not None}
        if self.watts() is not None:
            self.provenance["energy"] = estimated(_SOURCE)

    def read(self) -> Vitals:
        import torch

        megahertz = _answer(lambda: torch.xpu.clock_rate(self._index))
        degrees = _answer(lambda: torch.xpu.temperature(self._index))
        return Vitals(clock_hz=None if megahertz is None else megahertz * 1e6, temperature_c=degrees)

    def watts(self) -> float | None:
        import torch

        return _answer(lambda: torch.xpu.power_draw(self._index))


def open_level_zero(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number."""
    try:
        import pyzes  # noqa: F401 -- torch needs it for these questions, and does not bring it
    except ImportError:
        return Silent("pyzes is not installed, which torch reads an Intel GPU's meters with")
    except Exception as error:  # it looks for the driver while it is imported
        return Silent(f"pyzes cannot be used ({type(error).__name__})")
    return LevelZero(index)


def _answer(question: Callable[[], float]) -> float | None:
    """None where this torch, this driver or this user's rights do not reach so far."""
    try:
        return float(question())
    except (AttributeError, RuntimeError, ZeroDivisionError):
        return None
