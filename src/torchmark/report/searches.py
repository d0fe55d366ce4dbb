"""What `tune` and `fit` found: the answer, then its basis."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import asdict, replace

from torchmark.analyze import search
from torchmark.analyze.pairing import USUAL, differing, name_of, same_precision, setting
from torchmark.analyze.search import MemoryModel, Probe, recall_model, recall_probes, recall_tuning
from torchmark.analyze.wording import counted
from torchmark.records import NO_ROOM, Case, Fitting, Result, Run, Tuning
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import longer, machine_line

_STOPPED = {
    "budget": "The budget was spent before everything was tried: raise --budget.",
    "interrupted": "It was interrupted.",
}
_STOPPED_EARLY = {"interrupted": "it was interrupted", "budget": "the budget was spent"}
_UNDECIDED = 1.25  # times as fast: if possible, do not advise to keep the default
_VARIABLES = {"isa": "ONEDNN_MAX_CPU_ISA", "bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}
_VARYING = 1.02  # times the smallest peak memory of a size: more is reported
_BOUNDS = {
    "parameter": "The limit is the parameter's own, or --most, not memory.",
    "time": "The budget was spent before the answer was known to a step: raise --budget.",
    "timeout": "A size took longer than --timeout: larger ones may fit, but take too long.",
    "interrupted": "It was interrupted.",
    **dict.fromkeys(("crashed", "wrong-result", "unsupported"), "Memory did not end it: see the reason below."),
}
_FAILED = {
    "crashed": "crashed",
    "timeout": "took longer than --timeout",
    "wrong-result": "computed wrong numbers",
    "unsupported": "is not supported here",
}
_TUNED_CSV = doc.fields("""
    case=result.case.text status=result.status reason=result.reason step_s=fair.estimate.center_s items_per_s
    gain_in_rounds=relative winner same_precision gain=answer.gain low=answer.low high=answer.high
""")
_FITTED_CSV = doc.fields("""
    case=result.case.text size fits status=result.status reason=result.reason peak_bytes items_per_s=rate
    step_s=result.estimate.center_s
