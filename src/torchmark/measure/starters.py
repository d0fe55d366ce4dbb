"""Two ways to start a child process: forked from a server that has imported torch, or a new Python interpreter."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from torchmark.devices import forbid_fallback
from torchmark.errors import UsageError
from torchmark.local_log import redirect_output
from torchmark.measure.lifecycle import deferred_signals, request_death_signal
from torchmark.workloads.own.files import known_files, serve_knowing

STARTER = "TORCHMARK_STARTER"  # the process that starts the server
SOCKET_FOLDER = "TORCHMARK_SOCKET_FOLDER"  # for the server to remove
MODULES = "TORCHMARK_PRELOAD"  # separated by commas: imported once, shared by all workers
HUNG_S = 600.0  # an import that takes longer never ends; while it runs in C, no Python signal handler gets its turn
RESTART_S, STARTS = 0.2, 10
LONGEST_FOLDER = 75  # Linux: a socket's path has at most 107 bytes, of which multiprocessing's names take 32
SERVER_S = 60.0  # for the server that forks workers to import torch; not part of a worker's own time
# Models are built from configurations and nothing is downloaded; libraries read these while they are imported. A user
# whose own file downloads something sets them to 0.
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_TELEMETRY"), "1")
# No child imports modules from the current folder: a `random.py` there is not meant for torch.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_server_modules: dict[str, None] = {}  # an ordered set; it only grows, so that a server that is replaced knows them all
_server_answered = False


class Child(NamedTuple):
    """A process that was started: the pipes to it, and how its end is noticed."""

    pid: int
    orders: IO[bytes]
    replies: IO[bytes]
    wait: Callable[[], object]  # until it has ended
    exit_code: Callable[[], int | None]
    forked: bool


class NotStarted(Exception):  # noqa: N818 -- reads as what it is where it is caught
    """The system, or the server that forks workers, could not start a process."""


def start_interpreter(python: str, environment: Mapping[str, str], needed: Iterable[str], printed: int) -> Child:
    """Start a new interpreter, with these variables changed; it refuses where it lacks a module that is needed."""
    variables, pipe = OFFLINE | dict(os.environ) | SAFE_PATH | dict(environment), subprocess.PIPE
    variables.pop("__PYVENV_LAUNCHER__", None)  # macOS: would make another interpreter believe that it is ours
    command = [python, str(Path(__file__).with_name("bootstrap.py")), *needed]
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=printed, env=variables)
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error.strerror}", "Name a Python interpreter") from error
    orders, replies = process.stdin, process.stdout
    process.stdin = process.stdout = None  # else a thread that waits for the process would hold them open
    assert orders and replies  # noqa: PT018 -- for the type checker
    return Child(process.pid, orders, replies, process.wait, lambda: process.returncode, forked=False)


def fork_worker(modules: Iterable[str], printed: int, patience_s: float) -> Child:
    """Fork a process from the server, which is started first, and again where it was killed."""
    global _server_answered
    _server_modules.update(dict.fromkeys(modules))
    context: Any = multiprocessing.get_context("forkserver")
    orders_from, orders_to = context.Pipe(duplex=False)
    replies_from, replies_to = context.Pipe(duplex=False)
    # Files, which close by themselves if an interrupt comes first: the worker then ends.
    orders, replies = os.fdopen(_descriptor(orders_to), "wb"), os.fdopen(_descriptor(replies_from), "rb")
    output = Connection(os.dup(printed), readable=False)  # multiprocessing can hand connections to another process
    arguments = (known_files(), _serve_forked, orders_from, replies_to, output)
    process = context.Process(target=serve_knowing, args=arguments)
    try:
        # The first start waits for the server's imports, which an interrupt should not have to.
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
    # The exit code can be read only once, so that the thread that waits must not read it.
    return Child(process.pid, orders, replies, lambda: wait([process.sentinel]), lambda: process.exitcode, forked=True)


def _serve_forked(orders_from: Connection, replies_to: Connection, output: Connection) -> None:
    from torchmark.measure.pipeline import serve

    redirect_output(_descriptor(output))
    serve(_descriptor(orders_from), _descriptor(replies_to))


def _descriptor(connection: Connection) -> int:
    """The pipe of a connection, without the frame that Python puts around each message."""
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
        except (OSError, EOFError) as error:  # the server was killed; once it is seen to be dead there is a new one
            if attempt == STARTS - 1 or time.monotonic() > deadline:
                raise NotStarted(type(error).__name__) from error
            time.sleep(RESTART_S)
        else:
            return
        finally:
            guard.cancel()


def _ensure_server(context: Any) -> None:
    """Start the server unless it is alive. It prints nothing to the terminal, and ends with this process."""
    from multiprocessing import forkserver, resource_tracker
    from multiprocessing.util import get_temp_dir

    forbid_fallback()  # torch reads this while it is imported, which the server does once for all workers
    context.set_forkserver_preload([__name__])
    about = {STARTER: str(os.getpid()), MODULES: ",".join(_server_modules)}
    variables, folder, streams = dict(os.environ), tempfile.tempdir, dict[int, int]()
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.environ.update(OFFLINE | variables | SAFE_PATH | about)
        # Tracebacks of processes started here are not for the terminal, and one that outlives us would keep a reader of
        # our output waiting.
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # it may be closed
                streams[stream] = os.dup(stream)
                os.dup2(null, stream)
        resource_tracker.ensure_running()  # before there is a folder: a kill meanwhile would leave it behind
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
    """Kill a server that a model has stopped, so that a new one takes its place."""
    number = _server_pid()
    with contextlib.suppress(psutil.Error, OSError):
        if number and psutil.Process(number).status() == psutil.STATUS_STOPPED:
            _kill_server()
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)


def _kill_server() -> None:
    if number := _server_pid():
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)


def _server_pid() -> int | None:
    from multiprocessing import forkserver

    return forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined, no-any-return]  # not public


def _tie_to(starter: int, folder: str | None) -> None:
    """In the server: end with the run that started it, even if it is killed while the server still imports."""
    server = os.getpid()

    def remove() -> None:
        """Remove the folder once the run is gone, a moment after its signal: until then it may start another server."""
        deadline = time.monotonic() + 1.0
        while os.getppid() == starter and time.monotonic() < deadline:
            time.sleep(0.01)
        if folder and os.getpid() == server and os.getppid() != starter:  # a worker, forked from it, is not the server
            shutil.rmtree(folder, ignore_errors=True)

    def end(*_: object) -> None:
        remove()
        os._exit(1)

    atexit.register(remove)  # a server whose run closes the pipe to it ends in order
    signal.signal(signal.SIGTERM, end)
    request_death_signal("SIGTERM")
    if os.getppid() != starter:
        end()


if STARTER in os.environ:  # set for the server alone, which imports this file first
    _tie_to(int(os.environ[STARTER]), os.environ.pop(SOCKET_FOLDER, None))
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    for name in ("torchmark.measure.pipeline", *filter(None, os.environ.pop(MODULES, "").split(","))):
        with contextlib.suppress(Exception):  # a library that cannot be imported fails only the cases that need it
            importlib.import_module(name)
    faulthandler.cancel_dump_traceback_later()
    del os.environ[STARTER]
