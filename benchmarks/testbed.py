"""The engine's test-bed: step times with a known truth, played on a virtual clock through the code that measures.

    python benchmarks/testbed.py                   300 trials a stream, ours next to torch's timer and a fixed loop
    python benchmarks/testbed.py --trials 40       a quick look
    python benchmarks/testbed.py --only sticky     one stream

Every gate that fails is listed, and the exit code is 1. The seed changes daily, to prevent tuning to one.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from torchmark.devices.streams import CHANGING, KINDS, STATIONARY, stream, truth
from torchmark.measure.engine import measure_pair, measure_steps

QUIET = ("iid2", "warm-exp", "warm-step", "bimodal")
WELL_COVERED = {"iid2", "iid10", "bimodal", "heavy-tail", "preempt"}  # 92%; the other stationary ones 90%


class Machine(NamedTuple):
    """A step and what a synchronisation costs on it."""

    name: str
    step_s: float
    sync_s: float
    steps: int  # how many a trial may use up


MACHINES = (Machine("10 ms", 10e-3, 0.2e-6, 3_000), Machine("50 us", 50e-6, 10e-6, 180_000))


class Trial(NamedTuple):
    """What one method said about one play of a stream, relative to the truth."""

    error: float
    covered: bool
    verdict: str
    steps: int
    seconds: float


class Player:
    """A virtual clock on which the steps of a stream pass."""

    def __init__(self, kind: str, seed: Sequence[int], machine: Machine, slower: float = 1.0) -> None:
        steps = stream(kind, np.random.default_rng(list(seed)), machine.steps) * machine.step_s
        self._ends = np.concatenate([[0.0], np.cumsum(steps)]).tolist()
        self._sync_s, self._slower = machine.sync_s, slower
        self.steps, self.now = 0, 0.0

    def clock(self) -> float:
        return self.now

    def block(self, count: int) -> float:
        seconds = float(self._ends[self.steps + count] - self._ends[self.steps]) + self._sync_s
        self.steps += count
        self.now += seconds
        return seconds

    def slower_block(self, count: int) -> float:
        """The same steps done by something that takes longer."""
        seconds = self.block(count)
        extra = (self._slower - 1) * (seconds - self._sync_s)
        self.now += extra
        return seconds + extra

    def step(self) -> None:
        """One step without synchronisation; the peer's timer pays for the synchronisation."""
        self.now += self._ends[self.steps + 1] - self._ends[self.steps]
        self.steps += 1

    def timer(self) -> float:
        self.now += self._sync_s
        return self.now


def ours(player: Player, machine: Machine) -> tuple[float, float, float, str, str]:
    found = measure_steps(player.block, clock=player.clock, sync_cost_s=machine.sync_s)
    return found.center_s, found.low_s, found.high_s, found.estimand, found.verdict


def torch_timer(player: Player, machine: Machine) -> tuple[float, float, float, str, str]:
    """The real `blocked_autorange`; it gives no interval, so it is given the one its samples support."""
    from torch.utils.benchmark import Timer

    del machine
    timer = Timer("step()", globals={"step": player.step}, timer=player.timer)
    times = np.sort(timer.blocked_autorange().times)
    reach = 1.96 * math.sqrt(len(times)) / 2
    low = max(math.floor(len(times) / 2 - reach), 0)
    high = min(math.ceil(len(times) / 2 + reach), len(times) - 1)
    return float(np.median(times)), float(times[low]), float(times[high]), "either", ""


def fixed_loop(player: Player, machine: Machine) -> tuple[float, float, float, str, str]:
    """Ten steps of warm-up, a hundred timed one by one, the mean: what most scripts do."""
    for _ in range(10):
        player.step()
    times = np.array([player.block(1) - machine.sync_s for _ in range(100)])
    reach = 1.96 * float(times.std(ddof=1)) / 10
    return float(times.mean()), float(times.mean()) - reach, float(times.mean()) + reach, "either", ""


METHODS: dict[str, Callable[[Player, Machine], tuple[float, float, float, str, str]]] = {
    "torchmark": ours,
    "torch blocked_autorange": torch_timer,
    "fixed 10+100": fixed_loop,
}


def play(method: str, kind: str, machine: Machine, seed: int, number: int) -> Trial:
    """One trial; peers are judged by whichever of median and mean lies nearer to what they said."""
    player = Player(kind, (seed, number, KINDS.index(kind)), machine)
    started = time.perf_counter()
    center, low, high, estimand, verdict = METHODS[method](player, machine)
    seconds = time.perf_counter() - started
    known = truth(kind) if kind in STATIONARY else None
    right = {"median": known.median, "mean": known.mean} if known else {"median": 1.0, "mean": 1.0}
    answers = [right[estimand]] if estimand in right else list(right.values())
    value = min(answers, key=lambda answer: abs(center / machine.step_s - answer)) * machine.step_s
    return Trial(center / value - 1, low <= value <= high, verdict, player.steps, seconds)


class Summary(NamedTuple):
    """A stream's trials in the figures that the gates speak of."""

    kind: str
    machine: str
    method: str
    trials: int
    covered: int
    stable: int
    stable_covered: int
    stable_wrong: int
    slowed: int
    far: int  # trials more than 1.5% off
    p95_error: float
    steps: float
    seconds: float


