"""What the session and its worker say to each other: JSON over a pipe, each message one record."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from torchmark.measure.sampling import Progress, Settings
from torchmark.records import Case, Machine, Result, Status


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
    watch: bool = False
    whole: bool = False  # run the whole job, too
    data: str | None = None  # folder with the real data sets
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine


class SurveyJob(Struct, frozen=True, tag="survey"):
    """Find out what machine this is, where torch may be imported."""

    devices: tuple[str, ...] | None = None  # None: all that are here


class Phase(Struct, frozen=True, tag="phase"):
    """The worker has begun something new."""

    name: str


class Sampled(Struct, frozen=True, tag="sampled"):
    """A checkpoint of the engine."""

    progress: Progress


class Measured(Struct, frozen=True, tag="measured"):
    """The case's result in this process, raw samples included."""

    result: Result


class Surveyed(Struct, frozen=True, tag="surveyed"):
    """The machine, with the devices that were asked for."""

    machine: Machine


class Refused(Struct, frozen=True, tag="refused"):
    """The worker cannot do what was asked, for a reason the user can act on."""

    cause: str
    cure: str


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


Job = MeasureJob | SurveyJob
Message = Phase | Sampled | Measured | Surveyed | Refused

encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
decode_message = msgspec.json.Decoder(Message).decode
decode_part = msgspec.json.Decoder(TakePart).decode
decode_from_rank = msgspec.json.Decoder(Phase | Sampled | Measured | Joined | Failed).decode
