"""The messages between a run and its child processes: one record as a line of JSON, over pipes of their own."""

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from torchmark.measure.engine import Progress, Settings
from torchmark.records import Case, Machine, Result, Status

START = "start"  # the phase before a worker has said anything


class Rendezvous(Struct, frozen=True):
    endpoint: str  # host:port, the same on every node
    nodes: int
    patience_s: float = 300.0  # to wait for the others


class MeasureJob(Struct, frozen=True, tag="measure"):
    case: Case
    settings: Settings
    seed: int = 0
    process: int = 0
    preheat_s: float = 0.0
    time_left_s: float | None = None  # of the whole run: what does not fit is skipped
    deadline_s: float | None = None  # when this process is ended, by the steady clock that all share
    watch: bool = False
    whole: bool = False  # run the whole job, too
    data: str | None = None  # folder with the real data sets
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine
    memory_bytes: int | None = None  # of the host for the case, where that is less than is free
    turns: int | None = None  # at most, in a live comparison; None: the process measures alone
    compile_cache: str | None = None  # a folder without compiled code of other runs

    @property
    def nodes(self) -> int:
        return self.rendezvous.nodes if self.rendezvous else 1


class Call(Struct, frozen=True, tag="call"):  # with `Say` and these arguments; report each record that it yields
    function: str  # module:function
    arguments: Raw  # a list


class Phase(Struct, frozen=True, tag="phase"):
    name: str  # of what the worker has begun


class Measured(Struct, frozen=True, tag="measured"):
    result: Result  # with its raw samples


class Found(Struct, frozen=True, tag="found"):
    record: Raw  # one of those that a called function yields


class Refused(Struct, frozen=True, tag="refused"):
    cause: str
    fix: str
    detail: str = ""


class Failed(Struct, frozen=True, tag="failed"):
    rank: int
    status: Status
    reason: str
    detail: str | None = None


class Opened(Struct, frozen=True, tag="opened"):  # has imported its packages, and waits for `Prepare`
    machine: Machine
    packages: dict[str, str]  # versions of the workload's packages other than torch


class Prepare(Struct, frozen=True, tag="prepare"):
    """Build the case, run its first steps and check its numbers."""


class Stepped(Struct, frozen=True, tag="stepped"):  # the first step and warm ones, but no check yet
    first_s: float
    step_s: float
    items: float = 0.0  # that a step is worth


class Prepared(Struct, frozen=True, tag="prepared"):  # ready for its turns
    step_s: float
    block_size: int  # steps that make a sample
    items: float = 0.0


class TakeTurn(Struct, frozen=True, tag="take turn"):
    seconds: float
    block_size: int
    timed: bool = True


class Turned(Struct, frozen=True, tag="turned"):
    step_s: float = 0.0  # the median of the turn; 0 where it was not timed


class SumUp(Struct, frozen=True, tag="sum up"):
    """Report the result of all turns so far; more may follow."""


Order = MeasureJob | Call | Prepare | TakeTurn | SumUp
Message = Phase | Progress | Measured | Found | Refused | Failed | Opened | Stepped | Prepared | Turned
Say = Callable[[Message], None]

encode = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(Message).decode
decode_order = msgspec.json.Decoder(Order).decode


def call(function: str, *arguments: object) -> Call:
    return Call(function, Raw(encode(arguments)))
