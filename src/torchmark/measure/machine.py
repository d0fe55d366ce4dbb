"""The machine: what it is, whether it is set up well, and what would spoil its figures."""

import hashlib
import importlib.metadata
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from msgspec import Struct
from msgspec.structs import replace

from torchmark.case import DTYPES
from torchmark.devices import ACCELERATOR, diagnose, find_devices, first_accelerator, open_device
from torchmark.devices.contract import Device
from torchmark.devices.cpu import cpu_model
from torchmark.errors import DeviceError, TorchmarkError
from torchmark.measure.cases import GIB, full_params
from torchmark.measure.messages import Phase, Refused, Say, call
from torchmark.measure.outcomes import AMX_FIX
from torchmark.measure.process import Process, ProcessFailed, try_each
from torchmark.meters import ROOT, open_conditions, open_vitals, read_text
from torchmark.meters.cpu import read_power
from torchmark.meters.process import allowed_cores, capacity
from torchmark.records import Case, Conditions, DeviceInfo, Machine, Remark
from torchmark.settings import shareable_build, shareable_hardware, shareable_system, shareable_version
from torchmark.workloads import find_workload

SHARED_BYTES = 32 << 20  # holds a few batches of every loading process
SLOW = 20.0  # times slower than float32: nothing was made for it
_TOO_LONG_S = 0.1


def describe_machine(devices: Iterable[DeviceInfo] = ()) -> Machine:
    """The machine as a run file keeps it, without importing torch."""

    def shareable(info: DeviceInfo) -> DeviceInfo:
        # Memory is rounded to a quarter of a GiB: to the byte, it identifies a machine.
        rounded = None if info.memory_bytes is None else max(1, round(4 * info.memory_bytes / GIB)) * GIB // 4
        return replace(info, model=shareable_hardware(info.model) or "unknown device", memory_bytes=rounded)

    logical, power, version, build = psutil.cpu_count() or 1, read_power(), None, None
    with suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.distribution("torch")  # its files alone show what it was built for
        version = shareable_version(torch.version)
        build = read_build(read_text(Path(str(torch.locate_file("torch/version.py")))) or "")
    return Machine(
        cpu=shareable_hardware(cpu_model()) or "unknown CPU",
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        memory_gib=max(1, round(psutil.virtual_memory().total / GIB)),
        os=shareable_system(_os_name()) or "unknown",
        python=shareable_version(platform.python_version()),
        torch=version,
        torch_build=build,
        power_mode=power.mode,
        on_battery=power.on_battery,
        devices=tuple(map(shareable, devices)),
    )


def _os_name() -> str:
    system, release = platform.system(), dict[str, str]()
    if system == "Darwin":
        return f"macOS {platform.mac_ver()[0].partition('.')[0]}"
    if system == "Windows":
        return f"Windows {platform.release()}"
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    name, likes = release.get("ID", ""), release.get("ID_LIKE", "").split()
    if shareable_system(name):
        return f"{name.capitalize()} {release.get('VERSION_ID', '').partition('.')[0]}".strip()
    # A derived distribution has its own version numbers.
    return next((like.capitalize() for like in likes if shareable_system(like)), system)


def read_build(text: str) -> str:
    """The build that torch's version file names, such as `CUDA 12.6`."""
    for name, label in (("hip", "ROCm"), ("cuda", "CUDA"), ("xpu", "XPU")):
        if found := re.search(rf"^{name}\b[^=\n]*=\s*['\"]([\w.+-]+)['\"]", text, re.MULTILINE):
            return shareable_build(f"{label} {found[1]}")
    return "MPS" if platform.system() == "Darwin" and platform.machine() == "arm64" else "CPU"


class Surveyed(Struct, frozen=True):
    machine: Machine  # with the devices that were asked for
    cautions: tuple[Remark, ...] = ()  # why others do not work


class Threads(Struct, frozen=True):
    within_operators: int  # that torch uses
    between_operators: int
    cores_allowed: int
    cores_worth: float  # less than the cores allowed where a quota limits them
    omp_num_threads: int | None = None


class DtypeSupport(Struct, frozen=True):
    device: str
    dtype: str
    runs: bool
    slowdown: float | None = None  # time of a matrix product against float32's
    reason: str | None = None
    crashed: bool = False  # it killed the process that tried it

    @property
    def fast(self) -> bool:
        return self.runs and (self.slowdown is None or self.slowdown < SLOW)


class Inventory(Struct, frozen=True):
    machine: Machine
    threads: Threads
    dtypes: tuple[DtypeSupport, ...]
    cautions: tuple[Remark, ...]
    meters: dict[str, dict[str, str]] = {}  # by device: the source of each reading, or why there is none


