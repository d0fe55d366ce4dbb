"""Times of the parts of a procedure as a stopwatch notes them; small, because timed programs import it too."""

from __future__ import annotations

from msgspec import Struct


class Laps(Struct, frozen=True):
    """How long one stage of a procedure took each time, and how often the whole procedure does it."""

    stage: str
    seconds: list[float]
    published: int = 1
    is_work: bool = False  # what was to be timed, not what happened beside it

    @property
    def whole(self) -> bool:
        return len(self.seconds) >= self.published
