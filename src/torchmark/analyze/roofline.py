"""The roofline: the best that a machine was seen to do, how close a result comes to it, and what keeps it from more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from torchmark.analyze.grades import is_disturbed
from torchmark.records import Bound, Case, Estimate, Peak, Result, Value, parse_case

IMPLAUSIBLE = 1.05  # of the ceiling: more than noise makes of a result that reaches it
LAUNCH_SHARE = 0.5  # of a step that goes into handing its operators over
NAMED_SHARE = 0.25  # of a step, from which launching or loading may be what bounds it
AHEAD_SHARE = 0.9  # of a step: a host that hands work over ahead, or loads ahead, hides what is less
NO_FAST_PATH = 20.0  # times slower than float32: computed, but without hardware or code made for it
LEAST_S = 1e-9
MEMORY, EXCHANGE = "memory", "all-reduce"
LOADING = "load batch"  # the stage of a job that fetches data inside its steps
PASSES = {"as-written": 6, "as-run": 2, "resident": 3}  # that variants of `tensor-add` make over an array
LEAST_SIZE = 1024  # of a product that may show how fast a device is
PRODUCT_OPTIONS = ("isa", "matmul")  # that decide which numbers are multiplied, and by which instructions


class Ceiling(Struct, frozen=True):
    """The most that was seen of something, the case that showed it, and the bytes of what that worked on."""

    value: float  # FLOP/s or bytes/s
    case: str
    bytes: float = 0.0


class DeviceCeilings(Struct, frozen=True):
    """The best that one device was seen to do."""

    flops: dict[str, Ceiling] = field(default_factory=dict)  # by arithmetic
    paths: dict[str, tuple[Ceiling, ...]] = field(default_factory=dict)  # bandwidths: memory, to-device, all-reduce
    issue_s: float | None = None  # handing over the smallest operator
    round_trip_s: float | None = None  # until its result is on the host


class Ceilings(Struct, frozen=True):
    """The best that the devices of a machine were seen to do, and the run that saw it, unless it is the present one."""

    devices: dict[str, DeviceCeilings] = field(default_factory=dict)
    run: str | None = None


NONE = Ceilings()


def ceilings_of(results: Iterable[Result], run: str | None = None) -> Ceilings:
    """What results of the workloads that are made for it say about the machine. A fresh process that was slower than
    another says nothing about what the machine can do, so the best one counts."""
    found = NONE
    for result in results:
        if (
            result.status == "ok"
            and result.case.protocol == "steady"
            and "implausible" not in (result.estimate.flags if result.estimate else ())
        ):
            found = merge(found, Ceilings({result.case.device: _ceilings(result)}))
    return replace(found, run=run)


def is_ceiling(result: Result) -> bool:
    """Whether at least one of its processes was undisturbed. The best of them counts, so their spread does not."""
    alone = (replace(result, estimate=replace(process, spread=0.0)) for process in result.processes)
    return any(not is_disturbed(each) for each in alone)


def split_disturbed(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results whose ceilings can be kept, and the names of those that cannot. One disturbed case takes all others
    of its kind along: the best of the rest would pass for the machine's best."""
    lost = {_kind(each): None for each in results if each.status == "ok" and not is_ceiling(each)}
    kept = [each for each in results if _kind(each) not in lost]
    return kept, [" ".join(name) for name in lost]


def _kind(result: Result) -> tuple[str, str]:
    workload = result.case.workload
    name = {"matmul": arithmetic(result.case), "launch": "launch"}.get(workload) or path_of(result).replace("-", " ")
    return result.case.device, name


def merge(one: Ceilings, other: Ceilings) -> Ceilings:
    """Of everything the better."""
    devices = dict(one.devices)
    for name, more in other.devices.items():
        devices[name] = _merge(devices[name], more) if name in devices else more
    return Ceilings(devices, one.run or other.run)


def with_peak(result: Result, ceilings: Ceilings, again: bool = False) -> Result:
    """The result with its share of the machine's best, and with the flags that follow from it. Nothing is called
    implausible before its ceiling was measured `again`."""
    peak, estimate = peak_of(result, ceilings), result.estimate
    if peak is None or estimate is None:
        return result
    raised = {
        "launch-bound": peak.bound == "launch" and peak.shares["launch"] >= LAUNCH_SHARE,
        "implausible": again and peak.share > IMPLAUSIBLE,
    }
    seen = {flag for process in result.processes for flag in process.flags}
    flags = [flag for flag in estimate.flags if flag not in raised or flag in seen]  # it may have been judged before
    flags += [flag for flag, is_raised in raised.items() if is_raised and flag not in flags]
    return replace(result, peak=replace(peak, again=again), estimate=replace(estimate, flags=tuple(flags)))