def take_inventory(names: tuple[str, ...] | None) -> Inventory:
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "")
    counts = (torch.get_num_threads(), torch.get_num_interop_threads(), len(allowed_cores()))
    threads = Threads(*counts, capacity(), int(wanted) if wanted.isdecimal() else None)
    cautions = [*diagnose(), *judge_threads(threads), *judge_power(), *_listen()]
    infos = [open_device(name).info() for name in names or find_devices()]
    dtypes = tuple(support for info in infos for support in try_dtypes(info.name))
    real = [info.name for info in infos if not info.name.startswith("fake")]
    meters = {name: {what: meter.provenance for what, meter in open_vitals(name).items()} for name in real}
    return Inventory(describe_machine(infos), threads, dtypes, (*cautions, *judge_dtypes(dtypes)), meters)


def judge_threads(threads: Threads) -> Iterator[Remark]:
    useful = max(1, math.ceil(min(threads.cores_allowed, threads.cores_worth)))
    if threads.within_operators > useful:
        cause = f"torch uses {threads.within_operators} threads, but this process may use {useful} core(s)"
        yield Remark("oversubscribed", cause, f"Set OMP_NUM_THREADS={useful}")


def judge_dtypes(dtypes: Iterable[DtypeSupport]) -> Iterator[Remark]:
    for support in (each for each in dtypes if each.crashed):
        is_amx = support.device == "cpu" and "SIGILL" in (support.reason or "")
        fix = AMX_FIX if is_amx else "Leave this dtype out, or try another version of torch and of the driver"
        yield Remark("dtype-crashes", f"a {support.dtype} matmul on {support.device} fails: {support.reason}", fix)


def judge_power() -> Iterator[Remark]:
    power = read_power()
    if power.saving:
        fix = "Choose a balanced or performance power mode"
        yield Remark("power-saver", f"the machine is set to save power ({power.mode})", fix)
    if power.on_battery:
        yield Remark("on-battery", "the machine runs on battery", "Plug it in")


def _listen() -> Iterator[Remark]:
    read = open_conditions()
    before = read()
    time.sleep(0.3)
    return judge_load(before, read())


def judge_load(before: Conditions, after: Conditions) -> Iterator[Remark]:
    def share(earlier: float | None, later: float | None) -> float:
        return (0.0 if earlier is None or later is None else later - earlier) / max(after.at_s - before.at_s, 1e-9)

    other = share(before.other_cpu_s, after.other_cpu_s)
    if other > 0.1 * after.capacity:
        cause = f"other programs use {other:.1f} of the {after.capacity:g} cores"
        yield Remark("busy", cause, "Close them, or measure when they are done")
    steal = share(before.steal_s, after.steal_s) / after.capacity
    if steal > 0.02:
        cause = f"the hypervisor gives {steal:.0%} of this machine's time to others"
        yield Remark("steal", cause, "Use a machine with cores of its own")


def judge_shared_memory(cases: Iterable[Case], root: Path = ROOT) -> Iterator[Remark]:
    place = root / "dev/shm"
    loading = any(getattr(full_params(case), "loader_workers", 0) for case in cases)
    if loading and place.is_dir() and (free := shutil.disk_usage(place).free) < SHARED_BYTES:
        cause = f"only {free >> 20} MiB of shared memory are free, through which loading processes pass their batches"
        yield Remark("shared-memory", cause, "Give the container more (docker run --shm-size=1g), or empty /dev/shm")


def try_dtypes(device: str, dtypes: Sequence[str] = DTYPES) -> tuple[DtypeSupport, ...]:
    def died(device: str, dtype: str, cause: str) -> DtypeSupport:
        return DtypeSupport(device, dtype, runs=False, reason=cause, crashed=True)

    return tuple(try_each("torchmark.measure.machine:time_dtypes", device, dtypes, DtypeSupport, died))


def time_dtypes(say: Say, name: str, dtypes: Sequence[str]) -> Iterator[DtypeSupport]:
    device = open_device(name)
    reference = dict[int, float]()
    for size in (128, 256, 512, 1024, 2048, 4096):
        reference[size] = _time_product(device, "float32", size)
        if reference[size] >= 1e-3:  # long compared with the cost of handing it over
            break
    for dtype in dtypes:
        say(Phase(f"a {dtype} product"))
        slowdown = 1.0
        try:
            for size, expected_s in reference.items() if dtype != "float32" else ():
                taken_s = _time_product(device, dtype, size)
                slowdown = taken_s / max(expected_s, 1e-9)
                if taken_s > _TOO_LONG_S and slowdown > SLOW:
                    break
        except (RuntimeError, TypeError) as error:
            yield DtypeSupport(device.name, dtype, runs=False, reason=first_line(error)[:120])
        else:
            yield DtypeSupport(device.name, dtype, runs=True, slowdown=slowdown)


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _time_product(device: Device, dtype: str, size: int) -> float:
    """Seconds of a square matrix product: the best of a few, or a single long one."""
    import torch

    seeds = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    left, right = (torch.rand(size, size, generator=seed).to(getattr(torch, dtype)).to(device.place) for seed in seeds)
    time_block = device.timer(lambda: device.observe(left @ right))
    seconds = [time_block(1).total_s]
    while len(seconds) <= 3 and min(seconds) <= _TOO_LONG_S:
        seconds.append(time_block(1).total_s)
    return min(seconds)