""")


def tuning_document(run: Run) -> doc.Document:
    tuned = recall_tuning(run)
    default, winner, relative = tuned.default, tuned.winner, tuned.relative
    same = (tuned.same_precision or default).text
    notes = {same: f"best in {default.dtype}", winner.text: "fastest", default.text: "default"}
    notes |= {tuned.unconfirmed.text: "not confirmed"} if tuned.unconfirmed else {}

    before = next((each for each in run.results if each.case.text == default.text and each.estimate), None)

    def record(result: Result) -> dict[str, Any]:
        text, fair = result.case.text, result
        if before and result.estimate and (gain := relative.get(text)):  # the step time that its gain stands for
            center_s = search.step_scaled(before, result, gain)
            fair = replace(result, estimate=replace(result.estimate, center_s=center_s))
        by_chance = relative.get(text, 0.0) > relative.get(winner.text, math.inf)
        known: dict[str, Any] = {"result": result, "fair": fair, "items_per_s": figures.step_rate(fair)}
        known |= {"winner": text == winner.text, "same_precision": text == same}
        known |= {"relative": relative.get(text), "answer": tuned if text == winner.text else None}
        return known | {"note": notes.get(text, "within chance" if by_chance else "")}

    def blocks() -> Iterator[doc.Block]:
        yield doc.Title(f"tuned {default.text}", [machine_line(run.header.machine)])
        yield doc.answer(tuning_conclusion(run), "good" if winner.text != default.text else "strong")
        columns = [doc.Column("setting"), doc.Column("brought", "figure")]
        brought = [(each.setting, units.factor(each.gain)) for each in tuned.contributions]
        yield doc.Section("What each setting brought", [doc.Table(columns, brought)] if len(brought) > 1 else [])
        columns = [
            doc.Column("settings", of="result.case", written=partial(name_of, default=default)),
            doc.Column("per step", "figure", of="fair.estimate", written=figures.step_time),
            doc.Column("rate", "figure", drop=1, of="fair", written=figures.rate),
            doc.Column("as fast", "figure", of="relative", written=units.factor),
            doc.Column("note", of="note"),
        ]
        # By the rounds, which disturb all contestants alike.
        measured = [record(result) for result in run.results if result.estimate and result.status == "ok"]
        measured.sort(key=lambda each: -(each["relative"] or 0.0))
        yield doc.Section("What was tried, the fastest first", [doc.table(columns, measured)])
        lost = figures.failures(run.results, lambda result: name_of(result.case, default))
        yield doc.Section("Without a figure", [lost])
        yield doc.Section("To paste into a script that has a `model`", [doc.Code(snippet(default, winner), "python")])
        yield doc.quiet("Again:")
        yield doc.Code(f"torchmark run {winner.text}")  # never broken: it is to be pasted

    rows, facts = partial(map, record, run.results), partial(_tuned_object, tuned)
    records = doc.Records(_TUNED_CSV, rows, lambda: figures.run_object(run) | {"tuned": facts()}, lambda: [facts()])
    return doc.Document(blocks, records)


def _tuned_object(tuned: Tuning) -> dict[str, object]:
    """Everything but the results, which are in the run."""
    known = {name: each.text if isinstance(each, Case) else each for name, each in asdict(tuned).items()}
    return known | {"snippet": snippet(tuned.default, tuned.winner)}


def tuning_conclusion(run: Run) -> list[str]:
    """The answer, its basis, what is missing, and remarks, a sentence each."""
    tuned = recall_tuning(run)
    found = [_fastest(tuned)]
    if tuned.gain is not None:
        found.append(f"95% interval over {tuned.pairs} pairs of fresh processes that took turns, after the search.")
    if tuned.unconfirmed and (tuned.gain is None or (tuned.high or 0.0) > _UNDECIDED):
        found.append(f"To find out, close other programs and run: {longer(run.header.command)}")
    same, gain = tuned.same_precision or tuned.default, tuned.same_precision_gain
    if same.text != tuned.winner.text:
        best = "the default itself" if same.text == tuned.default.text else name_of(same, tuned.default)
        seen = f", {units.factor(gain)} as fast by the search" if gain and same.text != tuned.default.text else ""
        found.append(f"Best in {tuned.default.dtype}: {best}{seen}.")
    shares = {result.case.text: units.percent(result.peak.share) for result in run.results if result.peak}
    before, after = (shares.get(case.text) for case in (tuned.default, tuned.winner))
    if before and after and tuned.winner.text != tuned.default.text:
        own = "" if same_precision(tuned.winner, tuned.default) else ", each of the peak of its own number format"
        found.append(f"Of this machine's peak it uses {after}, where the default uses {before}{own}.")
    if even := tuned.break_even:
        steps = f"{math.ceil(even.steps):,}".replace(",", " ")
        compiling, saved = units.duration(even.compiling_s), units.duration(even.saved_s)
        found.append(f"Compiling takes {compiling}, saves {saved} a step: pays off after {steps} steps.")
    found.append(f"{counted(len(run.results), 'configuration')} in {units.duration(tuned.duration_s)}.")
    return found + ([_STOPPED[tuned.stopped]] if tuned.stopped in _STOPPED else [])


def _fastest(tuned: Tuning) -> str:
    leader = tuned.unconfirmed or tuned.winner
    if leader.text == tuned.default.text:
        if tuned.stopped != "done" and not tuned.relative:
            return f"Inconclusive: {_STOPPED_EARLY[tuned.stopped]} before any settings were compared."
        return "Nothing that was tried is faster than the default beyond chance."
    name = name_of(leader, tuned.default)
    led = f"{name} led the search, but"
    if tuned.gain is None or tuned.low is None or tuned.high is None:
        why = _STOPPED_EARLY.get(tuned.stopped, "its processes failed when they were started again")
        if tuned.disturbed:
            why = f"other programs disturbed {tuned.disturbed} of {tuned.disturbed + tuned.pairs} pairs of processes"
        return f"Inconclusive: {led} that is not confirmed: {why}."
    if tuned.unconfirmed and tuned.high > search.WIDEST * tuned.low:
        return f"Inconclusive: {led} pairs of fresh processes differ too much to confirm it."
    known = f"{units.factor(tuned.gain)} as fast as the default ({units.between(tuned.low, tuned.high)})"
    if tuned.unconfirmed:
        answer = "Inconclusive" if tuned.high > _UNDECIDED else "Stay with the default"
        return f"{answer}: {led} measured again it is {known}."
    return f"{name} is {known}."


def snippet(default: Case, winner: Case) -> str:
    """Code for a script that has a `model`, if anything changes; of a stranger's file only plain words become code."""
    changes = {name: str(setting(winner, name)) for name in differing(default, winner)}
    if not changes or not all(re.fullmatch(r"[\w.-]+", text, re.ASCII) for pair in changes.items() for text in pair):
        return ""
    variables = {variable: changes[name] for name, variable in _VARIABLES.items() if changes.get(name, USUAL) != USUAL}
    variables = {variable: value.upper().replace("-", "_") for variable, value in variables.items()}
    variables |= {"OMP_PLACES": "cores"} if "OMP_PROC_BIND" in variables else {}
    lines = ["import os", "", "# Before torch is imported for the first time."] if variables else []
    lines += [f'os.environ["{name}"] = "{value}"' for name, value in variables.items()]
    lines += ["import torch", "", *_model_code(changes, winner)]
    before, after = setting(default, "gradients"), setting(winner, "gradients")
    if winner.mode != "train" and before != after:
        # The usual one differs between workloads, but there are only two.
        how = "inference_mode" if after == "inference-mode" or before == "no-grad" else "no_grad"
        lines += ["", "", f"# Around every call of the model: with torch.{how}():"]
    return "\n".join(lines).rstrip() + "\n"


