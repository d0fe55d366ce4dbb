"""The frozen records that everything passes around, and the version of the stored form."""

from typing import Annotated, Literal, get_args

from msgspec import Struct, field

from torchmark.case import ALL_CASES, CASE_OPTIONS, SEVERAL, Case, Count, Name, Real, Text, Value, Whole, parse_case

__all__ = ["CASE_OPTIONS", "Case", "Name", "Real", "Text", "Value", "Whole", "parse_case"]

# A new version of the stored form adds a line here, an upgrade function in store/lines.py and a recorded file in
# tests/store/recorded/.
#   1  2026-11  the first: header, started, samples, finished
#   2  2026-11  texts hold torchmark's own words only: messages of other programs are in the local log
SCHEMA_VERSION = 2

Status = Literal["ok", "oom", "host-oom", "timeout", "crashed", "unsupported", "wrong-result", "interrupted", "skipped"]
NO_ROOM: tuple[Status, ...] = ("oom", "host-oom")
# `as-published` is no judgement: the procedure allows none.
Verdict = Literal["contended", "throttled", "slowing", "drifting", "warming", "noisy", "stable", "as-published"]
DISTURBED: tuple[Verdict, ...] = ("contended", "throttled")  # verdicts whose evidence names what slowed the steps
Estimand = Literal["median", "mean"]
Rigor = Literal["quick", "default", "rigorous"]
Level = Literal["well-formed", "consistent", "corroborated"]
Bound = Literal["compute", "bandwidth", "launch", "loader"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
RIGORS: tuple[str, ...] = get_args(Rigor)
Names = Annotated[tuple[Name, ...], SEVERAL]


class Work(Struct, frozen=True):
    items: Real  # of one step
    unit: Name
    flops: Real | None = None  # that the work takes, whatever an implementation spends
    bytes: Real | None = None


class Block(Struct, frozen=True):
    total_s: float  # wall time of some steps, with one synchronisation
    step_s: float | tuple[float, ...] | None = None  # by the device's events: the mean, or each step
    wait_s: float | None = None  # that the runnable timing thread waited for a core
    switches: int | None = None  # involuntary context switches
    issue_s: float | None = None  # until all steps were handed over to the device


class Moment(Struct, frozen=True):
    steady_s: float  # stands still while the machine sleeps
    wall_s: float  # can be set
    boot_s: float | None = None  # goes on while the machine sleeps; None: no such clock
    stops: int = 0  # of this process so far


class Conditions(Struct, frozen=True):
    """The machine at one moment. Fields named `…_s`, `…_j` and `…_count` only ever grow; None is unreadable."""

    at_s: float
    capacity: float = 1.0  # cores that this process may use
    other_cpu_s: float | None = None  # CPU time of all other processes
    steal_s: float | None = None  # taken by the hypervisor
    throttled_s: float | None = None  # stopped by a cgroup quota
    wait_s: float | None = None  # run-queue wait of all threads of this process
    major_fault_count: int | None = None
    thermal_count: int | None = None  # times the hardware held its clock down for heat or power
    clock_hz: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None  # of what does the work
    throttle: tuple[str, ...] = ()  # why its clock is held down just now
    swap_bytes: int | None = None  # of this process
    probe_s: float | None = None  # the reference probe


class Contention(Struct, frozen=True):  # shares of the measuring time that others took; None is unreadable
    wait_share: Real | None = None
    other_cpu_share: Real | None = None
    steal_share: Real | None = None
    throttled_share: Real | None = None
    probe_dilation: Real | None = None  # 1.03: the reference probe became 3% slower
    switches: Whole | None = None


class Metered(Struct, frozen=True):  # readings of meters during the samples; `Result.provenance` says why one is None
    mean_w: Real | None = None
    peak_w: Real | None = None  # over about a second
    clock_hz: tuple[Real, Real] | None = None  # at most, and in the last third of the time
    temperature_c: tuple[Real, Real] | None = None  # at first, at most
    throttle: Names = ()  # why the clock was held down
    major_faults: Whole | None = None


class Trend(Struct, frozen=True):
    change: Real  # of the step time over the kept samples, relative
    z: Real


class Estimate(Struct, frozen=True):
    center_s: Real  # of one step
    low_s: Real  # of the 95% interval
    high_s: Real
    estimand: Estimand
    verdict: Verdict
    first_step_s: Real
    effective_samples: Real
    warmup_cut: Whole
    trend: Trend
    samples_s: tuple[Real, ...] = ()  # seconds per step, in order, nothing deleted
    flags: Names = ()
    evidence: Annotated[tuple[Text, ...], SEVERAL] = ()  # of the verdict
    sample_count: Whole = 0
    void_count: Whole = 0  # samples taken again after a pause
    block_size: Count = 1
    autocorrelation_time: Real = 1.0
    median_s: Real = 0.0
    mean_s: Real = 0.0
    mean_low_s: Real = 0.0
    mean_high_s: Real = 0.0
    min_s: Real = 0.0
    p90_s: Real = 0.0
    p90_high_s: Real | None = None  # 95% upper bound; None: too few samples
    p99_s: Real = 0.0
    p99_high_s: Real | None = None
    mad_s: Real = 0.0
    outlier_share: Real = 0.0
    device_step_s: Real | None = None  # the mean by the device's own events
    wall_step_s: Real | None = None  # and by the host's clock over the same steps
    issue_share: Real | None = None  # of a step, until it was handed over to a device that queues
    contention: Contention = Contention()
    metered: Metered = Metered()
    sync_cost_s: Real = 0.0
    call_cost_s: Real = 0.0
    target: Real = 0.01
    duration_s: Real = 0.0
    spread: Real | None = None  # relative, between fresh processes; None: the interval holds within one
    freedom: Real | None = None  # of that spread

    @property
    def precision(self) -> float:
        """Half the interval's width, relative to the centre."""
        return (self.high_s - self.low_s) / 2 / self.center_s if self.center_s > 0 else float("inf")


class Remark(Struct, frozen=True, omit_defaults=True):  # for the reader; run files hold the first three fields
    kind: Name
    cause: Text
    fix: Text = field(default_factory=str, name="cure")  # the name in run files; never left out
    cases: Annotated[tuple[Text, ...], ALL_CASES] = ()  # none: it is a general remark
    line: Whole = 0  # of a run file; 0: no particular line
    place: Text = ""  # in that line: $.result.estimate.center_s


class Memory(Struct, frozen=True):
    host_peak_bytes: Whole | None = None
    device_peak_bytes: Whole | None = None
    device_reserved_bytes: Whole | None = None
    provenance: Text = "measured"  # measured, sampled, or 'unavailable because …'


class NumericCheck(Struct, frozen=True):
    error: Real  # of the outputs, against a reference computation
    tolerance: Real
    method: Text


class DeviceInfo(Struct, frozen=True):
    name: Name  # cpu, cuda:0, mps, xpu:0, fake
    model: Name  # never with a serial number or a UUID
    memory_bytes: Whole | None = None
    driver: Name | None = None
    capability: Name | None = None
    cores: Whole | None = None
    cache_bytes: Whole | None = None  # of the last level


class Machine(Struct, frozen=True):  # nothing that names a person, a host or a place
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


STEP, START_UP = "step", "start-up"  # the stage that every job has, and the one before it


class Laps(Struct, frozen=True):
    stage: str  # of a procedure; never stored
    seconds: list[float]  # that it took, each time
    published: int = 1  # how often the whole procedure does it
    is_work: bool = False  # that was to be timed, no overhead

    @property
    def whole(self) -> bool:
        return len(self.seconds) >= self.published


class StageEstimate(Struct, frozen=True):
    name: Name
    steps: Whole  # by the job; 0: inside the steps of another stage
    center_s: Real  # of one
    low_s: Real
    high_s: Real


class JobEstimate(Struct, frozen=True):
    seconds: Real
    low_s: Real
    high_s: Real
    whole: bool  # measured whole, not extrapolated from its steps
    stages: Annotated[tuple[StageEstimate, ...], SEVERAL] = ()
    epochs: Whole = 0  # 0: there is no such number
    note: Text = ""  # why it was not run whole although it was to be


class Sustained(Struct, frozen=True):
    window_s: Real  # of each end
    first_s: Real  # a step in the first window, and in the last
    last_s: Real
    interval: tuple[Real, Real]  # 95%, of the relative change
    slope: Real  # relative change a minute
    cause: Text | None = None  # what a meter showed


class Peak(Struct, frozen=True):  # how close a result comes to the best seen on this machine
    share: Real  # of arithmetic or bandwidth, whichever is closer to its ceiling
    bound: Bound  # what keeps it from more
    shares: Annotated[dict[Name, Real], SEVERAL] = {}  # of the step that each would take
    flops_per_s: Real | None = None  # the ceilings
    bytes_per_s: Real | None = None
    again: bool = False  # its ceiling was measured again, right after it
    limits: Name | None = None  # the run that found the ceilings; None: this one


class Result(Struct, frozen=True):  # what a case gave; `estimate` combines its `processes`
    case: Case
    status: Status
    version: Whole = 1
    reason: Text | None = None  # in torchmark's own words
    params: Annotated[dict[Name, Value], SEVERAL] = {}
    estimate: Estimate | None = None
    processes: Annotated[tuple[Estimate, ...], SEVERAL] = ()
    work: Work | None = None
    memory: Memory | None = None
    numeric: NumericCheck | None = None
    job: JobEstimate | None = None
    metrics: Annotated[dict[Name, float], SEVERAL] = {}  # loss, accuracy, shares, counts
    phases_s: Annotated[dict[Name, Real], SEVERAL] = {}
    settings: Annotated[dict[Name, Value | None], SEVERAL] = {}
    cautions: Annotated[tuple[Remark, ...], SEVERAL] = ()
    sustained: Sustained | None = None
    provenance: Annotated[dict[Name, Text], SEVERAL] = {}  # of what meters read, or why not
    budget_s: Real | None = None
    rigor: Rigor = "quick"
    seed: Whole = 0
    peak: Peak | None = None
    detail: Text | None = None  # of other programs about a failure; never in a run file

    @property
    def explanation(self) -> str:
        """Why it failed, with the detail: for this machine's terminal only."""
        return "\n".join(filter(None, (self.reason or "no reason was given", self.detail)))


class RunHeader(Struct, frozen=True):  # the first line of a run file: what was planned, and where
    id: Name
    created: Name  # UTC, to the second
    machine: Machine
    cases: Annotated[tuple[Text, ...], ALL_CASES]
    command: str  # rebuilt from the cases, never the argv
    version: Name  # torchmark's
    label: Text | None = None
    rigor: Rigor = "default"
    processes: Whole = 1  # planned for each case
    budget_s: Real | None = None
    target: Real = 0.01
    steps: Whole | None = None
    sustain_s: Real | None = None
    guarded: bool = False  # too large cases that the user did not name are left out
    open_ended: bool = False  # more cases may follow
    seed: Whole = 0


class Contribution(Struct, frozen=True):
    setting: Text  # or several that were only tried together
    gain: Real  # times as fast


class BreakEven(Struct, frozen=True):
    compiling_s: Real
    saved_s: Real  # in every step
    steps: Real  # until that has paid for compiling


class Tuning(Struct, frozen=True):  # the gain is how many times as fast, with a 95% interval
    default: Case = field(name="case")
    winner: Case  # the default itself, where nothing was confirmed to be faster
    gain: Real | None = None  # of the winner, or of what was not confirmed; None: fewer than two pairs
    low: Real | None = None
    high: Real | None = None
    pairs: Whole = 0
    unconfirmed: Case | None = None  # what led the search
    disturbed: Whole = 0  # pairs that do not count
    same_precision: Case | None = None  # the best that computes in the default's numbers
    same_precision_gain: Real | None = None  # as the search saw it
    contributions: Annotated[tuple[Contribution, ...], SEVERAL] = ()
    break_even: BreakEven | None = None
    relative: Annotated[dict[Text, Real], ALL_CASES] = {}  # gain by case, in the search
    stopped: Literal["done", "budget", "interrupted"] = "done"
    duration_s: Real = 0.0


class Tried(Struct, frozen=True):
    case: Text
    size: Whole
    rate: Real | None = None  # items a second
    tries: Whole = 1
    peaks: Annotated[tuple[Real, ...], SEVERAL] = ()  # bytes, of each try that has one
    doubt: Name = ""  # why no conclusion may rest on its rate


class Fitting(Struct, frozen=True):
    case: Case  # its own size does not matter
    parameter: Name  # that counts the size
    limit_bytes: Real
    bound: Name  # what ended it above: memory, the parameter, time
    largest: Whole | None = None  # None: not even the smallest fits
    tries: Whole = 0  # processes in which the largest fitted
    efficient: Whole | None = None  # the smallest size whose rate is as good as any
    fixed_bytes: Real | None = None  # memory is this and so much for each item; None: unknown
    item_bytes: Real | None = None
    line_error: Real = 0.0  # of the worst size behind that line
    unit: Name = "item"
    step: Whole = 1
    tried: Annotated[tuple[Tried, ...], ALL_CASES] = ()
    duration_s: Real = 0.0


class Limiting(Struct, frozen=True):
    kept: bool  # whether later results are compared with them
    why: Literal["", "tiny", "incomplete", "doubted", "disturbed"] = ""  # they are not
    missing: Names = ()  # disturbed, and so not kept


class Live(Struct, frozen=True):  # a live comparison: the step time of b over that of a, with a 95% interval
    a: Case
    b: Case
    side: Name  # of this run: A or B
    verdict: Literal["faster", "slower", "same", "unsure"]
    stopped: Literal["clear", "precise", "pairs", "budget", "failed", "interrupted"]
    ratio: Real | None = None
    low: Real | None = None
    high: Real | None = None
    ratios: Annotated[tuple[Real, ...], SEVERAL] = ()  # one for each pair of processes


Conclusion = Tuning | Fitting | Limiting | Live  # of `tune`, `fit`, `limits` and `ab`, at the end of their runs


class Run(Struct, frozen=True):
    header: RunHeader
    results: tuple[Result, ...] = ()
    process_spread: float | None = None  # relative, between fresh processes, from the reference case
    problems: tuple[str, ...] = ()  # of the file, such as an incomplete last line
    ended: bool = False  # in order: nothing is left to be measured
    tuning: Tuning | None = None
    fitting: Fitting | None = None
    limiting: Limiting | None = None
    live: Live | None = None
