"""Published figures: one data file per publication, their reader, and the same figures as runs."""

from torchmark.publications.contract import find_publication, names
from torchmark.publications.runs import (
    all_runs,
    as_runs,
    find_hardware,
    find_published,
    hardware_titles,
    is_published_name,
)

__all__ = [
    "all_runs",
    "as_runs",
    "find_hardware",
    "find_publication",
    "find_published",
    "hardware_titles",
    "is_published_name",
    "names",
]
