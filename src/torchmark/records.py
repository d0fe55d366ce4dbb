"""The frozen records that everything passes around, the text form of a case, and the version of the stored form."""

from __future__ import annotations

import re
from typing import Literal, get_args

from msgspec import Struct, field

from torchmark.errors import UsageError

# History of the stored form. A new version adds a line here, an upgrade function in store/upgrade.py
# and a recorded file in tests/store/recorded/.
#   1  2026-11  the first: header, started, samples, finished
SCHEMA_VERSION = 1

Value = int | float | bool | str
Status = Literal["ok", "oom", "host-oom", "timeout", "crashed", "unsupported", "wrong-result", "interrupted", "skipped"]
Verdict = Literal["contended", "throttled", "slowing", "drifting", "warming", "noisy", "stable"]
Estimand = Literal["median", "mean"]
Rigor = Literal["quick", "default", "rigorous"]
Transfer = Literal["resident", "per-step"]

STATUSES: tuple[str, ...] = get_args(Status)
VERDICTS: tuple[str, ...] = get_args(Verdict)
RIGORS: tuple[str, ...] = get_args(Rigor)
TRANSFERS: tuple[str, ...] = get_args(Transfer)
DTYPES = ("float64", "float32", "bfloat16", "float16")


class Case(Struct, frozen=True):
    """A workload with all its settings on a device. `params` holds only those that differ from the defaults."""

    workload: str
    mode: str
    params: dict[str, Value] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str = "float32"
    compile: str = "off"
    transfer: Transfer = "resident"
    threads: int | None = None
    workers: int = 1

    @property
    def text(self) -> str:
        """The one way a case is written: printed everywhere, accepted everywhere, safe in any shell."""
        params = ",".join(f"{key}={_value_text(self.params[key])}" for key in sorted(self.params))
        options = [
            {"off": "", "on": "+compile"}.get(self.compile, f"+compile={self.compile}"),
            "+per-step" if self.transfer == "per-step" else "",
            f"+threads={self.threads}" if self.threads is not None else "",
            f"+workers={self.workers}" if self.workers != 1 else "",
        ]
        return (
            f"{self.workload}/{self.mode}{':' if params else ''}{params}@{self.device}/{self.dtype}{''.join(options)}"
        )


_CASE = re.compile(
    r"(?P<workload>[A-Za-z0-9_.-]+)/(?P<mode>[a-z-]+)"
    r"(?::(?P<params>[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+(?:,[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+)*))?"
    r"@(?P<device>[a-z]+(?::[0-9]+)?)/(?P<dtype>[a-z0-9]+)"
    r"(?P<options>(?:\+[a-z0-9=-]+)*)"
)


def parse_case(text: str) -> Case:
    """Read what `Case.text` writes."""
    found = _CASE.fullmatch(text)
    if not found:
        raise UsageError(f"'{text}' is not a case", "A case looks like mlp/infer:batch=64@cpu/float32+threads=2")
    written = found["options"].split("+")[1:]
    for option in written:
        if not _OPTION.fullmatch(option):
            raise UsageError(f"'+{option}' in '{text}' is not an option of a case", "Options: " + _OPTIONS)
    pairs = [pair.partition("=")[::2] for pair in (found["params"] or "").split(",") if pair]
    params, options = dict(pairs), dict(option.partition("=")[::2] for option in written)
    if len(params) < len(pairs) or len(options) < len(written):
        raise UsageError(f"'{text}' says something twice", "Name each parameter and each option once")
    return Case(
        workload=found["workload"],
        mode=found["mode"],
        params={key: parse_value(value) for key, value in params.items()},
        device=found["device"],
        dtype=found["dtype"],
        compile=(options["compile"] or "on") if "compile" in options else "off",
        transfer="per-step" if "per-step" in options else "resident",
        threads=int(options["threads"]) if "threads" in options else None,
        workers=int(options.get("workers", "1")),
    )


_OPTION = re.compile(r"compile(=[a-z0-9-]+)?|per-step|(threads|workers)=[0-9]{1,9}")
_OPTIONS = "+compile, +compile=MODE, +per-step, +threads=N, +workers=N"


def parse_value(text: str) -> Value:
    """A parameter's value as typed by a person: a whole number, a number, on/off, or a word."""
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?", text):
        number = float(text)
        if abs(number) == float("inf"):
            raise UsageError(f"'{text}' is not a number that a computer can hold", "Give a smaller one")
        return number
    return {"on": True, "off": False}.get(text, text)


