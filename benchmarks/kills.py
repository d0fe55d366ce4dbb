"""Kill the parent at random moments: is a finished case lost, is a process left behind, does --resume complete the run?

    python benchmarks/kills.py                       200 kills with the fake device, 20 with the CPU
    python benchmarks/kills.py --fake 50 --real 5 --seed 3

Runs side by side, each in a folder of its own and with a lock of its own; the fake device really sleeps its steps.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from torchmark.store import load

GONE_AFTER_S = 2.0
MARK = "TORCHMARK_KILL_TRIAL"


class Outcome(NamedTuple):
    """What one kill did."""

    announced: int
    lost: int
    left_behind: int
    completed: bool
    killed: bool


def command(device: str, out: Path) -> list[str]:
    cases = [f"null/infer@fake/float32+threads={n}" for n in range(1, 11)]
    if device == "cpu":
        cases = [f"mlp/infer:batch={n}@cpu/float32" for n in range(1, 7)]
    return [sys.executable, "-m", "torchmark", "run", *cases, "--steps", "5", "--out", str(out)]


def trial(device: str, number: int, seed: int) -> Outcome:
    """Start a run, kill it, look at what is left, and resume it."""
    chance = random.Random(f"{seed} {device} {number}")
    with tempfile.TemporaryDirectory() as folder:
        out, mark = Path(folder) / "run.jsonl", f"{os.getpid()}-{device}-{number}"
        environment = {
            **os.environ,
            MARK: mark,
            "TORCHMARK_FAKE": "sleep=on,step=0.02",
            "TORCHMARK_HOME": folder,
            "TORCHMARK_LOCK": str(Path(folder) / "lock"),
        }
        heard = Path(folder) / "heard"
        with heard.open("wb") as words:
            process = subprocess.Popen(command(device, out), env=environment, stdout=subprocess.DEVNULL, stderr=words)
        try:
            process.wait(chance.uniform(0.2, 4.0 if device == "fake" else 14.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        killed = process.wait() == -signal.SIGKILL
        announced = [
            line.split()[1].rstrip(":")
            for line in heard.read_text().splitlines()
            if line.endswith("stable") or " ±" in line
        ]
        time.sleep(GONE_AFTER_S)
        left = left_behind(mark)
        kept = {result.case.text for result in load(out).results if result.status == "ok"} if out.exists() else set()
        lost = len(set(announced) - kept)
        resumed = not out.exists() or resume(out, environment)
        return Outcome(len(announced), lost, left, resumed, killed)


def resume(out: Path, environment: dict[str, str]) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "torchmark", "run", "--resume", str(out)],
        env=environment,
        capture_output=True,
        check=False,
    )
    run = load(out)
    complete = len(run.results) == len(run.header.cases) and all(result.status == "ok" for result in run.results)
    return done.returncode == 0 and complete


def left_behind(mark: str) -> int:
    """Living processes that carry the trial's mark; zombies do not count."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                found += marked and "\nState:\tZ" not in (entry / "status").read_text()
            except OSError:
                continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", type=int, default=200)
    parser.add_argument("--real", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    held = True
    for device, kills, beside in (("fake", options.fake, 6), ("cpu", options.real, 2)):
        with ThreadPoolExecutor(beside) as pool:
            outcomes = list(pool.map(lambda number, where=device: trial(where, number, options.seed), range(kills)))
        lost, left = sum(one.lost for one in outcomes), sum(one.left_behind for one in outcomes)
        completed = sum(one.completed for one in outcomes)
        good = lost == 0 and left == 0 and completed == kills
        held = held and good
        print(
            f"{'ok  ' if good else 'FAIL'} {device}: {kills} runs, {sum(one.killed for one in outcomes)} killed, "
            f"{sum(one.announced for one in outcomes)} finished cases, {lost} lost, {left} processes left after "
            f"{GONE_AFTER_S:g} s, {completed} completed by --resume"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
