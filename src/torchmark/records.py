"""The frozen records that everything passes around, and the version of the stored form."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Struct, field

from torchmark.case import ALL_CASES, CASE_OPTIONS, SEVERAL, Case, Count, Name, Real, Text, Value, Whole, parse_case

# Cases are records like the others, and are found here too.
__all__ = ["CASE_OPTIONS", "Case", "Name", "Real", "Text", "Value", "Whole", "parse_case"]

# History of the stored form. A new version adds a line here, an upgrade function in store/lines.py
# and a recorded file in tests/store/recorded/.
#   1  2026-11  the first: header, started, samples, finished
#   2  2026-11  texts hold torchmark's own words only: messages of other programs are in the local log
SCHEMA_VERSION = 2

Status = Literal["ok", "oom", "host-oom", "timeout", "crashed", "unsupported", "wrong-result", "interrupted", "skipped"]
NO_ROOM: tuple[Status, ...] = ("oom", "host-oom")
# `as-published` is no judgement: the figure was got by a procedure that allows none.
Verdict = Literal["contended", "throttled", "slowing", "drifting", "warming", "noisy", "stable", "as-published"]
DISTURBED: tuple[Verdict, ...] = ("contended", "throttled")  # verdicts whose evidence names what slowed the steps
Estimand = Literal["median", "mean"]
Rigor = Literal["quick", "default", "rigorous"]
Level = Literal["well-formed", "consistent", "corroborated"]
Bound = Literal["compute", "bandwidth", "launch", "loader"]

VERDICTS: tuple[str, ...] = get_args(Verdict)
RIGORS: tuple[str, ...] = get_args(Rigor)


class Work(Struct, frozen=True):
    """What one step is worth; `flops` and `bytes` are the work itself, not what an implementation spends on it."""

    items: Real
    unit: Name
    flops: Real | None = None
    bytes: Real | None = None


class Block(Struct, frozen=True):
    """What was seen while k steps ran: the wall time with one synchronisation, and the readings taken with it."""

    total_s: float
    step_s: float | tuple[float, ...] | None = None  # by the device's own events: the mean, or every step alone
    wait_s: float | None = None  # time that the timing thread was runnable but waited for a core
    switches: int | None = None  # involuntary context switches
    issue_s: float | None = None  # until all steps were handed over to the device


class Moment(Struct, frozen=True):
    """What every clock says at one moment, and how often this process had been stopped and gone on by then."""

    steady_s: float  # stands still while the machine sleeps
    wall_s: float  # what a calendar shows; it can be set
    boot_s: float | None = None  # goes on while the machine sleeps; None: there is no such clock
    stops: int = 0


class Conditions(Struct, frozen=True):
    """The machine at one moment. Fields named `…_s`, `…_j` and `…_count` only ever grow; None is unreadable."""

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
    energy_j: float | None = None  # taken so far by what does the work
    throttle: tuple[str, ...] = ()  # why it holds its clock down just now
    swap_bytes: int | None = None  # of this process, on the disk
    probe_s: float | None = None  # the reference probe, just measured


class Contention(Struct, frozen=True):
    """How much of the measuring time others took; None is unreadable."""

    wait_share: Real | None = None
    other_cpu_share: Real | None = None
    steal_share: Real | None = None
    throttled_share: Real | None = None
    probe_dilation: Real | None = None  # 1.03: the reference probe became 3% slower
    switches: Whole | None = None


class Metered(Struct, frozen=True):
    """What meters said while the samples were taken; None is unreadable, and `Result.provenance` says why."""

    mean_w: Real | None = None
    peak_w: Real | None = None  # over about a second
    clock_hz: tuple[Real, Real] | None = None  # at most, and in the last third of the time
    temperature_c: tuple[Real, Real] | None = None  # at first, at most
    throttle: Annotated[tuple[Name, ...], SEVERAL] = ()  # every reason for which the clock was held down
    major_faults: Whole | None = None


class Trend(Struct, frozen=True):
    """How the step time moved over the kept samples: relative change from first to last, and its strength."""

    change: Real
    z: Real


class Estimate(Struct, frozen=True):
    """What the engine knows about the time of one step. The interval is 95%."""

    center_s: Real
    low_s: Real
    high_s: Real
    estimand: Estimand
    verdict: Verdict
    first_step_s: Real
    effective_samples: Real
    warmup_cut: Whole
    trend: Trend
    samples_s: tuple[Real, ...] = ()  # seconds per step, in order, nothing deleted
    flags: Annotated[tuple[Name, ...], SEVERAL] = ()
    evidence: Annotated[tuple[Text, ...], SEVERAL] = ()  # what the verdict rests on, in words
    sample_count: Whole = 0
    void_count: Whole = 0  # samples across which the machine slept or the process was stopped: taken again
    block_size: Count = 1
    autocorrelation_time: Real = 1.0
    median_s: Real = 0.0
    mean_s: Real = 0.0
    mean_low_s: Real = 0.0
    mean_high_s: Real = 0.0
    min_s: Real = 0.0
    p90_s: Real = 0.0
    p90_high_s: Real | None = None  # 95% upper bound; None: too few samples for one
    p99_s: Real = 0.0
    p99_high_s: Real | None = None
    mad_s: Real = 0.0
    outlier_share: Real = 0.0
    device_step_s: Real | None = None  # the mean by the device's own events
    wall_step_s: Real | None = None  # the mean by the host's clock over the same steps
    issue_share: Real | None = None  # of a step alone, until it was handed over to a device that queues
    contention: Contention = Contention()
    metered: Metered = Metered()
    sync_cost_s: Real = 0.0
    call_cost_s: Real = 0.0
    target: Real = 0.01
    duration_s: Real = 0.0
    spread: Real | None = None  # relative, between fresh processes; None: unknown, so the interval holds within one
    freedom: Real | None = None  # degrees of freedom of that spread

    @property
    def precision(self) -> float:
        """Half the interval's width, relative to the centre."""
        return (self.high_s - self.low_s) / 2 / self.center_s if self.center_s > 0 else float("inf")