def announced_amx(root: Path = ROOT) -> str | None:
    """A name for this processor until the next boot, if it announces AMX."""
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    if not flags or "amx_tile" not in flags[1].split():
        return None
    boot = read_text(root / "proc/sys/kernel/random/boot_id") or ""
    return hashlib.sha256(f"{boot} {flags[1]}".encode()).hexdigest()[:24]


def lacks_amx() -> bool | None:
    """Whether a bfloat16 product kills the process that tries it; None if it failed in another way."""
    (tried,) = try_dtypes("cpu", ("bfloat16",))
    if not tried.crashed:
        return False
    return True if "SIGILL" in (tried.reason or "") else None


def look_around(devices: Sequence[str] | None, cases: Iterable[Case]) -> tuple[Machine, tuple[Remark, ...]]:
    """The machine with these devices, or all that work, and what would spoil figures of these cases."""
    cases = tuple(cases)
    workloads = {case.workload for case in cases}
    if devices is not None and ACCELERATOR in devices:  # only a look at all devices shows which one
        first = first_accelerator(info.name for info in survey(None, workloads).machine.devices)
        devices = [*dict.fromkeys(first if name == ACCELERATOR else name for name in devices)]
    found = survey(devices, workloads)
    if devices is not None and all(name.startswith("fake") for name in devices):
        return found.machine, found.cautions
    return found.machine, (*found.cautions, *_listen(), *judge_power(), *judge_shared_memory(cases))


def survey(devices: Sequence[str] | None, workloads: Iterable[str] = ()) -> Surveyed:
    """The machine, from a worker: this process has no torch. Later workers share the imports of these workloads."""
    is_real = devices is None or any(not name.startswith("fake") for name in devices)
    modules = ["torch", *(each for name in workloads for each in find_workload(name).imports)] if is_real else []
    try:
        with Process(modules=modules, timeout_s=120.0) as process:
            return survey_in(process, devices)
    except ProcessFailed as failure:
        raise DeviceError(f"cannot survey the machine: {failure.result.reason}", "Run `torchmark devices`") from failure


def survey_in(process: Process, devices: Sequence[str] | None = None) -> Surveyed:
    process.send(call("torchmark.measure.machine:survey_here", devices))
    surveyed: Surveyed = process.next_record(Surveyed)
    return surveyed


def survey_here(say: Say, devices: Sequence[str] | None) -> Iterator[Surveyed]:
    """The machine with its devices. One that was not asked for may fail, with a caution."""
    infos, cautions = [], list(diagnose() if devices is None else ())
    for name in find_devices() if devices is None else devices:
        try:
            infos.append(open_device(name).info())
        except TorchmarkError as error:
            if devices is not None:
                say(Refused(error.cause, error.fix, error.detail))
                return
            cautions.append(Remark("device-broken", ": ".join(filter(None, (error.cause, error.detail))), error.fix))
    yield Surveyed(describe_machine(infos), tuple(cautions))


@contextmanager
def keep_awake() -> Iterator[None]:
    own, command = str(os.getpid()), list[str]()
    if sys.platform == "darwin":
        command = ["caffeinate", "-i", "-w", own]
    elif sys.platform == "linux" and Path("/run/systemd/system").is_dir():
        command = ["systemd-inhibit", "--what=sleep:idle", "--who=torchmark", "--why=measuring"]
        command += ["tail", f"--pid={own}", "-f", "/dev/null"]
    with ExitStack() as stack:
        if command and shutil.which(command[0]):  # it ends by itself if this process is killed
            null = subprocess.DEVNULL
            helper = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
            stack.enter_context(helper)
            stack.callback(helper.terminate)
        if sys.platform == "win32":
            import ctypes

            set_state, continuous, system_required = ctypes.windll.kernel32.SetThreadExecutionState, 0x80000000, 1
            set_state(continuous | system_required)
            stack.callback(set_state, continuous)
        yield
