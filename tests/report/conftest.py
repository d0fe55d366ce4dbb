"""A made-up run that has something for every chart: two devices, a sweep, workers, samples with a story, a failure."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import vl_convert
from msgspec.structs import replace

from torchmark.records import DeviceInfo, Estimate, Result, Run, RunHeader, Work
from torchmark.report.charts import Panel, find_series, speeds

Make = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _draw_once() -> Iterator[None]:
    """Many tests look at pages with the same charts, and drawing a chart takes most of the time of a page."""
    draw, drawn = vl_convert.vegalite_to_svg, dict[str, str]()

    def look_up(spec: object, vl_version: str) -> str:
        key = json.dumps(spec)
        if key not in drawn:
            drawn[key] = draw(spec, vl_version=vl_version)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_svg", look_up)
        yield


def course(center_s: float, count: int, slope: float = 0.0, warm: int = 12) -> tuple[float, ...]:
    """Step times that start slow, settle, and drift by `slope` to the end."""
    dice = random.Random(round(center_s * 1e9))
    drift = [1 + slope * index / count for index in range(count)]
    noise = [1 + 0.02 * dice.gauss(0, 1) + (0.3 if dice.random() < 0.01 else 0) for _ in range(count)]
    cold = [4 * math.exp(-index / warm * 4) * (index < 3 * warm) for index in range(count)]
    return tuple(center_s * (a * b + c) for a, b, c in zip(drift, noise, cold, strict=True))


def with_samples(result: Result, courses: Sequence[tuple[float, ...]], verdict: str) -> Result:
    assert result.estimate
    estimate = replace(result.estimate, verdict=verdict, samples_s=courses[0])
    processes = tuple(replace(estimate, samples_s=samples) for samples in courses)
    return replace(result, estimate=estimate, processes=processes if len(courses) > 1 else ())


def results(make: Make) -> list[Result]:
    made = [
        with_samples(make("mlp/infer@cpu/float32", 1.5e-3), [course(1.5e-3, 900)], "stable"),
        with_samples(make("mlp/infer@cuda:0/float32", 1.1e-4), [course(1.1e-4, 5000)] * 3, "stable"),
        with_samples(make("mlp/train@cpu/float32", 5e-3), [course(5e-3, 400, 0.35)], "throttled"),
        make("mlp/train@cuda:0/float32", 3.2e-4),
        make("venv-ppo/train@cuda:0/float32", 3.1, work=Work(1, "epoch")),
        make("venv-ppo/train@cpu/float32", 0.4, work=Work(1, "epoch")),
        make("resnet50/infer@cpu/bfloat16", 0.9, work=Work(32, "image")),
    ]
    for device, scale in (("cpu", 1.0), ("cuda:0", 0.02)):
        for batch in (1, 2, 4, 8, 16, 32):
            text = f"bert-encode/infer:batch={batch}@{device}/float32"
            work = Work(batch, "sample")
            made.append(make(text, scale * (0.03 + 0.1 * batch), work=work, params={"batch": batch, "size": "base"}))
        lost = make(f"bert-encode/infer:batch=64@{device}/float32", status="oom", estimate=None, reason="no room left")
        made.append(replace(lost, params={"batch": 64, "size": "base"}))
    for workers, seconds in ((1, 8e-3), (2, 9e-3), (4, 13e-3)):
        text = f"mnist-ddp-mlp/train@cpu/float32{f'+workers={workers}' if workers > 1 else ''}"
        made.append(make(text, seconds, work=Work(64 * workers, "image"), settings={"threads": 1}))
    return made


@pytest.fixture(scope="session")
def wide_run(make_result: Make, make_header: Callable[..., RunHeader]) -> Run:
    made = results(make_result)
    header = make_header(tuple(each.case.text for each in made), label="workstation", id="aa11bb22")
    gpu = DeviceInfo("cuda:0", "NVIDIA GeForce RTX 3090", memory_bytes=25_000_000_000, driver="550.54")
    machine = replace(header.machine, devices=(*header.machine.devices, gpu))
    return Run(replace(header, machine=machine), tuple(made), process_spread=0.02)


@pytest.fixture(scope="session")
def strip_of(full_run: Run) -> Callable[[Result], tuple[Panel, str, tuple[float, float]]]:
    """The chart of a result's step times, with the unit and the ends of its axis."""

    def find(result: Result) -> tuple[Panel, str, tuple[float, float]]:
        (series,) = find_series([replace(full_run, results=(result,))])
        panel = speeds.find_steps(series, result, several=False)
        assert panel
        assert panel.chart
        place = panel.chart["layer"][2]["encoding"]["y"]
        return panel, place["axis"]["title"], tuple(place["scale"]["domain"])

    return find


@pytest.fixture(scope="session")
def slower_run(wide_run: Run) -> Run:
    """The same work on another day: most of it 8% slower, one case 30% faster."""

    def scaled(found: Estimate, factor: float) -> Estimate:
        times = {name: getattr(found, name) * factor for name in ("center_s", "low_s", "high_s")}
        return replace(found, samples_s=tuple(sample * factor for sample in found.samples_s), **times)

    def changed(result: Result, factor: float) -> Result:
        processes = tuple(scaled(each, factor) for each in result.processes)
        return replace(result, estimate=result.estimate and scaled(result.estimate, factor), processes=processes)

    made = tuple(changed(each, 0.7 if each.case.workload == "resnet50" else 1.08) for each in wide_run.results)
    header = replace(wide_run.header, id="cc33dd44", label="after-upgrade", created="2026-11-16T08:00:00Z")
    return replace(wide_run, header=header, results=made)
