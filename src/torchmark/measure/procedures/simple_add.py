"""simple-add: a compiled function without input in an endless loop, whose pace a progress bar showed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from torchmark.measure.procedures.contract import Played, Procedure, Task
from torchmark.measure.stopwatch import Stopwatch
from torchmark.records import Case, Result
from torchmark.workloads import find_workload

ITERATIONS = 200  # stand for a loop that ran until somebody had seen enough
FEWEST = 20  # a bar's pace comes from many
READINGS = ("as-run", "as-written", "resident")

# The published listing; without a GPU its copies to one were left out.
LISTING = """
def foo():
    x = torch.ones(({size}, {size}), dtype=torch.float32)
    y = torch.ones(({size}, {size}), dtype=torch.float32)
    x = x{move}
    y = y{move}
    z = x + y
    return z
"""

FOLDED = (
    "as-run: two calls of the compiled function gave the very same memory. The compiler had worked its result out "
    "once, so that an iteration only doubled that one tensor in place."
)
NOT_FOLDED = "as-run: this torch's compiler does not fold the function; each call made its tensors anew."


class SimpleAdd(Procedure):
    """The listing is compiled and run as it was. What the compiler made of it shows beside the other two readings."""

    endless = True

    def readings(self, case: Case) -> dict[str, Case]:
        return {name: replace(case, params={**case.params, "variant": name}) for name in READINGS}

    def explain(self, results: Mapping[str, Result]) -> tuple[str, ...]:
        """Whether the compiler folded the function, and what the listing costs where nobody does."""
        as_run, as_written = results.get("as-run"), results.get("as-written")
        if as_run is None or as_run.estimate is None:
            return ()
        told = [FOLDED if as_run.metrics["folded"] else NOT_FOLDED]
        if as_written and as_written.estimate:
            ratio = as_written.estimate.center_s / as_run.estimate.center_s
            told.append(
                f"as-written / as-run = {ratio:.1f}: an iteration that does what the listing says takes so much longer."
            )
        return tuple(told)

    def steps(self, task: Task) -> int:
        return max(FEWEST, task.due(ITERATIONS))

    def play(self, task: Task, place: str, watch: Stopwatch) -> Played:
        if task.params.variant == "as-run":
            return _run_listing(task, place, watch, self.steps(task))
        step = find_workload(task.case.workload).prepare(task.params, task.setting(place)).run
        watch.start()
        for _ in watch.loop("iteration", ITERATIONS, self.steps(task)):
            step()
        return Played(step)


def _run_listing(task: Task, place: str, watch: Stopwatch, due: int) -> Played:
    foo = _compile(task.params.size, place)
    z0: Any = None
    addresses = []
    watch.start()
    for number in watch.loop("iteration", ITERATIONS, due):
        zz = foo()
        if z0 is None:
            z0 = zz
        else:
            z0 += zz
        if number < 2:
            addresses.append(zz.data_ptr())
    return Played(metrics={"folded": float(len(set(addresses)) == 1)})


def _compile(size: int, place: str) -> Any:
    import warnings

    import torch

    move = "" if place == "cpu" else f'.to(torch.device("{place}"))'
    with warnings.catch_warnings():  # that this compiler is an old one is known
        warnings.simplefilter("ignore")
        return torch.jit.CompilationUnit(LISTING.format(size=size, move=move)).foo


PROCEDURE = SimpleAdd
