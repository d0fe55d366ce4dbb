"""What a step is made of, seen from torch: how many operators it calls, and whether one of them left the device."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST_S = 0.05  # a longer step is not made of handing operators over

# How torch tells that a device lacks an operator, which runs on the CPU instead.
_FALLBACK = re.compile(r"fall(s|ing)? ?back.*\bCPU\b", re.IGNORECASE | re.DOTALL)
_OPERATOR = re.compile(r"operator '([\w:.]{1,80})")


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
def watch_fallback() -> Iterator[list[str]]:
    """Inside, the operators that torch says it runs on the CPU instead of the device are gathered. It says so once in
    the life of a process, so that the first step is the one to watch."""
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def listen(message: Warning | str, *others: Any, **more: Any) -> None:
            if _FALLBACK.search(str(message)):
                named = _OPERATOR.search(str(message))
                found.append(named[1] if named else "an operator")
            show(message, *others, **more)

        warnings.showwarning = listen
        yield found
