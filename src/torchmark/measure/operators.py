"""What a step is made of, seen from torch: how many operators it calls, and whether one of them left the device."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchmark.measure.outcomes import _is_operator

LONGEST_S = 0.05  # a longer step is not made of handing operators over

# How torch tells that a device lacks an operator, which runs on the CPU instead.
_FALLBACK = re.compile(r"fall(s|ing)? ?back.*\bCPU\b", re.IGNORECASE | re.DOTALL)
_OPERATOR = re.compile(r"operator 'aten::(\w{1,80})")


def count_operators(run: Callable[[], object]) -> int:
    """How many operators one step hands to torch. Runs it once more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called = 0

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing is compiled here, and loading the compiler would take a second

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal called
            del types
            called += 1
            return func(*args, **(kwargs or {}))

    with Counter():  # type: ignore[no-untyped-call]  # as above
        run()
    return called


@contextmanager
def watch_fallback(kind: str = "") -> Iterator[list[str]]:
    """Collect the operators that torch reports to run on the CPU instead of a device of this kind.

    Torch reports each once per process, so watch the first step. On the CPU itself nothing can fall back: there, such a
    warning comes from the model.
    """
    found: list[str] = []
    if kind == "cpu":
        yield found
        return
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def listen(message: Warning | str, *others: Any, **more: Any) -> None:
            if _FALLBACK.search(str(message)):
                found.append(_operator_in(str(message)))
            show(message, *others, **more)

        warnings.showwarning = listen
        yield found


def _operator_in(message: str) -> str:
    """The operator that a message names, if torch has it: the model can warn in the same words about anything."""
    named = _OPERATOR.search(message)
    return f"aten::{named[1]}" if named and _is_operator(named[1]) else "an operator"
