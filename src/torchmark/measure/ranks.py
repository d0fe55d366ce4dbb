"""A case of several ranks: the worker starts them through torch's launcher; rank 0 leads and times."""

import contextlib
import copy
import hashlib
import logging
import multiprocessing
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import NoReturn

from msgspec.json import decode
from msgspec.structs import asdict, replace

from torchmark.devices import open_device
from torchmark.devices.contract import BlockTimer, Device, do_nothing
from torchmark.errors import CaseError, DeviceError, UnsupportedError
from torchmark.measure import messages, pipeline
from torchmark.measure.bootstrap import request_death_signal
from torchmark.measure.cases import full_params
from torchmark.measure.engine import DEFAULTS, Run, measure_pair
from torchmark.measure.outcomes import Failure, death_of, failure_of, memory_kills, type_name
from torchmark.measure.process import end_group, end_with
from torchmark.meters.process import allowed_cores, count_stops, forget_peak
from torchmark.records import Block, Estimate, Memory, NumericCheck, Result
from torchmark.workloads import find_workload

PATIENCE_S = 60.0  # for ranks that are all on this machine
CHECK, MEMORY, END = -1, -2, -3  # orders of rank 0; all others are numbers of functions to time
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}  # of the exchange, by kind of device
_HUB = "TORCHMARK_RANKS"  # address and key of the hub, the job, and its start
# What a rank says that lost its peers because another rank had ended.
PEER_LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(closed|refused|reset)"
    r"|gloo.*(pair|transport|timed out)|remote process exited"
    r"|nccl.*(abort|remote|unhandled system)|DistNetworkError|DistStoreError|socket timeout",
    re.IGNORECASE,
)


def measure_ranks(job: messages.MeasureJob, say: messages.Say) -> Result:
    say(messages.Phase("ranks"))
    kills, per_node = memory_kills(), job.case.workers // job.nodes
    os.environ["OMP_NUM_THREADS"] = str(threads_per_rank(job.case.threads, per_node))
    hub = Hub(job, say, per_node)
    codes, trouble = _launch(job, per_node, hub)
    hub.joined.set()
    end = time.monotonic() + 2.0
    for thread in hub.threads:  # receive what ranks sent before they ended
        thread.join(max(end - time.monotonic(), 0.0))
    if hub.answer and hub.answer.status == "ok":
        return hub.answer
    failure = Failure("crashed", trouble or "the ranks ended without a result")
    if codes or hub.failed:
        failure = root_cause(codes, hub.failed, hub.phase, memory_kills() > kills)
    return replace(hub.answer or _blank(job), **failure._asdict())


