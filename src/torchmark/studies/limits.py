"""The limits of a machine: how fast its devices multiply, move bytes and take work, and if that adds up."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import product

from msgspec.structs import replace

from torchmark.analyze.efficiency import NO_FAST_PATH, ceilings_of, is_ceiling, split_disturbed
from torchmark.analyze.verdict import cautions_of, combine_results
from torchmark.case import DTYPES
from torchmark.measure.cases import check_case
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.messages import MeasureJob
from torchmark.measure.process import measure_case, without_figure
from torchmark.measure.session import PREHEAT_S, Finished, Options, Revised, Started
from torchmark.measure.timing import with_flag
from torchmark.records import Case, DeviceInfo, Limiting, Machine, Result, Value
from torchmark.studies.study import Event, Study, summed_up

PROBE_SIZE, FIRST_SIZE, LAST_SIZE = 256, 512, 32_768  # of products; small ones show a dtype without a fast path
GAIN, LONGEST_S = 1.02, 1.0  # that doubling must bring, and that a product may take
SKINNY_ROWS = 64
CACHES = 4  # how many times as large as the last cache an array is
LEAST_BYTES, UNKNOWN_CACHE, UNKNOWN_MEMORY = 64 << 20, 64 << 20, 8 << 30
MEMORY_SHARE = 1 / 8  # of the device's, for one of three arrays
COPIED_BYTES, TINY_SIZE, TINY_BYTES = 256 << 20, 32, 65_536
PRODUCT_PROCESSES, PASS_PROCESSES = 3, 2  # fresh ones, for what turned out best
DOUBLED = (1.7, 2.35)  # what twice the work may take, in times
TRIES = 3  # a busy machine can spoil a comparison of times; a wrong clock does so every time
SETTINGS = replace(DEFAULTS, target=0.02, budget_s=0.6, min_time_s=0.3, min_samples=16)
TIMEOUT_S = 60.0  # for one process
ENDING_S, RANKS_S = 2.0, 10.0  # with less time left, no process or ranks are started

Found = Generator[Event, None, Result]


class LimitsOptions(Options, frozen=True):
    machine: Machine
    dtypes: tuple[str, ...] = DTYPES
    tiny: bool = False  # only try that everything works

    @property
    def command(self) -> str:
        names = ",".join(device.name for device in self.machine.devices)
        chosen = f"--device {names} --dtype {','.join(self.dtypes)} --budget {self.budget_s:g}s --seed {self.seed}"
        return f"torchmark limits {chosen}{' --tiny' if self.tiny else ''}"


def plan_cases(options: LimitsOptions) -> tuple[Case, ...]:
    """What is measured at least. Larger products follow as long as they pay."""
    plans = (_plan(device, options) for device in options.machine.devices)
    return tuple(case for plan in plans for cases in plan.values() for case in cases)


class Limits(Study):
    options: LimitsOptions
    open_ended = True

    def __init__(self, options: LimitsOptions) -> None:
        super().__init__(options, options.machine, plan_cases(options))
        self._results: dict[str, list[Result]] = {}
        self._reported: dict[str, Result] = {}  # by case, as last reported
        self._best: dict[str, int] = {}  # by case: how many processes it is worth
        self._doubted, self._warm, self._is_done = set[str](), set[str](), False

    def events(self) -> Iterator[Event]:
        for event in self._search():
            if isinstance(event, Finished | Revised):
                self._reported[event.result.case.text] = event.result
            yield event
        self._is_done = True

    def unfinished(self) -> Iterable[Event]:
        """The interrupted case, unless an earlier process has measured it."""
        return () if self.under_way and self._results.get(self.under_way.text) else super().unfinished()

    def conclusion(self, _side: str = "") -> Limiting:
        """Limits are kept unless the search was interrupted or does not add up; disturbed ones never are."""
        results = tuple(self._reported.values())
        sound, missing = split_disturbed(results)
        measured, known = (any(each.flops for each in ceilings_of(of).devices.values()) for of in (results, sound))
        if self.options.tiny:
            return Limiting(False, "tiny")
        if not self._is_done or not measured:
            return Limiting(False, "incomplete")
        if any("implausible" in result.estimate.flags for result in results if result.estimate):
            return Limiting(False, "doubted")
        return Limiting(known, "" if known else "disturbed", tuple(missing))

    def _search(self) -> Iterator[Event]:
        """Measure what most results are compared with first, then more processes."""
        for device in self.options.machine.devices:
            plan = _plan(device, self.options)
            first, *others = plan["products"]
            yield from self._multiply(device, first)
            rates = {}
            for case in plan["passes"]:
                rates[case.text] = _rate((yield from self._measure(case)), "bytes")
            if any(rates.values()):
                self._best[max(rates, key=rates.__getitem__)] = PASS_PROCESSES
            for case in plan["launches"]:
                yield from self._measure(case)
            yield from self._double(first)
            for probe in others:
                yield from self._multiply(device, probe)
            for case in plan["links"] + plan["exchanges"]:
                yield from self._measure(case)
        # First the disturbed cases, which are no ceiling. Then more processes of the best cases: the best one counts.
        for results in list(self._results.values()):
            for _ in range(TRIES - len(results)):
                if self._is_disturbed(results):
                    yield from self._measure(results[0].case)
        for text, processes in self._best.items():
            while len(self._results[text]) < processes and self.left_s > ENDING_S:
                yield from self._measure(self._results[text][0].case)
        # Compare every case with the best of all, so that a report can draw the roofline.
        combined = [combine_results(results) for text, results in self._results.items() if text not in self._doubted]
        ceilings = ceilings_of(split_disturbed(combined)[0])
        compared = (summed_up(self._results[result.case.text], ceilings) for result in combined)
        yield from (Revised(result) for result in compared if result.peak)

    def _multiply(self, device: DeviceInfo, probe: Case) -> Iterator[Event]:
        """Square products that double in size as long as that pays, then a skinny one."""
        last = yield from self._measure(probe, calmly=True)
        size, rates = FIRST_SIZE, {0: 0.0}
        while not self.options.tiny and last.status == "ok" and last.estimate and size <= LAST_SIZE:
            # It must fit, take little time, and have a fast path.
            before = int(last.params["size"])
            fits = 3 * size**2 * 8 < (device.memory_bytes or UNKNOWN_MEMORY) * MEMORY_SHARE
            quick = (size / before) ** 3 * last.estimate.center_s <= LONGEST_S
            plain = self._results.get(_resized(replace(last.case, dtype="float32", options={}), size=before).text)
            fast = not plain or _rate(combine_results(plain)) <= NO_FAST_PATH * _rate(last)
            if not (fits and quick and fast) or self.left_s < ENDING_S:
                break
            last = yield from self._measure(_resized(probe, size=size), calmly=True)
            wanted_rate, rates[size] = GAIN * max(rates.values()), _rate(last)
            if rates[size] < wanted_rate:
                break
            size *= 2
        if best := max(rates, key=rates.__getitem__):
            yield from self._measure(_resized(probe, size=best, rows=SKINNY_ROWS))
            self._best[_resized(probe, size=best).text] = PRODUCT_PROCESSES

    def _double(self, probe: Case) -> Iterator[Event]:
        known = [last for *_, last in self._results.values() if replace(last.case, params=probe.params) == probe]
        single = max((each for each in known if "rows" not in each.case.params), key=_rate, default=None)
        if single is None or not _rate(single) or self.options.tiny:
            return
        case, double = _resized(probe, size=int(single.params["size"]), batch=2), single
        for number in range(TRIES):
            if number:
                yield from self._measure(single.case)
            double = yield from self._measure(case)
            one, two = (  # the least disturbed processes
                min((each.estimate.center_s for each in self._results[text] if each.estimate), default=0.0)
                for text in (single.case.text, case.text)
            )
            if not one or not two or DOUBLED[0] <= two / one <= DOUBLED[1]:
                return
        if double.estimate:
            self._doubted.add(case.text)
            doubted = replace(double, estimate=with_flag(double.estimate, "implausible"))
            yield Revised(replace(doubted, cautions=cautions_of(doubted)))

    def _is_disturbed(self, results: Sequence[Result]) -> bool:
        combined = combine_results(results)
        return self.left_s > ENDING_S and combined.status == "ok" and not is_ceiling(combined)

    def _measure(self, case: Case, calmly: bool = False) -> Found:
        """The result over all processes so far and a new one; `calmly`, another one where it was disturbed."""
        results = self._results.setdefault(case.text, [])
        if self.left_s < (RANKS_S if case.workers > 1 else ENDING_S):
            reason = f"the budget of {self.options.budget_s:g} s was spent. Give it more time with --budget"
            result = without_figure(case, "skipped", reason)
        else:
            self.under_way = case
            yield Started(case, len(results))
            preheat_s = 0.0 if case.device in self._warm else PREHEAT_S
            self._warm.add(case.device)
            job = MeasureJob(case, SETTINGS, self.options.seed, preheat_s=preheat_s, time_left_s=self.left_s)
            result = measure_case(job, TIMEOUT_S, self.listen, self.log)
            self.under_way = None
        if result.status != "skipped" or not results:
            results.append(result)
            samples = result.processes[0].samples_s if result.processes else ()
            yield Finished(summed_up(results), len(results) - 1, samples)
        if calmly and self._is_disturbed(results):
            return (yield from self._measure(case))
        return combine_results(results)


def array_bytes(device: DeviceInfo) -> int:
    """Four times the last cache, if three such arrays fit."""
    wanted = max(CACHES * (device.cache_bytes or UNKNOWN_CACHE), LEAST_BYTES)
    return min(wanted, int((device.memory_bytes or UNKNOWN_MEMORY) * MEMORY_SHARE)) >> 20 << 20


def _rate(result: Result, what: str = "flops") -> float:
    amount, center_s = getattr(result.work, what, None), result.estimate.center_s if result.estimate else 0.0
    return amount / center_s if amount and center_s > 0 else 0.0


def _resized(probe: Case, **params: Value) -> Case:
    return check_case(replace(probe, params=params))


def _plan(device: DeviceInfo, options: LimitsOptions) -> dict[str, list[Case]]:
    # A small product in every arithmetic: float32 first, which the others are compared with, slow ones last.
    name, tiny, products = device.name, options.tiny, []
    for dtype in sorted(options.dtypes, key=("float32", "bfloat16", "float16", "float64").index):
        products.append(Case("matmul", "infer", {"size": TINY_SIZE if tiny else PROBE_SIZE}, name, dtype))
        if dtype == "float32" and name.startswith("cuda"):
            products.append(replace(products[-1], options={"matmul": "high"}))  # TF32
    # In place at all sizes, which moves the most, so that caches are seen too; all others where no cache helps.
    all_sizes: dict[str, Value] = {"sizes": "all"}
    array: dict[str, Value] = {"size_bytes": TINY_BYTES if tiny else array_bytes(device)}
    passes = [Case("bandwidth", "infer", array | {"kind": "update"} | all_sizes, name)]
    passes += [Case("bandwidth", "infer", array | {"kind": kind}, name) for kind in ("triad", "copy", "read")]
    launch = Case("launch", "infer", device=name)
    # Between host and device, where those are two.
    ways = product(("to-device", "to-host"), (True, False)) if name != "cpu" else ()
    copied = {"size_bytes": TINY_BYTES if tiny else COPIED_BYTES} | all_sizes
    links = [Case("copy", "infer", copied | {"direction": way, "pinned": pinned}, name) for way, pinned in ways]
    # Between workers: two on a CPU, or one for each device of a kind.
    kind, _, index = name.partition(":")
    alike = sum(each.name.partition(":")[0] == kind for each in options.machine.devices)
    workers = min(2, options.machine.logical_cores) if kind == "cpu" else alike
    is_due = workers > 1 and index in ("", "0") and not tiny
    exchanges = [Case("all-reduce", "infer", all_sizes, name, workers=workers)] if is_due else []
    launches = [launch, replace(launch, transfer="per-step")]
    plan = {"products": products, "passes": passes, "launches": launches, "links": links, "exchanges": exchanges}
    return {part: [*map(check_case, cases)] for part, cases in plan.items()}
