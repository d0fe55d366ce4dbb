"""How a case ended, told from what went wrong: an exception inside the worker, or the way its process died."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from torchmark.errors import DeviceError, DoesNotFitError, TorchmarkError, UnsupportedError, WrongResultError
from torchmark.meters.contract import ROOT, read_text
from torchmark.meters.groups import control_groups
from torchmark.records import Result, Status
from torchmark.workloads.own.importing import place_of

# Some backends raise a plain RuntimeError where memory ends; these are their words.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|failed to allocate|unable to allocate|"
    r"not enough memory|insufficient memory|invalid buffer size|OUT_OF_((DEVICE|HOST)_MEMORY|RESOURCES)|"
    r"(CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"not implemented for|not (currently )?implemented|not (yet )?supported|unsupported|doesn't support|"
    r"does not support|no kernel image|No working C\+\+ compiler",
    re.IGNORECASE,
)
LONGEST_REASON = 5_000
_CURES = {
    int(signal.SIGILL): "The CPU offers an instruction that it cannot run, as virtual machines do with AMX: "
    "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
}


_WORKER = "the worker"
_FAULTS = re.compile(r"illegal memory access|misaligned", re.IGNORECASE)
_HINTS = re.compile(r"alloc|memory|primitive|mmap|thread", re.IGNORECASE)


def status_of(error: BaseException) -> tuple[Status, str]:
    """The status and the reason for an exception that ended a case."""
    text = f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")
    place = place_of(error)
    if isinstance(error, WrongResultError):
        return "wrong-result", str(error)
    if isinstance(error, DoesNotFitError):
        return "skipped", str(error)
    if isinstance(error, UnsupportedError | DeviceError):
        return "unsupported", str(error)
    if isinstance(error, TorchmarkError):
        return "crashed", str(error)
    # By name, so that a worker without torch can tell too.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or OUT_OF_MEMORY.search(text):
        return "oom", _first_line(text, place)
    if isinstance(error, NotImplementedError) or UNSUPPORTED.search(text):
        return "unsupported", _first_line(text, place)
    return "crashed", _first_line(text, place)


def _first_line(text: str, place: str) -> str:
    """After the line of the user's own file that it came from, if it did.

    Whole, with paths and all: what is private in it is taken out, and the rest made short, where it is stored.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:LONGEST_REASON]  # the cause may come after a colon
    return f"{place}: {first}" if place else first


def death_of(exit_code: int | None, killed_for_memory: bool, phase: str, who: str = _WORKER) -> tuple[Status, str]:
    """The status and the reason for a worker, or a rank, that died without a word."""
    if exit_code is None:
        return "crashed", f"{who} stopped answering during {phase}"
    if exit_code >= 0:
        return "crashed", f"{who} exited with code {exit_code} during {phase}"
    if -exit_code == signal.SIGKILL and killed_for_memory:
        return "host-oom", f"the system ran out of memory during {phase} and killed {who}"
    reason = f"{who} was ended by {signal_name(-exit_code)} during {phase}"
    return "crashed", f"{reason}. {_CURES[-exit_code]}" if -exit_code in _CURES else reason


def may_be_memory(result: Result) -> bool:
    """Whether a case that crashed may have been refused memory by somebody who does not say so: a worker that died, or
    a library whose words are about such things. An error of the model itself is none."""
    reason = re.sub(r"^\S+, line \d+: ", "", result.reason or "")  # the name of a file is no hint
    died = re.match(rf"{_WORKER} (was ended|exited|stopped)", reason)
    return result.status == "crashed" and bool(died or (_HINTS.search(reason) and not _FAULTS.search(reason)))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def memory_kills(root: Path = ROOT) -> int:
    """How often the kernel has killed a process for want of memory: of the control group that this one is in, or of
    the whole machine where groups do not tell; 0 where nobody does."""
    groups = [folder / name for folder in control_groups("memory", root) for name in _GROUP_KILLS]
    for file in (*reversed(groups), root / "proc/vmstat"):
        found = re.search(r"^oom_kill (\d+)$", read_text(file) or "", re.MULTILINE)
        if found:
            return int(found[1])
    return 0


_GROUP_KILLS = ("memory.oom_control", "memory.events")  # of either version of control groups
