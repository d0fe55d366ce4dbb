"""The host's peak is this process's own, and nothing is missed between two looks."""

import sys

import pytest

from torchmark.meters.process import HostMemoryMeter


def test_a_short_peak_is_remembered():
    meter = HostMemoryMeter()
    before = meter.read().peak_bytes
    block = bytearray(b"x") * (max(before, 64 * 2**20) + 32 * 2**20)
    del block
    assert meter.read().peak_bytes > before + 2**24


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_a_reset_forgets_it():
    meter = HostMemoryMeter()
    block = bytearray(b"x") * (256 * 2**20)
    peak = meter.read().peak_bytes
    del block
    if meter.reset():
        assert meter.read().peak_bytes < peak - 2**26


def test_recorded_status(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tpython\nVmHWM:\t   2048 kB\nVmSwap:\t      8 kB\n")
    reading = HostMemoryMeter(tmp_path).read()
    assert (reading.peak_bytes, reading.swap_bytes) == (2048 * 1024, 8 * 1024)
    assert reading.major_fault_count is None or reading.major_fault_count >= 0


def test_without_a_status_file_the_usage_counter_answers(tmp_path):
    assert HostMemoryMeter(tmp_path).read().peak_bytes > 2**20
    assert HostMemoryMeter(tmp_path).reset() is False
