"""Completes what is known of a case's power: who measured it, or a short look at it beside steps that nobody times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import fmean

from msgspec.structs import replace

from torchmark.analyze.metering import LEAST_POWER_S
from torchmark.devices.contract import Device
from torchmark.meters import provenance
from torchmark.meters.contract import VitalsMeter, unavailable
from torchmark.meters.vitals import open_vitals
from torchmark.records import Estimate, Metered

SAMPLING_S = 3.0
SETTLING_S = 1.0  # until the power is that of the work; what a driver tells may itself be the mean of a second
PAUSE_S = 0.05


def complete_power(
    estimate: Estimate, device: Device, run: Callable[[], object] | None = None, all_seen: bool = True
) -> tuple[Estimate, dict[str, str]]:
    """The estimate with the power that is known, and where each reading of a meter comes from.

    Where there is no counter, `run` is kept going for a few seconds to look at the power; without it nobody looks.
    """
    if device.clock is not time.perf_counter:
        return estimate, {}  # a made-up device has no meters of this machine's
    sources = provenance(device.name)
    if not all_seen:
        sources["energy"] = unavailable("several devices or machines worked, and only one of them is read")
        return without_power(estimate), sources
    if sources["energy"].startswith("estimated"):
        watts = sample_power(open_vitals(device.name), device, run) if run else []
        power = replace(estimate.metered, mean_w=fmean(watts), peak_w=max(watts)) if watts else estimate.metered
        estimate = replace(estimate, metered=power)
    if estimate.metered.mean_w is None and sources["energy"].startswith("estimated"):
        sources["energy"] = unavailable("its power was not looked at beside untimed steps")
    elif estimate.metered.mean_w is None and sources["energy"].startswith("measured"):
        sources["energy"] = unavailable(f"the counter moves too slowly for less than {LEAST_POWER_S:g} s of steps")
    return estimate, sources


def without_power(estimate: Estimate) -> Estimate:
    metered: Metered = replace(estimate.metered, mean_w=None, peak_w=None)
    return replace(estimate, metered=metered)


def sample_power(meter: VitalsMeter, device: Device, run: Callable[[], object]) -> list[float]:
    """Watts, one after another, while another thread keeps asking and this one keeps the device at work."""
    watts: list[float] = []
    done = threading.Event()
    began = time.monotonic()

    def ask() -> None:
        while not done.wait(PAUSE_S):
            power = meter.watts()
            if power is not None and time.monotonic() - began > SETTLING_S:
                watts.append(power)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time_block = device.timer(run)
    try:
        while time.monotonic() - began < SETTLING_S + SAMPLING_S:
            time_block(1)
    finally:
        done.set()
        thread.join()
    return watts
