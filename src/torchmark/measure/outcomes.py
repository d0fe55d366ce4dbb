"""How a case ended, judged by what went wrong: an exception in the worker, or the way its process died."""

import re
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

from torchmark.errors import DeviceError, DoesNotFitError, TorchmarkError, UnsupportedError, WrongResultError
from torchmark.meters import ROOT, control_groups, read_text
from torchmark.records import Result, Status
from torchmark.workloads.own.files import is_own_file, place_of

# What backends say that raise a plain RuntimeError.
OUT_OF_MEMORY = re.compile(
    r"out of memory|(can't|cannot) allocate memory|(failed|unable) to allocate|(not enough|insufficient) memory|"
    r"invalid buffer size|OUT_OF_((DEVICE|HOST)_MEMORY|RESOURCES)|"
    r"(CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"not (currently )?implemented|not (yet )?supported|unsupported|(doesn't|does not) support|no kernel image|"
    r"No working C\+\+ compiler",
    re.IGNORECASE,
)
LONGEST_DETAIL = 600
VARIABLE, SAFE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
AMX_FIX = f"The CPU offers an instruction that it cannot run, as virtual machines do with AMX: set {VARIABLE}={SAFE}"
_WORKER = "the worker"
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchmark", "numpy", "msgspec", "psutil", "transformers", "diffusers"}
_STATUSES: dict[type[TorchmarkError], Status] = {
    WrongResultError: "wrong-result",
    DoesNotFitError: "skipped",
    UnsupportedError: "unsupported",
    DeviceError: "unsupported",
    TorchmarkError: "crashed",
}
# As messages of torch call them.
_DTYPES = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64", "Bool": "bool"}
_DTYPES |= {"Char": "int8", "Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64"}
_DTYPES |= {"ComplexHalf": "complex32", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}


class Failure(NamedTuple):
    status: Status
    reason: str  # which may be shared
    detail: str | None = None  # which stays on this machine


def failure_of(error: BaseException, phase: str) -> Failure:
    """Such as `out of memory: RuntimeError during first step (my_model.py, line 12)`; the message is the detail."""
    text = f"{type(error).__name__}: {error}"  # by name, so that it needs no torch
    no_room = isinstance(error, MemoryError) or text.startswith("OutOfMemoryError:") or OUT_OF_MEMORY.search(text)
    refused = isinstance(error, NotImplementedError) or UNSUPPORTED.search(text)
    said: Status = "oom" if no_room else "unsupported" if refused else "crashed"
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), said)
    # Plug-ins and models can raise these errors with any text.
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = not frames or Path(frames[-1].filename).is_relative_to(Path(__file__).parents[1])
    if isinstance(error, TorchmarkError) and error.shareable and is_ours:
        return Failure(status, ". ".join(filter(None, (error.cause, error.fix))), _short(error.detail))
    # What the user's file raised is the cause of our error.
    name = type_name(error.__cause__ if isinstance(error, TorchmarkError) and error.__cause__ else error)
    meaning = {"oom": "out of memory: ", "unsupported": f"{_missing(str(error))}: "}.get(status, "")
    place, named_place, own_name = place_of(error), place_of(error, named=True), type(error).__name__
    reason = f"{meaning}{name} during {phase}{f' ({named_place})' if named_place else ''}"
    # What the reason lacks: line of the file, type, and the first line of the message.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])  # the cause may come after a colon
    parts = (place if place != named_place else "", own_name if own_name != type_name(error) else "", message)
    return Failure(status, reason, _short(": ".join(filter(None, parts))))


def _missing(text: str) -> str:
    """What is not supported. Only names that torch itself knows are taken from a message."""
    if found := re.search(r"not implemented for '(\w+)'", text):
        dtype = _DTYPES.get(found[1])
        return "an operator is not implemented" + (f" for {dtype}" if dtype else "")
    if (found := re.search(r"aten::(\w+)", text)) and is_operator(found[1]):
        return f"{found[0]} is not implemented"
    if "no kernel image" in text:
        return "this torch has no kernels for this device"
    return "torch.compile needs a C++ compiler" if "C++ compiler" in text else "not supported here"


def is_operator(name: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch.ops.aten, name)


def _short(text: str) -> str | None:
    return (text if len(text) <= LONGEST_DETAIL else f"{text[: LONGEST_DETAIL - 1]}…") or None


def type_name(error: BaseException | None) -> str:
    """The nearest class from a known library: names in a user's code are not shared."""

    def is_known(kind: type) -> bool:
        module = sys.modules.get(kind.__module__)
        is_there = kind.__module__.partition(".")[0] in _LIBRARIES and getattr(module, kind.__name__, None) is kind
        return is_there and not is_own_file(getattr(module, "__file__", None) or "")

    return next(kind.__name__ for kind in type(error).__mro__ if is_known(kind))


def death_of(exit_code: int | None, killed_for_memory: bool, phase: str, who: str = _WORKER) -> tuple[Status, str]:
    if exit_code is None:
        return "crashed", f"{who} stopped answering during {phase}"
    if exit_code >= 0:
        return "crashed", f"{who} exited with code {exit_code} during {phase}"
    if -exit_code == signal.SIGKILL and killed_for_memory:
        return "host-oom", f"the system ran out of memory during {phase} and killed {who}"
    known = {number.value: number.name for number in signal.Signals}
    reason = f"{who} was ended by {known.get(-exit_code, f'signal {-exit_code}')} during {phase}"
    return "crashed", f"{reason}. {AMX_FIX}" if known.get(-exit_code) == "SIGILL" else reason


def may_be_memory(result: Result) -> bool:
    """Whether a crash may be a lack of memory: the worker died, or a library hints at it."""
    died = re.match(rf"{_WORKER} (was ended|exited|stopped)", result.reason or "")
    said = re.sub(r"^\S+, line \d+: ", "", result.detail or "").lower()  # the name of a file is no hint
    fault = re.search("illegal memory access|misaligned", said)
    hint = None if fault else re.search("alloc|memory|primitive|mmap|thread", said)
    return result.status == "crashed" and bool(died or hint)


def memory_kills(root: Path = ROOT) -> int:
    """How often the kernel killed a process for lack of memory, in this control group or on the machine."""
    counters = ("memory.oom_control", "memory.events")  # of either version of control groups
    files = [folder / name for folder in control_groups("memory", root) for name in counters]
    for file in (*reversed(files), root / "proc/vmstat"):
        if found := re.search(r"^oom_kill (\d+)$", read_text(file) or "", re.MULTILINE):
            return int(found[1])
    return 0
