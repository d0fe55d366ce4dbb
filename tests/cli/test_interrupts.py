"""A signal ends a run in order, at any moment."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from torchmark.cli.execution import Interrupted, orderly_end
from torchmark.measure.process import ending_handlers, set_handlers


@pytest.fixture(autouse=True)
def _handlers_afterwards():
    kept = ending_handlers()
    yield
    set_handlers(kept)


class SignalledInItsFinalizer:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_arrives_in_a_finalizer_is_not_lost() -> None:
    def work() -> None:
        SignalledInItsFinalizer()  # Python drops exceptions that are raised while this is removed
        for _ in range(1000):
            time.sleep(0.01)

    with pytest.raises(Interrupted) as caught, orderly_end():
        work()
    assert caught.value.exit_code == 130


def test_other_errors_of_finalizers_are_reported_as_ever() -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken finalizer")

    reported = []
    hook, sys.unraisablehook = sys.unraisablehook, reported.append
    try:
        with orderly_end():
            Broken()
    finally:
        sys.unraisablehook = hook
    assert [type(each.exc_value) for each in reported] == [ValueError]
