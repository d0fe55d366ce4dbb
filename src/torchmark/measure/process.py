"""A child process: start it, forked or anew, give it orders, receive answers, end it with all it started."""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NamedTuple, TypeVar
from weakref import WeakSet

import msgspec
import psutil
from msgspec.structs import replace

from torchmark.devices import forbid_fallback
from torchmark.errors import DeviceError, TorchmarkError, UsageError
from torchmark.local_log import open_log, redirect_output, size_of, trim
from torchmark.measure import messages
from torchmark.measure.bootstrap import request_death_signal
from torchmark.measure.cases import environment_of
from torchmark.measure.outcomes import death_of, memory_kills
from torchmark.records import Case, Result, Status
from torchmark.workloads import find_workload
from torchmark.workloads.own.files import known_files, serve_knowing, split_name

NEEDED = ("msgspec", "numpy", "psutil")
GRACE_S, DRAIN_S = 2.0, 1.0  # to end after SIGTERM; for the last messages of an ended process
LEAVING_S = 1.0  # to end by itself, as data loaders have to shut down
DYING_S = 10.0  # until a process that closed its pipe has an exit code, on a busy machine
LOOK_S = 1.0  # between two looks at the size of the log
LAST_WORDS_BYTES, LAST_LINES = 4096, 12
# Schedulers kill a job's processes one by one: if our turn follows the worker's, the case was only interrupted.
OUR_TURN_S = 0.25
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_ENDED_BY_OTHERS = {-getattr(signal, name, 0) for name in ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")} - {0}

STARTER = "TORCHMARK_STARTER"  # the process that starts the server
SOCKET_FOLDER = "TORCHMARK_SOCKET_FOLDER"  # for the server to remove
MODULES = "TORCHMARK_PRELOAD"  # separated by commas: imported once, shared by all workers
HUNG_S = 600.0  # a longer import never ends; while it is in C, no Python signal handler runs
RESTART_S, STARTS = 0.2, 10
LONGEST_FOLDER = 75  # of 107 bytes of a socket's path on Linux, multiprocessing's names take 32
SERVER_S = 60.0  # for the fork server to import torch; not part of a worker's own time
# Nothing is downloaded, unless a user whose own file does so sets these to 0; libraries read them on import.
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_TELEMETRY"), "1")
SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # torch must not find a `random.py` in the current folder
# Removes a folder when its parent ends; repeatedly, as the parent's workers may end a moment later.
_REMOVE = """
import shutil, sys, time
sys.stdin.read()
for _ in range(3):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(1)
"""
_server_modules: dict[str, None] = {}  # an ordered set that only grows, so that a new server knows them all
_server_answered = False

Expected = TypeVar("Expected", bound=messages.Message)
Listen = Callable[[messages.Message], None]


class Child(NamedTuple):
    pid: int
    orders: IO[bytes]
    replies: IO[bytes]
    wait: Callable[[], object]  # until it has ended
    exit_code: Callable[[], int | None]
    forked: bool


class ProcessFailed(Exception):  # noqa: N818 -- reads as what it is where it is caught
    """A process gave no answer, or a result without a figure; `last_words` are lines it printed."""

    def __init__(self, name: str, result: Result, last_words: tuple[str, ...] = ()) -> None:
        super().__init__(f"{name}: {result.reason}")
        self.name, self.result, self.last_words = name, result, last_words


def ignore(_: messages.Message) -> None: ...


_open: "WeakSet[Process]" = WeakSet()  # those that were not closed yet


class Process(contextlib.AbstractContextManager["Process"]):
    """A child process, forked where the system allows it and no new interpreter is needed."""

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
            failure = self._failure("crashed", f"no worker could be started: {type(error).__name__}")
            os.close(self._printed)
            if isinstance(error, OSError | EOFError):
                raise failure from error
            raise
        self.pid, self._replies = self._child.pid, SimpleQueue[bytes | None]()
        # The threads do not hold this object: if an interrupt drops it, its pipe of orders closes, and the child ends.
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
        """Wait for such an answer; raise ProcessFailed if none comes. Patience begins after building."""
        began = time.monotonic()
        deadline = began + self.timeout_s
        while True:
            message = self._next(began, deadline)
            match message:
                case messages.Refused(cause, fix) if self._python:
                    raise TorchmarkError(f"{self.name}, {self._python}, cannot take part: {cause}", fix)
                case messages.Refused():
                    raise DeviceError(message.cause, message.fix, message.detail)
                case messages.Measured(result):
                    if messages.START in result.phases_s:  # the process has seen little of it
                        result = replace(result, phases_s=result.phases_s | {messages.START: self._start_s or 0.0})
                    if result.status != "ok":
                        raise ProcessFailed(self.name, result, self._last_words())
                    message = messages.Measured(result)
                case messages.Phase(name) if name:
                    self._phase = name
                    if patience_s is not None and name == "first step":
                        deadline = min(deadline, time.monotonic() + patience_s)
            if isinstance(message, kind):
                return message
            self._listen(message)

    def ask(self, order: messages.Order, kind: type[Expected]) -> Expected:
        self.send(order)
        return self.receive(kind)

    def next_record(self, kind: type[Any]) -> Any:
        return msgspec.json.decode(self.receive(messages.Found).record, type=kind)

    def leave(self) -> None:
        self._waiter.join(LEAVING_S)

    def close(self) -> None:
        """End it and all that it started, ranks with groups of their own included."""
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
            drop_stopped_server()  # it never reports the worker's end, for which Python waits on exit
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        _open.discard(self)
        trim(self._printed, self._printed_before)
        os.close(self._printed)

    def __exit__(self, *_: object) -> None:
        self.close()

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the group that the process leads; until it does, the process alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except (AttributeError, ProcessLookupError):
                if self._waiter.is_alive():  # else its number may be another process's by now
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
            except msgspec.MsgspecError as error:
                if self._start_s is not None:  # some environments print a greeting when Python starts
                    reason = f"the worker sent an unreadable message during {self._phase}"
                    raise self._failure("crashed", reason) from error
            else:
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
    """End the replies: what the process started may hold its pipe open after its death."""
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
    function: str, device: str, dtypes: Sequence[str], kind: type[Any], died: Callable[[str, str, str], Any]
) -> Iterator[Any]:
    """What the function yields for each dtype, or `died(device, dtype, cause)` where it killed its process."""
    remaining = list(dtypes)
    while remaining:
        try:
            with Process(fresh=True, timeout_s=30.0) as process:
                process.send(messages.call(function, device, remaining))
                while remaining:
                    yield process.next_record(kind)
                    remaining.pop(0)
        except ProcessFailed as failure:
            yield died(device, remaining.pop(0), failure.result.reason or "")


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
    inside = Path(text) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    found = str(inside) if inside.is_file() else shutil.which(text)
    if found is None:
        raise UsageError(f"there is no Python interpreter '{text}'", "Name one, such as venv/bin/python")
    return os.path.abspath(found)  # noqa: PTH100 -- following its links would lead out of a virtual environment


