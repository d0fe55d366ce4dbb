"""A side of a live comparison that is forked from the workers' server: there in a fraction of a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import IO, Any

from torchmark.errors import TorchmarkError
from torchmark.local_log import redirect_output
from torchmark.measure.elsewhere import Elsewhere, Started
from torchmark.measure.launch import NotStarted, start, undisturbed, worker_context
from torchmark.measure.messages import Phase
from torchmark.measure.ways import environment_of
from torchmark.records import Case
from torchmark.workloads import find_workload


def open_side(
    name: str, case: Case, timeout_s: float = 600.0, listen: Callable[[str, Phase], None] = lambda *_: None
) -> Elsewhere:
    """A fresh process of this very environment; a new interpreter only where the case or the system asks for one."""
    kind = Elsewhere if environment_of(case.ways) or sys.platform != "linux" else Forked
    return kind(name, sys.executable, case, timeout_s=timeout_s, listen=listen)


class Forked(Elsewhere):
    """Told, heard and ended like any other."""

    def _begin(self, environment: Mapping[str, str]) -> Started:
        assert not environment, "a forked process has loaded torch already"
        workload = find_workload(self._case.workload)
        uses_torch = workload.needs_torch or not self._case.device.startswith("fake")
        context: Any = worker_context([*(["torch"] if uses_torch else []), *workload.imports], fresh=False)
        orders_from, orders_to = context.Pipe(duplex=False)
        replies_from, replies_to = context.Pipe(duplex=False)
        printed = Connection(os.dup(self._printed.fileno()), readable=False)  # multiprocessing hands on connections
        process = context.Process(target=serve_forked, args=(orders_from, replies_to, printed))
        try:
            with undisturbed():
                start(process, self._timeout_s)
        except NotStarted as error:
            raise TorchmarkError(f"no process could be started: {type(error.__cause__).__name__}") from error
        finally:
            for end in (orders_from, replies_to, printed):
                end.close()
        return _ForkedProcess(process, orders_to, replies_from)


class _ForkedProcess:
    """A process of Python's own kind with the face of one that was started by command."""

    def __init__(self, process: Any, orders_to: Connection, replies_from: Connection) -> None:
        self._process = process
        self.stdin: IO[bytes] | None = os.fdopen(_taken(orders_to), "wb")
        self.stdout: IO[bytes] | None = os.fdopen(_taken(replies_from), "rb")

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self) -> object:
        return self._process.join()


def _taken(connection: Connection) -> int:
    """The pipe below a connection, without what Python puts around each message."""
    descriptor = os.dup(connection.fileno())
    connection.close()
    return descriptor


def serve_forked(orders_from: Connection, replies_to: Connection, printed: Connection) -> None:
    """What the forked process does."""
    from torchmark.measure.side import serve

    redirect_output(_taken(printed))
    serve(_taken(orders_from), _taken(replies_to))
