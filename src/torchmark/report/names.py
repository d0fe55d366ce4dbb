"""Names of runs, cases and machines: just enough to distinguish them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchmark.analyze.grades import is_published
from torchmark.analyze.pairing import setting_text
from torchmark.analyze.wording import counted
from torchmark.records import Case, Machine, Result, Run, Value
from torchmark.report.text import shorten

_NAME = 60


class Names(Struct, frozen=True):  # what rows need not repeat
    place: str | None = None  # where most cases ran
    params: Mapping[str, Value] = {}  # that all cases have in common

    @property
    def note(self) -> str:
        """What the heading adds to such rows."""
        params = Case("", "", dict(self.params)).task.partition(":")[2]
        return f"All with {params.replace(',', ', ')}" if params else ""

    def of(self, result: Result) -> str:
        own = {key: value for key, value in result.case.params.items() if key not in self.params}
        case = replace(result.case, params=own)
        if place(result) != self.place:
            return case.text
        return case.task + "".join(suffix for suffix in case.suffixes if suffix != "+as-published")


def names_of(results: Sequence[Result]) -> Names:
    """Equal parameters of different workloads need not mean the same."""
    cases = [result.case for result in results]
    params = cases[0].params if len(cases) > 1 and len({case.workload for case in cases}) == 1 else {}
    # By their text: 1 and True are equal, but not alike.
    alike = {key: value for key, value in params.items() if len({repr(case.params.get(key)) for case in cases}) == 1}
    return Names(shared_place(results), alike)


def place(result: Result) -> str:
    return f"{result.case.device}/{result.case.dtype}{' as published' if is_published(result) else ''}"


def shared_place(results: Sequence[Result]) -> str | None:
    return next((name for name, count in Counter(map(place, results)).items() if count > len(results) / 2), None)


def title(run: Run) -> str:
    """run 10a3e21e · nightly · 2026-11-18 03:16:20 UTC · on cpu/float32"""
    header, shared = run.header, shared_place(run.results)
    names = [header.id] if header.label == header.id else [f"run {header.id}", header.label]
    alike = all(place(result) == shared for result in run.results)
    where = f"on {shared}{'' if alike else ' unless said otherwise'}" if shared else ""
    return " · ".join(filter(None, (*names, moment(header.created), where)))


def moment(created: str) -> str:
    """2026-11-15 19:45:49 UTC"""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:Z|\+00:00)$", r"\1 \2 UTC", created)


def longer(command: str) -> str:
    return re.sub(r"--budget ([\d.]+)s", lambda found: f"--budget {2 * float(found[1]):g}s", command)


def machine_parts(machine: Machine) -> tuple[str, str, str]:
    """8 cores, 24 GiB, torch 2.13.0: each empty if unknown"""
    cores = counted(machine.physical_cores, "core") if machine.physical_cores else ""
    memory = f"{machine.memory_gib} GiB" if machine.memory_gib else ""
    return cores, memory, f"torch {machine.torch}" if machine.torch else ""


def machine_line(machine: Machine, device: str | None = None) -> str:
    """The processor or the given device, with cores, memory and torch."""
    models = {info.name: info.model for info in machine.devices if info.model != machine.cpu}
    parts = [models[device]] if device in models and device != "cpu" else []
    *size, torch = machine_parts(machine)
    return " · ".join(filter(None, (*parts, ", ".join(filter(None, (machine.cpu, *size))), torch)))


def machine_of(run: Run) -> str:
    return machine_line(run.header.machine, (shared_place(run.results) or "").partition("/")[0])


def run_names(runs: Sequence[Run]) -> list[str]:
    """Each run's label, else its machine, with the id where that is not unique."""
    names = []
    for run in runs:
        label = run.header.label or ""
        published = run.results and all(map(is_published, run.results))  # it goes without its publication
        names.append(shorten((label.partition("/")[2] if published else label) or label or machine_name(run), _NAME))
    often = Counter(names)
    pairs = zip(runs, names, strict=True)
    return [f"{name} ({shorten(run.header.id, _NAME)})" if often[name] > 1 else name for run, name in pairs]


def machine_name(run: Run) -> str:
    """The accelerator in use, else the processor."""
    models = {info.name: info.model for info in run.header.machine.devices if info.name != "cpu"}
    model = next((models[device] for device in devices_of(run) if device in models), run.header.machine.cpu)
    return plain_model(model) or "unnamed machine"


def plain_model(model: str) -> str:
    """Intel Xeon Platinum 8370C, without trademark signs"""
    return " ".join(re.sub(r"\((?:R|TM|C)\)|®|™", " ", model, flags=re.IGNORECASE).split())


def devices_of(run: Run) -> tuple[str, ...]:
    return tuple(dict.fromkeys(result.case.device for result in run.results))


def full_name(case: Case) -> str:
    """mlp · train · batch=4 · bfloat16"""
    return f"{shorten(case.workload, _NAME)} · {variant_name(case)}"


def variant_name(case: Case) -> str:
    """train · batch=4 · bfloat16"""
    return shorten(" · ".join(variant_parts(case)), _NAME)


def variant_parts(case: Case) -> list[str]:
    """The mode, parameters, an unusual dtype, options."""
    text = replace(case, device="cpu", dtype="", protocol="steady").text
    work, _, options = text.partition("/")[2].partition("@cpu/")
    dtype = [case.dtype] if case.dtype != "float32" else []
    # The instruction set, which only limits another setting, comes last.
    said = [setting_text(*each.split("=", 1)) if "=" in each else each for each in options.split("+") if each]
    return [*work.replace(":", ",", 1).split(","), *dtype, *sorted(said, key=lambda each: each.startswith("isa="))]
