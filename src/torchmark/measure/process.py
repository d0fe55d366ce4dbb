"""A child process: give it orders, receive its answers, learn how it ended, and end it with all that it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, TypeVar
from weakref import WeakSet

import msgspec
import psutil
from msgspec.structs import replace

from torchmark.errors import DeviceError, TorchmarkError, UsageError
from torchmark.local_log import open_log, size_of, trim
from torchmark.measure import messages
from torchmark.measure.cases import environment_of
from torchmark.measure.outcomes import death_of, memory_kills
from torchmark.measure.starters import NotStarted, drop_stopped_server, fork_worker, start_interpreter
from torchmark.records import Case, Result, Status
from torchmark.workloads import find_workload
from torchmark.workloads.own.files import split_name

NEEDED = ("msgspec", "numpy", "psutil")
GRACE_S = 2.0
LEAVING_S = 1.0  # for a process that is done to end by itself: its data loaders shut down
DYING_S = 10.0  # until a process that closed its pipe has an exit code: a busy machine is late with it
DRAIN_S = 1.0  # for the last messages of a process that has ended
TRIAL_S = 30.0  # for one number format
LOOK_S = 1.0  # between two looks at the size of the log
LAST_WORDS_BYTES, LAST_LINES = 4096, 12
# Schedulers kill a job's processes one by one: where the worker's turn came first, ours comes before its case is called
# crashed, and not interrupted.
OUR_TURN_S = 0.25
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_ENDED_BY_OTHERS = {-getattr(signal, name, 0) for name in ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")} - {0}

Expected = TypeVar("Expected", bound=messages.Message)
Listen = Callable[[messages.Message], None]


class ProcessFailed(Exception):  # noqa: N818 -- reads as what it is where it is caught
    """A process gave no answer, or a result that says why there is no figure; `last_words` are lines it printed."""

    def __init__(self, name: str, result: Result, last_words: tuple[str, ...] = ()) -> None:
        super().__init__(f"{name}: {result.reason}")
        self.name, self.result, self.last_words = name, result, last_words


def ignore(_: messages.Message) -> None:
    """Listen to nothing."""


_open: WeakSet[Process] = WeakSet()  # those that were not closed yet


class Process:
    """One child process; forked where the system allows it, and nothing asks for a new interpreter."""

    def __init__(
        self,
        case: Case | None = None,
        *,
        name: str = "",
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        modules: Iterable[str] | None = None,
        fresh: bool = False,
        log: Path | None = None,
        timeout_s: float = 600.0,
        listen: Listen = ignore,
    ) -> None:
        self.name, self._python, self._case, self.timeout_s, self._listen = name, python, case, timeout_s, listen
        self._phase, self._kills, self._begun = messages.START, memory_kills(), time.monotonic()
        self._start_s: float | None = None  # until its first message
        self._printed = open_log(log) if log else _open_output()
        self._printed_before = size_of(self._printed)
        variables = (environment_of(case.options) if case else {}) | dict(environment or {})
        try:
            if python or variables or fresh or sys.platform != "linux":
                needed = needed_modules(case) if case else NEEDED
                self._child = start_interpreter(python or sys.executable, variables, needed, self._printed)
            else:
                shared = shared_modules(case) if modules is None else modules
                self._child = fork_worker(shared, self._printed, timeout_s)
        except BaseException as error:
            failure = self._failure("crashed", f"no worker could be started: {error}")
            os.close(self._printed)
            if isinstance(error, NotStarted):
                raise failure from error
            raise
        self.pid, self._replies = self._child.pid, SimpleQueue[bytes | None]()
        # The threads do not hold this object: where an interrupt drops it before anybody can close it, the pipe of its
        # orders closes with it, and the child ends. Python would wait for that child on exit.
        reader = threading.Thread(target=_read, args=(self._child.replies, self._replies), daemon=True)
        self._waiter = threading.Thread(target=_await_end, args=(self._child.wait, reader, self._replies), daemon=True)
        _open.add(self)
        reader.start()
        self._waiter.start()

    def send(self, order: messages.Order) -> None:
        with contextlib.suppress(OSError):
            self._child.orders.write(messages.encode(order) + b"\n")
            self._child.orders.flush()

    def receive(self, kind: type[Expected], patience_s: float | None = None) -> Expected:
        """Sleep until such an answer comes; raises ProcessFailed if none does. Patience begins after building."""
        began = time.monotonic()
        deadline = began + self.timeout_s
        while True:
            message = self._next(began, deadline)
            if isinstance(message, messages.Refused):
                if self._python:
                    raise TorchmarkError(f"{self.name}, {self._python}, cannot take part: {message.cause}", message.fix)
                raise DeviceError(message.cause, message.fix, message.detail)
            if isinstance(message, messages.Measured):
                result = message.result
                if messages.START in result.phases_s:  # the process itself has seen the least part of it
                    result = replace(result, phases_s=result.phases_s | {messages.START: self._start_s or 0.0})
                if result.status != "ok":
                    raise ProcessFailed(self.name, result, self._last_words())
                message = messages.Measured(result)
            if isinstance(message, kind):
                return message
            if isinstance(message, messages.Phase) and message.name:
                self._phase = message.name
                if patience_s is not None and message.name == "first step":
                    deadline = min(deadline, time.monotonic() + patience_s)
            self._listen(message)

    def ask(self, order: messages.Order, kind: type[Expected]) -> Expected:
        self.send(order)
        return self.receive(kind)

    def next_record(self, kind: type[Any]) -> Any:
        """The next record that a called function yields."""
        return msgspec.json.decode(self.receive(messages.Found).record, type=kind)

    def leave(self) -> None:
        self._waiter.join(LEAVING_S)

    def close(self) -> None:
        """End it and all that it started: ranks have groups of their own, which a signal to its group misses."""
        descendants = []
        if self._waiter.is_alive():
            with contextlib.suppress(psutil.Error):
                descendants = psutil.Process(self.pid).children(recursive=True)
        with contextlib.suppress(OSError):
            self._child.orders.close()  # it ends itself when it sees this
        self._waiter.join(0.05)
        if self._waiter.is_alive():
            self.signal_group(signal.SIGTERM)
            self._waiter.join(GRACE_S)
        self.signal_group(_KILL)
        self._waiter.join(GRACE_S)
        if self._waiter.is_alive() and self._child.forked:
            drop_stopped_server()  # a stopped server never reports the worker's end, and Python waits for it on exit
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        _open.discard(self)
        trim(self._printed, self._printed_before)
        os.close(self._printed)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def signal_group(self, number: signal.Signals) -> None:
        """The group is named like the process, which leads it; until it does, the process alone is signalled."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except (AttributeError, ProcessLookupError):
                if self._waiter.is_alive():  # else its number may belong to another process by now
                    os.kill(self.pid, number)

    def _next(self, since: float, deadline: float) -> messages.Message:
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                line = self._replies.get(timeout=min(left, LOOK_S))
                if line is None:
                    self._waiter.join(DYING_S)
                    code = None if self._waiter.is_alive() else self._child.exit_code()
                    if code in _ENDED_BY_OTHERS:
                        time.sleep(OUR_TURN_S)
                    raise self._failure(*death_of(code, memory_kills() > self._kills, self._phase))
                message: messages.Message = messages.decode_message(line)
            except Empty:
                if left <= LOOK_S:
                    reason = f"no result after {deadline - since:.3g} s; it was busy with: {self._phase}"
                    raise self._failure("timeout", reason) from None
                trim(self._printed, self._printed_before)
                continue
            except msgspec.MsgspecError as error:
                if self._start_s is not None:
                    reason = f"the worker sent an unreadable message during {self._phase}"
                    raise self._failure("crashed", reason) from error
                continue  # some environments print a greeting when Python starts in them
            if self._start_s is None:
                self._start_s = time.monotonic() - self._begun
            return message

    def _failure(self, status: Status, reason: str) -> ProcessFailed:
        case = self._case
        result = without_figure(case, status, reason) if case else Result(Case("", ""), status, reason=reason)
        return ProcessFailed(self.name, result, self._last_words())

    def _last_words(self) -> tuple[str, ...]:
        with contextlib.suppress(OSError):
            os.lseek(self._printed, max(size_of(self._printed) - LAST_WORDS_BYTES, self._printed_before), os.SEEK_SET)
            lines = os.read(self._printed, LAST_WORDS_BYTES).decode(errors="replace").splitlines()
            return tuple([line for line in lines if line.strip()][-LAST_LINES:])
        return ()