def peak_of(result: Result, ceilings: Ceilings) -> Peak | None:
    """None where a step has neither FLOPs nor bytes, or where a ceiling that it takes is not known."""
    work, estimate, known = result.work, result.estimate, ceilings.devices.get(result.case.device)
    if result.status != "ok" or work is None or estimate is None or known is None:
        return None
    if result.case.protocol != "steady" or result.settings.get("nodes") not in (None, 1):
        return None
    flops, bandwidth = known.flops.get(arithmetic(result.case)), bandwidth_at(known, path_of(result), extent_of(result))
    if not (work.flops or work.bytes) or (work.flops and not flops) or (work.bytes and not bandwidth):
        return None
    # Ranks share a CPU; of other devices each has one of its own. A step cannot take less than calling one does.
    step_s = max(estimate.center_s, estimate.call_cost_s, LEAST_S)
    capacity = step_s * (1 if result.case.device == "cpu" else result.case.workers)
    shares = {
        "compute": work.flops / flops.value / capacity if work.flops and flops else 0.0,
        "bandwidth": work.bytes / bandwidth / capacity if work.bytes and bandwidth else 0.0,
        "launch": _launch_share(result, estimate.issue_share, step_s, known),
        "loader": _loader_share(result, estimate),
    }
    return Peak(
        share=max(shares["compute"], shares["bandwidth"]),
        bound=_largest(shares),
        shares=shares,
        flops_per_s=flops.value if work.flops and flops else None,
        bytes_per_s=bandwidth if work.bytes else None,
        limits=ceilings.run,
    )


def arithmetic(case: Case) -> str:
    """Which numbers are multiplied: a dtype, and how exactly where a product of it may be shortened."""
    return f"{case.dtype}+matmul={case.options['matmul']}" if "matmul" in case.options else case.dtype


def path_of(result: Result) -> str:
    """Which way the bytes of a step take."""
    if result.case.workload == "copy":
        return f"{result.params.get('direction', 'to-device')}{'' if result.params.get('pinned') else ', pageable'}"
    return EXCHANGE if result.case.workload == "all-reduce" else MEMORY


def extent_of(result: Result) -> float:
    """The bytes that decide which memory a step works in: of one array, where it goes through several of a size."""
    total = (result.work.bytes or 0.0) if result.work else 0.0
    if result.case.workload == "tensor-add":
        return total / PASSES.get(str(result.params.get("variant")), PASSES["resident"])
    return _array_bytes(result, total) if result.case.workload == "bandwidth" else total


def bandwidth_at(known: DeviceCeilings, path: str, count: float) -> float | None:
    """The ceiling for work on so many bytes. What is small may come out of a cache, so between the sizes that were
    measured it is taken to fall evenly, and never to rise with size."""
    points = sorted(known.paths.get(path, ()), key=lambda point: point.bytes)
    if not points:
        return None
    best = [max(point.value for point in points[index:]) for index in range(len(points))]
    above = next((index for index, point in enumerate(points) if point.bytes >= count), len(points) - 1)
    if above == 0 or points[above].bytes <= count:
        return best[above]
    below = above - 1
    way = math.log(count / points[below].bytes) / math.log(points[above].bytes / points[below].bytes)
    return best[below] * math.pow(best[above] / best[below], way)