def _value_text(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return repr(value).replace("e+", "e") if isinstance(value, float) else str(value)


class Work(Struct, frozen=True):
    """What one step is worth; `flops` and `bytes` are the work itself, not what an implementation spends on it."""

    items: float
    unit: str
    flops: float | None = None
    bytes: float | None = None


class Block(Struct, frozen=True):
    """What was seen while k steps ran: the wall time with one synchronisation, and what else was read beside it."""

    total_s: float
    step_s: float | tuple[float, ...] | None = None  # by the device's own events: the mean, or every step alone
    wait_s: float | None = None  # time that the timing thread was runnable but waited for a core
    switches: int | None = None  # involuntary context switches


class Conditions(Struct, frozen=True):
    """The state of the machine at one moment. Fields named `…_s` and `…_count` only ever grow; None is unreadable."""

    at_s: float  # the clock that the shares are taken against
    capacity: float = 1.0  # cores that this process may use
    other_cpu_s: float | None = None  # CPU time of all other processes
    steal_s: float | None = None  # taken by the hypervisor
    throttled_s: float | None = None  # stopped by a cgroup quota
    wait_s: float | None = None  # run-queue wait of all threads of this process
    major_fault_count: int | None = None
    thermal_count: int | None = None  # times the hardware held its clock down for heat or power
    clock_hz: float | None = None
    temperature_c: float | None = None
    probe_s: float | None = None  # the reference probe, just measured


class Contention(Struct, frozen=True):
    """How much of the measuring time others took; None is unreadable."""

    wait_share: float | None = None
    other_cpu_share: float | None = None
    steal_share: float | None = None
    throttled_share: float | None = None
    probe_dilation: float | None = None  # 1.03: the reference probe became 3% slower
    switches: int | None = None


class Trend(Struct, frozen=True):
    """How the step time moved over the kept samples: relative change from first to last, and its strength."""

    change: float
    z: float


class Estimate(Struct, frozen=True):
    """What the engine knows about the time of one step. The interval is 95%."""

    center_s: float
    low_s: float
    high_s: float
    estimand: Estimand
    verdict: Verdict
    first_step_s: float
    effective_samples: float
    warmup_cut: int
    trend: Trend
    samples_s: tuple[float, ...] = ()  # seconds per step, in order, nothing deleted
    flags: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # what the verdict rests on, in words
    sample_count: int = 0
    block_size: int = 1
    autocorrelation_time: float = 1.0
    median_s: float = 0.0
    mean_s: float = 0.0
    mean_low_s: float = 0.0
    mean_high_s: float = 0.0
    min_s: float = 0.0
    p90_s: float = 0.0
    p90_high_s: float | None = None  # 95% upper bound; None: too few samples for one
    p99_s: float = 0.0
    p99_high_s: float | None = None
    mad_s: float = 0.0
    outlier_share: float = 0.0
    device_step_s: float | None = None  # the mean by the device's own events, beside the wall time
    wall_step_s: float | None = None  # the mean by the host's clock over the same steps
    contention: Contention = Contention()
    sync_cost_s: float = 0.0
    call_cost_s: float = 0.0
    target: float = 0.01
    duration_s: float = 0.0

    @property
    def precision(self) -> float:
        """Half the interval's width, relative to the centre."""
        return (self.high_s - self.low_s) / 2 / self.center_s if self.center_s > 0 else float("inf")


class Caution(Struct, frozen=True):
    """A reason to read a figure with care: what kind, why, and what to do about it."""

    kind: str
    cause: str
    cure: str


class Memory(Struct, frozen=True):
    """Peak memory of a case; a missing figure says why."""

    host_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_reserved_bytes: int | None = None
    provenance: str = "measured"  # measured, sampled, or 'unavailable because …'


class NumericCheck(Struct, frozen=True):
    """How far the outputs were from the reference, which is another computation."""

    error: float
    tolerance: float
    method: str


class DeviceInfo(Struct, frozen=True):
    """Who a device is. Never a serial number or a UUID."""

    name: str  # cpu, cuda:0, mps, xpu:0, fake
    model: str
    memory_bytes: int | None = None
    driver: str | None = None
    capability: str | None = None
    cores: int | None = None


class Machine(Struct, frozen=True):
    """What ran: allow-listed, nothing that names a person, a host or a place."""

    cpu: str
    physical_cores: int
    logical_cores: int
    memory_gib: int
    os: str
    python: str
    torch: str | None = None
    torch_build: str | None = None
    power_mode: str | None = None
    on_battery: bool | None = None
    devices: tuple[DeviceInfo, ...] = ()


class StageEstimate(Struct, frozen=True):
    """One part of a job: how often the job does it, and how long it takes once. The interval is 95%."""

    name: str
    steps: int  # 0: inside the steps of another stage
    center_s: float
    low_s: float
    high_s: float


class JobEstimate(Struct, frozen=True):
    """How long the whole job takes: measured whole, or extrapolated from its steps."""

    seconds: float
    low_s: float
    high_s: float
    whole: bool
    stages: tuple[StageEstimate, ...] = ()


class Result(Struct, frozen=True):
    """What a case gave. With several processes `estimate` combines them and `processes` keeps each one."""

    case: Case
    status: Status
    version: int = 1
    reason: str | None = None
    params: dict[str, Value] = field(default_factory=dict)
    estimate: Estimate | None = None
    processes: tuple[Estimate, ...] = ()
    work: Work | None = None
    memory: Memory | None = None
    numeric: NumericCheck | None = None
    job: JobEstimate | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # loss, accuracy, shares, counts
    phases_s: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Value | None] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    budget_s: float | None = None
    rigor: Rigor = "quick"
    seed: int = 0


class RunHeader(Struct, frozen=True):
    """The first line of a run file: what was going to be measured, where, and how to do it again."""

    id: str
    created: str  # UTC, to the second
    machine: Machine
    cases: tuple[str, ...]
    command: str  # rebuilt from the cases, never the argv
    version: str  # torchmark's
    label: str | None = None
    rigor: Rigor = "default"
    processes: int = 1  # fresh processes planned for each case
    budget_s: float | None = None
    target: float = 0.01
    steps: int | None = None
    seed: int = 0


class Run(Struct, frozen=True):
    """Results of one command on one machine."""

    header: RunHeader
    results: tuple[Result, ...] = ()
    process_spread: float | None = None  # relative spread between fresh processes, from the reference case
    problems: tuple[str, ...] = ()  # what was odd about the file, such as a torn last line