def _open_output() -> int:
    """A nameless file for what a process prints; writes go to its end, even after it was trimmed."""
    with tempfile.TemporaryFile() as file, contextlib.suppress(ImportError):  # no fcntl on Windows
        descriptor = os.dup(file.fileno())
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def start_interpreter(python: str, environment: Mapping[str, str], needed: Iterable[str], printed: int) -> Child:
    """Start a new interpreter with these variables; it refuses where it lacks a needed module."""
    variables, pipe = OFFLINE | dict(os.environ) | SAFE_PATH | dict(environment), subprocess.PIPE
    variables.pop("__PYVENV_LAUNCHER__", None)  # macOS: another interpreter would believe that it is ours
    command = [python, str(Path(__file__).with_name("bootstrap.py")), *needed]
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=printed, env=variables)
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error.strerror}", "Name a Python interpreter") from error
    orders, replies = process.stdin, process.stdout
    process.stdin = process.stdout = None  # else the waiting thread would hold them open
    assert orders and replies  # noqa: PT018 -- for the type checker
    return Child(process.pid, orders, replies, process.wait, lambda: process.returncode, forked=False)


def fork_worker(modules: Iterable[str], printed: int, patience_s: float) -> Child:
    """Fork a process from the server; start that if needed."""
    global _server_answered
    _server_modules.update(dict.fromkeys(modules))
    context: Any = multiprocessing.get_context("forkserver")
    orders_from, orders_to = context.Pipe(duplex=False)
    replies_from, replies_to = context.Pipe(duplex=False)
    # As files, they close at an interrupt, and the worker ends.
    orders, replies = os.fdopen(_descriptor(orders_to), "wb"), os.fdopen(_descriptor(replies_from), "rb")
    output = Connection(os.dup(printed), readable=False)  # multiprocessing can hand connections to another process
    arguments = (known_files(), _serve_forked, orders_from, replies_to, output)
    process = context.Process(target=serve_knowing, args=arguments)
    try:
        # An interrupt should not wait for the server's imports.
        with deferred_signals() if _server_answered else contextlib.nullcontext():
            _start_forked(context, process, patience_s)
        _server_answered = True
    except BaseException:
        orders.close()
        replies.close()
        raise
    finally:
        for end in (orders_from, replies_to, output):
            end.close()
    # The exit code can be read only once, so not by the waiting thread.
    return Child(process.pid, orders, replies, lambda: wait([process.sentinel]), lambda: process.exitcode, forked=True)


def _serve_forked(orders_from: Connection, replies_to: Connection, output: Connection) -> None:
    from torchmark.measure.pipeline import serve

    redirect_output(_descriptor(output))
    serve(_descriptor(orders_from), _descriptor(replies_to))


