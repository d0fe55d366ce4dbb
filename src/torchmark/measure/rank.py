"""The program of one rank: joins the others and takes its part in one case; rank 0 leads and times."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from msgspec.structs import replace

from torchmark.devices import open_device
from torchmark.devices.contract import BlockTimer, Device, do_nothing
from torchmark.errors import CaseError, DeviceError, UnsupportedError
from torchmark.measure.cases import full_params
from torchmark.measure.engine import DEFAULTS, measure_pair
from torchmark.measure.lifecycle import end_with, request_death_signal
from torchmark.measure.messages import Failed, Joined, Measured, MeasureJob, Message, Say, TakePart, decode_part, encode
from torchmark.measure.outcomes import failure_of
from torchmark.measure.pipeline import (
    PreparedCase,
    check_numbers,
    limit_memory,
    log_traceback,
    measure,
    prepare_torch,
    read_memory,
    setting_of,
)
from torchmark.measure.ranks import connect
from torchmark.meters.process import count_stops, forget_peak
from torchmark.records import Block, DeviceInfo, Estimate, Memory, NumericCheck, Value
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Step

CHECK, MEMORY, END = -1, -2, -3
SHARE_BUDGET_S = 1.0
_SUMMED = "measured, summed over the ranks"


class Member:
    """One rank. Every member does what rank 0 orders; nothing else is done together."""

    def __init__(self, device: Device, dtype: str) -> None:
        import torch

        self.device, self.busy = device, False
        self._dtype = dtype
        self._step: Step | None = None
        self._timers: dict[int, BlockTimer] = {}
        self._runs: tuple[Callable[[], object], ...] = (do_nothing,)
        self._order, self._token = torch.zeros(2, dtype=torch.int64), torch.zeros(1)

    @property
    def ready(self) -> bool:
        """Whether the step is built: from then on the others wait for rank 0's orders."""
        return self._step is not None

    def take(self, step: Step) -> None:
        """Every rank knows the same functions by the same numbers."""
        self._step = step
        others = [stage.run for stage in step.stages]
        self._runs = (do_nothing, step.run, *([step.alone] if step.alone else []), *others)

    def number(self, run: Callable[[], object]) -> int:
        """The number by which all ranks know this function."""
        for number, known in enumerate(self._runs):
            if known is run:
                return number
        raise CaseError("the ranks were to run a function that is not part of the step", "Put it into the step")

    def announce(self, order: int, count: int = 0) -> None:
        """Tell the others, who wait for it, what comes next."""
        import torch.distributed as dist

        self._order[0], self._order[1] = order, count
        dist.broadcast(self._order, 0)

    def follow(self) -> bytes:
        """Obey rank 0 until it reports how the case ended."""
        import torch.distributed as dist

        while True:
            dist.broadcast(self._order, 0)
            order, count = self._order.tolist()
            if order == END:
                return self.share(bytes(count))
            if order == CHECK:
                self.check()
            elif order == MEMORY:
                self.sum_memory(read_memory(self.device))
            else:
                self.run_block(order, count)

    def run_block(self, number: int, count: int) -> Block:
        """Begin together, run, and be done only when the slowest rank is."""
        if number not in self._timers:
            self._timers[number] = self.device.timer(self._runs[number])
        time_block, clock = self._timers[number], self.device.clock
        self.busy = True
        self._meet()
        started = clock()
        block = time_block(count)
        self._meet()
        block = replace(block, total_s=clock() - started)
        self.busy = False
        return block

    def check(self) -> NumericCheck | None:
        """On all ranks alike: checking runs the step, and with it the exchange between them."""
        assert self._step is not None
        self.busy = True
        numeric = check_numbers(self._step, self.device, self._dtype)
        self.busy = False
        self.device.reset_peak_memory()
        forget_peak()
        return numeric

    def sum_memory(self, own: Memory) -> Memory:
        """Pages that ranks have in common count once for each of them."""
        import torch
        import torch.distributed as dist

        read = (own.host_peak_bytes, own.device_peak_bytes, own.device_reserved_bytes)
        sums = torch.tensor([value or 0 for value in read], dtype=torch.int64)
        dist.all_reduce(sums)
        host, peak, reserved = (
            None if value is None else int(total) for value, total in zip(read, sums.tolist(), strict=True)
        )
        return Memory(host, peak, reserved, _SUMMED if own.provenance == "measured" else own.provenance)

    def share(self, message: bytes) -> bytes:
        """Rank 0's message, on every rank; the others give as many bytes as it has."""
        import torch
        import torch.distributed as dist

        content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        dist.broadcast(content, 0)
        self._meet()  # a rank that left earlier could take what is still on its way with it
        return bytes(content.numpy().tobytes())

    def _meet(self) -> None:
        """No rank leaves before all have come. Through the host's memory, on any device."""
        import torch.distributed as dist

        dist.all_reduce(self._token)


