"""Places for the labels of a chart where they cover neither marks nor lines nor each other."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

HEIGHT = 13.0  # of a line of text, in pixels
_LETTER = 6.4  # at 11 pixels, generously: the reader's font is not known
_GAP = 3.0  # to what a label belongs to
_APART = 6.0  # from the marks that it could be taken to belong to


class Box(Struct, frozen=True):
    """A rectangle in pixels from the upper left corner of the plot."""

    x: float  # its center
    y: float
    width: float
    height: float

    def overlaps(self, other: Box, clearance: float) -> bool:
        across = abs(self.x - other.x) - (self.width + other.width) / 2
        down = abs(self.y - other.y) - (self.height + other.height) / 2
        return max(across, down) < clearance

    def inside(self, width: float, height: float) -> bool:
        across, down = min(self.x, width - self.x), min(self.y, height - self.y)
        return across >= self.width / 2 and down >= self.height / 2


class Plot:
    """A plot whose places are taken by marks, and by labels one after another."""

    def __init__(self, width: float, height: float, marks: Mapping[str, Sequence[Box]]) -> None:
        self.width, self.height = width, height
        self._taken = [(owner, box) for owner, boxes in marks.items() for box in boxes]

    def place(self, owner: str, rivals: Container[str], candidates: Iterable[Box]) -> Box | None:
        """Take the first candidate that is free and away from the owner's rivals; None where there is no room."""
        for box in candidates:
            if box.inside(self.width, self.height) and not any(
                box.overlaps(other, _APART if name != owner and name in rivals else 0) for name, other in self._taken
            ):
                self._taken.append((owner, box))
                return box
        return None


def text_box(text: str, x: float, y: float) -> Box:
    return Box(x, y, _LETTER * len(text), HEIGHT)


def around(text: str, x: float, y: float, size: float) -> Iterator[Box]:
    """Next to a point that is `size` pixels wide: right, left, above and below."""
    half, down = _LETTER * len(text) / 2, (size + HEIGHT) / 2
    side = half + size / 2 + _GAP
    for dx in (side, -side):
        yield text_box(text, x + dx, y)
    for dy in (-down, down):
        for dx in (0.0, half / 2, -half / 2, half - size / 2, size / 2 - half):
            yield text_box(text, x + dx, y + dy)


def along(text: str, line: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """Next to a line from its right end to its left: above it, below it, on either side of it."""
    half, away = _LETTER * len(text) / 2, HEIGHT / 2 + _GAP
    for side in (-1, 1, 0):
        for x, y in reversed(line):
            for dx in (-half, 0.0, half) if side else (-half - HEIGHT, half + HEIGHT):
                yield text_box(text, x + dx, y + side * away)
