"""Finds the largest batch that fits: each size runs in a fresh process that is refused more memory than the limit.
Memory differs by up to a tenth between processes of the same work, so the answer fitted each time it was tried."""

import time
from collections.abc import Iterator

import psutil
from msgspec.structs import astuple, replace

from torchmark.analyze import search
from torchmark.analyze.efficiency import NONE, Ceilings
from torchmark.errors import TorchmarkError, UnknownName, UsageError
from torchmark.measure.cases import check_case, full_params, range_of
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.messages import MeasureJob
from torchmark.measure.outcomes import may_be_memory
from torchmark.measure.process import measure_case
from torchmark.measure.session import Options
from torchmark.records import NO_ROOM, Case, Fitting, Machine, Result, Tried
from torchmark.studies.study import Activity, Announcement, Completed, Event, Study, summed_up

RESERVE_SHARE, RESERVE_BYTES = 0.05, 256 << 20  # of the memory that is free: left to everything else
USUAL_SIZE = 8  # of an example of unknown size
PROBE_SETTINGS = replace(DEFAULTS, budget_s=1.0, min_time_s=0.25, target=0.03)
COUNTED = {"sequence": "token"}  # sizes that are counted themselves: a longer text is more work


class FitOptions(Options, frozen=True):
    case: Case
    parameter: str = "batch"
    limit_bytes: int | None = None  # None: what is free on the host
    step: int | None = None
    most: int | None = None

    @property
    def command(self) -> str:
        limit = self.limit_bytes and f"{self.limit_bytes}B"
        given = {"limit": limit, "step": self.step, "most": self.most, "seed": self.seed}
        chosen = "".join(f" --{name} {value}" for name, value in given.items() if value)
        return f"torchmark fit {self.case.text} --vary {self.parameter}{chosen} --budget {self.budget_s:g}s"


class Probed(Announcement, frozen=True):
    parameter: str
    probe: search.Probe


