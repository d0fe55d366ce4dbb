"""What torchmark itself costs: a step, a worker, the waiting parent, and `--help`.

    python benchmarks/overhead.py

Prints each figure next to its goal; the exit code is 1 where one is missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from statistics import median

from msgspec.structs import replace

from torchmark.measure.cases import expand
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.messages import MeasureJob
from torchmark.measure.process import measure_case


def show(name: str, figure: float, goal: float, unit: str, scale: float = 1.0) -> bool:
    held = figure <= goal
    print(f"{'ok  ' if held else 'FAIL'} {name}: {figure * scale:.3g} {unit} (goal: at most {goal * scale:g} {unit})")
    return held


def null_step() -> bool:
    """The bias that is left after the cost of calling an empty step was taken off."""
    from torchmark import time_step
    from torchmark.devices import open_device

    costs = open_device("cpu").calibrate()
    print(
        f"     calling an empty step: {costs.call_s * 1e9:.1f} ns; "
        f"clock and sync of a block: {costs.sync_s * 1e9:.0f} ns"
    )
    centers = []
    for _ in range(9):
        estimate = time_step(lambda: None, name="null", budget_s=1.5).estimate
        assert estimate is not None
        centers.append(abs(estimate.center_s))
    return show("bias of an empty step", median(centers), 30e-9, "ns", 1e9)


def worker_start() -> bool:
    """From asking for a worker to its first word, once the server is up."""
    starts = []
    job = MeasureJob(expand(["mlp"], tiny=True)[0], replace(DEFAULTS, steps=3))
    for _ in range(8):
        asked = time.monotonic()
        heard: list[float] = []
        measure_case(job, 60.0, lambda _, heard=heard: heard.append(time.monotonic()))
        starts.append(heard[0] - asked)
    print(f"     first worker: {starts[0]:.2f} s")
    return show("starting a later worker", median(starts[1:]), 0.6, "s")


def parent_share() -> bool:
    """CPU of this process while a worker measures, against the worker's."""
    case = expand(["mlp"])[0]
    before, began = getrusage(RUSAGE_SELF), time.monotonic()
    result = measure_case(MeasureJob(case, replace(DEFAULTS, budget_s=6.0, target=1e-6)), 60.0)
    after, seconds = getrusage(RUSAGE_SELF), time.monotonic() - began
    assert result.status == "ok"
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    threads = result.settings["threads"] or 1
    print(f"     parent: {own * 1e3:.0f} ms of CPU in {seconds:.1f} s")
    return show("CPU of the waiting parent", own / (seconds * float(threads)), 0.01, "%", 100.0)


def fastest(action: Callable[[], object], tries: int = 15) -> float:
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return median(times)


def help_time() -> bool:
    """`torchmark --help` against an interpreter that does nothing, taken in turn."""
    program = "import sys; from torchmark.cli import main; sys.exit(main(['--help']))"
    ratios = []
    for _ in range(15):
        nothing = fastest(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 1)
        helped = fastest(
            lambda: subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL), 1
        )
        ratios.append(helped / nothing)
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            program.replace("sys.exit(main(['--help']))", "main(['--help']); sys.exit('torch' in sys.modules)"),
        ],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    print(f"     torch imported by --help: {'yes' if loaded.returncode else 'no'}")
    return show("`torchmark --help`", median(ratios), 5.0, "x `python -c pass`") and loaded.returncode == 0


def main() -> int:
    return 0 if all([help_time(), null_step(), worker_start(), parent_share()]) else 1


if __name__ == "__main__":
    sys.exit(main())
