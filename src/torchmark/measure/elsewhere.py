"""A fresh process in an interpreter of the user's choice: started, told what to do, heard, and ended for good."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, Protocol, TypeVar

import msgspec

from torchmark.errors import TorchmarkError, UsageError
from torchmark.local_log import trim
from torchmark.measure import doorway
from torchmark.measure.launch import LOOK_S, OFFLINE, SAFE_PATH, end_process
from torchmark.measure.messages import Measured, Order, Phase, Refused, Reply, decode_reply, encode
from torchmark.measure.outcomes import death_of, memory_kills
from torchmark.measure.ways import environment_of
from torchmark.records import Case, Result, Status
from torchmark.workloads import find_workload
from torchmark.workloads.own import is_own

NEEDED = ("msgspec", "numpy", "psutil", "scipy")
LAST_WORDS_BYTES = 4096
LAST_LINES = 8
FIRST_STEP = "first step"  # the phase in which a step shows for the first time how slow it is
DRAIN_S = 1.0
_LAUNCHER = "__PYVENV_LAUNCHER__"  # macOS: would make another interpreter believe that it is ours

Expected = TypeVar("Expected", bound=Reply)


class Started(Protocol):
    """What is known of a process that was started, in whatever way: the two pipes to it, and how it ends."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self) -> object: ...


class ProcessFailed(Exception):  # noqa: N818 -- reads as what it is where it is caught
    """The process of that name gave no result, or one that says why there is no figure."""

    def __init__(self, name: str, result: Result, last_words: tuple[str, ...]) -> None:
        super().__init__(f"{name}: {result.reason}")
        self.name, self.result = name, result
        self.last_words = last_words  # lines that it printed


def find_interpreter(text: str) -> str:
    """The interpreter that a person means by a path, the folder of a virtual environment, or a command's name."""
    inside = Path(text) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    found = str(inside) if inside.is_file() else shutil.which(text)
    if found is None:
        raise UsageError(f"there is no Python interpreter '{text}'", "Name one, such as venv/bin/python")
    return os.path.abspath(found)  # noqa: PTH100 -- following its links would lead out of a virtual environment


def needed_modules(case: Case) -> tuple[str, ...]:
    """What an interpreter must have to measure this case."""
    workload = find_workload(case.workload)
    uses_torch = workload.needs_torch or not case.device.startswith("fake")
    home = type(workload).__module__.partition(".")[0]  # of a plug-in: the package that brings it
    brought = [] if home == "torchmark" or is_own(case.workload) else [home]
    imports = [name.partition(".")[0] for name in workload.imports]
    return tuple(dict.fromkeys((*NEEDED, *(["torch"] if uses_torch else []), *imports, *brought)))


class Elsewhere:
    """One such process, for one case. It does nothing unless told to, and sleeps meanwhile; so does this end."""

    def __init__(
        self,
        name: str,
        python: str,
        case: Case,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        listen: Callable[[str, Phase], None] = lambda *_: None,
    ) -> None:
        self.name = name
        self._python, self._case, self._timeout_s, self._listen = python, case, timeout_s, listen
        self._phase, self._said_anything, self._kills = "start", False, memory_kills()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        _set_append(self._printed.fileno())
        self._process = self._begin(environment_of(case.ways) | dict(environment or {}))
        self._replies: SimpleQueue[bytes | None] = SimpleQueue()
        reader = threading.Thread(target=self._read, daemon=True)
        self._waiter = threading.Thread(target=self._await_end, args=(reader,), daemon=True)
        reader.start()
        self._waiter.start()

    def _begin(self, environment: Mapping[str, str]) -> Started:
        """Start the process itself, with these variables changed."""
        inherited = {name: value for name, value in os.environ.items() if name != _LAUNCHER}
        changed = OFFLINE | inherited | SAFE_PATH | dict(environment)
        return _start([self._python, doorway.__file__, *needed_modules(self._case)], changed, self._printed)

    def tell(self, order: Order) -> None:
        """Hand an order over; whether anybody obeys shows when the answer is asked for."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(encode(order) + b"\n")
            self._process.stdin.flush()

    def hear(self, kind: type[Expected], patience_s: float | None = None) -> Expected:
        """Sleep until the process answers in this way. Raises ProcessFailed where it will not any more, or not in time;
        patience is for what comes after it has been built."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            message = self._next(deadline)
            if isinstance(message, Refused):
                raise TorchmarkError(f"{self.name}, {self._python}, cannot take part: {message.cause}", message.cure)
            if isinstance(message, Measured) and message.result.status != "ok":
                raise ProcessFailed(self.name, message.result, self._last_words())
            if isinstance(message, kind):
                return message
            if isinstance(message, Phase) and message.name:
                self._phase = message.name
                self._listen(self.name, message)
                if patience_s is not None and message.name == FIRST_STEP:
                    deadline = min(deadline, time.monotonic() + patience_s)

    def ask(self, order: Order, kind: type[Expected]) -> Expected:
        """Tell, and wait for the answer."""
        self.tell(order)
        return self.hear(kind)

    def close(self) -> None:
        """End it, with everything that it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # it ends itself when it sees this
        end_process(self)
        self._printed.close()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._waiter.is_alive()

    def join(self, timeout: float) -> None:
        self._waiter.join(timeout)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._replies.put(line)

    def _await_end(self, reader: threading.Thread) -> None:
        """The pipe alone does not tell: something that the process started may hold it open after its death."""
        self._process.wait()
        reader.join(DRAIN_S)
        self._replies.put(None)

    def _next(self, deadline: float) -> Reply:
        since = time.monotonic()
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                line = self._replies.get(timeout=min(left, LOOK_S))
            except Empty:
                if left > LOOK_S:
                    trim(self._printed.fileno())
                    continue
                reason = f"no answer after {time.monotonic() - since:.3g} s; it was busy with: {self._phase}"
                raise self._failure("timeout", reason) from None
            if line is None:
                raise self._failure(
                    *death_of(self._process.returncode, memory_kills() > self._kills, self._phase, "it")
                )
            try:
                message: Reply = decode_reply(line)
            except msgspec.MsgspecError as error:
                if self._said_anything:
                    raise self._failure("crashed", "it sent an unreadable message") from error
                continue  # some environments greet when Python starts in them
            self._said_anything = True
            return message

    def _failure(self, status: Status, reason: str) -> ProcessFailed:
        version = find_workload(self._case.workload).version
        result = Result(self._case, status, version=version, reason=reason)
        return ProcessFailed(self.name, result, self._last_words())

    def _last_words(self) -> tuple[str, ...]:
        self._printed.seek(max(os.fstat(self._printed.fileno()).st_size - LAST_WORDS_BYTES, 0))
        lines = self._printed.read().decode(errors="replace").splitlines()
        return tuple([line for line in lines if line.strip()][-LAST_LINES:])


def _set_append(descriptor: int) -> None:
    """Make every write go to the end, as it must where the file is trimmed meanwhile."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)


def _start(command: list[str], environment: Mapping[str, str], printed: Any) -> Started:
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, env=environment)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}", "Name a Python interpreter") from error
