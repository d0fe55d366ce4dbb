"""The page on adding a device shows a file that works and every key of the fake device."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchmark import devices
from torchmark.devices.fake import FAULTS, Script

PAGE = (Path(__file__).parents[2] / "docs/add-a-device.md").read_text(encoding="utf-8")


def test_the_example_is_found_opened_and_timed(simulation, monkeypatch, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "hpu.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(tmp_path)])
    monkeypatch.setattr(devices, "KINDS", devices._list_kinds())
    simulation.torch.hpu = SimpleNamespace(
        device_count=lambda: 1,
        get_device_name=lambda: "Gaudi Test",
        synchronize=simulation.synchronize,
        reset_peak_memory_stats=lambda: None,
        max_memory_allocated=lambda: 77,
    )
    assert "hpu:0" in devices.find_devices()
    device = devices.open_device("hpu")
    device.clock = lambda: simulation.host_s
    assert device.info().model == "Gaudi Test"
    assert device.memory().device_peak_bytes == 77
    assert device.timer(lambda: simulation.launch(0.002))(3).total_s == pytest.approx(0.006, abs=4e-5)


def test_every_key_and_fault_of_the_fake_device_is_on_the_page():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(Script.__struct_fields__)
    assert all(f"`{fault}`" in PAGE for fault in FAULTS)
