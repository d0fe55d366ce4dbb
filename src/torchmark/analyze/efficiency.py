"""The roofline (a result's share of the best that the machine has done), energy, cost and scaling."""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import is_disturbed
from torchmark.analyze.pairing import grouped
from torchmark.records import Bound, Case, Estimate, Peak, Result, Value, Work, parse_case

# docs/method.md explains these.
IMPLAUSIBLE, AHEAD_SHARE, NO_FAST_PATH = 1.05, 0.9, 20.0
LEAST_S = 1e-9
MEMORY, EXCHANGE = "memory", "all-reduce"
LOADING = "load batch"  # the stage of a job that fetches data inside its steps
PASSES = {"as-written": 6, "as-run": 2, "resident": 3}  # of variants of `tensor-add` over an array
LEAST_SIZE = 1024  # of a product that shows how fast a device is


class Ceiling(Struct, frozen=True):
    value: float  # FLOP/s or bytes/s
    case: str  # that showed it
    bytes: float = 0.0  # of what it worked on


class DeviceCeilings(Struct, frozen=True):  # the best that a device has done
    flops: dict[str, Ceiling] = {}  # by arithmetic
    paths: dict[str, tuple[Ceiling, ...]] = {}  # bandwidths: memory, to-device, all-reduce
    issue_s: float | None = None  # handing over the smallest operator
    round_trip_s: float | None = None  # until its result is on the host


class Ceilings(Struct, frozen=True):
    devices: dict[str, DeviceCeilings] = {}
    run: str | None = None  # that saw them; None: the present one


NONE = Ceilings()


def ceilings_of(results: Iterable[Result], run: str | None = None) -> Ceilings:
    """What these results show of the machine, by the fastest process of each."""
    found = NONE
    for result in results:
        doubted = result.estimate and "implausible" in result.estimate.flags
        if result.status == "ok" and result.case.protocol == "steady" and not doubted:
            found = merge(found, Ceilings({result.case.device: _ceilings(result)}))
    return replace(found, run=run)


def is_ceiling(result: Result) -> bool:
    """Whether one of its processes was undisturbed; their spread does not matter, as the best one counts."""
    return not all(is_disturbed(replace(result, estimate=replace(each, spread=0.0))) for each in result.processes)


