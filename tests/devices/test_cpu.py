"""The CPU says who it is and times what a step takes."""

import platform
import time

from torchmark.devices import open_device
from torchmark.devices.cpu import cache_bytes, cpu_model


def test_identity_names_the_model_and_nothing_of_the_host():
    info = open_device("cpu").info()
    assert info.model
    assert info.cores >= 1
    assert info.memory_bytes > 2**28
    assert platform.node() == "" or platform.node() not in info.model


def test_a_block_takes_as_long_as_its_steps():
    block = open_device("cpu").timer(lambda: time.sleep(0.002))(5)
    assert block.total_s >= 0.01


def test_the_host_peak_is_left_to_the_meter():
    memory = open_device("cpu").memory()
    assert memory.device_peak_bytes is None
    assert memory.provenance.startswith("unavailable because")


def test_a_recorded_cpuinfo_gives_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD  EPYC 7B13\n")
    assert cpu_model(tmp_path) == "AMD EPYC 7B13"
    (tmp_path / "proc/cpuinfo").write_text("")
    assert cpu_model(tmp_path)


def test_the_last_cache_is_the_largest_that_a_recorded_tree_shows(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_bytes(tmp_path) is None
    for index, size in enumerate(("48K", "32K", "2048K", "32M", "many")):
        place = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        place.mkdir(parents=True)
        (place / "size").write_text(f"{size}\n")
    assert cache_bytes(tmp_path) == 32 << 20
