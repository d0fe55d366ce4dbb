"""torchmark: how fast a machine is at PyTorch, and how reliable that figure is."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` would import `re` and `enum` from the current folder under `python -m`
if TYPE_CHECKING:
    from typing import Any

    from torchmark.analyze.comparison import compare_runs
    from torchmark.library import fit, run, tune
    from torchmark.measure.timing import time_step
    from torchmark.store import load

__version__ = "0.1.0"
__all__ = ["__version__", "compare_runs", "fit", "load", "run", "time_step", "tune"]

_HOMES = {"compare_runs": "analyze.comparison", "load": "store", "time_step": "measure.timing"}  # else `library`


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: `import torchmark` is fast and never imports torch."""
    if name not in __all__:
        raise AttributeError(f"module 'torchmark' has no attribute '{name}'")
    return getattr(import_module(f"torchmark.{_HOMES.get(name, 'library')}"), name)
