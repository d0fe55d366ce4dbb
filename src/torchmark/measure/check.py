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
    _check_copies(step)
    if step.outputs is None or step.reference is None:
        return None
    outputs = [_as_exact(output) for output in step.outputs()]
    reference = [_as_exact(expected) for expected in step.reference()]
    if len(outputs) != len(reference):
        raise WrongResultError(f"the step gave {len(outputs)} outputs where {len(reference)} were due", _CURE)
    if not outputs:
        return None
    names = [_name(index, len(outputs)) for index in range(len(outputs))]
    for name, output, expected in zip(names, outputs, reference, strict=True):
        _check_form(name, output, expected)
    tolerances = _tolerances(step, reference, dtype)
    return max(map(_compare, names, outputs, reference, tolerances), key=lambda check: check.error / check.tolerance)


def _tolerances(step: Step, reference: list[torch.Tensor], dtype: str) -> list[float]:
    """For each output the error that rounding explains, relative to its root mean square."""
    import torch

    rounded_to = _ALLOWED_IN_FLOAT32[torch.get_float32_matmul_precision()] if dtype == "float32" else dtype
    unit, factor = _UNITS[rounded_to]
    try:
        found = _sensitivities(step, reference, max(unit, _LEAST_UNIT))
    except (RuntimeError, ValueError, IndexError):  # the model refuses numbers that are slightly off
        found = [_UNKNOWN] * len(reference)
    return [unit * factor * max(1.0, each if math.isfinite(each) else _UNKNOWN) for each in found]


def _sensitivities(step: Step, reference: list[torch.Tensor], unit: float) -> list[float]:
    """For each output how far it moves where every operator rounds to this unit, in roundings of the output itself."""
    assert step.reference
    squares, began, draws = [0.0] * len(reference), time.monotonic(), 0
    while draws < _DRAWS and (not draws or time.monotonic() - began < _DRAWING_S):
        draws += 1
        with rounding_at(unit, seed=draws):
            rounded = [_as_exact(expected) for expected in step.reference()]
        for index, (expected, other) in enumerate(zip(reference, rounded, strict=True)):
            squares[index] += float((other - expected).square().sum())
    return [
        math.sqrt(square / draws) / (float(expected.norm()) or 1.0) / (_SPREAD * unit)
        for square, expected in zip(squares, reference, strict=True)
    ]


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
    check = max(checks, key=lambda check: check.error / check.tolerance)
    if check.error > check.tolerance:
        what = check.method.partition(", ")[2]
        raise WrongResultError(
            f"{name} is off by {check.error:.2g} ({what}), where rounding explains {check.tolerance:.2g}", _CURE
        )
    return check


def _check_form(name: str, output: torch.Tensor, expected: torch.Tensor) -> None:
    if output.shape != expected.shape:
        raise WrongResultError(f"{name} has the shape {_shape(output)} instead of {_shape(expected)}", _CURE)
    for owner, tensor in ((name, output), (f"the reference of {name}", expected)):
        for what, bad in (("holds NaN", tensor.isnan()), ("is infinite", tensor.isinf())):
            if bool(bad.any()):
                raise WrongResultError(f"{owner} {what} in {int(bad.sum())} of {tensor.numel()} places", _CURE)


def _check_copies(step: Step) -> None:
    """The device holds what it was given. One wrong weight among millions hides in the rounding of the outputs of a
    short format, but not here."""
    pairs = step.copies() if step.copies else ()
    for index, (there, made) in enumerate(pairs):
        wrong = there.detach().cpu() != made.detach()
        if bool(wrong.any()):
            raise WrongResultError(
                f"{_name(index, len(pairs), 'input')} on the device differs from what was put there "
                f"in {int(wrong.sum())} of {wrong.numel()} places",
                _CURE,
            )


def _as_exact(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().cpu().to(torch.float64)  # in this order: not every device has float64


def _name(index: int, count: int, kind: str = "output") -> str:
    return f"the {kind}" if count == 1 else f"{kind} {index + 1} of {count}"


def _shape(tensor: torch.Tensor) -> str:
    return "×".join(str(length) for length in tensor.shape) or "of one number"
