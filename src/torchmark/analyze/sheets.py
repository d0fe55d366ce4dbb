"""A published table with this machine beside it, as data: what was printed, what came out here, and why not."""

from __future__ import annotations

from msgspec import Struct

from torchmark.analyze.bias import Bias


class Printed(Struct, frozen=True):
    """A published figure under its heading."""

    machine: str
    column: str
    text: str
    value: float | None  # None: out of memory
    unit: str


class Own(Struct, frozen=True):
    """This machine's figure for a row, in the row's unit, or why there is none."""

    case: str = ""
    device: str = ""
    status: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    extrapolated: bool = False
    steady: float | None = None  # the same, measured rightly
    reason: str = ""
    disturbed: str = ""  # by what, while it was timed

    @property
    def precision(self) -> float | None:
        """Half the interval of an extrapolated figure, relative to it."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / self.value


class Row(Struct, frozen=True):
    """One row: the cells that name it, what was printed in it, and this machine's figure for each place."""

    labels: tuple[str, ...]
    printed: tuple[Printed, ...]
    own: tuple[Own, ...]
    unit: str


class Sheet(Struct, frozen=True):
    """One published table, and a new column for each place of this machine."""

    publication: str
    title: str
    protocol: str
    headers: tuple[str, ...]  # of the cells that name a row
    columns: tuple[str, ...]  # published, as printed
    places: tuple[str, ...]
    rows: tuple[Row, ...]
    is_comparable: bool = True  # whether a ratio of the two means anything
    by_machine: bool = False  # each row is a machine
    has_speedup: bool = False  # the publication divides the first place's figure by the second's
    notes: tuple[str, ...] = ()


class Replicated(Struct, frozen=True):
    """All tables of one publication with this machine beside them."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]
    biases: tuple[Bias, ...] = ()
