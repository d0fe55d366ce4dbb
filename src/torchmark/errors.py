"""One tree of errors; every message names a cause and a cure."""

from __future__ import annotations

from collections.abc import Iterable

EXIT_FINE = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING_MEASURED = 3
EXIT_COULD_NOT_RUN = 4
EXIT_INCONCLUSIVE = 5
EXIT_BUG = 70


class TorchmarkError(Exception):
    """Anything that torchmark can explain; the command line prints it as one line and never as a traceback."""

    exit_code = EXIT_COULD_NOT_RUN

    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(f"{cause}. {cure}" if cure else cause)
        self.cause = cause
        self.cure = cure


class UsageError(TorchmarkError):
    """The user asked for something that does not exist or cannot be."""

    exit_code = EXIT_USAGE


class NothingMeasuredError(TorchmarkError):
    """What everything else would be held against did not run."""

    exit_code = EXIT_NOTHING_MEASURED


class UnknownName(UsageError):  # noqa: N818 -- reads as what it is where it is raised
    """A name that is not one of the valid ones; the nearest valid name is the cure."""

    def __init__(self, kind: str, given: str, valid: Iterable[str]) -> None:
        import difflib  # costs start-up time that only a mistake should pay

        choices = sorted(set(valid))
        near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
        cure = f"Did you mean '{near[0]}'?" if near else f"Valid: {', '.join(choices) or 'none'}"
        super().__init__(f"unknown {kind} '{given}'", cure)


class UnsupportedError(TorchmarkError):
    """This operator, dtype or device cannot do what a case asks; the case ends as `unsupported`."""


class WrongResultError(TorchmarkError):
    """The numbers that a case computed are not the right ones; the case ends as `wrong-result`."""


class DoesNotFitError(TorchmarkError):
    """A case would need more time than it may have; it ends as `skipped`."""


class DeviceError(TorchmarkError):
    """A device is not here, or does not run a kernel."""


class StoreError(TorchmarkError):
    """A run file or the place for it cannot be read or written."""


class LockedError(TorchmarkError):
    """Another run is measuring on this machine."""


class FleetError(TorchmarkError):
    """A cluster, or something that its nodes need to take part, is not there."""
