"""Meters of GPUs and Apple chips, each through its maker's library: NVML, Level Zero, AMD SMI, Apple's counters.

zeus, which reads AMD's and Apple's, is an optional extra: `pip install torchmark[energy]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmark.meters.meter import Meter, VitalsMeter, estimated, missing, unavailable, without_vitals

_NO_ZEUS = "zeus is not installed: pip install torchmark with its extra energy"
_APPLE_PARTS = ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj")
# NVML's name of each bit, and what it means. Idle, chosen clocks and the like slow nothing down unasked.
_NVML_REASONS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat, by the hardware",
    "HwPowerBrakeSlowdown": "power brake",
}
_Read = Callable[[], Any]


def open_nvidia(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number; NVML counts all, even those hidden from torch."""
    try:
        import pynvml
    except ImportError:
        return without_vitals("nvidia-ml-py is not installed")
    import torch

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(index).uuid  # used only to find the GPU, and never stored
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except (pynvml.NVMLError, AttributeError) as error:  # an older torch does not report the UUID
        return without_vitals(f"NVML refuses ({type(error).__name__})")

    def ask(question: str, *details: int) -> Any:
        try:
            return getattr(pynvml, question)(handle, *details)
        except (pynvml.NVMLError, AttributeError):  # older bindings do not have every question
            return None

    def reasons() -> tuple[str, ...] | None:
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name in drivers before 535
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        known = {words: getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name, words in _NVML_REASONS.items()}
        return None if bits is None else tuple(words for words, bit in known.items() if bits & bit)

    return _gpu_meter(
        "NVML",
        "this GPU's driver does not report it",
        energy=_scaled(1e-3, lambda: ask("nvmlDeviceGetTotalEnergyConsumption")),
        counted="NVML: the whole board",
        watts=_scaled(1e-3, lambda: ask("nvmlDeviceGetPowerUsage")),
        clock=_scaled(1e6, lambda: ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
        temperature=lambda: ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        throttling=reasons,
    )


def open_intel(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number. Torch reports its power over a tenth of a second, and no energy."""
    try:
        import pyzes  # noqa: F401 -- torch needs it for these questions, and does not bring it
    except ImportError:
        return without_vitals("pyzes is not installed, which torch reads an Intel GPU's meters with")
    except Exception as error:  # it looks for the driver while it is imported
        return without_vitals(f"pyzes cannot be used ({type(error).__name__})")
    import torch

    def ask(question: str) -> float | None:
        try:
            return float(getattr(torch.xpu, question)(index))
        except (AttributeError, RuntimeError, ZeroDivisionError):  # this torch, driver or user cannot read it
            return None

    return _gpu_meter(
        "Level Zero",
        "torch does not report it",
        watts=lambda: ask("power_draw"),
        clock=_scaled(1e6, lambda: ask("clock_rate")),
        temperature=lambda: ask("temperature"),
    )


def open_amd(index: int) -> VitalsMeter:
    """The GPU that torch counts by this number; zeus hides the same ones as ROCm does."""
    try:
        from zeus.device import get_gpus
    except ImportError:
        return without_vitals(_NO_ZEUS)
    gpus = _answer(get_gpus)
    if gpus is None:
        return without_vitals("zeus finds no AMD GPU here")

    def ask(question: str) -> Any:
        return _answer(lambda: getattr(gpus, question)(index))

    def power() -> Any:
        milliwatts = ask("get_instant_power_usage")  # some boards only know an average
        return ask("get_average_power_usage") if milliwatts is None else milliwatts

    counts = ask("supports_get_total_energy_consumption")  # zeus does not offer a counter that is wrong
    return _gpu_meter(
        "AMD SMI",
        "zeus does not report it",
        through=", through zeus",
        energy=_scaled(1e-3, lambda: ask("get_total_energy_consumption") if counts else None),
        watts=_scaled(1e-3, power),
        temperature=lambda: ask("get_gpu_temperature"),
    )


def open_apple() -> Meter[float]:
    """Joules that the whole Apple chip used: processor, GPU, neural engine and memory."""
    try:
        from zeus.device import get_soc
    except ImportError:
        return missing(_NO_ZEUS)
    chip = _answer(get_soc)
    if chip is None:
        return missing("zeus finds no Apple chip here")

    def read() -> float | None:
        seen = _answer(chip.get_total_energy_consumption)
        known = [part for name in _APPLE_PARTS if (part := getattr(seen, name, None)) is not None]
        return sum(known) / 1e3 if known else None

    return Meter(read, "measured by the chip's own counters, through zeus: processor, GPU and memory")


def _gpu_meter(
    source: str,
    silent: str,
    *,
    energy: _Read = lambda: None,
    counted: str = "",
    through: str = "",
    watts: _Read = lambda: None,
    clock: _Read = lambda: None,
    temperature: _Read = lambda: None,
    throttling: _Read = lambda: None,
) -> VitalsMeter:
    """Each reading is tried once: what gives none is unavailable because of `silent`."""

    def meter(read: _Read, by: str = "") -> Meter[Any]:
        known = read() is not None
        return Meter(read, f"measured by {by or source + through}" if known else unavailable(silent))

    found = meter(energy, counted)
    if energy() is None and watts() is not None:
        found = Meter(energy, estimated(source))
    return VitalsMeter(found, meter(clock), meter(temperature), meter(throttling), watts)


def _scaled(factor: float, read: _Read) -> _Read:
    def scaled() -> float | None:
        value = read()
        return None if value is None else value * factor

    return scaled


def _answer(question: Callable[[], Any]) -> Any:
    """None if anything goes wrong inside: each maker's library has errors of its own, and none may end a run."""
    try:
        return question()
    except Exception:
        return None
