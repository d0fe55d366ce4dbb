"""What surrounds a run is seen: busy neighbours, batteries, heat, little shared memory, a GPU that torch cannot use."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchmark.store import load

CASE = "null/infer@fake/float32"


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@contextmanager
def busy_loops() -> Iterator[None]:
    """Two other processes that use all the CPU they get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_busy_loops_next_to_it_make_a_figure_contended(run, tmp_path):
    out = tmp_path / "run.jsonl"
    with busy_loops():
        assert run("run", CASE, "--rigor", "quick", "--budget", "2s", "--out", str(out)).returncode == 0
    (result,) = load(out).results
    assert result.estimate is not None
    assert result.estimate.verdict == "contended"
    assert "other processes used" in result.estimate.evidence[0]


def test_a_busy_process_that_starts_halfway_makes_a_figure_contended(start, tmp_path, wait_until):
    """The steps sleep, so that only the neighbours' CPU time shows it."""
    out = tmp_path / "run.jsonl"
    measuring = start("run", CASE, "--sustain", "3s", "--out", str(out))
    wait_until(lambda: out.exists() and '"kind":"started"' in out.read_text())
    time.sleep(1.5)  # of the three seconds of steps
    with busy_loops():
        assert measuring.wait(60) == 0
    (result,) = load(out).results
    assert result.estimate is not None
    assert result.estimate.verdict == "contended"
    assert result.sustained is not None
    assert "other processes used" in (result.sustained.cause or "")


def test_a_battery_is_on_record(run, own_mounts, do_without, environment, tmp_path):
    if not Path("/sys/class/power_supply").is_dir():
        do_without("this system has no information about its power supply")
    environment["TORCHMARK_FAKE"] = "stream=iid2,step=0.01"
    supplies = {"AC/type": "Mains", "AC/online": "0", "BAT0/type": "Battery", "BAT0/status": "Discharging"}
    prefix = own_mounts(f"mount --bind {written(tmp_path / 'supplies', supplies)} /sys/class/power_supply")
    done = run("run", CASE, "--steps", "5", prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert "on-battery" in done.stdout
    assert "Plug it in" in done.stdout


def test_hardware_that_throttles_itself_is_named_as_the_cause(run, own_mounts, do_without, environment, tmp_path):
    """The steps become slower half-way, while the counter of the first allowed core rises. The
    system looks idle, and the test has real-time priority, so that other programs do not matter."""
    if subprocess.run(["chrt", "-f", "1", "true"], check=False, capture_output=True).returncode:
        do_without("no real-time priority on this system")
    environment["TORCHMARK_FAKE"] = "stream=throttle,step=0.004,sleep=on"
    core = f"cpu{min(os.sched_getaffinity(0))}"
    count = f"/sys/devices/system/cpu/{core}/thermal_throttle/core_throttle_count"
    idle = written(tmp_path, {"stat": Path("/proc/stat").read_text()}) / "stat"
    prefix = own_mounts(
        f"""mount --bind {idle} /proc/stat
        mount -t tmpfs none /sys/devices/system/cpu/{core}
        mkdir {Path(count).parent}; echo 0 > {count}
        (for number in $(seq 400); do echo $number > {count}; sleep 0.05; done) &"""
    )
    out = tmp_path / "run.jsonl"
    command = ("run", CASE, "--rigor", "quick", "--budget", "4s", "--target", "0.1%", "--out", str(out))
    assert run(*command, prefix=(*prefix, "chrt", "-f", "1")).returncode == 0
    (result,) = load(out).results
    assert result.estimate is not None
    assert result.estimate.verdict == "throttled", result.estimate.evidence
    assert "the hardware throttled itself" in result.estimate.evidence[0]


def test_what_would_spoil_a_run_is_reported_before_it_begins(run, own_mounts, environment, tmp_path):
    """An NVIDIA tool with a CPU-only torch, and a container's small shared memory."""
    tool = tmp_path / "bin" / "nvidia-smi"
    written(tool.parent, {tool.name: "#!/bin/sh"}).joinpath(tool.name).chmod(0o755)
    environment["PATH"] = f"{tool.parent}{os.pathsep}{environment['PATH']}"
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = run("run", "dataloader", "--dry-run", prefix=own_mounts("mount -t tmpfs -o size=1m none /dev/shm"))
    assert done.returncode == 0, done.stderr
    warned = " ".join(done.stderr.split())
    assert "! an NVIDIA GPU is here" in warned
    assert "1 MiB of shared memory are free" in warned
    assert "--shm-size" in warned
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_a_second_run_waits_if_asked_to_and_shares_if_both_do(start, run, tmp_path, wait_until):
    first = start("run", CASE, "--steps", "10000", "--out", str(tmp_path / "run.jsonl"))
    wait_until((tmp_path / "run.jsonl").exists)
    refused = run("run", CASE, "--steps", "3", "--share")  # the other does not share
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert f"process {first.pid}" in refused.stderr
    second = start("run", CASE, "--steps", "10000", "--wait", "--share", "--out", str(tmp_path / "shared.jsonl"))
    words = second.stderr.readline()
    assert words.startswith(f"Waiting for another run on this machine: process {first.pid}, since")
    first.send_signal(signal.SIGINT)
    wait_until((tmp_path / "shared.jsonl").exists)
    assert run("run", CASE, "--steps", "3", "--share").returncode == 0
    assert second.poll() is None


def test_no_home_and_no_name_is_no_obstacle(run, own_mounts, environment, tmp_path):
    """As in a container whose user was never entered anywhere."""
    for name in ("HOME", "TORCHMARK_HOME", "XDG_DATA_HOME", "USER", "LOGNAME"):
        environment.pop(name, None)
    environment["TMPDIR"] = str(tmp_path)
    no_users = "for list in passwd nsswitch.conf; do mount --bind /dev/null /etc/$list; done"
    done = run("run", CASE, "--steps", "3", prefix=own_mounts(no_users))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / f"torchmark-{os.geteuid()}").glob("*.jsonl"))) == 1


def test_amx_that_is_only_announced_is_found_once_and_left_alone(run, own_mounts, environment, tmp_path):
    """The CPU announces it, and the first bfloat16 product kills its process."""
    environment.pop("ONEDNN_MAX_CPU_ISA", None)
    deaths, text = tmp_path / "deaths", Path("/proc/cpuinfo").read_text()
    environment["TORCHMARK_FAULT_AMX"] = str(deaths)
    (tmp_path / "cpuinfo").write_text(re.sub(r"(?m)^(flags\s*:)", r"\1 amx_tile", text))
    prefix = own_mounts(f"mount --bind {tmp_path / 'cpuinfo'} /proc/cpuinfo")
    for number in range(2):
        out = tmp_path / f"run{number}.jsonl"
        done = run("run", "mlp/infer:batch=2@cpu/bfloat16", "--steps", "3", "--out", str(out), prefix=prefix)
        assert "This CPU announces AMX but does not have it" in done.stderr
        (result,) = load(out).results
        assert (result.status, result.settings["onednn_max_isa"]) == ("ok", "AVX512_CORE_BF16")
    assert deaths.read_text() == "died\n"
    environment["ONEDNN_MAX_CPU_ISA"] = "AVX2"
    assert "AMX" not in run("run", CASE, "--device", "cpu", "--dry-run", prefix=prefix).stderr
