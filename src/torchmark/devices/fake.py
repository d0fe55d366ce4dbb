"""A device that plays scripted step times on a virtual clock, and misbehaves on request.

It is set by TORCHMARK_FAKE, for instance `TORCHMARK_FAKE=stream=drift,step=0.01,seed=3,fault=no-sync`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NoReturn, cast

from msgspec import Struct

from torchmark.devices.contract import BlockTimer, Costs, Device
from torchmark.errors import UnknownName, UsageError
from torchmark.records import Block, Conditions, DeviceInfo, Memory

VARIABLE = "TORCHMARK_FAKE"
METERS = ("none", "steady", "hot")
FAULTS = ("none", "no-sync", "nan", "scaled", "cached", "crash", "hang", "oom")
_EXAMPLE = f"Example: {VARIABLE}=stream=iid2,step=0.01,sync=0,seed=1"
_STREAM_LENGTH = 100_000
_UNSYNCHRONIZED_SHARE = 0.01
_SCALE = 1.01
_WATTS, _CLOCK_HZ, _COOL_C, _HOT_C = 50.0, 2e9, 50.0, 95.0
_RECENT, _SLOWER = 5, 1.1  # steps that show the present speed, and when that counts as held down


class Script(Struct, frozen=True):
    """What the fake device plays."""

    stream: str = "iid2"
    step: float = 0.01  # seconds
    sync: float = 0.0  # seconds
    seed: int = 0
    sleep: bool = False  # on: time really passes
    fault: str = "none"
    after: int = 5  # steps before a crash, a hang or an out-of-memory error
    meter: str = "none"  # what it reports: nothing, steady power and clock, or a clock that falls with heat
    issue: float = 0.0  # seconds that pass on the host while a step is handed over


def parse_script(text: str) -> Script:
    """Read the comma-separated `key=value` pairs of TORCHMARK_FAKE."""
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"'{pair}' in {VARIABLE} is not key=value", _EXAMPLE)
        if key not in Script.__struct_fields__:
            raise UnknownName(f"key in {VARIABLE}", key, Script.__struct_fields__)
        values[key] = _parse_value(key, value)
    return Script(**values)


def _parse_value(key: str, value: str) -> Any:
    if key == "fault" and value not in FAULTS:
        raise UnknownName("fault", value, FAULTS)
    if key == "stream":
        from torchmark.devices.streams import KINDS

        if value not in KINDS:
            raise UnknownName("stream", value, KINDS)
    if key == "meter" and value not in METERS:
        raise UnknownName("meter", value, METERS)
    if key in ("fault", "stream", "meter"):
        return value
    if key == "sleep":
        if value not in ("on", "off"):
            raise UsageError(f"sleep={value} in {VARIABLE} is neither on nor off", _EXAMPLE)
        return value == "on"
    return _parse_number(key, value)


def _parse_number(key: str, value: str) -> float:
    smallest = 1e-9 if key == "step" else 0
    try:
        number = int(value) if key in ("seed", "after") else float(value)
    except ValueError:
        number = -1
    if not smallest <= number <= 1e9:  # also refuses NaN
        raise UsageError(f"{key}={value} in {VARIABLE} is not a number of that kind", _EXAMPLE)
    return number


class Fake(Device):
    """Takes each step into a queue and lets the clock run when it is synchronised, as an accelerator does."""

    kind = "fake"
    needs_torch = False
    listed = False

    def __init__(self, name: str, script: Script | None = None) -> None:
        super().__init__(name)
        self.place = "cpu"
        self.script = script or parse_script(os.environ.get(VARIABLE, ""))
        self._now_s = 0.0
        self._queued_s = 0.0
        self._played = 0
        self._durations_s: list[float] = []
        self._cached: dict[Any, Any] = {}
        if not self.script.sleep:
            self.clock = lambda: self._now_s
            self.conditions = self._conditions if self.script.meter != "none" else None

    @classmethod
    def present(cls) -> tuple[str, ...]:
        return ("fake",)

    def info(self) -> DeviceInfo:
        return DeviceInfo(name=self.name, model=f"fake device playing {self.script.stream}", driver="none")

    def memory(self) -> Memory:
        return Memory(provenance="unavailable because a fake device has no memory")

    def synchronize(self) -> None:
        """Wait for all that is queued; with the fault `no-sync`, come back while nearly all is still under way."""
        share = _UNSYNCHRONIZED_SHARE if self.script.fault == "no-sync" else 1.0
        waited_s = self._queued_s * share
        self._queued_s -= waited_s
        self._pass_time(waited_s + self.script.sync)

    def timer(self, run: Callable[[], object]) -> BlockTimer:
        clock = self.clock

        def time_block(count: int) -> Block:
            started = clock()
            for _ in range(count):
                played = self._played
                run()
                if self._played == played:  # a step that hands nothing to the device itself counts as one
                    self._queue_work()
            issued = clock()
            self.synchronize()
            return Block(clock() - started, issue_s=issued - started)

        return time_block

    def calibrate(self) -> Costs:
        """As scripted: timing empty steps would use up the stream."""
        return Costs(self.script.sync, 0.0)

    def observe(self, result: Any) -> Any:
        """Queue the time of one piece of work, and give its result as a faulty device would."""
        self._queue_work()
        if self.script.fault == "nan":
            return result * float("nan")
        if self.script.fault == "scaled":
            return result * _SCALE
        if self.script.fault == "cached":
            return self._cached.setdefault((tuple(result.shape), result.dtype), result)
        return result

    def read(self, result: Any) -> float:
        self._pass_time(self._queued_s)
        self._queued_s = 0.0
        return super().read(result)

    def _conditions(self) -> Conditions:
        """What meters of such a device would say; a hot one has as much less clock as its steps take longer."""
        recent = sorted(self._durations_s[max(self._played - _RECENT, 0) : self._played]) or [self.script.step]
        slower = recent[len(recent) // 2] / self.script.step if self.script.meter == "hot" else 1.0
        held = slower > _SLOWER
        return Conditions(
            at_s=self._now_s,
            clock_hz=_CLOCK_HZ / slower if held else _CLOCK_HZ,
            temperature_c=_HOT_C if held else _COOL_C,
            energy_j=_WATTS * self._now_s,
            throttle=("heat",) if held else (),
        )

    def _queue_work(self) -> None:
        if self._played >= self.script.after:
            self._fail()
        self._queued_s += self._next_duration()
        self._played += 1
        if self.script.issue:  # the device has begun with what it was given first
            self._pass_time(self.script.issue)
            self._queued_s = max(self._queued_s - self.script.issue, 0.0)

    def _next_duration(self) -> float:
        if not self._durations_s:
            import numpy as np

            from torchmark.devices.streams import stream

            relative = stream(self.script.stream, np.random.default_rng(self.script.seed), _STREAM_LENGTH)
            self._durations_s = cast("list[float]", (relative * self.script.step).tolist())
        index = self._played
        if index >= _STREAM_LENGTH:  # the second half again: the warm-up is over by then
            half = _STREAM_LENGTH // 2
            index = half + (index - half) % half
        return self._durations_s[index]

    def _fail(self) -> None:
        if self.script.fault == "crash":
            os.abort()
        if self.script.fault == "oom":
            raise MemoryError("the fake device was asked to run out of memory")
        if self.script.fault == "hang":
            _hang()

    def _pass_time(self, seconds: float) -> None:
        if self.script.sleep:
            time.sleep(seconds)
        else:
            self._now_s += seconds


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