def _model_code(changes: dict[str, str], winner: Case) -> Iterator[str]:
    inputs = []
    if "threads" in changes:
        yield f"torch.set_num_threads({changes['threads']})"
    if "matmul" in changes:
        how = "highest" if changes["matmul"] == USUAL else changes["matmul"]
        yield f'torch.set_float32_matmul_precision("{how}")'
        yield f"torch.backends.cudnn.allow_tf32 = {how != 'highest'}"
    if "attention" in changes:
        how = "sdpa" if changes["attention"] == USUAL else changes["attention"]
        yield f'# Build the model with attn_implementation="{how}".'
    if "dtype" in changes:
        if winner.mode == "train":
            yield "# Weights and their updates are in short numbers too: watch the loss."
        yield f"model = model.to(torch.{winner.dtype})"
        inputs += ["    if tensor.is_floating_point():", f"        tensor = tensor.to(torch.{winner.dtype})"]
    if "layout" in changes:
        layout = "contiguous_format" if changes["layout"] == USUAL else changes["layout"].replace("-", "_")
        yield f"model = model.to(memory_format=torch.{layout})"
        inputs += ["    if tensor.ndim == 4:", f"        tensor = tensor.contiguous(memory_format=torch.{layout})"]
    if "compile" in changes and winner.compile != "off":
        mode = "" if winner.compile == "on" else f', mode="{winner.compile}"'
        yield f"model = torch.compile(model{mode})"
    yield from (f"# {name} = {changes[name]}" for name in sorted(winner.params) if name in changes)
    if "transfer" in changes:
        inputs += [
            "    # Pin it once, in the loader.",
            "    tensor = tensor.pin_memory().to(DEVICE, non_blocking=True)",
        ]
    if inputs:
        yield from ("", "", "def ready(tensor):", '    """Call it on every input."""', *inputs, "    return tensor")


def fitting_document(run: Run) -> doc.Document:
    assert run.fitting
    fitted, probes = run.fitting, recall_probes(run)
    highest = max((probe.rate or 0.0 for probe in probes), default=0.0)
    doubted = search.doubtful(probes)
    csv = _FITTED_CSV | {
        "peak_bytes": lambda probe: max(probe.peaks, default=None),
        "largest": lambda probe: probe.size == fitted.largest,
        "efficient": lambda probe: probe.size == fitted.efficient,
    }

    def facts() -> dict[str, object]:
        """Everything but the results, which are in the run."""
        paths = doc.fields("size fits tries bytes peaks rate case status=result.status") | {"bytes": csv["peak_bytes"]}
        tried = [{name: doc.value_of(probe, path) for name, path in paths.items()} for probe in probes]
        known: dict[str, object] = {"parameter": fitted.parameter, "unit": fitted.unit, "probes": tried}
        known |= {name: getattr(fitted, name) for name in ("limit_bytes", "bound", "step", "largest", "efficient")}
        return known | {"model": recall_model(fitted), "duration_s": fitted.duration_s}

    def note(probe: Probe) -> str:
        largest = "largest" if fitted.bound == "memory" else "largest that fitted"
        marks = {largest: probe.size == fitted.largest, "most efficient": probe.size == fitted.efficient}
        marks[probe.doubt] = probe in doubted
        return ", ".join(mark for mark, holds in marks.items() if holds) if probe.fits else probe.result.status

    def blocks() -> Iterator[doc.Block]:
        yield doc.Title(f"fit {fitted.case.text}", [machine_line(run.header.machine)])
        yield doc.answer(fitting_conclusion(run), "good" if fitted.largest is not None else "bad")
        columns = [
            doc.Column(fitted.parameter, "figure", of="size", written=str),
            doc.Column("memory", "figure", of=csv["peak_bytes"], written=units.size),
            doc.Column("rate", "figure", of=lambda probe: units.rate(probe.rate, fitted.unit)),
            doc.Column("", "name", 1, of=lambda it: "█" * max(1, round(24 * it.rate / highest)) if it.rate else ""),
            doc.Column("note", of=note),
        ]
        yield doc.table(columns, probes)
        # The smallest size of each status: larger ones say the same.
        smallest = {probe.result.status: probe for probe in reversed(probes) if not probe.fits}
        lost = [probe.result for probe in smallest.values()]
        sizes = {status: f"{fitted.parameter} {probe.size}" for status, probe in smallest.items()}
        yield doc.Section("Without a figure", [figures.failures(lost, lambda result: sizes[result.status])])

    records = doc.Records(csv, lambda: probes, lambda: figures.run_object(run) | {"fitted": facts()}, lambda: [facts()])
    return doc.Document(blocks, records)


