"""Starts the ranks of a case through torch's own launcher, passes on what they report, and says how the case ended."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from msgspec.structs import asdict, replace

from torchmark.measure.cases import full_params
from torchmark.measure.lifecycle import end_group
from torchmark.measure.messages import (
    Failed,
    Joined,
    Measured,
    MeasureJob,
    Message,
    Phase,
    TakePart,
    decode_from_rank,
    encode,
)
from torchmark.measure.outcomes import Failure, death_of, memory_kills, type_name
from torchmark.meters.contention import allowed_cores
from torchmark.records import Result
from torchmark.workloads import find_workload

MONITOR_S = 0.1
PATIENCE_S = 60.0  # for ranks that are all on this machine
RETRY_S = 0.5
LAST_WORDS_S = 2.0

# The message of a rank that lost its peers: another rank's end caused it.
PEER_LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(closed|refused|reset)"
    r"|gloo.*(pair|transport|timed out)|remote process exited"
    r"|nccl.*(abort|remote|unhandled system)|DistNetworkError|DistStoreError|socket timeout",
    re.IGNORECASE,
)

Say = Callable[[Message], None]


def measure_ranks(job: MeasureJob, say: Say) -> Result:
    """The result of a case whose work several ranks share: that of rank 0, or why there is none."""
    say(Phase("ranks"))
    kills, per_node = memory_kills(), job.case.workers // (job.rendezvous.nodes if job.rendezvous else 1)
    os.environ["OMP_NUM_THREADS"] = str(threads_per_rank(job.case.threads, per_node))
    hub = Hub(job, say, open_listener())
    hub.start(per_node)
    codes, trouble = _launch(job, per_node, hub)
    hub.last_words()
    answer = hub.answer
    if answer is not None and answer.status == "ok":
        return answer
    if codes or hub.failed:
        failure = root_cause(codes, hub.failed, hub.phase, memory_kills() > kills)
    else:
        failure = Failure("crashed", trouble or "the ranks ended without a result")
    return replace(answer or blank(job), **failure._asdict())


def threads_per_rank(given: int | None, per_node: int) -> int:
    """What was asked for, else the cores shared out."""
    return given if given is not None else max(1, len(allowed_cores()) // per_node)


def blank(job: MeasureJob) -> Result:
    """A result that has nothing yet but what was asked for."""
    return Result(
        case=job.case,
        status="crashed",
        version=find_workload(job.case.workload).version,
        params=asdict(full_params(job.case)),
        budget_s=job.settings.budget_s,
        seed=job.seed,
    )


def root_cause(codes: Mapping[int, int], failed: Sequence[Failed], phase: str, killed_for_memory: bool) -> Failure:
    """Which rank was the first to go, and how: where one goes, all others are ended or complain about it."""
    reported = {each.rank for each in failed}
    ended = [rank for rank, code in codes.items() if code < 0 and -code not in (signal.SIGTERM, signal.SIGABRT)]
    aborted = [rank for rank, code in codes.items() if -code == signal.SIGABRT]
    silent = [rank for rank, code in codes.items() if code > 0 and rank not in reported]
    by_itself = [each for each in failed if not PEER_LOST.search(f"{each.reason} {each.detail}")]
    if ended or (not by_itself and (aborted or silent)):
        rank = (ended or aborted or silent)[0]
        return Failure(*death_of(codes[rank], killed_for_memory, phase, f"rank {rank}"))
    if by_itself:
        first = by_itself[0]
        named = first.reason if first.status in ("skipped", "unsupported") else f"rank {first.rank}: {first.reason}"
        return Failure(first.status, named, first.detail)
    if failed:
        lost = f"rank {failed[0].rank} lost its connection to the others during {phase}"
        return Failure("crashed", lost, failed[0].detail)
    rank, code = next(iter(codes.items()), (0, None))
    return Failure(*death_of(code, killed_for_memory, phase, f"rank {rank}"))


def _failed(result: Result) -> Failed:
    return Failed(0, result.status, result.reason or "", result.detail)


class Hub:
    """Everything that the ranks of this node say: passed on, or kept for the end."""

    def __init__(self, job: MeasureJob, say: Say, listener: Listener) -> None:
        self.answer: Result | None = None
        self.failed: list[Failed] = []
        self.phase = "ranks"
        self.joined = threading.Event()
        self._job, self._say, self._listener = job, say, listener
        self._lock, self._threads = threading.Lock(), list[threading.Thread]()
        self._started = time.monotonic()

    def start(self, count: int) -> None:
        """Wait for that many ranks in the background, and give up where none comes."""
        threading.Thread(target=self._admit, args=(count,), daemon=True).start()
        threading.Thread(target=self._lose_patience, daemon=True).start()

    def last_words(self) -> None:
        """Hear out ranks that have ended already."""
        self.joined.set()
        end = time.monotonic() + LAST_WORDS_S
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))

    @property
    def patience_s(self) -> float:
        return self._job.rendezvous.patience_s if self._job.rendezvous else PATIENCE_S

    def _admit(self, count: int) -> None:
        while len(self._threads) < count:
            try:
                rank = self._listener.accept()
            except (AuthenticationError, EOFError):
                continue  # some other program that came by
            except OSError:
                return
            thread = threading.Thread(target=self._hear, args=(rank,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _hear(self, rank: Connection) -> None:
        try:
            while True:
                self._take(decode_from_rank(rank.recv_bytes()), rank)
        except (EOFError, OSError):
            return

    def _take(self, message: Message | Joined | Failed, rank: Connection) -> None:
        with self._lock:
            if isinstance(message, Joined):
                self.joined.set()
                rank.send_bytes(encode(TakePart(self._job, time.monotonic() - self._started)))
            elif isinstance(message, Failed):
                self.failed.append(message)
            elif isinstance(message, Measured):
                self.answer = message.result
                if message.result.status != "ok":
                    self.failed.append(_failed(message.result))
            else:
                self.phase = message.name if isinstance(message, Phase) else self.phase
                self._say(message)

    def _lose_patience(self) -> None:
        """The launcher may hang where it waits for others, deaf to signals: then this is said in its place."""
        if not self.joined.wait(self.patience_s):
            reason = _no_ranks(self._job, "nothing was heard")
            self._say(Measured(replace(blank(self._job), reason=reason)))


def _launch(job: MeasureJob, per_node: int, hub: Hub) -> tuple[dict[int, int], str]:
    """Exit codes by rank of those that failed, and why nothing was started where nothing was."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):  # each has a level of its own
            logging.getLogger(name).setLevel(logging.ERROR)  # it warns of what is done on purpose
    end = time.monotonic() + hub.patience_s
    while True:
        try:
            elastic_launch(_configuration(job, per_node), sys.executable)("-P", "-m", "torchmark.measure.rank")
        except SignalException:
            end_group()  # as a worker does on SIGTERM; the launcher has ended the ranks
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}, ""
        except (RendezvousError, RuntimeError, ValueError, OSError) as error:
            if hub.joined.is_set() or job.rendezvous is None or time.monotonic() > end:
                return {}, _no_ranks(job, type_name(error))  # its message has addresses
            time.sleep(RETRY_S)  # the meeting place of the case before may be just about to close
            continue
        return {}, ""


