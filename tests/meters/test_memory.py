"""The host's peak is this process's own, and nothing is missed between two looks."""

import os
import sys

import pytest

from torchmark.meters.process import forget_peak, read_host_memory


def test_a_short_peak_is_remembered():
    before = read_host_memory().peak_bytes
    block = bytearray(b"x") * (max(before, 64 * 2**20) + 32 * 2**20)
    del block
    assert read_host_memory().peak_bytes > before + 2**24


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_a_reset_forgets_it():
    block = bytearray(b"x") * (256 * 2**20)
    peak = read_host_memory().peak_bytes
    del block
    forget_peak()
    if os.access("/proc/self/clear_refs", os.W_OK):
        assert read_host_memory().peak_bytes < peak - 2**26


def test_recorded_status(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tpython\nVmHWM:\t   2048 kB\nVmSwap:\t      8 kB\n")
    reading = read_host_memory(tmp_path)
    assert (reading.peak_bytes, reading.swap_bytes) == (2048 * 1024, 8 * 1024)
    assert reading.major_fault_count is None or reading.major_fault_count >= 0


def test_without_a_status_file_the_usage_counter_answers(tmp_path):
    assert read_host_memory(tmp_path).peak_bytes > 2**20
    forget_peak(tmp_path)  # where it cannot, nothing happens