def _descriptor(connection: Connection) -> int:
    """The bare pipe of a connection, without Python's framing of messages."""
    descriptor = os.dup(connection.fileno())
    connection.close()
    return descriptor


def _start_forked(context: Any, process: Any, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s + SERVER_S
    for attempt in range(STARTS):
        guard = threading.Timer(min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX), _kill_server)
        guard.daemon = True
        try:
            drop_stopped_server()
            _ensure_server(context)
            guard.start()
            process.start()
        except (OSError, EOFError):  # the server was killed; a new one follows
            if attempt == STARTS - 1 or time.monotonic() > deadline:
                raise
            time.sleep(RESTART_S)
        else:
            return
        finally:
            guard.cancel()


def _ensure_server(context: Any) -> None:
    """Start the server unless it is alive; it prints nothing, and ends with this process."""
    from multiprocessing import forkserver, resource_tracker
    from multiprocessing.util import get_temp_dir

    forbid_fallback()  # torch reads this at import, once for all workers
    context.set_forkserver_preload([__name__])
    about = {STARTER: str(os.getpid()), MODULES: ",".join(_server_modules)}
    variables, folder, streams = dict(os.environ), tempfile.tempdir, dict[int, int]()
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.environ.update(OFFLINE | variables | SAFE_PATH | about)
        # No tracebacks on the terminal, and no process that outlives us with our output open.
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # it may be closed
                streams[stream] = os.dup(stream)
                os.dup2(null, stream)
        resource_tracker.ensure_running()  # before there is a folder, which a kill would leave behind
        if multiprocessing.parent_process() is None:  # else the folder is shared with the parent's other children
            if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
                tempfile.tempdir = "/tmp"
            os.environ[SOCKET_FOLDER] = get_temp_dir()
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = folder
        for stream, copy in streams.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(null)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)


def drop_stopped_server() -> None:
    """Kill a server that a model has stopped, for a new one to take its place."""
    with contextlib.suppress(psutil.Error, OSError):
        if (number := _server_pid()) and psutil.Process(number).status() == psutil.STATUS_STOPPED:
            _kill_server()
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)


def _kill_server() -> None:
    with contextlib.suppress(OSError):
        if number := _server_pid():
            os.kill(number, signal.SIGKILL)


def _server_pid() -> int | None:
    from multiprocessing import forkserver

    return forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined, no-any-return]  # not public


def lead_own_group() -> None:
    """Start a session whose whole group SIGTERM ends."""
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: end_group())
        request_death_signal("SIGTERM")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with(lifeline: Connection) -> None:
    def watch() -> None:  # until the other end closes
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        end_group()

    threading.Thread(target=watch, daemon=True).start()


def end_group() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def ending_handlers() -> dict[signal.Signals, Any]:
    """The handlers of the signals that end a run, except ignored ones and those not installed from Python."""
    numbers = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]
    handlers = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


def set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Hold back signals by their handlers while a worker starts: blocked ones would reach it and other threads."""
    arrived: list[int] = []
    kept = ending_handlers() if threading.current_thread() is threading.main_thread() else {}
    set_handlers(dict.fromkeys(kept, lambda number, _: arrived.append(number)))
    try:
        yield
    finally:
        set_handlers(kept)
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A folder that is removed afterwards, by another process even if this one is killed."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    command = [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder)]
    null = subprocess.DEVNULL  # holding our output open would keep its reader waiting
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True) as remover:
        try:
            folder.mkdir(mode=0o700)
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            remover.kill()


def _tie_to(starter: int, folder: str | None) -> None:
    """In the server: end with its run, even if that is killed while the server still imports."""
    server = os.getpid()

    def remove() -> None:  # the folder, once the run is gone, which may still start another server
        deadline = time.monotonic() + 1.0
        while os.getppid() == starter and time.monotonic() < deadline:
            time.sleep(0.01)
        if folder and os.getpid() == server and os.getppid() != starter:  # a worker, forked from it, is not the server
            shutil.rmtree(folder, ignore_errors=True)

    def end(*_: object) -> None:
        remove()
        os._exit(1)

    atexit.register(remove)  # the run closes the pipe, and the server ends in order
    signal.signal(signal.SIGTERM, end)
    request_death_signal("SIGTERM")
    if os.getppid() != starter:
        end()


if STARTER in os.environ:  # set for the server alone, which imports this file first
    _tie_to(int(os.environ[STARTER]), os.environ.pop(SOCKET_FOLDER, None))
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    for name in ("torchmark.measure.pipeline", *filter(None, os.environ.pop(MODULES, "").split(","))):
        with contextlib.suppress(Exception):  # a broken library fails only the cases that need it
            importlib.import_module(name)
    faulthandler.cancel_dump_traceback_later()
    find_workload("null")  # imports every workload
    gc.freeze()  # no worker has to search what was imported for garbage
    del os.environ[STARTER]
