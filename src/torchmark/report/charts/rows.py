"""The rows that bars and ratios are drawn in: name and figure on a line of their own, the drawing below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchmark.report.draw import QUIET, TEXT, WIDTH

if TYPE_CHECKING:
    import altair

HEIGHT = 42
BELOW = 8  # from the middle of a row down to the drawing
_ABOVE = -9
_LETTER = 8.2  # the width of a letter, generously: the reader's font is not known
_NARROWEST = 60


def row_texts(base: altair.Chart, figures: Sequence[str]) -> tuple[altair.Chart, altair.Chart]:
    """The texts of all rows, from the fields `label` and `figure`; a name is cut short before it meets a figure."""
    import altair as alt

    room = max(WIDTH - _LETTER * max(map(len, figures)) - 8, _NARROWEST)
    return (
        base.mark_text(align="left", limit=room, color=TEXT, dy=_ABOVE, fontSize=12, aria=False).encode(
            x=alt.value(0), text=alt.Text("label:N")
        ),
        base.mark_text(
            align="right", limit=WIDTH - _NARROWEST - 8, color=QUIET, dy=_ABOVE, fontSize=12, aria=False
        ).encode(x=alt.value(WIDTH), text=alt.Text("figure:N")),
    )
