"""Starts workers, listens to them, and ends them with all that they started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import ClassVar

import msgspec
import psutil
from msgspec.structs import replace

from torchmark.devices import forbid_fallback
from torchmark.local_log import open_log, size_of, trim
from torchmark.measure import preload
from torchmark.measure.lifeline import SOCKET_FOLDER, STARTER
from torchmark.measure.messages import START, Measured, Message, Phase, Refused, Surveyed, decode_message, encode
from torchmark.measure.outcomes import death_of, memory_kills
from torchmark.measure.signals import ending_handlers, set_handlers
from torchmark.records import Status
from torchmark.workloads.own.files import known_files, serve_knowing

GRACE_S = 2.0
LEAVING_S = 1.0
DYING_S = 10.0  # until a death that was seen has its exit code: a busy machine is late with it
RESTART_S, STARTS = 0.2, 10
SERVER_S = 60.0  # for the server that forks workers to import torch; not part of a worker's own time
# Who cancels a job ends its processes one after another: where the worker's turn came first, ours comes before its case
# is called crashed, and not interrupted.
OUR_TURN_S = 0.25
_ENDED_BY_OTHERS = {-getattr(signal, name, 0) for name in ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")} - {0}
LOOK_S = 1.0  # between two looks at the size of the log
# Networks are made from configurations, and nothing is ever fetched: libraries that could are told before they are
# imported. Whoever wants a file of their own to fetch something sets them to 0.
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_TELEMETRY"), "1")
# No child imports modules from the current folder: a `random.py` there is not meant for torch.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_server_variables: dict[str, str] = {}  # in the environment of the server that forks workers
Listen = Callable[[Message], None]
Serve = Callable[[Connection, Connection, "str | None"], None]


class Ended:
    """How a worker ended: with an answer, or with a status that says why there is none."""

    def __init__(self, answer: Message | None, status: Status = "ok", reason: str = "") -> None:
        self.answer, self.status, self.reason = answer, status, reason

    def since(self, start_s: float) -> Ended:
        """The same with the time until the worker's first word, of which the worker itself has seen the least part."""
        if not isinstance(self.answer, Measured) or START not in self.answer.result.phases_s:
            return self
        result = self.answer.result
        return Ended(Measured(replace(result, phases_s=result.phases_s | {START: start_s})), self.status, self.reason)


class Launcher:
    """Fresh processes for jobs. On Linux they are forked from a server that has imported torch but never used it."""

    server_is_up: ClassVar[bool] = False  # it is one for all launchers; nobody should wait for its imports to interrupt

    def __init__(
        self,
        log: Path | None = None,
        imports_torch: bool = True,
        fresh: bool = False,
        imports: Iterable[str] = (),  # what else all workers can share; counts only for the first that starts a server
        serve: Serve | None = None,  # what a worker does; None: it measures
        environment: Mapping[str, str] | None = None,  # what stands in it before torch is loaded; asks for `fresh`
    ) -> None:
        self._log, self._serve, self._environment = log, serve, environment or {}
        forbid_fallback()  # torch reads this while it is imported, which the workers' server does once for all
        self._context = worker_context([*(["torch"] if imports_torch else []), *imports], fresh)

    def run(self, job: msgspec.Struct, timeout_s: float, listen: Listen) -> Ended:
        """Start a worker for the job, hand out what it says, and return when it has ended or had to be ended."""
        with contextlib.closing(self.follow(job, timeout_s)) as heard:
            for said in heard:
                if isinstance(said, Ended):
                    return said
                listen(said)
        raise AssertionError("a worker ended without saying how")

    def follow(self, job: msgspec.Struct, timeout_s: float) -> Generator[Message | Ended]:
        """The same, bit by bit: what the worker says as soon as it does, and at last how it ended. Close it early to
        end the worker."""
        cause, deadline = None, time.monotonic() + timeout_s + SERVER_S
        for _ in range(STARTS):
            try:
                yield from self._run(job, timeout_s)
            except NotStarted as error:  # the server was killed; once it is seen to be dead there is a new one
                cause = error.__cause__
                time.sleep(RESTART_S)
            else:
                return
            if time.monotonic() > deadline:
                yield Ended(None, "timeout", f"no worker could be started within {timeout_s + SERVER_S:g} s")
                return
        yield Ended(None, "crashed", f"no worker could be started: {type(cause).__name__}")

    def _run(self, job: msgspec.Struct, timeout_s: float) -> Generator[Message | Ended]:
        kills, launched = memory_kills(), time.monotonic()
        ours, theirs = self._context.Pipe()
        lifeline_end, lifeline = self._context.Pipe(duplex=False)
        from torchmark.measure.worker import serve

        target, log = self._serve or serve, str(self._log) if self._log else None
        process = self._context.Process(  # type: ignore[attr-defined]
            target=serve_knowing, args=(known_files(), target, theirs, lifeline_end, log)
        )
        printed = open_log(log or os.devnull)
        before = size_of(printed)
        try:
            with undisturbed() if Launcher.server_is_up else contextlib.nullcontext(), _variables(self._environment):
                start(process, timeout_s)
            Launcher.server_is_up = True
            theirs.close()
            lifeline_end.close()
            with contextlib.suppress(OSError):  # it died before it could listen: what is said of it tells how
                ours.send_bytes(encode(job))
            start_s = None
            look, deadline = partial(trim, printed, before), time.monotonic() + timeout_s
            with contextlib.closing(_attend(process, ours, deadline, timeout_s, kills, look)) as heard:
                for said in heard:
                    start_s = time.monotonic() - launched if start_s is None else start_s
                    if isinstance(said, Ended) and said.answer:
                        process.join(LEAVING_S)  # its data loaders put their things away
                    yield said.since(start_s) if isinstance(said, Ended) else said
        finally:
            end_process(process)
            trim(printed, before)
            os.close(printed)
            ours.close()
            lifeline.close()


