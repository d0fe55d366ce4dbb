"""Imported last by the server that forks workers: the slow libraries that they share, imported once for all of them."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os

VARIABLE = "TORCHMARK_PRELOAD"  # names of modules, with commas between


def preload() -> None:
    """A library that cannot be imported is the trouble of the case that needs it, not of the others."""
    for name in filter(None, os.environ.pop(VARIABLE, "").split(",")):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    faulthandler.cancel_dump_traceback_later()


preload()
