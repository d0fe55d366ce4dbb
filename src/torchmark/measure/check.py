"""Tells whether a step computes the right numbers: its outputs against those of another computation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchmark.errors import WrongResultError
from torchmark.records import NumericCheck
from torchmark.workloads.contract import Step

if TYPE_CHECKING:
    import torch

_CURE = "Do not trust this device with this dtype before you know why; `torchmark devices --audit` tries it by itself"

# How far rounding alone may move an output, as a multiple of the dtype's unit roundoff (half the gap between 1 and the
# next number), measured as the root mean square of the error relative to that of the reference.
#   The short formats are summed up in float32 and rounded once at the end: that is 0.43 units for one product, and 0.75
#   where a device splits the sum in parts that it rounds too. So 1.5, which a matrix that is 1% off (2.6 units of
#   bfloat16) still exceeds.
#   The long formats also round every partial sum, which grows with the root of the length in the worst order: 6 units
#   were seen for a thousand terms, 64 leaves room for the longest sums.
# Roundings that follow one another add up: a third of them in a row at full strength is twice what was seen in mlp.
_UNITS = {
    "float64": (2.0**-53, 64.0),
    "float32": (2.0**-24, 64.0),
    "float16": (2.0**-11, 1.5),
    "bfloat16": (2.0**-8, 1.5),
}
# float32 products may be allowed to use shorter numbers; then those are what rounding is made of.
_ALLOWED_IN_FLOAT32 = {"highest": "float32", "high": "float16", "medium": "bfloat16"}
# One element may be this many times further off than all of them together: the largest of millions of errors is.
# A handful of outputs lies between the two.
_WORST_ELEMENT = 4.0


def check_step(step: Step, dtype: str) -> NumericCheck | None:
    """How far the step's outputs are from the reference; None where there is nothing to compare.

    It runs the step at least once and leaves what is timed as it was, so it may come before or after measuring.
    """
    _check_copies(step)
    if step.outputs is None or step.reference is None:
        return None
    outputs = [_as_exact(output) for output in step.outputs()]
    reference = [_as_exact(expected) for expected in step.reference()]
    if len(outputs) != len(reference):
        raise WrongResultError(f"the step gave {len(outputs)} outputs where {len(reference)} were due", _CURE)
    tolerance = _tolerance(dtype, step.roundings)
    checks = [
        _compare(_name(index, len(outputs)), output, expected, tolerance, step.magnitude)
        for index, (output, expected) in enumerate(zip(outputs, reference, strict=True))
    ]
    return max(checks, key=lambda check: check.error / check.tolerance, default=None)


def _tolerance(dtype: str, roundings: int) -> float:
    import torch

    rounded_to = _ALLOWED_IN_FLOAT32[torch.get_float32_matmul_precision()] if dtype == "float32" else dtype
    unit, factor = _UNITS[rounded_to]
    return unit * factor * max(1.0, roundings / 3)


def _compare(
    name: str, output: torch.Tensor, expected: torch.Tensor, tolerance: float, magnitude: float
) -> NumericCheck:
    _check_form(name, output, expected)
    error = (output - expected).abs()
    scale = max(float(expected.square().mean().sqrt()), magnitude)
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
        if bool(tensor.isnan().any()):
            raise WrongResultError(
                f"{owner} holds NaN in {int(tensor.isnan().sum())} of {tensor.numel()} places", _CURE
            )
        if bool(tensor.isinf().any()):
            raise WrongResultError(
                f"{owner} is infinite in {int(tensor.isinf().sum())} of {tensor.numel()} places", _CURE
            )


def _check_copies(step: Step) -> None:
    """What the device holds is what it was given. One wrong weight among millions hides in the rounding of the outputs
    of a short format, but not here."""
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

    return tensor.detach().cpu().to(torch.float64)  # in this order: not every device knows float64


def _name(index: int, count: int, kind: str = "output") -> str:
    return f"the {kind}" if count == 1 else f"{kind} {index + 1} of {count}"


def _shape(tensor: torch.Tensor) -> str:
    return "×".join(str(length) for length in tensor.shape) or "of one number"