class NotStarted(Exception):  # noqa: N818 -- reads as what it is where it is caught
    """The system, or the server that forks workers, gave none."""


def start(process, timeout_s: float) -> None:  # type: ignore[no-untyped-def]  # contexts have their own process classes
    """Start it, or say that there is none."""
    forked = process._start_method == "forkserver"
    if forked:
        _drop_stopped_server()
        _ensure_server()
    guard = threading.Timer(min(timeout_s + SERVER_S, threading.TIMEOUT_MAX), _kill_server)
    guard.daemon = True
    try:
        if forked:
            guard.start()
            process.start()
        else:
            with _detached_output():
                process.start()
    except (OSError, EOFError) as error:
        raise NotStarted from error
    finally:
        guard.cancel()


def _drop_stopped_server() -> None:
    """A model may have stopped the server that forks workers. It is killed, so that a new one takes its place."""
    number = _server_number()
    with contextlib.suppress(psutil.Error, OSError):
        if number and psutil.Process(number).status() == psutil.STATUS_STOPPED:
            _kill_server()
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)


def _kill_server() -> None:
    if number := _server_number():
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)


def _server_number() -> int | None:
    from multiprocessing import forkserver

    number: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # not public
    return number


@contextlib.contextmanager
def _detached_output() -> Iterator[None]:
    """Inside, new processes get neither stdout nor stderr of ours: their tracebacks are not for the terminal, and one
    that outlives us would keep a reader of our output waiting."""
    kept: dict[int, int] = {}
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # it may be closed
                kept[stream] = os.dup(stream)
                os.dup2(null, stream)
        yield
    finally:
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(null)


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Inside, these stand in the environment, which a process that is started anew takes over."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end a run wait: half-started, a worker would tell its end to the terminal.

    Handlers are exchanged rather than signals blocked: a new process would inherit the block, and any other thread
    would still take the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    kept = ending_handlers()
    set_handlers(dict.fromkeys(kept, lambda number, _: arrived.append(number)))
    try:
        yield
    finally:
        set_handlers(kept)
        for number in arrived:
            signal.raise_signal(number)


def worker_context(imports: Iterable[str], fresh: bool) -> BaseContext:
    """Forking needs a parent that imported everything and ran nothing; elsewhere, and for full freshness, spawn."""
    os.environ.update(OFFLINE | dict(os.environ) | SAFE_PATH)
    if sys.platform != "linux" or fresh:
        return multiprocessing.get_context("spawn")
    from multiprocessing import resource_tracker
    from multiprocessing.util import get_temp_dir

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"torchmark.measure.{name}" for name in ("tether", "worker", "preload")])
    about = {preload.VARIABLE: ",".join(imports), STARTER: str(os.getpid())}
    with _detached_output():
        resource_tracker.ensure_running()  # before there is a folder: a kill meanwhile would leave it behind
    if multiprocessing.parent_process() is None:  # else the folder is shared with the parent's other children
        about[SOCKET_FOLDER] = get_temp_dir()
    _server_variables.update(about)
    _ensure_server()
    return context