class Remark(Struct, frozen=True, omit_defaults=True):
    """Something a reader should know: what kind, why, and what to do about it. Run files hold these three fields."""

    kind: Name
    cause: Text
    fix: Text = field(default_factory=str, name="cure")  # the name in run files; never left out
    cases: Annotated[tuple[Text, ...], ALL_CASES] = ()  # the cases concerned; in general remarks none
    line: Whole = 0  # of a run file; 0: no particular line
    place: Text = ""  # the field in that line: $.result.estimate.center_s


class Memory(Struct, frozen=True):
    """Peak memory of a case; a missing figure says why."""

    host_peak_bytes: Whole | None = None
    device_peak_bytes: Whole | None = None
    device_reserved_bytes: Whole | None = None
    provenance: Text = "measured"  # measured, sampled, or 'unavailable because …'


class NumericCheck(Struct, frozen=True):
    """How far the outputs were from the reference, which is another computation."""

    error: Real
    tolerance: Real
    method: Text


class DeviceInfo(Struct, frozen=True):
    """Who a device is. Never a serial number or a UUID."""

    name: Name  # cpu, cuda:0, mps, xpu:0, fake
    model: Name
    memory_bytes: Whole | None = None
    driver: Name | None = None
    capability: Name | None = None
    cores: Whole | None = None
    cache_bytes: Whole | None = None  # of the last level


class Machine(Struct, frozen=True):
    """What ran: allow-listed, nothing that names a person, a host or a place."""

    cpu: Name
    physical_cores: Whole
    logical_cores: Whole
    memory_gib: Whole
    os: Name
    python: Name
    torch: Name | None = None
    torch_build: Name | None = None
    power_mode: Name | None = None
    on_battery: bool | None = None
    devices: tuple[DeviceInfo, ...] = ()


STEP, START_UP = "step", "start-up"  # the stage that every job has, and what happens before it


class Laps(Struct, frozen=True):
    """How long one stage of a procedure took each time, and how often the whole procedure does it. Never stored."""

    stage: str
    seconds: list[float]
    published: int = 1
    is_work: bool = False  # the work that was to be timed, not an overhead

    @property
    def whole(self) -> bool:
        return len(self.seconds) >= self.published


