"""The limits of a machine: how fast its devices multiply, move bytes and take work at best, and if that adds up."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.efficiency import NO_FAST_PATH, ceilings_of, is_ceiling, split_disturbed, with_peak
from torchmark.analyze.summary import combine_results
from torchmark.analyze.verdict import cautions_of
from torchmark.measure.cases import check_case
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.messages import MeasureJob
from torchmark.measure.process import measure_case, without_figure
from torchmark.measure.session import PREHEAT_S, Finished, Revised, Started
from torchmark.records import DTYPES, Case, DeviceInfo, Limiting, Machine, Result, Value
from torchmark.studies.study import Event, Study

PROBE_SIZE = 256  # shows a dtype without a fast path before a long product is tried
FIRST_SIZE, LAST_SIZE = 512, 32_768
GAIN = 1.02  # that a product twice as large must bring
LONGEST_S = 1.0  # of a product
SKINNY_ROWS = 64
CACHES = 4  # how many times as large as the last cache an array is
LEAST_BYTES, UNKNOWN_CACHE, UNKNOWN_MEMORY = 64 << 20, 64 << 20, 8 << 30
MEMORY_SHARE = 1 / 8  # of the device's, for one of three arrays
COPIED_BYTES = 256 << 20
TINY_SIZE, TINY_BYTES = 32, 65_536
PRODUCT_PROCESSES, PASS_PROCESSES = 3, 2  # fresh ones, for what turned out best
DOUBLED = (1.7, 2.35)  # what twice the work may take, in times
TRIES = 3  # a busy machine can spoil a comparison of times; one that lies does so every time
SETTINGS = replace(DEFAULTS, target=0.02, budget_s=0.6, min_time_s=0.3, min_samples=16)
ENDING_S, RANKS_S = 2.0, 10.0  # with less time left no process, and no ranks, are started

Found = Generator[Event, None, Result]


class LimitsOptions(Struct, frozen=True):
    """The machine to find the limits of, and the time for it."""

    machine: Machine
    dtypes: tuple[str, ...] = DTYPES
    budget_s: float = 60.0
    timeout_s: float = 60.0
    seed: int = 0
    tiny: bool = False  # only try that everything works

    @property
    def command(self) -> str:
        names = ",".join(device.name for device in self.machine.devices)
        chosen = f"--device {names} --dtype {','.join(self.dtypes)} --budget {self.budget_s:g}s --seed {self.seed}"
        return f"torchmark limits {chosen}{' --tiny' if self.tiny else ''}"


def plan_cases(options: LimitsOptions) -> tuple[Case, ...]:
    """What is measured in any case. Larger products follow as long as they pay."""
    return tuple(case for device in options.machine.devices for case in _planned(device, options))


class Limits(Study):
    """A search for the limits of a machine."""

    options: LimitsOptions
    open_ended = True

    def __init__(self, options: LimitsOptions) -> None:
        super().__init__(options, options.machine, plan_cases(options))
        self._results: dict[str, list[Result]] = {}
        self._reported: dict[str, Result] = {}  # by case, as last reported
        self._best: dict[str, int] = {}  # by case: how many processes it is worth
        self._doubted: set[str] = set()
        self._warm: set[str] = set()
        self._under_way: Case | None = None
        self._deadline = 0.0
        self._is_done = False

    def events(self) -> Iterator[Event]:
        for event in self._search():
            if isinstance(event, Finished | Revised):
                self._reported[event.result.case.text] = event.result
            yield event
        self._is_done = True

    def unfinished(self) -> tuple[Event, ...]:
        """The case that an interrupt has dropped."""
        case = self._under_way
        if case is None or self._results.get(case.text):
            return ()
        return (Revised(without_figure(case, "interrupted", "it was stopped while it was being measured")),)

    def conclusion(self, side: str = "") -> Limiting:  # noqa: ARG002 -- there is one
        """Limits are kept unless the search was broken off or does not add up; those that were disturbed never are."""
        results = tuple(self._reported.values())
        if self.options.tiny:
            return Limiting(False, "tiny")
        if not self._is_done or not _has_products(results):
            return Limiting(False, "incomplete")
        if any("implausible" in result.estimate.flags for result in results if result.estimate):
            return Limiting(False, "doubted")
        sound, missing = split_disturbed(results)
        known = _has_products(sound)
        return Limiting(known, "" if known else "disturbed", tuple(missing))

    def _search(self) -> Iterator[Event]:
        """Measure what most results are compared with first, and more processes once everything was measured once."""
        self._deadline = time.monotonic() + self.options.budget_s
        for device in self.options.machine.devices:
            first, *others = _products(device, self.options)
            yield from self._multiply(device, first)
            yield from self._go_through_memory(device)
            for case in _launches(device):
                yield from self._measure(case)
            yield from self._double(first)
            for probe in others:
                yield from self._multiply(device, probe)
            for case in (*_links(device, self.options), *_exchanges(device, self.options)):
                yield from self._measure(case)
        yield from self._repeat()
        yield from self._compared()

    def _multiply(self, device: DeviceInfo, probe: Case) -> Iterator[Event]:
        """Square products that double in size as long as that pays, then a skinny one."""
        last = yield from self._measure_calmly(probe)
        size, best, best_rate = FIRST_SIZE, 0, 0.0
        while not self.options.tiny and self._is_worthwhile(last, device, size):
            last = yield from self._measure_calmly(_resized(probe, size=size))
            rate, wanted_rate = flops_of(last), GAIN * best_rate
            if rate > best_rate:
                best, best_rate = size, rate
            if rate < wanted_rate or last.status != "ok":
                break
            size *= 2
        if best:
            yield from self._measure(_resized(probe, size=best, rows=SKINNY_ROWS))
            self._best[_resized(probe, size=best).text] = PRODUCT_PROCESSES

    def _is_worthwhile(self, last: Result, device: DeviceInfo, size: int) -> bool:
        """Whether to try the next size: not where it would not fit or take too long, and not without a fast path."""
        if last.status != "ok" or last.estimate is None or size > LAST_SIZE or self._left_s < ENDING_S:
            return False
        before = int(last.params["size"])
        fits = 3 * size**2 * 8 < (device.memory_bytes or UNKNOWN_MEMORY) * MEMORY_SHARE
        quick = (size / before) ** 3 * last.estimate.center_s <= LONGEST_S
        plain = self._combined(_resized(replace(last.case, dtype="float32", options={}), size=before))
        return fits and quick and (plain is None or flops_of(plain) <= NO_FAST_PATH * flops_of(last))

    def _go_through_memory(self, device: DeviceInfo) -> Iterator[Event]:
        passes = _passes(device, self.options)
        for case in passes:
            yield from self._measure(case)
        best = max((combine_results(self._results[case.text]) for case in passes), key=bytes_of)
        if bytes_of(best):
            self._best[best.case.text] = PASS_PROCESSES

    def _double(self, probe: Case) -> Iterator[Event]:
        """Check that twice the work takes about twice the time; otherwise no figure can be trusted."""
        known = [results[-1] for results in self._results.values()]
        own = [each for each in known if replace(each.case, params={}) == replace(probe, params={})]
        single = max((each for each in own if "rows" not in each.case.params), key=flops_of, default=None)
        if single is None or not flops_of(single) or self.options.tiny:
            return
        case = _resized(probe, size=int(single.params["size"]), batch=2)
        double = yield from self._measure(case)
        for _ in range(TRIES - 1):
            if _is_doubled(self._results[single.case.text], self._results[case.text]):
                return
            yield from self._measure(single.case)
            double = yield from self._measure(case)
        if double.estimate and not _is_doubled(self._results[single.case.text], self._results[case.text]):
            flags = (*double.estimate.flags, "implausible")
            doubted = replace(double, estimate=replace(double.estimate, flags=flags))
            self._doubted.add(case.text)
            yield Revised(replace(doubted, cautions=cautions_of(doubted)))

    def _compared(self) -> Iterator[Event]:
        """Compare every case with the best of all, so that a report can draw the roofline."""
        combined = [combine_results(results) for text, results in self._results.items() if text not in self._doubted]
        ceilings = ceilings_of(split_disturbed(combined)[0])
        for result in combined:
            compared = with_peak(result, ceilings)
            if compared.peak:
                yield Revised(replace(compared, cautions=cautions_of(compared)))

    def _repeat(self) -> Iterator[Event]:
        """Disturbed cases first: without them there is no ceiling. Then more fresh processes of the best cases: they
        differ, and the machine can do what the best of them does."""
        for results in list(self._results.values()):
            for _ in range(TRIES - len(results)):
                if self._is_disturbed(results):
                    yield from self._measure(results[0].case)
        for text, processes in self._best.items():
            while len(self._results[text]) < processes and self._left_s > ENDING_S:
                yield from self._measure(self._results[text][0].case)

    def _measure_calmly(self, case: Case) -> Found:
        """Once more where it was disturbed: a product that looks slow would end the search for the best size."""
        result = yield from self._measure(case)
        if self._is_disturbed(self._results[case.text]):
            result = yield from self._measure(case)
        return result

    def _is_disturbed(self, results: Sequence[Result]) -> bool:
        """Whether there is a figure that was disturbed, and time to measure again."""
        combined = combine_results(results)
        return self._left_s > ENDING_S and combined.status == "ok" and not is_ceiling(combined)

    @property
    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _combined(self, case: Case) -> Result | None:
        results = self._results.get(case.text)
        return combine_results(results) if results else None

    def _measure(self, case: Case) -> Found:
        """The result over all processes so far, a new one included."""
        results = self._results.setdefault(case.text, [])
        if self._left_s < (RANKS_S if case.workers > 1 else ENDING_S):
            reason = f"the budget of {self.options.budget_s:g} s was spent. Give it more time with --budget"
            result = without_figure(case, "skipped", reason)
        else:
            self._under_way = case
            yield Started(case, len(results))
            result = self._run(case)
            self._under_way = None
        if result.status != "skipped" or not results:
            results.append(result)
            combined = combine_results(results)
            samples = result.processes[0].samples_s if result.processes else ()
            yield Finished(replace(combined, cautions=cautions_of(combined)), len(results) - 1, samples)
        return combine_results(results)

    def _run(self, case: Case) -> Result:
        preheat_s = 0.0 if case.device in self._warm else PREHEAT_S
        self._warm.add(case.device)
        job = MeasureJob(case, SETTINGS, self.options.seed, preheat_s=preheat_s, time_left_s=self._left_s)
        return measure_case(job, self.options.timeout_s, self.listen, self.log)


def _has_products(results: Sequence[Result]) -> bool:
    return any(device.flops for device in ceilings_of(results).devices.values())


def array_bytes(device: DeviceInfo) -> int:
    """Four times the last cache, if the device has the memory for three such arrays."""
    wanted = max(CACHES * (device.cache_bytes or UNKNOWN_CACHE), LEAST_BYTES)
    return min(wanted, int((device.memory_bytes or UNKNOWN_MEMORY) * MEMORY_SHARE)) >> 20 << 20


def flops_of(result: Result) -> float:
    """FLOP/s; nothing where there is no figure."""
    return _rate(result, result.work.flops if result.work else None)


def bytes_of(result: Result) -> float:
    """Bytes per second; nothing where there is no figure."""
    return _rate(result, result.work.bytes if result.work else None)


def _rate(result: Result, amount: float | None) -> float:
    return amount / result.estimate.center_s if amount and result.estimate and result.estimate.center_s > 0 else 0.0


def _is_doubled(one: Sequence[Result], two: Sequence[Result]) -> bool:
    """Compare the least disturbed processes; true where there are none."""
    best = [min((each.estimate.center_s for each in side if each.estimate), default=0.0) for side in (one, two)]
    return not all(best) or DOUBLED[0] <= best[1] / best[0] <= DOUBLED[1]


def _planned(device: DeviceInfo, options: LimitsOptions) -> Iterator[Case]:
    yield from _products(device, options)
    yield from (*_passes(device, options), *_launches(device), *_links(device, options), *_exchanges(device, options))


def _products(device: DeviceInfo, options: LimitsOptions) -> list[Case]:
    """A small product in every arithmetic. float32 comes first, because the others are held against it, what is likely
    to be slow last."""
    found, size = [], TINY_SIZE if options.tiny else PROBE_SIZE
    for dtype in sorted(options.dtypes, key=("float32", "bfloat16", "float16", "float64").index):
        probe = check_case(Case("matmul", "infer", {"size": size}, device.name, dtype))
        found.append(probe)
        if dtype == "float32" and device.name.startswith("cuda"):
            found.append(check_case(replace(probe, options={"matmul": "high"})))  # TF32
    return found


def _resized(probe: Case, **params: Value) -> Case:
    return check_case(replace(probe, params=params))


def _passes(device: DeviceInfo, options: LimitsOptions) -> tuple[Case, ...]:
    """In place at all sizes, which moves the most, so that caches are seen too; all others where no cache helps."""
    size = TINY_BYTES if options.tiny else array_bytes(device)
    chosen: list[dict[str, Value]] = [{"kind": kind} for kind in ("update", "triad", "copy", "read")]
    chosen[0] |= {"sizes": "all"}
    return tuple(check_case(Case("bandwidth", "infer", {"size_bytes": size} | each, device.name)) for each in chosen)


def _launches(device: DeviceInfo) -> tuple[Case, ...]:
    there = Case("launch", "infer", device=device.name)
    return there, replace(there, transfer="per-step")


def _links(device: DeviceInfo, options: LimitsOptions) -> tuple[Case, ...]:
    """Between host and device, where those are two."""
    if device.name == "cpu":
        return ()
    size: dict[str, Value] = {"size_bytes": TINY_BYTES if options.tiny else COPIED_BYTES, "sizes": "all"}
    ways = product(("to-device", "to-host"), (True, False))
    cases = (Case("copy", "infer", {**size, "direction": way, "pinned": pinned}, device.name) for way, pinned in ways)
    return tuple(map(check_case, cases))


def _exchanges(device: DeviceInfo, options: LimitsOptions) -> tuple[Case, ...]:
    """Between workers: two on a CPU, or one for each device of a kind, measured once for all of them."""
    kind, _, index = device.name.partition(":")
    alike = [each for each in options.machine.devices if each.name.partition(":")[0] == kind]
    workers = min(2, options.machine.logical_cores) if kind == "cpu" else len(alike)
    if workers < 2 or index not in ("", "0") or options.tiny:
        return ()
    return (Case("all-reduce", "infer", {"sizes": "all"}, device.name, workers=workers),)
