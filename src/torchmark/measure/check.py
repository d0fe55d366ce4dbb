"""Checks of numbers and times: of a step against another computation, and of the user's device."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from torchmark.case import DTYPES
from torchmark.devices import open_device
from torchmark.devices.contract import Device, do_nothing
from torchmark.errors import WrongResultError
from torchmark.measure.machine import first_line
from torchmark.measure.messages import Phase, Say
from torchmark.measure.process import try_each
from torchmark.records import NumericCheck
from torchmark.workloads.contract import Step
from torchmark.workloads.reference import rounding_at

if TYPE_CHECKING:
    import torch

_CURE = "Do not trust this device with this dtype; `torchmark devices --audit` tests it"

# The unit roundoff of each dtype, and by how many units rounding may move an output (root mean square). Short formats
# are summed in float32 and rounded once: 0.43 units for a product, 0.75 where a device rounds parts of the sum, too; at
# 1.5, a matrix that is 1% off (2.6 units of bfloat16) still fails. Long formats round every partial sum: 6 units were
# seen for a thousand terms in the worst order, growing with the root of their number.
_UNITS = {"float64": (2.0**-53, 64), "float32": (2.0**-24, 64), "float16": (2.0**-11, 1.5), "bfloat16": (2.0**-8, 1.5)}
# For several roundings, the reference is computed again with every operator's results off by up to a unit, evenly
# spread. That is 0.58 units for one operator; as most round less, 0.8 of the outcome counts as one.
_SPREAD = 0.8
_LEAST_UNIT = 2.0**-30  # less would vanish in the rounding of the reference
_UNKNOWN = 8.0  # where that is impossible
_CLEAR = 0.5  # of what one rounding explains: how far several would move it need not be found out
# An output of one number may by chance hardly move in one draw, but rarely in four. Large models get fewer.
_DRAWS, _DRAWING_S = 4, 1.0
# What float32 products may be made of, by torch's setting.
_ALLOWED_IN_FLOAT32 = {"highest": "float32", "high": "float16", "medium": "bfloat16"}
_WORST_ELEMENT = 4.0  # the largest of millions of errors, relative to their root mean square


def check_step(step: Step, dtype: str) -> NumericCheck | None:
    """How far the outputs are from the reference; None without one. Leaves what is timed unchanged."""
    import torch

    # One wrong weight among millions would hide in the rounding of the outputs.
    pairs = step.copies() if step.copies else ()
    for index, (there, made) in enumerate(pairs):
        wrong = there.detach().cpu() != made.detach()
        if bool(wrong.any()):
            name, places = _name(index, len(pairs), "input"), f"{int(wrong.sum())} of {wrong.numel()} places"
            raise WrongResultError(f"{name} on the device differs from what was put there in {places}", _CURE)
    if step.outputs is None or step.reference is None:
        return None
    outputs, reference = ([_as_exact(each) for each in compute()] for compute in (step.outputs, step.reference))
    if len(outputs) != len(reference):
        raise WrongResultError(f"the step gave {len(outputs)} outputs where {len(reference)} were due", _CURE)
    names = [_name(index, len(outputs)) for index in range(len(outputs))]
    for name, output, expected in zip(names, outputs, reference, strict=True):
        if output.shape != expected.shape:
            found, wanted = ("×".join(map(str, each.shape)) or "of one number" for each in (output, expected))
            raise WrongResultError(f"{name} has the shape {found} instead of {wanted}", _CURE)
        for owner, tensor in ((name, output), (f"the reference of {name}", expected)):
            for what, bad in (("holds NaN", tensor.isnan()), ("is infinite", tensor.isinf())):
                if bool(bad.any()):
                    raise WrongResultError(f"{owner} {what} in {int(bad.sum())} of {tensor.numel()} places", _CURE)

    def worst(roundings: Iterable[float]) -> NumericCheck:
        tolerances = [unit * factor * each for each in roundings]
        return max(map(_compare, names, outputs, reference, tolerances), key=_severity)

    if not outputs:
        return None
    allowed = _ALLOWED_IN_FLOAT32[torch.get_float32_matmul_precision()] if dtype == "float32" else dtype
    unit, factor = _UNITS[allowed]
    with contextlib.suppress(WrongResultError):
        near = worst([1.0] * len(outputs))
        if _severity(near) < _CLEAR:
            return near
    return worst(_roundings(step, reference, unit))


def _roundings(step: Step, reference: list[torch.Tensor], unit: float) -> list[float]:
    """How far rounding moves each output, relative to one rounding; at least 1."""
    assert step.reference
    drawn = max(unit, _LEAST_UNIT)
    squares, began, draws = [0.0] * len(reference), time.monotonic(), 0
    try:
        while draws < _DRAWS and (not draws or time.monotonic() - began < _DRAWING_S):
            draws += 1
            with rounding_at(drawn, seed=draws):
                rounded = [_as_exact(expected) for expected in step.reference()]
            moved = [other - expected for other, expected in zip(rounded, reference, strict=True)]
            squares = [before + float(each.square().sum()) for before, each in zip(squares, moved, strict=True)]
    except (RuntimeError, ValueError, IndexError):  # the model refuses such numbers
        return [_UNKNOWN] * len(reference)
    lengths = [float(expected.norm()) or 1.0 for expected in reference]
    found = [math.sqrt(each / draws) / size / (_SPREAD * drawn) for each, size in zip(squares, lengths, strict=True)]
    return [max(1.0, each if math.isfinite(each) else _UNKNOWN) for each in found]


def _compare(name: str, output: torch.Tensor, expected: torch.Tensor, tolerance: float) -> NumericCheck:
    error, scale = (output - expected).abs(), float(expected.square().mean().sqrt())
    if scale == 0.0:
        overall = worst = 0.0 if float(error.max()) == 0.0 else math.inf
    else:
        overall = float(error.square().mean().sqrt()) / scale
        worst = float((error / expected.abs().clamp_min(scale)).max())
    few = 1 + (_WORST_ELEMENT - 1) / math.sqrt(error.numel())
    checks = (
        NumericCheck(overall, few * tolerance, "float64 on the CPU, root mean square of the relative error"),
        NumericCheck(worst, _WORST_ELEMENT * tolerance, "float64 on the CPU, relative error of the worst element"),
    )
    check = max(checks, key=_severity)
    if check.error > check.tolerance:
        off = f"{name} is off by {check.error:.2g} ({check.method.partition(', ')[2]})"
        raise WrongResultError(f"{off}, where rounding explains {check.tolerance:.2g}", _CURE)
    return check


def _severity(check: NumericCheck) -> float:
    return check.error / check.tolerance


def _as_exact(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().cpu().to(torch.float64)  # in this order: not every device has float64


def _name(index: int, count: int, kind: str = "output") -> str:
    return f"the {kind}" if count == 1 else f"{kind} {index + 1} of {count}"


_STEP_S, _ROUNDS = 0.005, 9  # launching, synchronising and reading back are negligible
_LEFT_OVER = 0.1  # work still under way after we synchronised
_TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 8e-3, "float16": 2e-3}  # none as large as 1%
_FIX = "Fix that before you use its times; `torchmark devices --audit` tests it"


class Proof(Struct, frozen=True):
    device: str
    name: str  # what is claimed about it
    figure: str
    passed: bool | None  # None: the device cannot compute it
    dtype: str | None = None


def audit_device(device: Device) -> Iterator[Proof]:
    yield from prove_times(device)
    yield from try_each("torchmark.measure.check:check_outputs", device.name, DTYPES, Proof, _no_outputs)
    steps = np.diff([device.clock() for _ in range(10_000)])
    resolution_s = min(steps[steps > 0], default=time.get_clock_info("perf_counter").resolution)
    backwards = int((steps < 0).sum())
    figure = f"smallest step {resolution_s * 1e9:.0f} ns, ran backwards {backwards} times in {len(steps)}"
    yield Proof(device.name, "the clock is fine and steady", figure, backwards == 0 and bool(resolution_s <= 1e-6))
    # What torchmark itself costs, by the wall clock.
    cost_s = statistics.median(timeit.repeat(partial(device.timer(do_nothing), 2_000), number=1, repeat=6)[1:]) / 2_000
    yield Proof(device.name, "the harness is cheap", f"{cost_s * 1e9:.0f} ns for an empty step", cost_s <= 50e-6)


def prove_times(device: Device) -> Iterator[Proof]:
    import torch

    def retried(prove: Callable[[], Proof]) -> Proof:  # a busy machine can spoil a comparison of times once
        proof = prove()
        for _ in range(2):
            proof = proof if proof.passed else prove()
        return proof

    threads = torch.get_num_threads()
    if device.place == "cpu":  # several threads on a busy CPU wait for one another; one shows as much
        torch.set_num_threads(1)
    try:
        bench = _Bench(device)
        yield retried(bench.prove_synchronization)
        block = device.timer(bench.step())(5)
        if isinstance(block.step_s, tuple):  # where the device stamps its steps itself
            share = sum(block.step_s) / block.total_s
            figure = f"the steps by the device's own events add up to {share:.2f} of the wall time"
            yield Proof(device.name, "events agree with the clock", figure, 0.8 <= share <= 1.02)
        yield retried(bench.prove_growth)
    finally:
        torch.set_num_threads(threads)


class _Bench:
    def __init__(self, device: Device) -> None:
        self.device, self._repetitions, self._last = device, 1, None
        for size in (256, 512, 1024, 2048, 4096):
            self._left, self._right = (_inputs(size, size, seed, "float32")[0].to(device.place) for seed in (1, 2))
            product_s = min(self._until_read(self.step()) for _ in range(3))
            if product_s >= 2e-4:
                break
        self._repetitions = max(1, min(4096, round(_STEP_S / max(product_s, 1e-7))))

    def step(self, factor: int = 1) -> Callable[[], None]:
        left, right, observe, repetitions = self._left, self._right, self.device.observe, factor * self._repetitions

        def run() -> None:
            for _ in range(repetitions):
                self._last = observe(left @ right)

        return run

    def _until_read(self, run: Callable[[], None] = do_nothing) -> float:
        """Seconds until a value of the last result is on the host."""
        started = self.device.clock()
        run()
        self.device.read(self._last)
        return self.device.clock() - started

    def prove_synchronization(self) -> Proof:
        """A timed block ends no earlier than a value can be read back, and leaves nothing to wait for."""
        run, rows = self.step(), []
        time_block = self.device.timer(run)
        for _ in range(_ROUNDS):
            rows.append((time_block(1).total_s, self._until_read(), self._until_read(), self._until_read(run)))
            self._until_read()
        timed_s, left_s, idle_s, until_read_s = map(statistics.median, zip(*rows, strict=True))
        work_s = max(until_read_s - idle_s, 1e-9)
        agreement, remaining = timed_s / work_s, max(0.0, left_s - idle_s) / work_s
        figure = f"time by synchronising is {agreement:.2f} of time until a value is read; {remaining:.0%} left over"
        passed = 0.8 <= agreement <= 1.25 and remaining <= _LEFT_OVER
        return Proof(self.device.name, "synchronisation is real", figure, passed)

    def prove_growth(self) -> Proof:
        timers = [self.device.timer(self.step(factor)) for factor in (1, 2, 4, 8)]
        best_s = [math.inf] * len(timers)
        for _ in range(_ROUNDS):
            # Disturbances only add time, so the fastest step of each length is compared.
            best_s = [min(best, time_block(1).total_s) for best, time_block in zip(best_s, timers, strict=True)]
            self._until_read()
        ratios = [larger / max(smaller, 1e-12) for smaller, larger in pairwise(best_s)]
        figure = f"twice the work takes {', '.join(f'{ratio:.2f}' for ratio in ratios)} times as long"
        return Proof(self.device.name, "time grows with work", figure, all(1.7 <= ratio <= 2.35 for ratio in ratios))


def check_outputs(say: Say, name: str, dtypes: Sequence[str]) -> Iterator[Proof]:
    device = open_device(name)
    for dtype in dtypes:
        say(Phase(f"a {dtype} product"))
        yield prove_outputs(device, dtype)


def prove_outputs(device: Device, dtype: str) -> Proof:
    """What the device computes is what numpy computes in float64."""
    import torch

    worst, operation = -1.0, ""
    try:
        for seed, name in product((1, 2), ("matmul", "softmax")):
            left, left_host = _inputs(96, 160, seed, dtype)
            right, right_host = _inputs(160, 64, seed + 10, dtype)
            if name == "matmul":
                found, want = left.to(device.place) @ right.to(device.place), left_host @ right_host
            else:
                powers = np.exp(left_host - left_host.max(axis=-1, keepdims=True))
                found = torch.softmax(left.to(device.place), dim=-1)
                want = powers / powers.sum(axis=-1, keepdims=True)
            found = device.observe(found).cpu().double().numpy()
            error = float(np.linalg.norm(found - want) / np.linalg.norm(want))
            if math.isnan(error) or error > worst:  # NaN loses every comparison
                worst, operation = error, name
            if math.isnan(error):
                break
    except (RuntimeError, TypeError) as error:
        return _no_outputs(device.name, dtype, first_line(error))
    figure = f"error {worst:.1e}, allowed {_TOLERANCE[dtype]:.0e} ({operation})"
    return Proof(device.name, f"outputs are right in {dtype}", figure, worst <= _TOLERANCE[dtype], dtype)


def _no_outputs(device: str, dtype: str, cause: str) -> Proof:
    return Proof(device, f"outputs are right in {dtype}", f"not computed here: {cause[:80]}", None, dtype)


def _inputs(rows: int, columns: int, seed: int, dtype: str) -> tuple[Any, Any]:
    """Normal random numbers in this dtype on the host, and the same for numpy."""
    import torch

    values = np.random.default_rng(seed).standard_normal((rows, columns))
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    return tensor, tensor.double().numpy()


def check_device(device: Device, run: Callable[[], object], dtype: str | None) -> None:
    """Raise where the device's times for this step are wrong, or its numbers in this dtype."""
    if not device.queues:
        return
    shares = [_share_left(device, run)]
    while shares[-1] > _LEFT_OVER and len(shares) < 10:  # one read may be delayed; a broken device fails each time
        shares.append(_share_left(device, run))
    if shares[-1] > _LEFT_OVER:
        left = f"{min(shares):.0%} of the work still to do"
        raise WrongResultError(f"{device.name} came back from its synchronisation with {left}", _FIX)
    if dtype is not None and (proof := prove_outputs(device, dtype)).passed is False:
        raise WrongResultError(f"{device.name} computes wrong numbers: {proof.figure}", _FIX)


def _share_left(device: Device, run: Callable[[], object]) -> float:
    """The share of a block's work for which a later read has to wait."""
    if device.needs_torch:
        import torch

    value: Any = torch.zeros(1, device=device.place) if device.needs_torch else np.zeros(1)
    time_block, count = device.timer(run), 1

    def read_s() -> float:
        started = device.clock()
        device.read(value)
        return device.clock() - started

    while True:
        block_s, left_s, idle_s = time_block(count).total_s, read_s(), read_s()
        if block_s + left_s >= 20 * idle_s or count >= 1024:  # the block is long enough to judge
            return max(0.0, left_s - idle_s) / max(block_s + left_s, 1e-12)
        count *= 2