class StageEstimate(Struct, frozen=True):
    """One part of a job: how often the job does it, and how long it takes once. The interval is 95%."""

    name: Name
    steps: Whole  # 0: inside the steps of another stage
    center_s: Real
    low_s: Real
    high_s: Real


class JobEstimate(Struct, frozen=True):
    """How long the whole job takes: measured whole, or extrapolated from its steps."""

    seconds: Real
    low_s: Real
    high_s: Real
    whole: bool
    stages: Annotated[tuple[StageEstimate, ...], SEVERAL] = ()
    epochs: Whole = 0  # times that it goes through its data; 0: there is no such number
    note: Text = ""  # why it was not run whole although it was to be


class Sustained(Struct, frozen=True):
    """A sustained case: a step in its first seconds against one in its last."""

    window_s: Real  # of each end
    first_s: Real
    last_s: Real
    interval: tuple[Real, Real]  # 95%, of the relative change
    slope: Real  # relative change a minute
    cause: Text | None = None  # what a meter showed


class Peak(Struct, frozen=True):
    """How close a result comes to the best that this machine was seen to do, and what keeps it from more."""

    share: Real  # of the arithmetic or of the bandwidth, whichever is closer to its ceiling
    bound: Bound
    shares: Annotated[dict[Name, Real], SEVERAL] = field(default_factory=dict)  # of the step that each would take
    flops_per_s: Real | None = None  # the ceilings
    bytes_per_s: Real | None = None
    again: bool = False  # its ceiling was measured once more, right after it
    limits: Name | None = None  # the run that found the ceilings; None: this very one


class Result(Struct, frozen=True):
    """What a case gave. With several processes `estimate` combines them and `processes` keeps each one."""

    case: Case
    status: Status
    version: Whole = 1
    reason: Text | None = None  # in torchmark's own words
    params: Annotated[dict[Name, Value], SEVERAL] = field(default_factory=dict)
    estimate: Estimate | None = None
    processes: Annotated[tuple[Estimate, ...], SEVERAL] = ()
    work: Work | None = None
    memory: Memory | None = None
    numeric: NumericCheck | None = None
    job: JobEstimate | None = None
    metrics: Annotated[dict[Name, float], SEVERAL] = field(default_factory=dict)  # loss, accuracy, shares, counts
    phases_s: Annotated[dict[Name, Real], SEVERAL] = field(default_factory=dict)
    settings: Annotated[dict[Name, Value | None], SEVERAL] = field(default_factory=dict)
    cautions: Annotated[tuple[Remark, ...], SEVERAL] = ()
    sustained: Sustained | None = None
    provenance: Annotated[dict[Name, Text], SEVERAL] = field(default_factory=dict)  # of what meters read, or why not
    budget_s: Real | None = None
    rigor: Rigor = "quick"
    seed: Whole = 0
    peak: Peak | None = None
    detail: Text | None = None  # what other programs said about a failure; never written into a run file

    @property
    def explanation(self) -> str:
        """Why it failed, with the detail where that is known: for the terminal of the machine that it failed on."""
        return "\n".join(filter(None, (self.reason or "no reason was given", self.detail)))


class RunHeader(Struct, frozen=True):
    """The first line of a run file: what was going to be measured, where, and how to do it again."""

    id: Name
    created: Name  # UTC, to the second
    machine: Machine
    cases: Annotated[tuple[Text, ...], ALL_CASES]
    command: str  # rebuilt from the cases, never the argv
    version: Name  # torchmark's
    label: Text | None = None
    rigor: Rigor = "default"
    processes: Whole = 1  # fresh processes planned for each case
    budget_s: Real | None = None
    target: Real = 0.01
    steps: Whole | None = None
    sustain_s: Real | None = None
    guarded: bool = False  # cases that would not fit into memory are left out, as the user did not name them
    open_ended: bool = False  # more cases than these may follow, as what is found asks for them
    seed: Whole = 0


# The conclusions of `tune`, `fit`, `limits` and `ab`, as stored at the end of their runs.