def kill_all() -> None:
    for process in list(_open):
        process.signal_group(_KILL)


def _read(stream: IO[bytes], replies: SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError), stream:
        for line in stream:
            replies.put(line)
    replies.put(None)


def _await_end(wait: Callable[[], object], reader: threading.Thread, replies: SimpleQueue[bytes | None]) -> None:
    """The pipe alone is not enough: something that the process started may hold it open after its death."""
    wait()
    reader.join(DRAIN_S)
    replies.put(None)


def measure_case(
    job: messages.MeasureJob, timeout_s: float, listen: Listen = ignore, log: Path | None = None, fresh: bool = False
) -> Result:
    """Measure a case in a process of its own; a failure is a result, too."""
    try:
        with Process(job.case, fresh=fresh, log=log, timeout_s=timeout_s, listen=listen) as process:
            result = process.ask(job, messages.Measured).result
            process.leave()
            return result
    except ProcessFailed as failure:
        return failure.result


def try_each(
    function: str, device: str, dtypes: Sequence[str], kind: type[Any], died: Callable[[str, str], Any]
) -> Iterator[Any]:
    """What the function yields for each number format, in order; `died(dtype, cause)` where it killed its process."""
    remaining = list(dtypes)
    while remaining:
        try:
            with Process(fresh=True, timeout_s=TRIAL_S) as process:
                process.send(messages.call(function, device, remaining))
                while remaining:
                    yield process.next_record(kind)
                    remaining.pop(0)
        except ProcessFailed as failure:
            yield died(remaining.pop(0), failure.result.reason or "")


def without_figure(case: Case, status: Status, reason: str) -> Result:
    return Result(case=case, status=status, reason=reason, version=find_workload(case.workload).version)


def shared_modules(case: Case | None) -> tuple[str, ...]:
    if case is None:
        return ("torch",)
    workload = find_workload(case.workload)
    uses_torch = workload.needs_torch or not case.device.startswith("fake")
    return (*("torch",) * uses_torch, *workload.imports)


def needed_modules(case: Case) -> tuple[str, ...]:
    home = type(find_workload(case.workload)).__module__.partition(".")[0]  # of a plug-in: the package that brings it
    brought = [] if home == "torchmark" or split_name(case.workload) else [home]
    shared = [name.partition(".")[0] for name in shared_modules(case)]
    return tuple(dict.fromkeys((*NEEDED, *shared, *brought)))


def find_interpreter(text: str) -> str:
    """The interpreter that a user means by a path, the folder of a virtual environment, or a command's name."""
    inside = Path(text) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    found = str(inside) if inside.is_file() else shutil.which(text)
    if found is None:
        raise UsageError(f"there is no Python interpreter '{text}'", "Name one, such as venv/bin/python")
    return os.path.abspath(found)  # noqa: PTH100 -- following its links would lead out of a virtual environment


def _open_output() -> int:
    """A nameless file for what a process prints. Every write goes to the end, even after it was trimmed."""
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor
