"""The program of one rank: joins the others, takes its part in one case, and tells its worker how that went."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from msgspec.structs import replace

from torchmark.devices import open_device
from torchmark.devices.contract import Device
from torchmark.errors import DeviceError, UnsupportedError
from torchmark.measure.cases import full_params
from torchmark.measure.channel import connect
from torchmark.measure.conduct import Conductor, Member
from torchmark.measure.lifeline import ask_for_death_signal, end_with
from torchmark.measure.messages import Failed, Joined, Measured, Message, TakePart, decode_part, encode
from torchmark.measure.outcomes import failure_of
from torchmark.measure.process import limit_memory, prepare_torch
from torchmark.measure.worker import log_traceback, measure, setting_of
from torchmark.meters.pauses import count_stops
from torchmark.workloads import find_workload

# How ranks exchange what is on their device, by its kind.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def main() -> None:
    """Runs in a process of its own, which torch's launcher starts."""
    if hasattr(signal, "SIGKILL"):
        ask_for_death_signal(signal.SIGKILL)
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
    import torch._dynamo  # noqa: F401 -- sharing gradients needs it; it is slow to import, and no part of building
    import torch.distributed as dist

    case, local = part.job.case, int(os.environ["LOCAL_RANK"])
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

    job, world_size = part.job, int(os.environ["WORLD_SIZE"])
    nodes = job.rendezvous.nodes if job.rendezvous else 1
    conductor = Conductor(member, world_size, {"nodes": nodes, "backend": backend_of(member.device)})
    result = measure(job, say, conductor)
    answer = encode(Measured(replace(result, phases_s={"ranks": part.starting_s, **result.phases_s})))
    if result.status != "ok" and (member.busy or not member.ready):
        worker.send_bytes(answer)
        os._exit(1)  # the others are in the middle of something that this rank has left
    return conductor.end(answer)


def _follow(part: TakePart, member: Member, rank: int) -> bytes:
    job, device = part.job, member.device
    prepare_torch(job.case)
    if device.kind == "cpu":
        limit_memory(int(os.environ["LOCAL_WORLD_SIZE"]))
    workload = find_workload(job.case.workload)
    setting = setting_of(job, device.place, rank, int(os.environ["WORLD_SIZE"]))
    member.take(workload.prepare(full_params(job.case), setting))
    return member.follow()


if __name__ == "__main__":
    main()
