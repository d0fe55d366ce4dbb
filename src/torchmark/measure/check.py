"""The numeric check of a step: its outputs against those of another computation."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from torchmark.errors import WrongResultError
from torchmark.records import NumericCheck
from torchmark.workloads.contract import Step
from torchmark.workloads.reference import rounding_at

if TYPE_CHECKING:
    import torch

_CURE = "Do not trust this device with this dtype before you know why; `torchmark devices --audit` tries it by itself"

# How far one rounding may move an output, as a multiple of the dtype's unit roundoff (half the gap between 1 and the
# next number), measured as the root mean square of the error relative to that of the reference.
#   Short formats are summed in float32 and rounded once at the end: that is 0.43 units for one product, and 0.75 where
#   a device splits the sum in parts that it rounds too. So 1.5, which a matrix that is 1% off (2.6 units of bfloat16)
#   still exceeds.
#   Long formats also round every partial sum, which grows with the root of the length in the worst order: 6 units
#   were seen for a thousand terms, 64 leaves room for the longest sums.
_UNITS = {
    "float64": (2.0**-53, 64.0),
    "float32": (2.0**-24, 64.0),
    "float16": (2.0**-11, 1.5),
    "bfloat16": (2.0**-8, 1.5),
}
# How much further roundings that follow one another move it is measured: the reference is computed again with every
# operator's results off by up to a unit, evenly spread. That is 0.58 units for one operator; as most round less, 0.8 of
# what comes out counts as one. Units of long formats are too small for that: there the difference would vanish in the
# rounding of the reference itself.
_SPREAD = 0.8
_LEAST_UNIT = 2.0**-30
_UNKNOWN = 8.0  # where that is impossible
# An output of one number may by chance hardly move in one draw; in four that is rare. Large models get fewer.
_DRAWS, _DRAWING_S = 4, 1.0
# float32 products may be allowed to use shorter numbers; then those are what rounding is made of.
_ALLOWED_IN_FLOAT32 = {"highest": "float32", "high": "float16", "medium": "bfloat16"}
# One element may be this many times further off than all of them together: the largest of millions of errors is.
# A handful of outputs lies between the two.
_WORST_ELEMENT = 4.0


def check_step(step: Step, dtype: str) -> NumericCheck | None:
    """How far the step's outputs are from the reference; None if there is nothing to compare.

    It runs the step at least once and leaves what is timed unchanged, so it may come before or after measuring.
    """
    # One wrong weight among millions hides in the rounding of the outputs of a short format, but not here.
    pairs = step.copies() if step.copies else ()
    for index, (there, made) in enumerate(pairs):
        wrong = there.detach().cpu() != made.detach()
        if bool(wrong.any()):
            raise WrongResultError(
                f"{_name(index, len(pairs), 'input')} on the device differs from what was put there "
                f"in {int(wrong.sum())} of {wrong.numel()} places",
                _CURE,
            )
    if step.outputs is None or step.reference is None:
        return None
    outputs, reference = ([_as_exact(each) for each in compute()] for compute in (step.outputs, step.reference))
    if len(outputs) != len(reference):
        raise WrongResultError(f"the step gave {len(outputs)} outputs where {len(reference)} were due", _CURE)
    if not outputs:
        return None
    names = [_name(index, len(outputs)) for index in range(len(outputs))]
    for name, output, expected in zip(names, outputs, reference, strict=True):
        if output.shape != expected.shape:
            shapes = ["×".join(map(str, each.shape)) or "of one number" for each in (output, expected)]
            raise WrongResultError(f"{name} has the shape {shapes[0]} instead of {shapes[1]}", _CURE)
        for owner, tensor in ((name, output), (f"the reference of {name}", expected)):
            for what, bad in (("holds NaN", tensor.isnan()), ("is infinite", tensor.isinf())):
                if bool(bad.any()):
                    raise WrongResultError(f"{owner} {what} in {int(bad.sum())} of {tensor.numel()} places", _CURE)
    tolerances = _tolerances(step, reference, dtype)
    return max(map(_compare, names, outputs, reference, tolerances), key=_severity)


def _tolerances(step: Step, reference: list[torch.Tensor], dtype: str) -> list[float]:
    """For each output the error that rounding explains, relative to its root mean square."""
    import torch

    assert step.reference
    rounded_to = _ALLOWED_IN_FLOAT32[torch.get_float32_matmul_precision()] if dtype == "float32" else dtype
    unit, factor = _UNITS[rounded_to]
    drawn = max(unit, _LEAST_UNIT)
    squares, began, draws = [0.0] * len(reference), time.monotonic(), 0
    try:
        while draws < _DRAWS and (not draws or time.monotonic() - began < _DRAWING_S):
            draws += 1
            with rounding_at(drawn, seed=draws):
                rounded = [_as_exact(expected) for expected in step.reference()]
            moved = [other - expected for other, expected in zip(rounded, reference, strict=True)]
            squares = [before + float(each.square().sum()) for before, each in zip(squares, moved, strict=True)]
    except (RuntimeError, ValueError, IndexError):  # the model refuses numbers that are slightly off
        return [unit * factor * _UNKNOWN] * len(reference)
    lengths = [float(expected.norm()) or 1.0 for expected in reference]
    found = [math.sqrt(each / draws) / size / (_SPREAD * drawn) for each, size in zip(squares, lengths, strict=True)]
    return [unit * factor * max(1.0, each if math.isfinite(each) else _UNKNOWN) for each in found]


def _compare(name: str, output: torch.Tensor, expected: torch.Tensor, tolerance: float) -> NumericCheck:
    error, scale = (output - expected).abs(), float(expected.square().mean().sqrt())
    if scale == 0.0:
        overall = worst = 0.0 if float(error.max()) == 0.0 else float("inf")
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
        what = check.method.partition(", ")[2]
        raise WrongResultError(
            f"{name} is off by {check.error:.2g} ({what}), where rounding explains {check.tolerance:.2g}", _CURE
        )
    return check


def _severity(check: NumericCheck) -> float:
    return check.error / check.tolerance


def _as_exact(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().cpu().to(torch.float64)  # in this order: not every device has float64


def _name(index: int, count: int, kind: str = "output") -> str:
    return f"the {kind}" if count == 1 else f"{kind} {index + 1} of {count}"
