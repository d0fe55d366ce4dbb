"""The time that others take is distinguished from that of this process."""

import os
import sys
import threading
import time

import pytest

from torchmark import meters
from torchmark.meters import process

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's counters")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@linux
def test_only_the_allowed_cores_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    lines = "cpu  900 0 0 0 0 0 0 9 0 0\ncpu0 800 0 0 0 0 0 0 7 0 0\ncpu1 10000 20 30 999 999 40 50 200 0 0\nintr 5\n"
    write(tmp_path / "proc/stat", lines)
    ticks = os.sysconf("SC_CLK_TCK")
    assert process.open_waits(tmp_path)["steal"].read() == 200 / ticks
    own_s = time.process_time() + sum(os.times()[2:4])
    assert process.open_other_cpu(tmp_path)() == pytest.approx(max(0, 10140 / ticks - own_s), abs=1)


@linux
def test_the_time_of_own_children_is_not_others(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    write(tmp_path / "proc/stat", "cpu  0\ncpu0 1000000 0 0 0 0 0 0 0 0 0\n")
    alone_s = process.open_other_cpu(tmp_path)()
    write(tmp_path / "proc/self/task/1/children", "55 ")
    write(tmp_path / "proc/55/task/55/children", "56 ")
    write(tmp_path / "proc/55/stat", f"55 (a b) c) S {'0 ' * 10} 700 200 100 0 0\n")
    write(tmp_path / "proc/56/stat", f"56 (x) S {'0 ' * 10} 1000 0 0 0 0\n")
    own_s = 2000 / os.sysconf("SC_CLK_TCK")
    assert alone_s - process.open_other_cpu(tmp_path)() == pytest.approx(own_s, abs=1)


@linux
def test_others_cpu_only_grows():
    read = process.open_other_cpu()
    readings = [read() for _ in range(50)]
    assert readings == sorted(readings)
    assert readings[0] > 0


@linux
def test_each_thread_reads_its_own_wait():
    read = process.wait_reader()
    wait_s, switches = read()
    assert wait_s >= 0
    assert switches >= 0
    other = []
    thread = threading.Thread(target=lambda: other.append(process.wait_reader()()))
    thread.start()
    thread.join()
    assert other[0][1] <= switches + 5
    assert read()[0] >= wait_s


def test_a_thread_that_ended_still_counts(tmp_path):
    for task, waited in ((1, 2_000_000_000), (2, 3_000_000_000)):
        write(tmp_path / f"proc/self/task/{task}/schedstat", f"5 {waited} 1\n")
    meter = process.open_waits(tmp_path)["run-queue wait"]
    assert meter.read() == 5.0
    (tmp_path / "proc/self/task/2/schedstat").unlink()
    assert meter.read() == 5.0


@pytest.mark.parametrize(
    ("cgroup", "folder", "stat", "quota"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b", "usage_usec 5\nthrottled_usec 2500000\n", ("cpu.max", "50000 100000\n")),
        (
            "4:cpu,cpuacct:/a\n",
            "sys/fs/cgroup/cpu,cpuacct/a",
            "throttled_time 2500000000\n",
            ("cpu.cfs_quota_us", "50000"),
        ),
        ("0::/../../x\n", "sys/fs/cgroup", "throttled_usec 2500000\n", ("cpu.max", "50000 100000\n")),
    ],
)
def test_a_quota_and_its_throttling_are_read_in_either_version(tmp_path, cgroup, folder, stat, quota):
    write(tmp_path / "proc/self/cgroup", cgroup)
    write(tmp_path / folder / "cpu.stat", stat)
    write(tmp_path / folder / "cpu.cfs_period_us", "100000")
    write(tmp_path / folder / quota[0], quota[1])
    assert process.open_waits(tmp_path)["quota"].read() == 2.5
    assert process.capacity(tmp_path) == 0.5


def test_a_quota_above_this_process_counts(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.stat", "throttled_usec 9000000\n")
    write(tmp_path / "sys/fs/cgroup/pod/box/cpu.stat", "throttled_usec 0\n")
    assert process.open_waits(tmp_path)["quota"].read() == 9.0


def test_what_cannot_be_read_is_none_with_a_reason(tmp_path):
    reading = meters.open_conditions(root=tmp_path)()
    assert (reading.steal_s, reading.throttled_s, reading.clock_hz, reading.temperature_c) == (None,) * 4
    assert reading.capacity >= 1
    sources = meters.provenance("cpu", tmp_path)
    assert {"energy", "clock", "temperature", "throttling", "steal", "quota"} <= set(sources)
    unread = [name for name in sources if name != "run-queue wait"]
    assert all(sources[name].startswith("unavailable because ") for name in unread)


def test_off_linux_others_cpu_comes_from_psutil(tmp_path):
    assert process.open_other_cpu(tmp_path)() > 0


@linux
def test_a_full_reading_of_this_machine():
    read = meters.open_conditions()
    first, second = read(), read()
    assert second.at_s > first.at_s
    assert second.other_cpu_s >= first.other_cpu_s
    assert second.wait_s >= first.wait_s
    assert second.major_fault_count >= 0
