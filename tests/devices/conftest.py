"""A torch with GPUs that are not here: its queue, events and memory run on a made-up time line."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


class Simulation:
    """An asynchronous device: the host goes on at once, the device finishes later."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.device_s = 0.0
        self.synchronized = 0
        self.selected: int | None = None
        self.peak_bytes = 3000
        self.driver_bytes = 100
        self.kernel_error: Exception | None = None

    def launch(self, duration_s: float) -> None:
        self.host_s += 1e-5
        self.device_s = max(self.device_s, self.host_s) + duration_s

    def synchronize(self, _index: int | None = None) -> None:
        self.synchronized += 1
        self.host_s = max(self.host_s, self.device_s)

    def event(self, enable_timing: bool = False) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at_s=None)
        event.record = lambda: setattr(event, "at_s", max(self.device_s, self.host_s))
        event.elapsed_time = lambda later: (later.at_s - event.at_s) * 1000
        return event

    def ones(self, device: str) -> SimpleNamespace:
        assert device

        def add(_: int) -> None:
            if self.kernel_error:
                raise self.kernel_error
            self.launch(1e-3)

        return SimpleNamespace(add_=add)

    def reset(self, _index: int) -> None:
        self.peak_bytes = 0

    def select(self, index: int) -> None:
        self.selected = index

    def backend(self, properties: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            set_device=self.select,
            synchronize=self.synchronize,
            Event=self.event,
            get_device_properties=lambda _index: properties,
            reset_peak_memory_stats=self.reset,
            max_memory_allocated=lambda _index: self.peak_bytes,
            max_memory_reserved=lambda _index: 2 * self.peak_bytes,
        )


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Put a torch with two GPUs of each kind in torch's place."""
    simulation = Simulation()
    cuda = SimpleNamespace(
        name="NVIDIA Test", total_memory=8_000, major=9, minor=0, multi_processor_count=132, gcnArchName="gfx942"
    )
    xpu = SimpleNamespace(
        name="Intel Test", total_memory=4_000, driver_version="1.3", version="12.55.8", gpu_eu_count=64
    )
    torch = SimpleNamespace(
        __version__="2.99.0",
        ones=lambda _count, device: simulation.ones(device),
        cuda=simulation.backend(cuda),
        xpu=simulation.backend(xpu),
        mps=SimpleNamespace(
            synchronize=simulation.synchronize,
            driver_allocated_memory=lambda: simulation.driver_bytes,
            recommended_max_memory=lambda: 16_000,
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True, is_built=lambda: True)),
        version=SimpleNamespace(cuda="12.6", hip=None, xpu="20250101"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    monkeypatch.delenv("PYTORCH_ENABLE_XPU_FALLBACK", raising=False)
    simulation.torch = torch
    return simulation
