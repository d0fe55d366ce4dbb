"""What a person means by RUN, as runs: a measured one, or all machines of a publication."""

from __future__ import annotations

from torchmark.publications import find_published
from torchmark.records import Run
from torchmark.store.places import find_run, is_publication
from torchmark.store.reader import load


def load_runs(text: str, samples: bool = False, repeats: bool = False) -> tuple[Run, ...]:
    """One run for a path, `last`, a label, an id or `m1-chips/M1 Ultra GPU`; one for each machine of `m1-chips`.

    `repeats` keeps a published figure that stands in two tables twice.
    """
    return find_published(text, repeats) if is_publication(text) else (load(find_run(text), samples=samples),)
