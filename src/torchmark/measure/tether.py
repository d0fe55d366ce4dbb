"""Imported first by the server that forks workers: ties it to the run, before the imports that take seconds.

Without this, a run that is killed while its server is still importing would leave the server behind until it is done.
"""

from __future__ import annotations

import os
import signal

from torchmark.measure.lifeline import STARTER, ask_for_death_signal


def tether() -> None:
    """End with the process that started this one, even if it ends at this very moment, or has ended already."""
    starter = int(os.environ.get(STARTER) or os.getppid())
    ask_for_death_signal(signal.SIGKILL)
    if os.getppid() != starter:
        os._exit(1)


tether()
