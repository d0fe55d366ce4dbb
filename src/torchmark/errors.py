"""One tree of errors; every message names a cause and a fix."""

from collections.abc import Iterable
from typing import ClassVar

EXIT_FINE = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING_MEASURED = 3
EXIT_COULD_NOT_RUN = 4
EXIT_INCONCLUSIVE = 5
EXIT_BUG = 70


class TorchmarkError(Exception):
    """Anything that torchmark can explain, in one line without a traceback.

    Causes and fixes of `shareable` errors get into run files. Paths, user input and messages of other programs go into
    `detail`, which stays on this machine.
    """

    exit_code = EXIT_COULD_NOT_RUN
    shareable: ClassVar[bool] = False

    def __init__(self, cause: str, fix: str = "", detail: str = "") -> None:
        super().__init__(". ".join(filter(None, (f"{cause}: {detail}" if detail else cause, fix))))
        self.cause, self.fix, self.detail = cause, fix, detail


class UsageError(TorchmarkError):
    exit_code = EXIT_USAGE


class NothingMeasuredError(TorchmarkError):
    """The baseline of a comparison did not run."""

    exit_code = EXIT_NOTHING_MEASURED


class UnknownName(UsageError):  # noqa: N818 -- reads as what it is where it is raised
    """The nearest valid name is the fix."""

    def __init__(self, kind: str, given: str, valid: Iterable[str]) -> None:
        import difflib  # slow to import

        choices = sorted(set(valid))
        near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
        fix = f"Did you mean '{near[0]}'?" if near else f"Valid: {', '.join(choices) or 'none'}"
        super().__init__(f"unknown {kind} '{given}'", fix)


class CaseError(TorchmarkError):
    """A case cannot be measured; it ends as `crashed`."""

    shareable = True


class UnsupportedError(CaseError):
    """An operator, dtype or device cannot do it; the case ends as `unsupported`."""


class WrongResultError(CaseError):
    """A case computed wrong numbers; it ends as `wrong-result`."""


class DoesNotFitError(CaseError):
    """A case needs more time than it may have; it ends as `skipped`."""


class DeviceError(CaseError):
    """A device is not here, or does not run a kernel."""


class StoreError(TorchmarkError):
    """A run file or the place for it cannot be read or written."""


class LockedError(TorchmarkError):
    """Another run is measuring on this machine."""


class FleetError(TorchmarkError):
    """A cluster, or something that its nodes need, is missing."""