def summarise(kind: str, machine: Machine, method: str, trials: Sequence[Trial]) -> Summary:
    stable = [trial for trial in trials if trial.verdict == "stable"]
    errors = np.abs([trial.error for trial in trials])
    return Summary(
        kind,
        machine.name,
        method,
        len(trials),
        sum(trial.covered for trial in trials),
        len(stable),
        sum(trial.covered for trial in stable),
        sum(abs(trial.error) > 0.05 for trial in stable),
        sum(trial.verdict in ("slowing", "throttled") for trial in trials),
        int(np.count_nonzero(errors > 0.015)),
        float(np.quantile(errors, 0.95)),
        float(np.median([trial.steps for trial in trials])),
        float(np.mean([trial.seconds for trial in trials])),
    )


class Gate(NamedTuple):
    """A share that must be reached (or, for faults, not exceeded), as counts."""

    name: str
    good: int
    trials: int
    least: float

    def holds(self, surely: bool) -> bool:
        """Exactly at full size; in a small test only what is surely broken fails (99% Clopper-Pearson bound)."""
        if not surely:
            return self.good >= self.least * self.trials
        if self.good == self.trials:
            return True
        return float(betaincinv(self.good + 1, self.trials - self.good, 0.99)) >= self.least


def gates(summaries: Iterable[Summary]) -> list[Gate]:
    """What a method that may be trusted must reach."""
    found, wrong, trials = [], 0, 0
    for one in summaries:
        where = f"{one.kind}, {one.machine}"
        wrong, trials = wrong + one.stable_wrong, trials + one.trials
        if one.kind in CHANGING:
            found.append(Gate(f"found: {where}", one.slowed, one.trials, 0.95))
            continue
        least = 0.92 if one.kind in WELL_COVERED else 0.90
        found.append(Gate(f"coverage: {where}", one.covered, one.trials, least))
        if one.stable >= 30:
            found.append(Gate(f"coverage where stable: {where}", one.stable_covered, one.stable, 0.90))
        found.append(Gate(f"p95 error <= 1.5%: {where}", one.trials - one.far, one.trials, 0.95))
        found.append(Gate(f"no false slowing: {where}", one.trials - one.slowed, one.trials, 0.99))
    found.append(Gate("stable, yet more than 5% wrong", trials - wrong, trials, 0.995))
    return found


def pair_trial(kind: str, seed: int, number: int, slower: float) -> str:
    """Two doings of the same stream, sharing its disturbances; B may really be slower."""
    machine = MACHINES[0]
    player = Player(kind, (seed, number, KINDS.index(kind), 1), machine, slower)
    second = player.slower_block if slower != 1 else player.block
    found = measure_pair(player.block, second, clock=player.clock, sync_cost_s=machine.sync_s, seed=number)
    return found.verdict


def pair_gates(pool: ProcessPoolExecutor, seed: int, trials: int) -> list[Gate]:
    """A/A must not be distinguished; a true 3% must be found."""
    per_stream = math.ceil(trials / len(KINDS))
    same = [pool.map(partial(pair_trial, kind, seed, slower=1.0), range(per_stream), chunksize=8) for kind in KINDS]
    equal = [verdict for verdicts in same for verdict in verdicts]
    slower = [pool.map(partial(pair_trial, kind, seed, slower=1.03), range(per_stream), chunksize=8) for kind in QUIET]
    found = [verdict for verdicts in slower for verdict in verdicts]
    alike = sum(verdict in ("same", "unsure") for verdict in equal)
    return [
        Gate("pair: A/A not distinguished", alike, len(equal), 0.95),
        Gate("pair: a true 3% found on quiet streams", found.count("slower"), len(found), 0.90),
    ]


def run(
    trials: int, seed: int, kinds: Sequence[str], methods: Sequence[str], pair_trials: int
) -> tuple[list[Summary], list[Gate]]:
    """Play everything; returns the figures of every method and the gates of ours."""
    summaries = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for machine in MACHINES:
            for kind in kinds:
                for method in methods:
                    played = pool.map(partial(play, method, kind, machine, seed), range(trials), chunksize=8)
                    summaries.append(summarise(kind, machine, method, list(played)))
                    if sys.stderr.isatty():
                        print(f"\r{machine.name} {kind} {method}\033[K", end="", file=sys.stderr, flush=True)
        held = gates(one for one in summaries if one.method == "torchmark")
        if pair_trials:
            held += pair_gates(pool, seed, pair_trials)
    return summaries, held


def show(summaries: Sequence[Summary], held: Sequence[Gate]) -> None:
    print("step   stream      method                    cover  stable cover|st  p95 err   steps    ms")
    for one in summaries:
        given = f"{one.stable_covered / one.stable:8.1%}" if one.stable else f"{'-':>8}"
        stable = f"{one.stable / one.trials:7.0%}" if one.method == "torchmark" else f"{'-':>7}"
        print(
            f"{one.machine:6} {one.kind:11} {one.method:24} {one.covered / one.trials:6.1%} {stable} {given}"
            f" {one.p95_error:8.2%} {one.steps:7.0f} {one.seconds * 1e3:5.0f}"
        )
    print()
    for gate in held:
        mark = "ok  " if gate.holds(surely=False) else "FAIL"
        print(f"{mark} {gate.name}: {gate.good / gate.trials:.1%} of {gate.trials} (gate {gate.least:.1%})")


def main() -> int:
    today = int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--pair-trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=today)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--ours", action="store_true", help="leave the peers out")
    options = parser.parse_args()
    methods = ["torchmark"] if options.ours else list(METHODS)
    summaries, held = run(options.trials, options.seed, options.only, methods, options.pair_trials)
    print(f"seed {options.seed}, {options.trials} trials a stream")
    show(summaries, held)
    return 0 if all(gate.holds(surely=False) for gate in held) else 1


if __name__ == "__main__":
    sys.exit(main())