def _ensure_server() -> None:
    """Start the server that forks workers unless it is alive. It prints nothing to the terminal."""
    from multiprocessing import forkserver

    with _variables(_server_variables), _detached_output():
        forkserver.ensure_running()


def _attend(  # type: ignore[no-untyped-def]  # contexts have process classes of their own
    process, pipe: Connection, deadline: float, timeout_s: float, kills: int, look: Callable[[], None]
) -> Generator[Message | Ended]:
    """Sleep on the pipe until something is said; a busy parent would disturb what it measures."""
    phase = START
    with _death_of(process) as death, _killed_at(process, deadline + GRACE_S):
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            ready = wait([pipe, death], min(left, LOOK_S))
            if not ready and left > LOOK_S:
                look()
                continue
            try:
                message = decode_message(pipe.recv_bytes()) if pipe in ready else None
            except (EOFError, OSError):
                message = None
            except msgspec.MsgspecError:
                yield Ended(None, "crashed", f"the worker sent an unreadable message during {phase}")
                return
            if message is None and (not ready or time.monotonic() > deadline):
                yield Ended(None, "timeout", f"no result after {timeout_s:g} s; it was busy with: {phase}")
                return
            if message is None:
                process.join(min(DYING_S, max(deadline - time.monotonic(), GRACE_S / 2)))  # before we kill it ourselves
                if process.exitcode in _ENDED_BY_OTHERS:
                    time.sleep(OUR_TURN_S)
                yield Ended(None, *death_of(process.exitcode, memory_kills() > kills, phase))
                return
            if isinstance(message, Measured | Surveyed | Refused):
                yield Ended(message)
                return
            if isinstance(message, Phase):
                phase = message.name
            yield message


@contextlib.contextmanager
def _death_of(process) -> Iterator[int]:  # type: ignore[no-untyped-def]  # as above
    """What becomes ready when the worker is gone. A child that it left behind would keep a spawned one's own sentinel
    from telling."""
    try:
        handle = os.pidfd_open(process.pid) if process._start_method == "spawn" else None
    except (AttributeError, OSError):  # only Linux has it, and not in every sandbox
        handle = None
    try:
        yield process.sentinel if handle is None else handle
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _killed_at(process, deadline: float) -> Iterator[None]:  # type: ignore[no-untyped-def]  # as above
    """A worker that is stopped in the middle of a message must not keep whoever reads it waiting for ever."""
    seconds = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
    guard = threading.Timer(seconds, _signal_group, (process, getattr(signal, "SIGKILL", signal.SIGTERM)))
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


def end_process(process) -> None:  # type: ignore[no-untyped-def]  # contexts have process classes of their own
    """Let a worker that is done leave by itself; end the rest, with everything in its group."""
    if process.pid is None:  # it was not even started
        return
    process.join(0.05)
    descendants = _descendants(process.pid) if process.is_alive() else []
    if process.is_alive():
        _signal_group(process, signal.SIGTERM)
        process.join(GRACE_S)
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.join(GRACE_S)
    if process.is_alive() and process._start_method == "forkserver":
        _drop_stopped_server()  # a stopped server never reports the worker's end, and Python waits for it on exit
    for descendant in descendants:
        with contextlib.suppress(psutil.Error):
            descendant.kill()


def _descendants(number: int) -> list[psutil.Process]:
    """Everything that comes from the worker: ranks have groups of their own, which a signal to its group misses."""
    try:
        return list(psutil.Process(number).children(recursive=True))
    except psutil.Error:
        return []


def _signal_group(process, number: signal.Signals) -> None:  # type: ignore[no-untyped-def]  # as above
    """The group is named like the worker, which leads it; until it does, the worker alone is signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(process.pid, number)
        except (AttributeError, ProcessLookupError):
            if process.is_alive():  # else its number may be somebody else's by now
                os.kill(process.pid, number)
