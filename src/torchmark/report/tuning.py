"""What a search for the fastest settings has found: the winner, its gain, what each setting brought, code to paste."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from torchmark.analyze.pairing import USUAL, differing, name_of, same_precision, setting
from torchmark.analyze.search import WIDEST, Tuned, recall_tuned, step_scaled
from torchmark.records import Case, Result, Run
from torchmark.report import document as doc
from torchmark.report import figures, units
from torchmark.report.names import longer, machine_line
from torchmark.report.results import failures, run_object

_CSV = (
    "case",
    "status",
    "reason",
    "step_s",
    "items_per_s",
    "gain_in_rounds",
    "winner",
    "same_precision",
    "gain",
    "low",
    "high",
)
_STOPPED = {
    "budget": "The budget was spent before everything was tried: give it more with --budget.",
    "interrupted": "It was interrupted.",
}
_STOPPED_EARLY = {"interrupted": "it was interrupted", "budget": "the budget was spent"}
UNDECIDED = 1.25  # times as fast: where no less than this is possible, the advice must not be to keep the default
_VARIABLES = {"isa": "ONEDNN_MAX_CPU_ISA", "bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)


def tuning_document(run: Run, tuned: Tuned) -> doc.Document:
    """The outcome of a search."""
    run = replace(run, tuning=tuned.conclusion, results=tuned.results)
    records = doc.Records(
        _CSV,
        lambda: [_csv_row(tuned, result) for result in tuned.results],
        lambda: run_object(run) | {"tuned": _facts(tuned)},
        lambda: [_facts(tuned)],
    )
    return doc.Document(lambda: _blocks(run, tuned), records)


def stored_document(run: Run) -> doc.Document:
    """The outcome of a search, from what its run keeps of it."""
    return tuning_document(run, recall_tuned(run))


def answer(tuned: Tuned) -> str:
    """The answer in one sentence."""
    leader = tuned.unconfirmed or tuned.winner
    if leader.text == tuned.default.text and tuned.stopped != "done" and not tuned.relative:
        return f"Inconclusive: {_STOPPED_EARLY[tuned.stopped]} before any settings were compared."
    if leader.text == tuned.default.text:
        return "Nothing that was tried is faster than the default beyond chance."
    name = name_of(leader, tuned.default)
    if tuned.gain is None or tuned.low is None or tuned.high is None:
        return f"Inconclusive: {name} led the search, but that is not confirmed: {_why_unconfirmed(tuned)}."
    if tuned.unconfirmed and tuned.high > WIDEST * tuned.low:
        return f"Inconclusive: {name} led the search, but pairs of fresh processes differ too much to confirm it."
    known = f"{units.factor(tuned.gain)} as fast as the default ({units.bound(tuned.low)} to {units.bound(tuned.high)})"
    if tuned.unconfirmed and tuned.high > UNDECIDED:
        return f"Inconclusive: {name} led the search, but measured again it is {known}."
    if tuned.unconfirmed:
        return f"Stay with the default: {name} led the search, but measured again it is {known}."
    return f"{name} is {known}."


def _why_unconfirmed(tuned: Tuned) -> str:
    if tuned.disturbed:
        return f"other programs disturbed {tuned.disturbed} of {tuned.disturbed + tuned.pairs} pairs of processes"
    return _STOPPED_EARLY.get(tuned.stopped, "its processes failed when they were started again")


def notes(tuned: Tuned, command: str) -> list[str]:
    """What the answer rests on, what is missing, and what else is worth knowing, a sentence each."""
    found = []
    if tuned.gain is not None:
        found.append(f"95% interval over {tuned.pairs} pairs of fresh processes that took turns, after the search.")
    if tuned.unconfirmed and (tuned.gain is None or (tuned.high or 0.0) > UNDECIDED):
        found.append(f"To find out, close other programs and run: {longer(command)}")
    same, gain = tuned.same_precision, tuned.same_precision_gain
    if same.text != tuned.winner.text:
        best = "the default itself" if same.text == tuned.default.text else name_of(same, tuned.default)
        seen = f", {units.factor(gain)} as fast by the search" if gain and same.text != tuned.default.text else ""
        found.append(f"Best in {tuned.default.dtype}: {best}{seen}.")
    found += _peak_note(tuned)
    if tuned.break_even:
        even = tuned.break_even
        steps = f"{math.ceil(even.steps):,}".replace(",", " ")
        found.append(
            f"Compiling takes {units.duration(even.compiling_s)}, saves {units.duration(even.saved_s)} a step: "
            f"pays off after {steps} steps."
        )
    count = len(tuned.results)
    found.append(f"{count} configuration{'s' if count != 1 else ''} in {units.duration(tuned.duration_s)}.")
    return found + ([_STOPPED[tuned.stopped]] if tuned.stopped in _STOPPED else [])


def _peak_note(tuned: Tuned) -> list[str]:
    """How much of what the machine can do was used, where that is known of both."""
    shares = {result.case.text: result.peak.share for result in tuned.results if result.peak}
    before, after = (shares.get(case.text) for case in (tuned.default, tuned.winner))
    if before is None or after is None or tuned.winner.text == tuned.default.text:
        return []
    own = "" if same_precision(tuned.winner, tuned.default) else ", each of the peak of its own number format"
    return [
        f"Of this machine's peak it uses {units.percent(after)}, where the default uses {units.percent(before)}{own}."
    ]


def conclusion(run: Run) -> list[str]:
    """The answer and what belongs to it, as the command, `show` and the page all say it."""
    tuned = recall_tuned(run)
    return [answer(tuned), *notes(tuned, run.header.command)]


def _blocks(run: Run, tuned: Tuned) -> Iterator[doc.Block]:
    said, *more = conclusion(run)
    look = "good" if tuned.winner.text != tuned.default.text else "strong"
    yield doc.Title(f"tuned {tuned.default.text}", [machine_line(run.header.machine)])
    yield doc.Lines([doc.Cell(said, look), *(doc.Cell(note, "quiet") for note in more)])
    if len(tuned.contributions) > 1:
        brought = [(each.setting, units.factor(each.gain)) for each in tuned.contributions]
        columns = [doc.Column("setting"), doc.Column("brought", "figure")]
        yield doc.Section("What each setting brought", [doc.Table(columns, brought)])
    figured = (("per step", 0), ("rate", 1), ("as fast", 0))
    columns = [
        doc.Column("settings"),
        *(doc.Column(title, "figure", drop) for title, drop in figured),
        doc.Column("note"),
    ]
    yield doc.Section("What was tried, the fastest first", [doc.Table(columns, _rows(tuned))])
    lost = failures(tuned.results, lambda result: name_of(result.case, tuned.default))
    yield from [doc.Section("Without a figure", [lost])] if lost.remarks else []
    code = snippet(tuned.default, tuned.winner)
    if code:
        yield doc.Section("To paste into a script that has a `model`", [doc.Code(code, "python")])
    yield doc.Lines([doc.Cell("Again:", "quiet")])
    yield doc.Code(f"torchmark run {tuned.winner.text}")  # in one piece, however long: it is to be pasted


def _measured(tuned: Tuned) -> list[Result]:
    """Fastest first, by what the rounds say: those disturb all contestants alike."""
    found = [result for result in tuned.results if result.estimate and result.status == "ok"]
    return sorted(found, key=lambda result: -tuned.relative.get(result.case.text, 0.0))


def _rows(tuned: Tuned) -> list[list[str]]:
    rows = []
    for result in _measured(tuned):
        text, equal = result.case.text, _on_equal_terms(tuned, result)
        assert equal.estimate is not None
        rate = units.rate(figures.step_rate(equal), result.work.unit if result.work else "")
        gain = units.factor(tuned.relative.get(text))
        step = figures.step_time(equal.estimate)
        rows.append([name_of(result.case, tuned.default), step, rate, gain, _mark(tuned, text)])
    return rows


def _mark(tuned: Tuned, text: str) -> str:
    known = {
        tuned.same_precision.text: f"best in {tuned.default.dtype}",
        tuned.winner.text: "fastest",
        tuned.default.text: "default",
    }
    if tuned.unconfirmed:
        known[tuned.unconfirmed.text] = "not confirmed"
    seen = tuned.relative
    return known.get(text) or ("within chance" if seen.get(text, 0.0) > seen.get(tuned.winner.text, math.inf) else "")


def _on_equal_terms(tuned: Tuned, result: Result) -> Result:
    """With the time that belongs to its gain."""
    gain = tuned.relative.get(result.case.text)
    default = next((each for each in tuned.results if each.case.text == tuned.default.text), None)
    if not gain or not result.estimate or not default or not default.estimate:
        return result
    return replace(result, estimate=replace(result.estimate, center_s=step_scaled(default, result, gain)))


def _facts(tuned: Tuned) -> dict[str, object]:
    """Everything but the results, which are in the run; cases as text."""
    facts: dict[str, object] = {
        name: msgspec.to_builtins(getattr(tuned, name)) for name in Tuned.__struct_fields__ if name != "results"
    }
    for name in ("default", "winner", "same_precision"):
        facts[name] = getattr(tuned, name).text
    facts["unconfirmed"] = tuned.unconfirmed.text if tuned.unconfirmed else None
    return facts | {"snippet": snippet(tuned.default, tuned.winner)}


def _csv_row(tuned: Tuned, result: Result) -> list[doc.CsvValue]:
    text, is_winner = result.case.text, result.case.text == tuned.winner.text
    equal = _on_equal_terms(tuned, result)
    cells: dict[str, doc.CsvValue] = {
        "case": text,
        "status": result.status,
        "reason": result.reason,
        "step_s": equal.estimate.center_s if equal.estimate else None,
        "items_per_s": figures.step_rate(equal),
        "gain_in_rounds": tuned.relative.get(text),
        "winner": str(is_winner).lower(),
        "same_precision": str(text == tuned.same_precision.text).lower(),
        "gain": tuned.gain if is_winner else None,
        "low": tuned.low if is_winner else None,
        "high": tuned.high if is_winner else None,
    }
    return [cells[name] for name in _CSV]


def snippet(default: Case, winner: Case) -> str:
    """A piece of a script that has a `model`; `ready` is for each of its inputs. Empty where nothing has to change.

    Its lines are short enough for any terminal: one that is folded is not Python any more. And a case may come from a
    stranger's file: what is no plain word makes no code.
    """
    changes = {name: str(setting(winner, name)) for name in differing(default, winner)}
    if not all(_PLAIN.fullmatch(text) for pair in changes.items() for text in pair):
        return ""
    lines = [*_before_torch(changes), "import torch", "", *_process(changes), *_model(changes, winner)]
    return "\n".join([*lines, *_inputs(changes), *_use(default, winner)]).rstrip() + "\n" if changes else ""


def _before_torch(changes: dict[str, str]) -> Iterator[str]:
    variables = {variable: changes[name] for name, variable in _VARIABLES.items() if changes.get(name, USUAL) != USUAL}
    variables = {variable: value.upper().replace("-", "_") for variable, value in variables.items()}
    if "OMP_PROC_BIND" in variables:
        variables["OMP_PLACES"] = "cores"
    if variables:
        yield "import os"
        yield ""
        yield "# Before torch is imported for the first time."
        yield from (f'os.environ["{name}"] = "{value}"' for name, value in variables.items())


def _process(changes: dict[str, str]) -> Iterator[str]:
    if "threads" in changes:
        yield f"torch.set_num_threads({changes['threads']})"
    if "matmul" in changes:
        how = "highest" if changes["matmul"] == USUAL else changes["matmul"]
        yield f'torch.set_float32_matmul_precision("{how}")'
        yield f"torch.backends.cudnn.allow_tf32 = {how != 'highest'}"


def _model(changes: dict[str, str], winner: Case) -> Iterator[str]:
    if "attention" in changes:
        how = "sdpa" if changes["attention"] == USUAL else changes["attention"]
        yield f'# Build the model with attn_implementation="{how}".'
    if "dtype" in changes:
        if winner.mode == "train":
            yield "# Weights and their updates are in short numbers too: watch the loss."
        yield f"model = model.to(torch.{winner.dtype})"
    if "layout" in changes:
        yield f"model = model.to(memory_format=torch.{_layout(changes)})"
    if "compile" in changes and winner.compile != "off":
        mode = "" if winner.compile == "on" else f', mode="{winner.compile}"'
        yield f"model = torch.compile(model{mode})"
    for name in sorted(winner.params):
        if name in changes:
            yield f"# {name} = {changes[name]}"


def _layout(changes: dict[str, str]) -> str:
    return "contiguous_format" if changes["layout"] == USUAL else changes["layout"].replace("-", "_")


def _inputs(changes: dict[str, str]) -> Iterator[str]:
    steps = []
    if "dtype" in changes:
        steps.append("    if tensor.is_floating_point():")
        steps.append(f"        tensor = tensor.to(torch.{changes['dtype']})")
    if "layout" in changes:
        steps.append("    if tensor.ndim == 4:")
        steps.append(f"        tensor = tensor.contiguous(memory_format=torch.{_layout(changes)})")
    if "transfer" in changes:
        steps.append("    # Pin it once, in the loader.")
        steps.append("    tensor = tensor.pin_memory().to(DEVICE, non_blocking=True)")
    if steps:
        yield from ("", "", "def ready(tensor):", '    """Call it on every input."""', *steps, "    return tensor")


def _use(default: Case, winner: Case) -> Iterator[str]:
    before, after = setting(default, "gradients"), setting(winner, "gradients")
    if winner.mode != "train" and before != after:
        # What is usual differs between workloads, but there are only two ways.
        how = "inference_mode" if after == "inference-mode" or before == "no-grad" else "no_grad"
        yield from ("", "", f"# Around every call of the model: with torch.{how}():")