def _configuration(job: MeasureJob, per_node: int):  # type: ignore[no-untyped-def]  # torch is imported late
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    meeting, name = job.rendezvous, f"{job.case.text}#{job.process}"
    nodes = meeting.nodes if meeting else 1
    return LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=per_node,
        run_id="torchmark-" + hashlib.sha256(name.encode()).hexdigest()[:16],
        rdzv_backend="c10d",
        rdzv_endpoint=meeting.endpoint if meeting else "localhost:0",
        rdzv_configs={"timeout": int(meeting.patience_s) + 1 if meeting else int(PATIENCE_S)},
        local_addr=None if meeting else "localhost",
        max_restarts=0,
        monitor_interval=MONITOR_S,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )


def _no_ranks(job: MeasureJob, cause: str) -> str:
    if job.rendezvous is None:
        return f"the ranks could not be started: {cause}"
    return (
        f"the nodes did not meet within {job.rendezvous.patience_s:.0f} s ({cause}). "
        "Give the same command on every node, and a port that is free on the host of the rendezvous"
    )


_ADDRESS, _KEY = "TORCHMARK_RANKS", "TORCHMARK_RANKS_KEY"


def open_listener() -> Listener:
    """Listen for ranks; they find the way through the environment, which they inherit."""
    key = secrets.token_bytes(32)
    name = f"torchmark-{secrets.token_hex(8)}"
    # On Linux the name is kept by the kernel alone: it is gone with its process, however that ends.
    listener = Listener("\0" + name if sys.platform == "linux" else None, backlog=64, authkey=key)
    os.environ[_ADDRESS] = name if sys.platform == "linux" else str(listener.address)
    os.environ[_KEY] = key.hex()
    return listener


def connect() -> Connection:
    """Reach the worker that started this rank."""
    address, key = os.environ.pop(_ADDRESS), bytes.fromhex(os.environ.pop(_KEY))
    return Client("\0" + address if sys.platform == "linux" else address, authkey=key)