class Contribution(Struct, frozen=True):
    """What one setting, or several that were only tried together, brought: how many times as fast with it."""

    setting: Text
    gain: Real


class BreakEven(Struct, frozen=True):
    """When compiling has paid for itself."""

    compiling_s: Real
    saved_s: Real  # in every step
    steps: Real


class Tuning(Struct, frozen=True):
    """What a search for the fastest settings came to: how many times as fast as the default, with a 95% interval over
    pairs of fresh processes."""

    default: Case = field(name="case")
    winner: Case  # the default itself, where nothing was confirmed to be faster
    gain: Real | None = None  # of the winner, or of what was not confirmed; None: fewer than two pairs
    low: Real | None = None
    high: Real | None = None
    pairs: Whole = 0
    unconfirmed: Case | None = None  # what led the search, but was not confirmed to be faster
    disturbed: Whole = 0  # pairs that do not count, because other programs took too much of the processor
    same_precision: Case | None = None  # the best of those that compute in the default's own numbers
    same_precision_gain: Real | None = None  # as the search saw it
    contributions: Annotated[tuple[Contribution, ...], SEVERAL] = ()
    break_even: BreakEven | None = None
    relative: Annotated[dict[Text, Real], ALL_CASES] = field(default_factory=dict)  # gain by case, as the search saw it
    stopped: Literal["done", "budget", "interrupted"] = "done"
    duration_s: Real = 0.0


class Tried(Struct, frozen=True):
    """One size that a search for what fits has tried."""

    case: Text
    size: Whole
    rate: Real | None = None  # items a second
    tries: Whole = 1
    peaks: Annotated[tuple[Real, ...], SEVERAL] = ()  # bytes, of each try that has one
    doubt: Name = ""  # why no conclusion may rest on its rate


class Fitting(Struct, frozen=True):
    """What a search for the largest size that fits came to."""

    case: Case  # its own size does not matter
    parameter: Name  # that counts the size
    limit_bytes: Real
    bound: Name  # what ended it above: memory, the parameter, time
    largest: Whole | None = None  # None: not even the smallest fits
    tries: Whole = 0  # processes in which the largest fitted, each time
    efficient: Whole | None = None  # the smallest size whose rate is as good as any
    fixed_bytes: Real | None = None  # memory is this and so much for each item; None: no such line is known
    item_bytes: Real | None = None
    line_error: Real = 0.0  # how far the worst of the sizes behind that line is off
    unit: Name = "item"
    step: Whole = 1
    tried: Annotated[tuple[Tried, ...], ALL_CASES] = ()
    duration_s: Real = 0.0


class Limiting(Struct, frozen=True):
    """What a search for a machine's limits came to."""

    kept: bool  # whether later results are held against them
    why: Literal["", "tiny", "incomplete", "doubted", "disturbed"] = ""  # they are not
    missing: Annotated[tuple[Name, ...], SEVERAL] = ()  # limits that were disturbed, and so are not kept


class Live(Struct, frozen=True):
    """What a live comparison of two sides came to: the step time of b over that of a, with a 95% interval."""

    a: Case
    b: Case
    side: Name  # that this run is: A or B
    verdict: Literal["faster", "slower", "same", "unsure"]
    stopped: Literal["clear", "precise", "pairs", "budget", "failed", "interrupted"]
    ratio: Real | None = None
    low: Real | None = None
    high: Real | None = None
    ratios: Annotated[tuple[Real, ...], SEVERAL] = ()  # one for each pair of processes


Conclusion = Tuning | Fitting | Limiting | Live


class Run(Struct, frozen=True):
    """Results of one command on one machine."""

    header: RunHeader
    results: tuple[Result, ...] = ()
    process_spread: float | None = None  # relative spread between fresh processes, from the reference case
    problems: tuple[str, ...] = ()  # what was odd about the file, such as an incomplete last line
    ended: bool = False  # it ended in order: nothing is left to be measured
    tuning: Tuning | None = None  # what `torchmark tune` concluded
    fitting: Fitting | None = None  # what `torchmark fit` did
    limiting: Limiting | None = None  # what `torchmark limits` did
    live: Live | None = None  # what `torchmark ab` did
