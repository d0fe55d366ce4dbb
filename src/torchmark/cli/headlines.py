"""The headline of a run, next to all published machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchmark.analyze.headline import Headline
    from torchmark.records import Run


def headline_of(run: Run, name: str | None = None) -> Headline | None:
    """What the run says at first sight; `name` is what the next commands call it."""
    from torchmark.analyze.headline import build_headline
    from torchmark.publications import all_runs

    return build_headline(run, all_runs(), name)
