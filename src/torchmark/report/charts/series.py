"""Who is shown: every device of every run as a series, with one name and one colour in all charts of a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.configurations import told
from torchmark.records import Case, Result, Run
from torchmark.report.figures import is_published
from torchmark.report.text import shorten

COLORS = 8  # in the style sheet; later series repeat them in patterns
PATTERNS = 2  # in the page: stripes, then dots
_NAME, _DEVICE = 60, 24


class Series(Struct, frozen=True):
    """One device of one run."""

    name: str
    color: str
    run: Run
    device: str

    @property
    def results(self) -> Iterator[Result]:
        return (result for result in self.run.results if result.case.device == self.device)


def find_series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """All series in the order of the runs, whose names differ."""
    named = zip(runs, run_names(runs), strict=True)
    places = [(run, name, device) for run, name in named for device in devices_of(run)]
    return tuple(
        Series(_series_name(name, device, len(runs), len(devices_of(run))), color(index), run, device)
        for index, (run, name, device) in enumerate(places)
    )


def _series_name(name: str, device: str, runs: int, devices: int) -> str:
    """As much as it takes to tell it from the others."""
    parts = [name] * (runs > 1 or devices == 1) + [shorten(device, _DEVICE)] * (devices > 1)
    return " · ".join(parts)


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its label, else its machine, with the id where that is not enough."""
    names = [shorten(_short_name(run), _NAME) for run in runs]
    often = Counter(names)
    pairs = zip(runs, names, strict=True)
    return [f"{name} ({shorten(run.header.id, _NAME)})" if often[name] > 1 else name for run, name in pairs]


def _short_name(run: Run) -> str:
    """A published machine goes without the name of its publication."""
    label = run.header.label or ""
    published = bool(run.results) and all(map(is_published, run.results))
    return (label.partition("/")[2] if published else label) or label or machine_name(run)


def machine_name(run: Run) -> str:
    """The accelerator that was used, else the processor."""
    used = devices_of(run)
    models = {info.name: info.model for info in run.header.machine.devices if info.name != "cpu"}
    model = next((models[device] for device in used if device in models), run.header.machine.cpu)
    return plain_model(model) or "unnamed machine"


def plain_model(model: str) -> str:
    """A model's name without the marks that lawyers want: Intel Xeon Platinum 8370C"""
    return " ".join(re.sub(r"\((?:R|TM|C)\)|®|™", " ", model, flags=re.IGNORECASE).split())


def devices_of(run: Run) -> tuple[str, ...]:
    """The devices that results came from, in the order of their first one."""
    return tuple(dict.fromkeys(result.case.device for result in run.results))


def is_measured(result: Result) -> bool:
    """Whether there is a step time that can be drawn."""
    found = result.estimate
    return result.status == "ok" and found is not None and found.center_s > 0 and math.isfinite(1 / found.center_s)


def same_work(case: Case) -> str:
    """The case wherever it runs and however it is timed: equal texts are the same work."""
    return replace(case, device="cpu", protocol="steady").text


def full_name(case: Case) -> str:
    """mlp · train · batch=4 · bfloat16"""
    return f"{shorten(case.workload, _NAME)} · {variant_name(case)}"


def variant_name(case: Case) -> str:
    """How a case differs from the others of its workload: train · batch=4 · bfloat16"""
    return shorten(" · ".join(variant_parts(case)), _NAME)


def variant_parts(case: Case) -> list[str]:
    """What makes a case of its workload, piece by piece: the mode, parameters, another dtype than most, options."""
    text = replace(case, device="cpu", dtype="", protocol="steady").text
    work, _, options = text.partition("/")[2].partition("@cpu/")
    dtype = [case.dtype] if case.dtype != "float32" else []
    # What speaks for itself comes without its name, and what is there for another setting's sake at the end.
    said = [told(*each.split("=", 1)) if "=" in each else each for each in options.split("+") if each]
    return [*work.replace(":", ",", 1).split(","), *dtype, *sorted(said, key=lambda each: each.startswith("isa="))]


def color(index: int) -> str:
    """A fill or stroke: a variable of the style sheet, which knows light and dark, or a pattern in one of them."""
    pattern, shade = divmod(index % (COLORS * (PATTERNS + 1)), COLORS)
    return f"url(#series-{shade + 1}-{pattern})" if pattern else f"var(--series-{shade + 1})"
