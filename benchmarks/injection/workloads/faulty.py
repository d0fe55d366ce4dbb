"""A step that ends badly: in the phase and in the way that a case asks for. It is no part of torchmark itself."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Literal, NoReturn

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload

Phase = Literal["start", "import", "build", "first-step", "check", "steps", "job", "teardown"]
Fault = Literal[
    "none", "raise", "memory", "devour", "unsupported", "wrong", "leave", "exit", "abort", "segfault", "kill",
    "terminate", "hang", "wait", "stop", "deaf", "abandon", "daemon", "freeze", "print",
]  # fmt: skip


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _sleep() -> NoReturn:
    while True:
        time.sleep(3600)


def _wait() -> None:
    """Until the gate opens: even late processes find this at work."""
    while not Path(os.environ["TORCHMARK_FAULT_GATE"]).exists():
        time.sleep(0.01)


def _devour() -> NoReturn:
    """All the memory there is; only for use under a limit."""
    eaten = []
    while True:
        eaten.append(b"x" * (16 << 20))


def _leave_a_child() -> None:
    """A child that keeps all the pipes of the worker open, and answers to no SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        _sleep()


def _deaf() -> None:
    _leave_a_child()
    _sleep()


def _abandon() -> None:
    _leave_a_child()
    os._exit(3)


def _daemon() -> None:
    """A process that leaves group and session, and stays until the gate opens."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            _wait()
        os._exit(0)


def _freeze() -> None:
    """Stops the process that workers are forked from."""
    os.kill(os.getppid(), signal.SIGSTOP)


def _print() -> None:
    """More than a log may hold."""
    for _ in range(20):
        print("x" * (1 << 20), flush=True)


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "wrong": lambda: None,
    "raise": _raise(ValueError("injected")),
    "memory": lambda: bytearray(1 << 50),
    "devour": _devour,
    "unsupported": _raise(NotImplementedError("injected")),
    "leave": lambda: sys.exit(3),
    "exit": lambda: os._exit(3),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "kill": _signal(signal.SIGKILL),
    "terminate": _signal(signal.SIGTERM),
    "hang": _sleep,
    "wait": _wait,
    "stop": _signal(signal.SIGSTOP),
    "deaf": _deaf,
    "abandon": _abandon,
    "daemon": _daemon,
    "freeze": _freeze,
    "print": _print,
}
_due: list[Params] = []  # the case that this worker is measuring
_plain: list[bool] = []  # it does so without torch


def _reached(params: Params, phase: str) -> None:
    if params.phase == phase:
        FAULTS[params.fault]()


class Params(Struct, frozen=True):
    """When and how it fails; the number makes cases of one run differ, the delay their speed."""

    phase: Phase = "steps"
    fault: Fault = "none"
    number: int = 0
    delay_ms: int = 0

    def __post_init__(self) -> None:
        if multiprocessing.parent_process() is not None:  # in a worker; the planning process reads parameters, too
            _reached(self, "start")
            _due[:] = [self]


class Faulty(Workload):
    """On the fake device it needs no torch, on the CPU its numbers are checked like any other's."""

    name = "faulty"
    params = Params
    tiny = Params()

    @property
    def needs_torch(self) -> bool:  # type: ignore[override]
        """Asked while a worker opens a device that needs none itself."""
        for params in _due:
            _reached(params, "import")
        _plain[:] = [True]
        return False

    def prepare(self, params: Params, setting: Setting) -> Step:
        _reached(params, "build")
        if params.phase == "teardown":
            Finalize(None, FAULTS[params.fault], exitpriority=1)
        calls, timed = [0], list[bool]()

        def run() -> None:
            calls[0] += 1
            time.sleep(params.delay_ms / 1000)
            if calls[0] == 1:
                _reached(params, "first-step")
            if calls[0] == 4:
                _reached(params, "steps")
            if timed and _plain:  # where there are no numbers to check, only the device is tried
                _reached(params, "check")

        def last() -> None:
            _reached(params, "job")
            timed[:] = [True]

        return Step(
            run=run,
            work=Work(items=1, unit="step"),
            outputs=lambda: _numbers(params, setting),
            reference=lambda: _numbers(None, setting),
            job_steps=1,
            stages=(Stage("last", 1, last),),
        )


def _numbers(params: Params | None, setting: Setting) -> Tensors:
    import torch

    if params:
        _reached(params, "check")
    return [torch.full((4,), 2.0 if params and params.fault == "wrong" else 1.0, device=setting.device)]
