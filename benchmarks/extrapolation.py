"""Whether a share of a published loop predicts the time of all of it.

    python benchmarks/extrapolation.py [RUNS]

Runs the 10,000 steps of `mlp` as m1-chips timed them, RUNS times (7), each next to a run of 1% of the steps in another
process. Prints how far the total that is extrapolated from 1% lies from the whole one: from the first 1% of the very
same run, which must be within 10% in the median of all runs, and from the other process, which shows what else differs
between two runs on this machine.
"""

from __future__ import annotations

import sys
from statistics import median

import msgspec

from torchmark.analyze.jobs import extrapolate
from torchmark.measure.messages import Found, call
from torchmark.measure.process import Process
from torchmark.measure.training_script import Task, due
from torchmark.records import Laps, Result, parse_case

CASE = parse_case("mlp/infer:outputs=512@cpu/float32+as-published")
STEPS, SCALE, GOAL = 10_000, 0.01, 0.10
PATIENCE_S = 3600.0


def replay(scale: float) -> Result:
    with Process(timeout_s=PATIENCE_S) as process:
        order = call("torchmark.measure.replay:replay_all", [Task("m1-chips", CASE, STEPS, scale)], PATIENCE_S)
        return msgspec.json.decode(process.ask(order, Found).record, type=Result)


def laps_of(result: Result, count: int) -> list[Laps]:
    """The first steps of a run as if it had been stopped after them."""
    assert result.job is not None
    assert result.estimate is not None
    moving, *_ = result.job.stages
    steps = list(result.estimate.samples_s[:count])
    return [Laps(moving.name, [moving.center_s]), Laps("step", steps, STEPS, is_work=True)]


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    inside, between = [], []
    for number in range(1, runs + 1):
        alone, whole = replay(SCALE).job, replay(1.0)
        assert alone is not None
        assert whole.job is not None
        total = whole.job.seconds
        first = extrapolate(laps_of(whole, due(STEPS, SCALE)))
        inside.append(first.seconds / total - 1)
        between.append(alone.seconds / total - 1)
        print(
            f"     run {number}: {STEPS} steps took {total:.2f} s; its first 1% says {first.seconds:.2f} s "
            f"({first.low_s:.2f} to {first.high_s:.2f}, {inside[-1]:+.1%}), "
            f"another process with 1% says {alone.seconds:.2f} s ({between[-1]:+.1%})"
        )
    error = median(map(abs, inside))
    print(f"     from another process: {median(map(abs, between)):.1%} off in the median")
    held = error <= GOAL
    print(f"{'ok  ' if held else 'FAIL'} from 1% of the same run: {error:.1%} off in the median (goal: {GOAL:.0%})")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
