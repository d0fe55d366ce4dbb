"""The messages between a run and its child processes: one record as a line of JSON, over pipes of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
from msgspec import Raw, Struct

from torchmark.measure.engine import Progress, Settings
from torchmark.records import Case, Machine, Remark, Result, Status

START = "start"  # the phase before a worker has said anything


class Rendezvous(Struct, frozen=True):
    """Where the nodes of a run meet, how many they are, and how long one waits for the others."""

    endpoint: str  # host:port, the same on every node
    nodes: int
    patience_s: float = 300.0


class MeasureJob(Struct, frozen=True, tag="measure"):
    """One case to be measured in one fresh process."""

    case: Case
    settings: Settings
    seed: int = 0
    process: int = 0
    preheat_s: float = 0.0
    time_left_s: float | None = None  # of the whole run: what cannot fit into this is skipped
    deadline_s: float | None = None  # by the steady clock, which all processes share: when this one is ended
    watch: bool = False
    whole: bool = False  # run the whole job, too
    data: str | None = None  # folder with the real data sets
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine
    memory_bytes: int | None = None  # what the case may have of the host's memory, where that is less than is free
    turns: int | None = None  # how many a live comparison may give; None: the process measures on its own
    compile_cache: str | None = None  # a folder in which no other run has left what it compiled


class SurveyJob(Struct, frozen=True, tag="survey"):
    """Find out what machine this is, where torch may be imported."""

    devices: tuple[str, ...] | None = None  # None: all that are here


class Call(Struct, frozen=True, tag="call"):
    """Call a generator function of torchmark's with `Say` and these arguments; report each record that it yields."""

    function: str  # module:function
    arguments: Raw  # a list


class Phase(Struct, frozen=True, tag="phase"):
    """The worker has begun something new."""

    name: str


class Sampled(Struct, frozen=True, tag="sampled"):
    """A checkpoint of the engine."""

    progress: Progress


class Measured(Struct, frozen=True, tag="measured"):
    """The case's result in this process, raw samples included."""

    result: Result


class Found(Struct, frozen=True, tag="found"):
    """One of the records that a called function yields."""

    record: Raw


class Surveyed(Struct, frozen=True, tag="surveyed"):
    """The machine, with the devices that were asked for, and what stands in the way of the others."""

    machine: Machine
    cautions: tuple[Remark, ...] = ()


class Refused(Struct, frozen=True, tag="refused"):
    """The worker cannot do what was asked, for a reason the user can act on."""

    cause: str
    fix: str
    detail: str = ""


class Joined(Struct, frozen=True, tag="joined"):
    """A rank is there and waits for its part."""

    rank: int


class TakePart(Struct, frozen=True, tag="take part"):
    """What a rank is to do, and how long it took to start it."""

    job: MeasureJob
    starting_s: float


class Failed(Struct, frozen=True, tag="failed"):
    """A rank cannot go on."""

    rank: int
    status: Status
    reason: str
    detail: str | None = None


class Opened(Struct, frozen=True, tag="opened"):
    """A side of a live comparison has imported what it needs and waits for the order to prepare."""

    machine: Machine
    packages: dict[str, str]  # versions of what the workload is made of, other than torch


class Prepare(Struct, frozen=True, tag="prepare"):
    """Build the case, run its first steps and check its numbers, while the other side waits."""


class Stepped(Struct, frozen=True, tag="stepped"):
    """A side has done its first step, which may have compiled something, and a warm one; its check is still to come."""

    first_s: float
    step_s: float
    items: float = 0.0  # that a step is worth


class Prepared(Struct, frozen=True, tag="prepared"):
    """A side is ready for its turns: about how long a step takes, how many make a sample, what one is worth."""

    step_s: float
    block_size: int
    items: float = 0.0


class TakeTurn(Struct, frozen=True, tag="take turn"):
    """Run steps for so long; time them, or only get warm."""

    seconds: float
    block_size: int
    timed: bool = True


class Turned(Struct, frozen=True, tag="turned"):
    """The median step of a turn; nothing where it was not timed."""

    step_s: float = 0.0


class SumUp(Struct, frozen=True, tag="sum up"):
    """Give the result of all turns so far; more may follow."""


Order = MeasureJob | SurveyJob | Call | Prepare | TakeTurn | SumUp
Message = Phase | Sampled | Measured | Found | Surveyed | Refused | Opened | Stepped | Prepared | Turned
Say = Callable[[Message], None]

encode = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(Message).decode
decode_part = msgspec.json.Decoder(TakePart).decode
decode_from_rank = msgspec.json.Decoder(Phase | Sampled | Measured | Joined | Failed).decode
_decode_order = msgspec.json.Decoder(Order).decode


def call(function: str, *arguments: object) -> Call:
    return Call(function, Raw(encode(arguments)))


class Channel:
    """A child's end of the two pipes to its parent. A thread sleeps on the orders."""

    def __init__(self, orders_from: int, replies_to: int, ended: Callable[[], None]) -> None:
        """`ended` is called, in that thread, when the parent closes its end or is gone."""
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._replies = os.fdopen(replies_to, "wb")
        threading.Thread(target=self._listen, args=(orders_from, ended), daemon=True).start()

    def receive(self) -> Order:
        """Sleep until there is an order."""
        return self._orders.get()

    def say(self, message: Message) -> None:
        self._replies.write(encode(message) + b"\n")
        self._replies.flush()

    def _listen(self, orders_from: int, ended: Callable[[], None]) -> None:
        with os.fdopen(orders_from, "rb") as stream:
            for line in stream:
                self._orders.put(_decode_order(line))
        ended()
