"""Meters of GPUs and Apple chips, through their makers' libraries."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torchmark.meters import Meter, Meters, missing, try_meter

_NO_ZEUS = "zeus is not installed: pip install torchmark with its extra energy"
# NVML's names of the bits that mean trouble; others are idle, chosen clocks and the like.
_NVML_REASONS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat, by the hardware",
    "HwPowerBrakeSlowdown": "power brake",
}
_Read = Callable[[], Any]


def without_vitals(reason: str) -> Meters:
    return dict.fromkeys(("energy", "clock", "temperature", "throttling"), missing(reason))


def open_nvidia(index: int) -> Meters:
    try:
        import pynvml
    except ImportError:
        return without_vitals("nvidia-ml-py is not installed")
    import torch

    try:
        pynvml.nvmlInit()
        # Not by number: NVML counts GPUs that are hidden from torch. The UUID is not stored.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    except pynvml.NVMLError as error:
        return without_vitals(f"NVML refuses ({type(error).__name__})")
    ask = partial(_ask, pynvml, handle)

    def reasons() -> tuple[str, ...] | None:
        if (bits := ask("nvmlDeviceGetCurrentClocksEventReasons")) is None:  # the name in drivers since 535
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        known = {words: getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name, words in _NVML_REASONS.items()}
        return None if bits is None else tuple(words for words, bit in known.items() if bits & bit)

    return _meters(
        "NVML",
        "this GPU's driver does not report it",
        counted="NVML: the whole board",
        energy=partial(ask, "nvmlDeviceGetTotalEnergyConsumption", factor=1e-3),
        watts=partial(ask, "nvmlDeviceGetPowerUsage", factor=1e-3),
        clock=partial(ask, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, factor=1e6),
        temperature=partial(ask, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        throttling=reasons,
    )


def open_intel(index: int) -> Meters:
    """Torch reports power over a tenth of a second, and no energy."""
    try:
        import pyzes  # noqa: F401 -- torch needs it for these questions, and does not install it
    except ImportError:
        return without_vitals("pyzes is not installed, which torch reads an Intel GPU's meters with")
    except Exception as error:  # it looks for the driver while it is imported
        return without_vitals(f"pyzes cannot be used ({type(error).__name__})")
    import torch

    ask = partial(_ask, torch.xpu, index)
    return _meters(
        "Level Zero",
        "torch does not report it",
        watts=partial(ask, "power_draw"),
        clock=partial(ask, "clock_rate", factor=1e6),
        temperature=partial(ask, "temperature"),
    )


def open_amd(index: int) -> Meters:
    try:
        from zeus.device import get_gpus
    except ImportError:
        return without_vitals(_NO_ZEUS)
    if (gpus := _answer(get_gpus)) is None:
        return without_vitals("zeus finds no AMD GPU here")
    ask = partial(_ask, gpus, index)  # zeus hides the same GPUs as ROCm

    def power() -> Any:
        watts = ask("get_instant_power_usage", factor=1e-3)
        return ask("get_average_power_usage", factor=1e-3) if watts is None else watts  # all that some boards have

    counts = ask("supports_get_total_energy_consumption")  # zeus does not offer a counter that is wrong
    return _meters(
        "AMD SMI through zeus",
        "zeus does not report it",
        energy=lambda: ask("get_total_energy_consumption", factor=1e-3) if counts else None,
        watts=power,
        temperature=partial(ask, "get_gpu_temperature"),
    )


def open_apple() -> Meter:
    try:
        from zeus.device import get_soc
    except ImportError:
        return missing(_NO_ZEUS)
    if (chip := _answer(get_soc)) is None:
        return missing("zeus finds no Apple chip here")

    def read() -> float | None:
        seen = _answer(chip.get_total_energy_consumption)
        names = ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj")
        known = [part for name in names if (part := getattr(seen, name, None)) is not None]
        return sum(known) / 1e3 if known else None

    return Meter(read, "measured by the chip's own counters, through zeus: processor, GPU and memory")


def _meters(source: str, silent: str, counted: str = "", watts: _Read = lambda: None, **reads: _Read) -> Meters:
    """Meters of one source; those that give no reading now are unavailable because of `silent`."""
    sources = {name: counted if name == "energy" and counted else source for name in reads}
    found = without_vitals(silent) | {name: try_meter(reads[name], silent, sources[name]) for name in reads}
    energy = found["energy"]
    sampled = f"estimated from power that {source} reported during untimed steps"
    by_power = energy.read() is None and watts() is not None
    return found | {"energy": Meter(energy.read, sampled if by_power else energy.provenance, watts)}


def _ask(library: Any, device: Any, question: str, *details: Any, factor: float = 1) -> Any:
    value = _answer(lambda: getattr(library, question)(device, *details))
    return value if value is None or factor == 1 else value * factor


def _answer(question: Callable[[], Any]) -> Any:
    """None on any error: each library has errors of its own, and none may end a run."""
    try:
        return question()
    except Exception:
        return None