def split_disturbed(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results whose ceilings can be kept, and the names of the others: a disturbed case excludes its kind."""

    def kind(result: Result) -> tuple[str, str]:
        name = {"matmul": arithmetic(result.case), "launch": "launch"}.get(result.case.workload)
        return result.case.device, name or path_of(result).replace("-", " ")

    lost = dict.fromkeys(kind(each) for each in results if each.status == "ok" and not is_ceiling(each))
    return [each for each in results if kind(each) not in lost], [" ".join(name) for name in lost]


def merge(one: Ceilings, other: Ceilings) -> Ceilings:
    devices, value = dict(one.devices), attrgetter("value")
    for name, b in other.devices.items():
        a = devices.get(name, DeviceCeilings())
        flops = a.flops | {each: max(a.flops.get(each, known), known, key=value) for each, known in b.flops.items()}
        paths = dict(a.paths)
        for path, seen in b.paths.items():
            points = grouped((*paths.get(path, ()), *seen), attrgetter("bytes"))
            paths[path] = tuple(max(points[count], key=value) for count in sorted(points))
        times_s = ((a.issue_s, b.issue_s), (a.round_trip_s, b.round_trip_s))
        devices[name] = DeviceCeilings(flops, paths, *(min(filter(None, both), default=None) for both in times_s))
    return Ceilings(devices, one.run or other.run)


def with_peak(result: Result, ceilings: Ceilings, again: bool = False) -> Result:
    """The result with its share of the ceilings and the flags that follow; `implausible` only if measured `again`."""
    peak, estimate = peak_of(result, ceilings), result.estimate
    if peak is None or estimate is None:
        return result
    raised = {"launch-bound": peak.bound == "launch" and peak.shares["launch"] >= 0.5}
    raised["implausible"] = again and peak.share > IMPLAUSIBLE
    seen = {flag for process in result.processes for flag in process.flags}
    flags = [flag for flag in estimate.flags if flag not in raised or flag in seen]  # without those of an earlier call
    flags += [flag for flag, is_raised in raised.items() if is_raised and flag not in flags]
    return replace(result, peak=replace(peak, again=again), estimate=replace(estimate, flags=tuple(flags)))


def peak_of(result: Result, ceilings: Ceilings) -> Peak | None:
    """None for a step without FLOPs and bytes, or if a ceiling that it needs is unknown."""
    case, work, estimate = result.case, result.work, result.estimate
    known = ceilings.devices.get(case.device)
    if result.status != "ok" or work is None or estimate is None or known is None or case.protocol != "steady":
        return None
    ceiling, bandwidth = known.flops.get(arithmetic(case)), bandwidth_at(known, path_of(result), extent_of(result))
    missing = (work.flops and not ceiling) or (work.bytes and not bandwidth) or not (work.flops or work.bytes)
    if missing or result.settings.get("nodes") not in (None, 1):
        return None
    flops_per_s, bytes_per_s = ceiling.value if work.flops and ceiling else None, bandwidth if work.bytes else None
    step_s = max(estimate.center_s, estimate.call_cost_s, LEAST_S)
    capacity = step_s * (1 if case.device == "cpu" else case.workers)  # ranks share a CPU, but no other device
    # A queue hides launching unless the device is done as soon as that ends; without one it is the least that the
    # operators cost. Loaders that work ahead hide as much, but not on the CPU.
    launch, ahead = estimate.issue_share, bool(result.params.get("loader_workers")) and case.device != "cpu"
    called = min(result.metrics.get("operators", 0.0) * (known.issue_s or 0.0) / step_s, 1.0)
    stages = result.job.stages if result.job and estimate.mean_s > 0 else ()
    loader = next((stage.center_s / estimate.mean_s for stage in stages if stage.name == LOADING), 0.0)
    loader = min(max(loader, result.metrics.get("loader_share", 0.0)), 1.0)
    shares = {
        "compute": (work.flops or 0.0) / flops_per_s / capacity if flops_per_s else 0.0,
        "bandwidth": (work.bytes or 0.0) / bytes_per_s / capacity if bytes_per_s else 0.0,
        "launch": called if launch is None else launch if launch >= AHEAD_SHARE else 0.0,
        "loader": loader if loader >= AHEAD_SHARE or not ahead else 0.0,
    }
    bounds: list[Bound] = ["compute", "bandwidth"]
    bounds += [bound for bound in ("launch", "loader") if shares[bound] >= 0.25]
    share, bound = max(shares["compute"], shares["bandwidth"]), max(bounds, key=shares.__getitem__)
    return Peak(share, bound, shares, flops_per_s, bytes_per_s, limits=ceilings.run)


def arithmetic(case: Case) -> str:
    """A dtype, and the precision of its products if it was chosen."""
    return f"{case.dtype}+matmul={case.options['matmul']}" if "matmul" in case.options else case.dtype


def path_of(result: Result) -> str:
    if result.case.workload == "copy":
        return f"{result.params.get('direction', 'to-device')}{'' if result.params.get('pinned') else ', pageable'}"
    return EXCHANGE if result.case.workload == "all-reduce" else MEMORY


def extent_of(result: Result) -> float:
    """The bytes that decide which memory a step works in: one of several equal arrays."""
    total = (result.work.bytes or 0.0) if result.work else 0.0
    if result.case.workload == "tensor-add":
        return total / PASSES.get(str(result.params.get("variant")), PASSES["resident"])
    return _array_bytes(result, total) if result.case.workload == "bandwidth" else total


def bandwidth_at(known: DeviceCeilings, path: str, count: float) -> float | None:
    """The ceiling for work on so many bytes; it falls evenly between measured sizes, and never rises."""
    points = sorted(known.paths.get(path, ()), key=attrgetter("bytes"))
    if not points:
        return None
    best = [max(point.value for point in points[index:]) for index in range(len(points))]
    above = next((index for index, point in enumerate(points) if point.bytes >= count), len(points) - 1)
    if above == 0 or points[above].bytes <= count:
        return best[above]
    below, smaller = best[above - 1], points[above - 1].bytes
    way = math.log(count / smaller) / math.log(points[above].bytes / smaller)
    return below * math.pow(best[above] / below, way)


def case_again(result: Result, ceilings: Ceilings) -> Case | None:
    """What to measure again for a result that is too good: the case behind its ceiling, at full size."""
    peak, known, case = result.peak, ceilings.devices.get(result.case.device), result.case
    if peak is None or known is None or result.work is None:
        return None
    if peak.shares["compute"] >= peak.shares["bandwidth"]:
        product = parse_case(known.flops[arithmetic(case)].case)
        is_small = int(product.params.get("size", LEAST_SIZE)) < LEAST_SIZE
        params: dict[str, Value] = {"size": LEAST_SIZE} if is_small else product.params
        options = {name: value for name, value in case.options.items() if name in ("isa", "matmul")}
        return Case("matmul", "infer", params, product.device, product.dtype, options=options)
    if path_of(result) == MEMORY:
        size = int(min(max(extent_of(result) // 4096 * 4096, 65_536), 2**32))
        return Case("bandwidth", "infer", {"size_bytes": size, "kind": "update"}, case.device)
    return parse_case(max(known.paths[path_of(result)], key=lambda point: point.value).case)


def _ceilings(result: Result) -> DeviceCeilings:
    case, work, params = result.case, result.work, result.params
    seen = min((each.center_s for each in result.processes if each.center_s > 0), default=None)
    if seen is None or work is None:
        return DeviceCeilings()
    if case.workload == "matmul" and work.flops:
        return DeviceCeilings({arithmetic(case): Ceiling(work.flops / seen, case.text)})
    if case.workload == "tensor-add" and params.get("variant") == "resident" and work.bytes:
        return DeviceCeilings(paths={MEMORY: (Ceiling(work.bytes / seen, case.text, extent_of(result)),)})
    if case.workload in ("bandwidth", "copy", "all-reduce") and work.bytes:
        # One array of its own size, and the smaller ones that it timed.
        size, stages = _array_bytes(result, work.bytes), result.job.stages if result.job else ()
        named = [(stage.name.removesuffix(" bytes"), stage.center_s) for stage in stages]
        timed = [(size, seen), *((float(name), step_s) for name, step_s in named if name.isdecimal() and step_s > 0)]
        points = (Ceiling(work.bytes * each / size / step_s, case.text, each) for each, step_s in timed)
        return DeviceCeilings(paths={path_of(result): tuple(points)})
    if case.workload == "launch" and case.transfer == "per-step":
        return DeviceCeilings(round_trip_s=seen)
    wall = [each.wall_step_s for each in result.processes if each.device_step_s and each.wall_step_s]
    return DeviceCeilings(issue_s=min(wall, default=seen) if case.workload == "launch" else None)


def _array_bytes(result: Result, otherwise: float) -> float:
    size = result.params.get("size_bytes")  # which may be anything in a stranger's file
    return float(size) if isinstance(size, int | float) and size > 0 else otherwise


def step_energy(estimate: Estimate) -> float | None:
    power, wall_s = estimate.metered.mean_w, estimate.wall_step_s or estimate.center_s
    return None if power is None or wall_s <= 0 else power * wall_s


def item_energy(result: Result) -> float | None:
    joules, items = step_energy(result.estimate) if result.estimate else None, result.work.items if result.work else 0.0
    return joules / items if joules is not None and items > 0 else None


class Prices(Struct, frozen=True):  # in any currency
    hour: float | None = None
    kilowatt_hour: float | None = None


class Cost(Struct, frozen=True):  # None is unknown
    million_items: float | None = None
    epoch: float | None = None
    job: float | None = None
    without_power: bool = False  # power has a price but is unknown


def cost_of(result: Result, prices: Prices) -> Cost | None:
    estimate, job, items = result.estimate, result.job, result.work.items if result.work else 0.0
    if result.status != "ok" or estimate is None or estimate.center_s <= 0:
        return None
    watts, power = estimate.metered.mean_w, prices.kilowatt_hour
    second = (prices.hour or 0.0) / 3600 + (0.0 if watts is None or power is None else watts * power / 3.6e6)
    whole = job.seconds * second if job and any(stage.steps for stage in job.stages) else None
    if (prices.hour is None and (watts is None or power is None)) or (items <= 0 and whole is None):
        return None
    million_items = estimate.center_s / items * 1e6 * second if items > 0 else None
    epoch = whole / job.epochs if job and job.epochs and whole is not None else None
    return Cost(million_items, epoch, whole, without_power=power is not None and watts is None)


class ScalingRow(Struct, frozen=True):
    workers: int
    step_s: float
    rate: float  # items per second, of all workers together
    efficiency: float | None = None  # 1: no time is lost; None: no figure for one worker
    margin: float | None = None  # half the 95% interval of the efficiency, relative
    communication_share: float | None = None
    nodes: int = 1


class Scaling(Struct, frozen=True):
    case: str  # without workers
    unit: str
    rows: tuple[ScalingRow, ...]  # the fewest nodes and workers first
    threads: int | None  # of every rank; None where they differ or are unknown


def find_scaling(results: Sequence[Result]) -> tuple[Scaling, ...]:
    """Every case that was measured with different numbers of workers or nodes."""
    groups: dict[str, dict[tuple[int, int], tuple[Result, Estimate, Work]]] = {}
    for result in results:
        estimate, work, nodes = result.estimate, result.work, result.settings.get("nodes")
        if result.status == "ok" and estimate and work and estimate.center_s > 0:
            counts = nodes if isinstance(nodes, int) else 1, result.case.workers  # one process records no nodes
            groups.setdefault(replace(result.case, workers=1).text, {})[counts] = result, estimate, work
    scalings = []
    for text, found in groups.items():
        rows, alone = [], found.get((1, 1))
        threads = {result.settings.get("threads") for result, _, _ in found.values()}
        for (nodes, workers), (result, estimate, work) in sorted(found.items(), key=itemgetter(0)):
            rate, share = work.items / estimate.center_s, result.metrics.get("communication_share")
            row = ScalingRow(workers, estimate.center_s, rate, communication_share=share, nodes=nodes)
            if alone and alone[2].items:
                margin = 0.0 if estimate is alone[1] else math.hypot(estimate.precision, alone[1].precision)
                row = replace(row, efficiency=rate / workers / (alone[2].items / alone[1].center_s), margin=margin)
            rows.append(row)
        known, unit = threads.pop() if len(threads) == 1 else None, found[min(found)][2].unit
        scalings.append(Scaling(text, unit, tuple(rows), known if isinstance(known, int) else None))
    return tuple(each for each in scalings if len(each.rows) > 1)
