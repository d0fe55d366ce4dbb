"""A run file that has everything a run file can have."""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

import torchmark
from torchmark.analyze.jobs import extrapolate
from torchmark.analyze.verdict import cautions_of
from torchmark.errors import StoreError
from torchmark.records import (
    BreakEven,
    Conclusion,
    Contribution,
    DeviceInfo,
    Fitting,
    JobEstimate,
    Laps,
    Limiting,
    Live,
    Machine,
    Memory,
    Metered,
    NumericCheck,
    Peak,
    Remark,
    Result,
    RunHeader,
    StageEstimate,
    Sustained,
    Tried,
    Tuning,
    Work,
    parse_case,
)
from torchmark.store import RunWriter, load, shareable_lines
from torchmark.store.lines import Samples, Spread, Started

CASES = ("mlp/infer@cpu/float32", "mlp/train:batch=64@cpu/bfloat16+compile+threads=2+attention=eager")
REPLAYED = "mlp/infer@cpu/float32+as-published"
_NAMED = ("params", "metrics", "phases_s", "settings", "provenance", "ways", "bounds", "tried")  # with keys of any name


def rich_file() -> bytes:
    """A run with real figures of the fake device, and every field that may be empty filled in."""
    with mock.patch.dict(os.environ, {"TORCHMARK_FAKE": "stream=iid2,step=0.002"}):
        timed = torchmark.time_step(lambda: None, "fake", budget_s=0.1)
    assert timed.estimate is not None
    estimate = replace(
        timed.estimate, device_step_s=0.0019, flags=("bimodal", "on-battery"), evidence=("seen",), spread=0.02
    )
    estimate = replace(estimate, metered=Metered(50.0, 60.0, (3e9, 2e9), (40.0, 90.0), ("heat",), 3))
    stage = StageEstimate("step", 10, estimate.mean_s, estimate.mean_low_s, estimate.mean_high_s)
    job = JobEstimate(10 * stage.center_s, 10 * stage.low_s, 10 * stage.high_s, whole=False, stages=(stage,), epochs=2)
    job = replace(job, note="seen")
    machine = Machine("A CPU", 2, 4, 16, "Linux 6", "3.11.7", "2.13.0", "CPU", "governor performance", False)
    machine = replace(machine, devices=(DeviceInfo("cpu", "A CPU", 16 << 30, "1.2", "AVX512", 2, 32 << 20),))
    planned = (*CASES, REPLAYED)
    header = RunHeader(
        "3f9c2a71",
        "2026-11-15T19:45:49Z",
        machine,
        planned,
        "torchmark run",
        "0.1.0",
        "nightly",
        budget_s=9.0,
        guarded=True,
        open_ended=True,
    )
    full = Result(
        parse_case(CASES[1]), "ok", 1, "seen", {"batch": 64, "outputs": 2}, estimate, (estimate,),
        Work(64, "sample", 1e9, 1e6), Memory(1 << 28, 1 << 27, 1 << 27, "sampled"), NumericCheck(1e-7, 1e-5, "x"), job,
        {"loss": 0.5}, {"steps": 1.0}, {"threads": 2, "attention": "sdpa", "data": "files", "onednn": True},
        cautions=(Remark("noisy", "seen", "wait"),), sustained=Sustained(1.0, 0.002, 0.003, (0.4, 0.6), 0.1, "seen"),
        provenance={"energy": "measured by RAPL", "clock": "unavailable because it is not reported"}, budget_s=3.0,
        peak=Peak(0.5, "compute", {"compute": 0.5, "bandwidth": 0.2}, 1e12, 1e10, False, "3f9c2a71"),
    )  # fmt: skip
    full = replace(full, cautions=(*full.cautions, *cautions_of(full)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rich.jsonl"
        with RunWriter.create(path, header) as writer:
            for result in (replace(full, case=parse_case(CASES[0])), full, _replayed(full)):
                assert result.estimate is not None
                writer.write(Started(result.case.text, 0))
                writer.write(Samples(result.case.text, 0, result.estimate.samples_s))
                writer.finished(result)
            writer.write(Spread(0.04))
            for conclusion in _conclusions():
                writer.concluded(conclusion)
        return path.read_bytes()


def _conclusions() -> Iterator[Conclusion]:
    """One of each kind, although a run has only one."""
    one, other = map(parse_case, CASES)
    brought = (Contribution("bfloat16", 1.2), Contribution("compile", 1.17))
    yield Tuning(
        one, other, 1.4, 1.2, 1.6, 5, None, 1, other, 1.4, brought, BreakEven(19.0, 0.2, 95.0), {other.text: 1.4}
    )
    tried = (Tried(other.text, 64, 1e4, 3, (9e8,), "noisy"),)
    yield Fitting(one, "batch", 1e9, "memory", 64, 3, 32, 2e8, 1.2e7, 0.01, "sample", 2, tried)
    yield Limiting(True, missing=("cpu bfloat16",))
    yield Live(one, other, "B", "faster", "clear", 0.5, 0.4, 0.6, (0.5,) * 5)


def _replayed(full: Result) -> Result:
    """The same work as a publication timed it, with a job of two parts."""
    laps = [0.02, *(0.002 + number * 1e-6 for number in range(40))]
    stages = (Laps("model to the device", [0.5]), Laps("step", laps, 100, is_work=True))
    job, seen = extrapolate(stages), full.estimate
    assert seen is not None
    shown = {"center_s": job.seconds / 100, "low_s": job.seconds / 100, "high_s": job.seconds / 100}
    shown |= {"first_step_s": laps[0], "median_s": sorted(laps)[len(laps) // 2], "min_s": min(laps)}
    shown |= {"samples_s": tuple(laps), "sample_count": len(laps), "duration_s": 0.5 + sum(laps), "warmup_cut": 0}
    replayed = replace(seen, **shown, estimand="mean", verdict="as-published")
    return replace(full, case=parse_case(REPLAYED), params={}, estimate=replayed, processes=(), job=job, sustained=None)


class HostileFiles:
    """Run files with any text in every place that takes it."""

    def __init__(self, measured: bytes) -> None:
        self._measured, self._lines = _unsealed(measured), _unsealed(rich_file())
        self._free, self._fixed = self._sort_places()

    def hostile(self, text: str, cases: bool = True) -> bytes:
        """A file that can be read, with the text in every place that takes it, or in all but the cases."""
        lines = self._lines
        for place in self._free:
            lines = _changed(lines, place, text) if cases or not {"case", "cases"} & set(place) else lines
        return written(lines)

    def sound(self, text: str) -> bytes:
        """The file that was really measured, with the text in all that nothing is checked by."""
        first, *rest = self._measured
        machine = first["header"]["machine"]
        devices = [device | {"model": text, "driver": text} for device in machine["devices"]]
        machine = machine | {"cpu": text, "os": text, "power_mode": text, "devices": devices}
        header = first["header"] | {"id": text, "label": text, "machine": machine}
        data = written([first | {"header": header}, *rest])
        return data + written([{"kind": "checksum", "sha256": hashlib.sha256(data).hexdigest()}])

    def refused(self, text: str) -> Iterator[bytes]:
        """Files that cannot be read: the text stands where it is not allowed."""
        chosen = random.Random(ascii(text)).sample(self._fixed, 3)
        yield from (written(_changed(self._lines, place, text)) for place in chosen)

    def studies(self, text: str) -> Iterator[bytes]:
        """A file for each conclusion that a run can have."""
        lines = self.hostile(text).splitlines(keepends=True)
        ends = [line for line in lines if b'"kind":"concluded"' in line]
        rest = [line for line in lines if line not in ends]
        yield from (b"".join([*rest, end]) for end in ends)

    def _sort_places(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        free, fixed, lines = [], [], self._lines
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tried.jsonl"
            for place in _places(self._lines):
                path.write_bytes(written(_changed(lines, place, "\x1b[5m")))
                try:
                    load(path)
                    list(shareable_lines(path))
                except StoreError:
                    fixed.append(place)
                else:
                    lines = _changed(lines, place, "\x1b[5m")
                    free.append(place)
        return free, fixed


def _unsealed(data: bytes) -> list[Any]:
    """The lines without the checksum, which fits no changed file."""
    return [line for line in map(json.loads, data.splitlines()) if line["kind"] != "checksum"]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every string; a key that may be any is found by None at the end of its way."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*at, key))
            if at and at[-1] in _NAMED:
                yield (*at, key, None)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _places(inner, (*at, number))


def _changed(value: Any, place: tuple[Any, ...], text: str) -> Any:
    """A copy in which the string at that place, or the key, has the text at its end."""
    if not place:
        return value + text
    first, *rest = place
    if isinstance(value, list):
        return [_changed(inner, tuple(rest), text) if at == first else inner for at, inner in enumerate(value)]
    if rest == [None]:
        return {key + text if key == first else key: inner for key, inner in value.items()}
    return {key: _changed(inner, tuple(rest), text) if key == first else inner for key, inner in value.items()}


def written(lines: list[Any]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=True) + "\n" for line in lines).encode()