def fitting_conclusion(run: Run) -> list[str]:
    """The answer, what is missing, and remarks, a sentence each."""
    assert run.fitting
    fitted, probes, model = run.fitting, recall_probes(run), recall_model(run.fitting)
    name, fitting = fitted.parameter, [probe for probe in probes if probe.size <= (fitted.largest or 0)]
    found = [_largest(fitted, probes, model)]
    if doubted := search.doubtful(fitting):
        causes = ", ".join(dict.fromkeys(probe.doubt for probe in doubted))
        sizes = doc.some([str(probe.size) for probe in doubted], 4)
        found.append(f"Most efficient: unknown, as the rate at {name} {sizes} is not reliable ({causes}).")
        found.append(f"To find it, close other programs and run: {longer(run.header.command)}")
    by_size = {probe.size: probe for probe in probes}
    best, answer = (by_size.get(size or 0) for size in (fitted.efficient, fitted.largest))
    if best and best.rate:
        share = best.rate / max(probe.rate or 0.0 for probe in fitting)
        reached = "the highest rate" if share == 1 else f"{share:.0%} of the highest rate"
        rate = units.rate(best.rate, fitted.unit)
        found.append(f"Most efficient: {name} {best.size}, {rate}, {reached}, in {counted(best.tries, 'process')}.")
    if model:
        fixed = "-" * (model.fixed < 0) + units.size(abs(model.fixed))
        found.append(f"Memory = {fixed} + {units.size(model.per_item)} x {name} (within {units.percent(model.error)}).")
    tries, peaks = (answer.tries, answer.peaks) if answer else (1, ())
    often = f"; {name} {fitted.largest} fitted in {tries} of {tries}" if tries > 1 else ""
    count, spent = counted(len(probes), "size"), units.duration(fitted.duration_s)
    found.append(f"{count} in {spent}, each in a process of its own{often}.")
    if fitted.bound == "memory" and answer and tries < search.TRIES:
        found.append(f"It should have been tried {search.TRIES} times: raise --budget or --timeout.")
    if len(peaks) > 1 and max(peaks) > _VARYING * min(peaks):
        spread = f"{units.size(min(peaks))} to {units.size(max(peaks))}"
        found.append(f"The same size took {spread}: memory layout varies by chance. Leave some room.")
    return found + ([_BOUNDS[fitted.bound]] if fitted.bound in _BOUNDS else [])


def _largest(fitted: Fitting, probes: Sequence[Probe], model: MemoryModel | None) -> str:
    name, limit = fitted.parameter, units.memory_limit(fitted.limit_bytes)
    largest, by_memory = fitted.largest or 0, fitted.bound == "memory"
    if fitted.largest is None:
        smallest = min((probe.size for probe in probes), default=1)
        if fitted.bound in _FAILED:
            return f"{name.capitalize()} {smallest} {_FAILED[fitted.bound]}, so nothing is known."
        if not by_memory:
            return "Nothing is known: it ended before any size had fitted."
        return f"Not even {name} {smallest} fits into {limit}."
    # If memory ended the search, crashes above the largest were for lack of it, too.
    above = [each for each in probes if not each.fits and each.size > largest]
    lost = [each.size for each in above if by_memory or each.result.status in NO_ROOM]
    beyond = f"; {min(lost)} does not" if lost else ""
    if by_memory:
        return f"{name.capitalize()} {largest} is the largest that fits into {limit}{beyond}."
    larger = "" if fitted.bound in ("parameter", *_FAILED) else ", and larger ones may"
    about = int(float(f"{model.size_for(fitted.limit_bytes):.2g}")) if larger and model else 0
    larger += f": by what it takes, up to about {about}" if largest < about < min(lost, default=math.inf) else ""
    return f"{name.capitalize()} {largest} fits into {limit}{larger}{beyond}."
