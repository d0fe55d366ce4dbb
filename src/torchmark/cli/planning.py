"""From the options of `torchmark run` to a plan: which cases, on which devices, for how long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmark.cli.beginning import look
from torchmark.cli.output import confirm
from torchmark.errors import UsageError
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.messages import Rendezvous
from torchmark.measure.session import Plan, results_so_far
from torchmark.measure.suites import suite
from torchmark.records import Case, Machine, Result, Rigor, Run, RunHeader, parse_case
from torchmark.report.units import duration
from torchmark.store import find_origin, new_header
from torchmark.workloads import find_workload
from torchmark.workloads.own.files import find_file, split_name

# Quick means five minutes by the clock: looking at the machine and what the last case does after its steps come on top.
SUITE_BUDGETS = {"quick": 275.0, "standard": 1800.0, "full": 6 * 3600.0}
TARGET = 0.03  # of ±, which runs of one machine hardly ever bring below that
CASE_BUDGETS: dict[Rigor, float] = {"quick": 5.0, "default": 15.0, "rigorous": 60.0}


def check_options(options: dict[str, Any]) -> list[str]:
    """Tell mistakes before anything slow is done; returns the devices that are named, none where all are meant."""
    written_out = options["workloads"] and all("@" in name for name in options["workloads"])
    wanted = [name for text in options["devices"] for name in text.split(",") if name]
    if written_out and not wanted:
        wanted = sorted({case.device for case in expand(Sweep(options["workloads"]))})
    cases = _expand(options, wanted or ["cpu"])
    find_rendezvous(cases, options)
    if options["sustain_s"] and (options["steps"] or options["budget_s"]):
        raise UsageError("--sustain says how long every case is kept going", "Leave --steps and --budget out")
    if options["watch"] and wanted and len(cases) != 1:
        raise UsageError(f"--watch shows one case, not {len(cases)}", "Name one case, such as " + cases[0].text)
    return wanted


def find_cases(options: dict[str, Any], wanted: Sequence[str]) -> tuple[tuple[Case, ...], Machine]:
    """What to measure, and the machine with the devices that takes."""
    machine = look(wanted or None, _expand(options, wanted or ["cpu"]))
    return _expand(options, [device.name for device in machine.devices]), machine


def _expand(options: dict[str, Any], devices: Sequence[str]) -> tuple[Case, ...]:
    chosen = {
        "devices": devices,
        "modes": options["modes"],
        "params": _params(options["params"]),
        "dtypes": options["dtypes"] or ["float32"],
        "compile": options["compile_"] or ["off"],
        "transfer": options["transfer"] or ["resident"],
        "threads": options["threads"],
        "workers": options["workers"],
        "ways": _params(options["ways"]),
        "nodes": options["nodes"],
        "tiny": options["tiny"],
    }
    if options["workloads"]:
        if options["suite_name"]:
            raise UsageError("a suite and workloads were both named", "Name one or the other")
        return expand(Sweep(options["workloads"], **chosen))
    names = ("mode", "param", "dtype", "compile", "transfer", "threads", "workers", "way")
    axes = [f"--{name}" for name in names if _given(options, name)]
    if axes:
        raise UsageError(f"{axes[0]} needs a workload", "Name one: `torchmark list` shows them")
    return suite(options["suite_name"] or "quick", devices, tiny=options["tiny"])


def _given(options: dict[str, Any], name: str) -> bool:
    plural = {"mode": "modes", "param": "params", "dtype": "dtypes", "compile": "compile_", "way": "ways"}
    return bool(options[plural.get(name, name)])


def _params(texts: Sequence[str]) -> dict[str, list[str]]:
    params: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(f"'{text}' is not a parameter", "Write KEY=VALUE, as in -p batch=16,64")
        params.setdefault(key, []).append(value)
    return params


def make_plan(cases: tuple[Case, ...], options: dict[str, Any]) -> Plan:
    budget, sustain_s = options["budget_s"] or _usual_budget(cases, options), options["sustain_s"]
    return Plan(
        cases=cases,
        rigor=options["rigor"],
        budget_s=budget,
        timeout_s=options["timeout_s"] + (sustain_s or 0.0),
        target=options["target"] or TARGET,
        steps=options["steps"],
        sustain_s=sustain_s,
        seed=options["seed"],
        data=options["data"],
        guarded=not options["workloads"] and not options.get("tiny"),
        rendezvous=find_rendezvous(cases, options),
    )


def find_rendezvous(cases: tuple[Case, ...], options: dict[str, Any]) -> Rendezvous | None:
    """Where the nodes meet, if there are several; every case must have as many workers on each of them."""
    nodes, endpoint = options["nodes"], options["rendezvous"]
    if (nodes > 1) != bool(endpoint):
        raise UsageError("--nodes and --rendezvous belong together", "Say how many machines meet, and where: HOST:PORT")
    if not endpoint:
        return None
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):[1-9]\d{0,4}", endpoint):
        raise UsageError(f"'{endpoint}' is no place to meet", "Write HOST:PORT, as in node0:29400")
    for case in cases:
        if case.workers % nodes:
            raise UsageError(
                f"{case.text} cannot be shared out among {nodes} nodes", "--workers counts those of all nodes together"
            )
    return Rendezvous(endpoint, nodes)


def _usual_budget(cases: tuple[Case, ...], options: dict[str, Any]) -> float:
    if options["sustain_s"]:
        return (float(options["sustain_s"]) + CASE_BUDGETS["default"]) * len(cases)  # preparing comes on top
    if options["steps"]:
        return float(options["timeout_s"]) * len(cases)  # what was asked for is done, however long it takes
    if options["workloads"]:
        return CASE_BUDGETS[options["rigor"]] * len(cases)
    return SUITE_BUDGETS[options["suite_name"] or "quick"]


def describe_plan(plan: Plan) -> str:
    lines = [case.text for case in plan.cases]
    least = "at least " if plan.processes > 1 else ""
    processes = f"{least}{plan.processes} process{'es' if plan.processes > 1 else ''} each"
    limit = (
        f"{plan.steps} steps each"
        if plan.steps
        else f"kept going for {duration(plan.sustain_s)} each"
        if plan.sustain_s
        else f"at most {duration(plan.budget_s)} in all"
    )
    return "\n".join([*lines, "", f"{len(lines)} case{'s' if len(lines) > 1 else ''}, {processes}, {limit}"])


def make_header(plan: Plan, machine: Machine, label: str | None) -> RunHeader:
    texts = tuple(case.text for case in plan.cases)
    exact = f"--steps {plan.steps}" if plan.steps else f"--budget {plan.budget_s:g}s --target {plan.target:g}"
    exact = f"--sustain {plan.sustain_s:g}s" if plan.sustain_s else exact
    nodes = f" --nodes {plan.rendezvous.nodes} --rendezvous HOST:PORT" if plan.rendezvous else ""  # never a real name
    return new_header(
        f"torchmark run {' '.join(texts)} --rigor {plan.rigor} {exact} --seed {plan.seed}{nodes}",
        machine,
        texts,
        label=label,
        rigor=plan.rigor,
        processes=plan.processes,
        budget_s=plan.budget_s,
        target=plan.target,
        steps=plan.steps,
        sustain_s=plan.sustain_s,
        guarded=plan.guarded,
        seed=plan.seed,
    )


def plan_rest(run: Run, path: Path, options: dict[str, Any]) -> tuple[Plan, dict[str, Any]] | None:
    """What a run that was stopped still lacks, and what it has; None where it is complete and no more is asked for."""
    header = run.header
    _check_files(header, path, options["workloads"])
    if run.ended and options["budget_s"] is None:
        return None
    cases = expand(Sweep(header.cases))
    done = results_so_far(run)
    # A case that failed is done: another process would fail alike.
    due = [text for text in header.cases if all(result.status == "ok" for result in done.get(text, []))]
    _check_same_work(done)
    missing = sum(max(header.processes - len(done.get(text, [])), 0) for text in due)
    if (missing or run.ended) and not options["dry_run"]:
        _check_same_machine(header)
    share = missing / max(header.processes * len(cases), 1)
    plan = Plan(
        cases=cases,
        rigor=header.rigor,
        budget_s=options["budget_s"] or max((header.budget_s or 0.0) * share, 1.0),
        timeout_s=options["timeout_s"] + (header.sustain_s or 0.0),
        target=header.target,
        steps=header.steps,
        sustain_s=header.sustain_s,
        seed=header.seed,
        data=options["data"],
        guarded=header.guarded,
        rendezvous=find_rendezvous(cases, options),
        more=run.ended,
    )
    return plan, done


def check_resumable(options: dict[str, Any]) -> None:
    """A run that goes on keeps what it was started with."""
    fixed = ["suite_name", "devices", "modes", "params", "dtypes", "compile_", "transfer", "threads", "workers", "ways"]
    given = [name for name in (*fixed, "steps", "sustain_s", "label", "out", "watch", "tiny") if options[name]]
    if given or not all(map(split_name, options["workloads"])):
        raise UsageError(
            "--resume goes on with the cases and settings of that run, which cannot be changed",
            "Leave everything but --budget and --timeout out, or start a new run without --resume",
        )


def _check_files(header: RunHeader, path: Path, named: Sequence[str]) -> None:
    """Load a model file only if this user started the run with it, names it again, or agrees."""
    known = {find_file(own[0]).name for name in named if (own := split_name(name))}  # cases find it from now on
    origin = find_origin(header.id)
    for name in _model_files([*map(parse_case, header.cases)]):
        if name not in known and name in origin:
            known.add(find_file(str(origin[name])).name)
    missing = [name for name in _model_files([*map(parse_case, header.cases)]) if name not in known]
    if missing and not confirm(f"This run measures {', '.join(str(Path(name).absolute()) for name in missing)}."):
        raise UsageError(
            f"this run measures {', '.join(missing)}, and nothing is run because a run file names it",
            f"If you trust it, name it again: torchmark run {' '.join(missing)} --resume {path}",
        )


def _model_files(cases: Sequence[Case]) -> list[str]:
    """Files of models and losses that the cases name."""
    found = [own[0] for case in cases if (own := split_name(case.workload))]
    losses = [re.match(r"(.+\.py)\.\w+\.[0-9a-f]{8}$", str(case.params.get("loss", ""))) for case in cases]
    return list(dict.fromkeys([*found, *(loss[1] for loss in losses if loss)]))


def _check_same_work(done: dict[str, list[Result]]) -> None:
    """What is measured now must be what was measured then: a workload, or a file of the user's, may have changed."""
    for text, results in done.items():
        now = find_workload(results[0].case.workload).version
        if any(result.version != now for result in results):
            raise UsageError(
                f"the work of {text} has changed since: its version was {results[0].version} and is {now}",
                "Start a new run without --resume",
            )


def _check_same_machine(header: RunHeader) -> None:
    """Folders of runs are shared between machines; figures of two of them must not end up in one file."""
    here = look([device.name for device in header.machine.devices], map(parse_case, header.cases))
    names = [name for name in Machine.__struct_fields__ if name not in ("power_mode", "on_battery")]
    changed = [name for name in names if getattr(here, name) != getattr(header.machine, name)]
    if changed:
        was, now = (getattr(machine, changed[0]) for machine in (header.machine, here))
        raise UsageError(
            f"this run was begun on another machine: its {changed[0]} was {was} and is {now} here",
            "Start a new run without --resume",
        )