def threads_per_rank(given: int | None, per_node: int) -> int:
    return given if given is not None else max(1, len(allowed_cores()) // per_node)


def _blank(job: messages.MeasureJob) -> Result:
    version, params = find_workload(job.case.workload).version, asdict(full_params(job.case))
    return Result(job.case, "crashed", version, params=params, budget_s=job.settings.budget_s, seed=job.seed)


def root_cause(codes: Mapping[int, int], failed: Sequence[messages.Failed], phase: str, for_memory: bool) -> Failure:
    """Which rank failed first, and how: all others are then ended or complain about it."""
    reported = {each.rank for each in failed}
    ended = [rank for rank, code in codes.items() if code < 0 and -code not in (signal.SIGTERM, signal.SIGABRT)]
    aborted = [rank for rank, code in codes.items() if -code == signal.SIGABRT]
    silent = [rank for rank, code in codes.items() if code > 0 and rank not in reported]
    first = next((each for each in failed if not PEER_LOST.search(f"{each.reason} {each.detail}")), None)
    if first and not ended:
        named = first.reason if first.status in ("skipped", "unsupported") else f"rank {first.rank}: {first.reason}"
        return Failure(first.status, named, first.detail)
    if failed and not (ended or aborted or silent):
        lost = f"rank {failed[0].rank} lost its connection to the others during {phase}"
        return Failure("crashed", lost, failed[0].detail)
    rank = next(iter((*ended, *aborted, *silent, *codes)), 0)
    return Failure(*death_of(codes.get(rank), for_memory, phase, f"rank {rank}"))


class Hub:
    """Receives what the ranks of this node report; passes it on or keeps it for the end."""

    def __init__(self, job: messages.MeasureJob, say: messages.Say, count: int) -> None:
        self.answer: Result | None = None
        self.phase, self.failed, self.threads = "ranks", list[messages.Failed](), list[threading.Thread]()
        self.joined, self._lock = threading.Event(), threading.Lock()
        self.patience_s = job.rendezvous.patience_s if job.rendezvous else PATIENCE_S
        self._job, self._say = job, say
        # On Linux an abstract name, which ends with its process.
        key, name = secrets.token_bytes(32), f"\0torchmark-{secrets.token_hex(8)}" if sys.platform == "linux" else None
        listener = Listener(name, backlog=64, authkey=key)
        os.environ[_HUB] = messages.encode((name or str(listener.address), key.hex(), job, time.monotonic())).decode()
        threading.Thread(target=self._admit, args=(listener, count), daemon=True).start()
        threading.Thread(target=self._lose_patience, daemon=True).start()

    def _admit(self, listener: Listener, count: int) -> None:
        while len(self.threads) < count:
            try:
                rank = listener.accept()
            except (AuthenticationError, EOFError):
                continue  # some other program that came by
            except OSError:
                return
            self.joined.set()
            self.threads.append(threading.Thread(target=self._receive, args=(rank,), daemon=True))
            self.threads[-1].start()

    def _receive(self, rank: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = messages.decode_message(rank.recv_bytes())
                with self._lock:
                    match message:
                        case messages.Failed():
                            self.failed.append(message)
                        case messages.Measured(result):
                            self.answer = result
                            if result.status != "ok":
                                failed = messages.Failed(0, result.status, result.reason or "", result.detail)
                                self.failed.append(failed)
                        case _:
                            self.phase = message.name if isinstance(message, messages.Phase) else self.phase
                            self._say(message)

    def _lose_patience(self) -> None:
        # The launcher may hang where it waits for others, deaf to signals.
        if not self.joined.wait(self.patience_s):
            self._say(messages.Measured(replace(_blank(self._job), reason=_no_ranks(self._job, "nothing was heard"))))


def _launch(job: messages.MeasureJob, per_node: int, hub: Hub) -> tuple[dict[int, int], str]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in filter(re.compile("torch.distributed.elastic").match, list(logging.root.manager.loggerDict)):
        logging.getLogger(name).setLevel(logging.ERROR)  # they warn of what is intended; each has its own level
    meeting, end = job.rendezvous, time.monotonic() + hub.patience_s
    while True:
        configuration = LaunchConfig(
            min_nodes=job.nodes,
            max_nodes=job.nodes,
            nproc_per_node=per_node,
            run_id="torchmark-" + hashlib.sha256(f"{job.case.text}#{job.process}".encode()).hexdigest()[:16],
            rdzv_backend="c10d",
            rdzv_endpoint=meeting.endpoint if meeting else "localhost:0",
            rdzv_configs={"timeout": int(hub.patience_s) + (1 if meeting else 0)},
            local_addr=None if meeting else "localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        )
        try:
            elastic_launch(configuration, sys.executable)("-P", "-m", "torchmark.measure.ranks")
        except SignalException:
            end_group()  # the launcher has ended the ranks
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}, ""
        except (RendezvousError, RuntimeError, ValueError, OSError) as error:
            if hub.joined.is_set() or meeting is None or time.monotonic() > end:
                return {}, _no_ranks(job, type_name(error))  # its message has addresses
            time.sleep(0.5)  # that of the case before may be about to close
            continue
        return {}, ""


def _no_ranks(job: messages.MeasureJob, cause: str) -> str:
    if job.rendezvous is None:
        return f"the ranks could not be started: {cause}"
    fix = "Give the same command on every node, and a free port of the rendezvous host"
    return f"the nodes did not meet within {job.rendezvous.patience_s:.0f} s ({cause}). {fix}"


class Rank(pipeline.PreparedCase):
    """Rank 0 measures as a single process does; the others run what it runs, whenever it does."""

    def __init__(self, job: messages.MeasureJob, say: messages.Say, device: Device) -> None:
        import torch

        super().__init__(job, say)
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        self.rank, self.world_size, self.local_size = (int(os.environ[name]) for name in names)
        self.team_settings = {"nodes": job.nodes, "backend": BACKENDS[device.kind]}
        self.busy = self.ready = False  # doing something together; waiting for orders of rank 0
        self.device, self._torch, self._distributed = device, torch, torch.distributed
        self._own_timer, self._timers = device.timer, dict[int, BlockTimer]()
        self._runs: tuple[Run, ...] = (do_nothing,)
        self._order, self._token = torch.zeros(2, dtype=torch.int64), torch.zeros(1)

    def open_device(self) -> Device:
        """Rank 0's device, which every rank has opened already. What it times, all ranks run."""
        led = copy.copy(self.device)
        led.family, led.timer = os.getppid(), self._timer  # type: ignore[method-assign]  # only these differ
        return led

    def prepare(self) -> None:
        super().prepare()
        step, self.ready = self.step, True
        self._runs = (do_nothing, step.run, *filter(None, [step.alone]), *(stage.run for stage in step.stages))

    def follow(self) -> bytes:
        pipeline.prepare_torch(self.job.case)
        pipeline.limit_memory(self.device, self.local_size)
        self.prepare()
        while True:
            self._distributed.broadcast(self._order, 0)
            order, count = self._order.tolist()
            if order == END:
                return self.end(bytes(count))
            if order == CHECK:
                self.check_numbers(self.job.case.dtype)
            elif order == MEMORY:
                self.memory()
            else:
                self._run_block(order, count)

    def _announce(self, order: int, count: int = 0) -> None:
        if self.rank == 0:
            self._order[0], self._order[1] = order, count
            self._distributed.broadcast(self._order, 0)

    def _timer(self, run: Run) -> BlockTimer:
        if run not in self._runs:
            raise CaseError("the ranks were to run a function that is not part of the step", "Put it into the step")
        return partial(self._run_block, self._runs.index(run))

    def _run_block(self, number: int, count: int) -> Block:
        self._announce(number, count)
        if number not in self._timers:
            self._timers[number] = self._own_timer(self._runs[number])
        self.busy = True
        self._meet()
        started = self.device.clock()
        block = self._timers[number](count)
        self._meet()
        self.busy = False
        return replace(block, total_s=self.device.clock() - started)

    def check_numbers(self, dtype: str) -> NumericCheck | None:
        self._announce(CHECK)  # it runs the step, and so the exchange
        self.busy = True
        numeric = super().check_numbers(dtype)
        self.busy = False
        self.device.reset_peak_memory()
        forget_peak()
        return numeric

    def memory(self) -> Memory:
        """Pages that ranks have in common count once for each of them."""
        own = super().memory()
        self._announce(MEMORY)
        read = (own.host_peak_bytes, own.device_peak_bytes, own.device_reserved_bytes)
        sums = self._torch.tensor([value or 0 for value in read], dtype=self._torch.int64)
        self._distributed.all_reduce(sums)
        host, peak, reserved = (None if value is None else int(total) for value, total in zip(read, sums, strict=True))
        summed = ", summed over the ranks" if own.provenance == "measured" else ""
        return Memory(host, peak, reserved, own.provenance + summed)

    def team_metrics(self, estimate: Estimate) -> dict[str, float]:
        step, device = self.step, self.device
        if step.alone is None:
            return {}
        settings = replace(DEFAULTS, budget_s=1.0, min_time_s=0.5)
        timers = device.timer(step.run), device.timer(step.alone)
        pair = measure_pair(*timers, clock=device.clock, sync_cost_s=estimate.sync_cost_s, settings=settings)
        return {"communication_share": max(1 - pair.ratio, 0.0)}

    def end(self, message: bytes) -> bytes:
        """Rank 0's message on every rank, for each node's session; the others pass as many bytes."""
        self._announce(END, len(message))
        content = self._torch.frombuffer(bytearray(message), dtype=self._torch.uint8)
        self._distributed.broadcast(content, 0)
        self._meet()  # a rank that left earlier could drop what is on its way
        return bytes(content.numpy().tobytes())

    def _meet(self) -> None:  # no rank leaves before all have come
        self._distributed.all_reduce(self._token)


def main() -> None:
    request_death_signal("SIGKILL")
    count_stops()
    address, key, job, started = decode(os.environ.pop(_HUB), type=tuple[str, str, messages.MeasureJob, float])
    worker = Client(address, authkey=bytes.fromhex(key))
    end_with(worker)
    try:
        _take_part(job, started, worker)
    except BaseException as error:
        pipeline.log_traceback()
        failed = messages.Failed(int(os.environ["RANK"]), *failure_of(error, "its part of the work"))
        with contextlib.suppress(OSError):
            worker.send_bytes(messages.encode(failed))
        os._exit(1)  # in an orderly end this rank might wait for the others


def _take_part(job: messages.MeasureJob, started: float, worker: Connection) -> NoReturn:
    import torch.distributed as dist

    if job.case.mode == "train":
        import torch._dynamo  # noqa: F401 -- sharing gradients needs it; it is slow to import, and no part of building

    local = int(os.environ["LOCAL_RANK"])
    # Ranks share the CPU, but have their own accelerators, counted from the named one.
    kind, _, first = job.case.device.partition(":")
    device = open_device(kind if kind == "cpu" else f"{kind}:{int(first or 0) + local}")
    backend = BACKENDS.get(device.kind)
    if backend is None:
        raise UnsupportedError(f"ranks cannot share work on {device.kind}", "Leave --workers out")
    if not dist.is_backend_available(backend):
        raise DeviceError(f"this torch has no {backend}, through which ranks on {device.kind} exchange gradients")
    dist.init_process_group(backend if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}")
    starting_s = time.monotonic() - started
    case = Rank(job, lambda message: worker.send_bytes(messages.encode(message)), device)
    if case.rank > 0:
        answer = case.follow()
    else:
        result = pipeline.measure(job, case.say, case)
        result = replace(result, phases_s={"ranks": starting_s, **result.phases_s})
        answer = messages.encode(messages.Measured(result))
        if result.status != "ok" and (case.busy or not case.ready):
            worker.send_bytes(answer)
            os._exit(1)  # this rank has left the others in the middle of something
        answer = case.end(answer)
    if local == 0:
        worker.send_bytes(answer)
    dist.destroy_process_group()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # an orderly end takes seconds and may hang


if __name__ == "__main__":
    main()
