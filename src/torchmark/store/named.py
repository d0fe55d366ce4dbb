"""What a person means by RUN, as runs: a measured one, a published machine, or all machines of a publication."""

from __future__ import annotations

from torchmark.publications import find_published
from torchmark.records import Run
from torchmark.store.places import find_stored
from torchmark.store.reader import load


def load_runs(text: str, samples: bool = False, repeats: bool = False, local: bool = False) -> tuple[Run, ...]:
    """One run for a path, `last`, a label, an id or a published machine; one for each machine of a publication.

    A machine is named as in `m1-chips/M1 Ultra GPU`, or as in `3090` to have its figures from all publications.
    `repeats` keeps a published figure that stands in two tables twice.
    `local` adds what the local log says of failures.
    """
    path = find_stored(text)
    return (load(path, samples=samples, local=local),) if path else find_published(text, repeats)
