"""Which signals end a run, and who hears them now."""

from __future__ import annotations

import signal
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


def ending_handlers() -> dict[signal.Signals, Any]:
    """The present handlers. What is ignored, as under nohup, stays ignored, and what is not Python's is not ours."""
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


def set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