def case_again(result: Result, ceilings: Ceilings) -> Case | None:
    """What to measure again for a result that is too good: the product behind its ceiling, unless that was a
    small one or was held back, or passes over an array like its own."""
    peak, known = result.peak, ceilings.devices.get(result.case.device)
    if peak is None or known is None or result.work is None:
        return None
    if peak.shares["compute"] >= peak.shares["bandwidth"]:
        return _full_product(parse_case(known.flops[arithmetic(result.case)].case), result.case)
    if path_of(result) == MEMORY:
        size = int(min(max(extent_of(result) // 4096 * 4096, 65_536), 2**32))
        return Case("bandwidth", "infer", {"size_bytes": size, "kind": "update"}, result.case.device)
    return parse_case(max(known.paths[path_of(result)], key=lambda point: point.value).case)


def _full_product(product: Case, like: Case) -> Case:
    """A product at full size and threads, whatever the known one was measured with."""
    size = product.params.get("size")
    params: dict[str, Value] = product.params if size is None or int(size) >= LEAST_SIZE else {"size": LEAST_SIZE}
    options = {name: like.options[name] for name in PRODUCT_OPTIONS if name in like.options}
    return Case("matmul", "infer", params, product.device, product.dtype, options=options)


def slower_than_float32(known: DeviceCeilings, dtype: str) -> float | None:
    """How many times slower its best is; None where one of the two is not known."""
    own, plain = known.flops.get(dtype), known.flops.get("float32")
    return plain.value / own.value if own and plain else None


def _ceilings(result: Result) -> DeviceCeilings:
    case, work = result.case, result.work
    seen = min((each.center_s for each in result.processes if each.center_s > 0), default=None)
    if seen is None or work is None:
        return DeviceCeilings()
    if case.workload == "matmul" and work.flops:
        return DeviceCeilings(flops={arithmetic(case): Ceiling(work.flops / seen, case.text)})
    if case.workload == "tensor-add" and result.params.get("variant") == "resident" and work.bytes:
        return DeviceCeilings(paths={MEMORY: (Ceiling(work.bytes / seen, case.text, extent_of(result)),)})
    if case.workload in ("bandwidth", "copy", "all-reduce") and work.bytes:
        # Its own size and the smaller ones that it timed. A size is that of one array: a pass over three arrays in no
        # cache is worth as much as one over any such array.
        size = _array_bytes(result, work.bytes)
        timed = ((size, seen), *sizes_timed(result))
        points = (Ceiling(work.bytes * each / size / step_s, case.text, each) for each, step_s in timed)
        return DeviceCeilings(paths={path_of(result): tuple(points)})
    if case.workload == "launch" and case.transfer == "per-step":
        return DeviceCeilings(round_trip_s=seen)
    if case.workload == "launch":
        wall = [each.wall_step_s for each in result.processes if each.device_step_s and each.wall_step_s]
        return DeviceCeilings(issue_s=min(wall, default=seen))
    return DeviceCeilings()


def _array_bytes(result: Result, otherwise: float) -> float:
    """Its size parameter, which may be anything in a stranger's file."""
    size = result.params.get("size_bytes")
    return float(size) if isinstance(size, int | float) and size > 0 else otherwise


def sizes_timed(result: Result) -> list[tuple[float, float]]:
    """Smaller sizes that a case has timed as well, each with the seconds of a step."""
    stages = result.job.stages if result.job else ()
    named = [(stage.name.removesuffix(" bytes"), stage.center_s) for stage in stages]
    return [(float(name), center_s) for name, center_s in named if name.isdecimal() and center_s > 0]


def _merge(one: DeviceCeilings, other: DeviceCeilings) -> DeviceCeilings:
    flops = dict(one.flops)
    for name, ceiling in other.flops.items():
        flops[name] = max(flops.get(name, ceiling), ceiling, key=lambda each: each.value)
    names = dict.fromkeys((*one.paths, *other.paths))
    paths = {name: _points_of((*one.paths.get(name, ()), *other.paths.get(name, ()))) for name in names}
    return DeviceCeilings(
        flops=flops,
        paths=paths,
        issue_s=min((each for each in (one.issue_s, other.issue_s) if each), default=None),
        round_trip_s=min((each for each in (one.round_trip_s, other.round_trip_s) if each), default=None),
    )


def _points_of(points: Sequence[Ceiling]) -> tuple[Ceiling, ...]:
    best: dict[float, Ceiling] = {}
    for point in points:
        best[point.bytes] = max(best.get(point.bytes, point), point, key=lambda each: each.value)
    return tuple(best[count] for count in sorted(best))


def _launch_share(result: Result, issue_share: float | None, step_s: float, known: DeviceCeilings) -> float:
    """On a device that works through a queue handing over is hidden unless the device is done as soon as it ends; else
    it is what the operators of a step cost at the least."""
    if issue_share is not None:
        return issue_share if issue_share >= AHEAD_SHARE else 0.0
    return min(result.metrics.get("operators", 0.0) * (known.issue_s or 0.0) / step_s, 1.0)


def _loader_share(result: Result, estimate: Estimate) -> float:
    stages = [stage for stage in result.job.stages if stage.name == LOADING] if result.job else []
    share = stages[0].center_s / estimate.mean_s if stages and estimate.mean_s > 0 else 0.0
    share = min(max(share, result.metrics.get("loader_share", 0.0)), 1.0)
    ahead = bool(result.params.get("loader_workers")) and result.case.device != "cpu"  # there they take its cores
    return share if share >= AHEAD_SHARE or not ahead else 0.0


def _largest(shares: dict[str, float]) -> Bound:
    """The largest share; launching and loading count only from NAMED_SHARE on."""
    bounds: list[Bound] = ["compute", "bandwidth"]
    others: tuple[Bound, ...] = ("launch", "loader")
    bounds += [bound for bound in others if shares[bound] >= NAMED_SHARE]
    return max(bounds, key=lambda bound: shares[bound])