class RankLeader(PreparedCase):
    """Rank 0, which measures as a single process does, but never runs a step without the others."""

    def __init__(self, job: MeasureJob, say: Say, member: Member, settings: dict[str, Value | None]) -> None:
        super().__init__(job, say)
        self.world_size, self.local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        self._member, self.team_settings = member, settings

    def open_device(self, name: str) -> Device:
        del name  # every rank has opened its own already
        return _LedDevice(self._member)

    def take(self, step: Step) -> None:
        self.step = step
        self._member.take(step)

    def check_numbers(self, dtype: str) -> NumericCheck | None:
        del dtype
        self._member.announce(CHECK)
        return self._member.check()

    def memory(self) -> Memory:
        own = read_memory(self.device)
        self._member.announce(MEMORY)
        return self._member.sum_memory(own)

    def team_metrics(self, estimate: Estimate) -> dict[str, float]:
        """The share of a step that goes into exchanging gradients: what a step without it does not need."""
        step, device = self.step, self.device
        if step.alone is None:
            return {}
        settings = replace(DEFAULTS, budget_s=SHARE_BUDGET_S, min_time_s=SHARE_BUDGET_S / 2)
        pair = measure_pair(
            device.timer(step.run),
            device.timer(step.alone),
            clock=device.clock,
            sync_cost_s=estimate.sync_cost_s,
            settings=settings,
        )
        return {"communication_share": max(1 - pair.ratio, 0.0)}

    def end(self, message: bytes) -> bytes:
        """Tell every rank how the case ended, so that each node's session hears the same."""
        self._member.announce(END, len(message))
        return self._member.share(message)


class _LedDevice(Device):
    """Rank 0's device: what it times, all ranks run."""

    def __init__(self, member: Member) -> None:
        inner = member.device
        super().__init__(inner.name)
        self.kind = inner.kind  # type: ignore[misc]  # it stands for a device of that kind
        self.queues = inner.queues  # type: ignore[misc]  # as above
        self.place, self.clock, self.family = inner.place, inner.clock, os.getppid()
        self._member, self._inner = member, inner

    @classmethod
    def present(cls) -> tuple[str, ...]:
        return ()

    def info(self) -> DeviceInfo:
        return self._inner.info()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def reset_peak_memory(self) -> None:
        self._inner.reset_peak_memory()

    def memory(self) -> Memory:
        return self._inner.memory()

    def timer(self, run: Callable[[], object]) -> BlockTimer:
        member, number = self._member, self._member.number(run)

        def time_block(count: int) -> Block:
            member.announce(number, count)
            return member.run_block(number, count)

        return time_block


# How ranks exchange what is on their device, by its kind.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def main() -> None:
    """Runs in a process of its own, which torch's launcher starts."""
    if hasattr(signal, "SIGKILL"):
        request_death_signal(signal.SIGKILL)
    count_stops()
    worker, rank = connect(), int(os.environ["RANK"])
    worker.send_bytes(encode(Joined(rank)))
    part = decode_part(worker.recv_bytes())
    end_with(worker)
    try:
        _take_part(part, worker, rank)
    except BaseException as error:
        log_traceback()
        with contextlib.suppress(OSError):
            worker.send_bytes(encode(Failed(rank, *failure_of(error, "its part of the work"))))
        os._exit(1)  # in an orderly end this rank might wait for the others


def _take_part(part: TakePart, worker: Connection, rank: int) -> None:
    received = time.monotonic()
    import torch.distributed as dist

    case, local = part.job.case, int(os.environ["LOCAL_RANK"])
    if case.mode == "train":
        import torch._dynamo  # noqa: F401 -- sharing gradients needs it; it is slow to import, and no part of building
    device = open_device(own_name(case.device, local))
    backend = backend_of(device)
    dist.init_process_group(backend if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}")
    part = replace(part, starting_s=part.starting_s + time.monotonic() - received)
    member = Member(device, case.dtype)
    answer = _lead(part, member, worker) if rank == 0 else _follow(part, member, rank)
    if local == 0:
        worker.send_bytes(answer)
    dist.destroy_process_group()
    _leave()


def _leave() -> None:
    """At once: to take the interpreter down in order would take seconds, and there is nothing to save."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def own_name(name: str, local_rank: int) -> str:
    """Ranks share the CPU; of other kinds each has a device of its own, counted from the one that is named."""
    kind, _, first = name.partition(":")
    return name if kind == "cpu" else f"{kind}:{int(first or 0) + local_rank}"


def backend_of(device: Device) -> str:
    """The library through which ranks on this kind of device exchange gradients."""
    import torch.distributed as dist

    backend = BACKENDS.get(device.kind)
    if backend is None:
        raise UnsupportedError(f"ranks cannot share work on {device.kind}", "Leave --workers out")
    if not dist.is_backend_available(backend):
        raise DeviceError(f"this torch has no {backend}, through which ranks on {device.kind} exchange gradients", "")
    return backend


def _lead(part: TakePart, member: Member, worker: Connection) -> bytes:
    """Measure, as a single process does; then tell everyone, if the others are still listening."""

    def say(message: Message) -> None:
        worker.send_bytes(encode(message))

    job = part.job
    nodes = job.rendezvous.nodes if job.rendezvous else 1
    leader = RankLeader(job, say, member, {"nodes": nodes, "backend": backend_of(member.device)})
    result = measure(job, say, leader)
    answer = encode(Measured(replace(result, phases_s={"ranks": part.starting_s, **result.phases_s})))
    if result.status != "ok" and (member.busy or not member.ready):
        worker.send_bytes(answer)
        os._exit(1)  # the others are in the middle of something that this rank has left
    return leader.end(answer)


def _follow(part: TakePart, member: Member, rank: int) -> bytes:
    job, device = part.job, member.device
    prepare_torch(job.case)
    limit_memory(device, int(os.environ["LOCAL_WORLD_SIZE"]))
    workload = find_workload(job.case.workload)
    setting = setting_of(job, device.place, rank, int(os.environ["WORLD_SIZE"]))
    member.take(workload.prepare(full_params(job.case), setting))
    return member.follow()


if __name__ == "__main__":
    main()
