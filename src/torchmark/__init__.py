"""torchmark: how fast a machine is at PyTorch, and whether the figure can be believed."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` would import `re` and `enum` from the current folder under `python -m`
if TYPE_CHECKING:
    from typing import Any

    from torchmark.analyze.comparison import compare_runs
    from torchmark.measure.timing import time_step
    from torchmark.store import load

__version__ = "0.1.0"
__all__ = ["__version__", "compare_runs", "load", "time_step"]

_HOMES = {
    "compare_runs": "torchmark.analyze.comparison",
    "load": "torchmark.store",
    "time_step": "torchmark.measure.timing",
}


def __getattr__(name: str) -> Any:
    """Public names are fetched when first used, so that `import torchmark` stays quick and never imports torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'torchmark' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
