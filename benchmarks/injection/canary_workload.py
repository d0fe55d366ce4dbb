"""A workload whose metrics, stages, units and notes have names that are none: paths."""

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Stage, Step, Workload

PRIVATE = "clients/PARAMETER.pt"


class Params(Struct, frozen=True):
    """A default that is content of the file."""

    weights: str = PRIVATE


class Private(Workload):
    """It succeeds."""

    name = "private"
    params = Params
    tiny = Params()

    def prepare(self, params, setting):
        """A step that does nothing."""
        del params, setting
        return Step(
            run=lambda: None,
            work=Work(1, PRIVATE),
            metrics=lambda: {PRIVATE: 1.0},
            notes={"data": PRIVATE, "attention": PRIVATE, PRIVATE: PRIVATE, "plugin": PRIVATE},
            job_steps=1,
            stages=(Stage(PRIVATE, 1, lambda: None),),
        )