class Fit(Study):
    options: FitOptions
    open_ended = True

    def __init__(self, options: FitOptions, machine: Machine, ceilings: Ceilings = NONE) -> None:
        super().__init__(options, machine)
        self._range = lowest, highest = size_range(options.case, options.parameter)
        self._lowest, self._highest = lowest, min(highest, options.most or highest)  # of the sizes to try
        self._own = int(getattr(full_params(options.case), options.parameter)) or USUAL_SIZE  # that the case itself has
        self._bound, self._ceilings = "interrupted", ceilings
        self._tried: dict[int, list[Result]] = {}
        self.probes: dict[int, search.Probe] = {}
        self.limit_bytes = float(options.limit_bytes or free_bytes())

    def events(self) -> Iterator[Event]:
        """Try sizes until the answer and the best rates are confirmed, or time is up."""
        parameter = self.options.parameter
        while (size := self._open_size() or self._repeated_size()) is not None:
            yield Activity(f"{parameter} {size}")
            began = time.monotonic()
            probe = self.probe(size)
            newest = self._tried[size][-1]
            # So is a crash where something smaller ran: not all libraries say that they were refused memory.
            fitted = max((each.size for each in self.probes.values() if each.fits), default=0)
            is_answer = newest.status in ("ok", *NO_ROOM) or (0 < fitted < size and may_be_memory(newest))
            if probe.tries > 1 and not is_answer:
                break  # this try says nothing about memory
            yield Completed(probe.tries - 1, newest, probe.result)
            yield Probed(parameter, probe)
            # It may not work with so little: a batch norm does not learn from one sample.
            is_failed = not self.probes and newest.status in ("crashed", "unsupported", "wrong-result")
            if is_failed and size < min(self._own, self._highest):
                self._lowest = min(2 * size, self._own)
            else:
                self.probes[size] = probe
                if not is_answer:
                    self._bound = newest.status
                    return
            if self.left_s < 2 * (time.monotonic() - began):
                break
        _, high = search.bracket([*self.probes.values()], self._lowest, self._highest)
        self._bound = "time" if self._open_size() else "memory" if high <= self._highest else "parameter"

    def _open_size(self) -> int | None:
        limits = self._lowest, self._highest, self.limit_bytes, self.options.step
        return search.next_size([*self.probes.values()], *limits)

    def _repeated_size(self) -> int | None:
        """The largest size that fits until it did so often, then a rival for the best rate."""
        probes = [*self.probes.values()]
        low, high = search.bracket(probes, self._lowest, self._highest)
        if self._lowest <= low and high <= self._highest and len(self._tried[low]) < search.TRIES:
            return low
        return search.next_contender([probe for probe in probes if probe.size <= low])

    def probe(self, size: int) -> search.Probe:
        """Try one size in its own process. Running out of memory outweighs all other tries."""
        tried = self._tried.setdefault(size, [])
        tried.append(self._measure(size))
        whole = summed_up(tried, self._ceilings, strict=True)
        peaks = tuple(peak for peak in map(_peak, tried) if peak is not None)
        center_s, doubt = search.rate_center_s(whole) if whole.status == "ok" and whole.processes else (0.0, "")
        rate = None
        if whole.work and center_s > 0:  # of items, or of the things that a size of an item counts
            is_counted = COUNTED.get(self.options.parameter, whole.work.unit) != whole.work.unit
            rate = whole.work.items * (size if is_counted else 1) / center_s
        return search.Probe(whole.case.text, size, rate, len(tried), peaks, doubt if rate else "", result=whole)

    def _measure(self, size: int) -> Result:
        options, limit_bytes = self.options, self.limit_bytes
        case = check_case(_sized(options.case, options.parameter, size))
        job = MeasureJob(case, PROBE_SETTINGS, options.seed, data=options.data, memory_bytes=int(limit_bytes))
        result = measure_case(job, options.timeout_s, self.listen, self.log)
        if result.status == "ok" and (held := _peak(result) or 0) > limit_bytes:
            return replace(result, status="oom", reason=f"its peak of {held / 1e9:.3g} GB is above the limit")
        return result

    def conclusion(self, _side: str = "") -> Fitting:
        options, probes = self.options, sorted(self.probes.values(), key=lambda probe: probe.size)
        fits, _ = search.bracket(probes, *self._range)
        largest = fits if fits >= self._range[0] else None
        inside = [probe for probe in probes if probe.size <= (largest or 0)]
        unit = next((probe.result.work.unit for probe in probes if probe.result.work), "item")
        model = search.fit_memory(probes)
        tries = next((probe.tries for probe in probes if probe.size == largest), 0)
        efficient = None if search.doubtful(inside) else search.most_efficient(inside)
        fixed_bytes, item_bytes, error = astuple(model) if model else (None, None, 0.0)
        return Fitting(
            *(options.case, options.parameter, self.limit_bytes, self._bound, largest, tries),
            *(efficient, fixed_bytes, item_bytes, error),
            unit=COUNTED.get(options.parameter, unit),
            step=options.step or search.usual_step(largest or 1),
            tried=tuple(Tried(*astuple(probe)[:-1]) for probe in probes),
            duration_s=time.monotonic() - self.began,
        )


def size_range(case: Case, parameter: str) -> tuple[int, int]:
    params = full_params(case)
    if parameter not in params.__struct_fields__:
        raise UnknownName(f"parameter of {case.workload}", parameter, params.__struct_fields__)
    if (found := range_of(case, parameter)) is None:
        raise UsageError(f"{parameter} of {case.workload} is no number of things", "Name one such as batch with --vary")
    lowest, highest = max(found[0], 1), found[1]  # 0 of a user's own: as many as its example has
    allowed, middle = max(lowest, int(getattr(params, parameter))), highest
    while middle != allowed:  # a model may have no more than so many positions
        try:
            check_case(_sized(case, parameter, middle))
            allowed = middle
        except TorchmarkError:
            highest = middle
        middle = (allowed + highest) // 2
    return lowest, allowed


def _sized(case: Case, parameter: str, size: int) -> Case:
    return replace(case, params={**case.params, parameter: size})


def free_bytes() -> float:
    """What a process may take of the host's memory."""
    free = float(psutil.virtual_memory().available)
    return free - max(RESERVE_SHARE * free, RESERVE_BYTES)


def _peak(result: Result) -> float | None:
    return (result.memory.device_peak_bytes or result.memory.host_peak_bytes) if result.memory else None
