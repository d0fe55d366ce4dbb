"""The command `torchmark list`: the workloads, what can be set about each of them, and the publications."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torchmark.workloads.contract import Workload

_WIDTH = 80


_EPILOG = """\b
Examples:
  torchmark list
  torchmark list mlp
  torchmark list my_model.py
  torchmark list --publications
  torchmark list --publications m1-chips
"""


@click.command("list", epilog=_EPILOG)
@click.argument("workload", metavar="[NAME]", required=False)
@click.option("--publications", "published", is_flag=True, help="The publications whose figures are here instead.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(workload: str | None, published: bool, form: str) -> None:
    """List the workloads, or show everything about one: parameters, work of a step, commands to try.

    With --publications: the publications with the number of their figures, or everything about one.
    """
    from torchmark import workloads
    from torchmark.cli.output import emit
    from torchmark.report.json import pretty

    if published:
        from torchmark.cli.list_publications import describe_publications

        emit(describe_publications(workload, form))
        return
    chosen = [workloads.find_workload(name) for name in ([workload] if workload else workloads.names())]
    if form == "json":
        facts = [_facts(each) for each in chosen]
        emit(pretty({"workloads": facts, "broken": {} if workload else workloads.broken()}))
    elif workload:
        emit(_page(chosen[0]))
    else:
        emit(_overview(chosen, workloads.broken()))


def _overview(workloads: list[Workload], broken: dict[str, str]) -> str:
    wide = max(len(each.name) for each in workloads)
    modes = max(len(", ".join(each.modes)) for each in workloads)
    lines = [
        _hang(f"{each.name:{wide}}  {', '.join(each.modes):{modes}}  v{each.version}  ", _gist(each))
        for each in workloads
    ]
    lines += [_hang(f"{name:{wide}}  broken: ", reason) for name, reason in broken.items()]
    example = next(each.name for each in workloads if each.name != "null")
    return "\n".join([*lines, "", f"torchmark list {example}    parameters, work of a step, commands to try"])


def _page(workload: Workload) -> str:
    """Everything about one workload."""
    facts = _facts(workload)
    about = " ".join((workload.__doc__ or "").split())
    return "\n".join(
        [
            fill(f"{workload.name}, version {workload.version}: {workload.summary()}", _WIDTH),
            fill(about, _WIDTH),
            "",
            f"modes   {', '.join(workload.modes)}",
            f"dtypes  {', '.join(workload.dtypes)}",
            *(_hang("ways    ", f"{way.name}={', '.join(way.values)}") for way in workload.ways),
            "",
            *_parameter_lines(facts["parameters"]),
            "",
            *_work_lines(facts["work"]),
            "",
            *_example_lines(workload, facts["parameters"]),
        ]
    )


def _gist(workload: Workload) -> str:
    """What it is, without what it is good for."""
    return workload.summary().partition(":")[0].rstrip(".")


def _parameter_lines(parameters: list[dict[str, Any]]) -> list[str]:
    if not parameters:
        return ["It has no parameters."]
    rows = [("parameter", "default", "takes")]
    rows += [(each["name"], _shown(each["default"]), each["takes"]) for each in parameters]
    names, defaults = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [_hang(f"{name:{names}}  {default:{defaults}}  ", takes) for name, default, takes in rows]


def _work_lines(work: dict[str, Any]) -> list[str]:
    from torchmark.report import units

    lines = ["one step, at the defaults in float32"]
    for mode, each in work.items():
        if each is None:
            lines.append(f"  {mode}: known once it is prepared")
            continue
        if each["items"] == 0:
            lines.append(f"  {mode}: no work at all")
            continue
        flops = units.arithmetic(each["flops"]).removesuffix("/s")
        known = [text for text in (flops, units.size(each["bytes"])) if text != units.NOTHING]
        count = f"{each['items']:g} {each['unit']}" + ("" if each["items"] == 1 else "s")
        lines.append(f"  {mode}: " + ", ".join([count, *known]))
    return lines


def _example_lines(workload: Workload, parameters: list[dict[str, Any]]) -> list[str]:
    numbers = [each for each in parameters if type(each["default"]) is int and each["default"] > 0]
    lines = ["try", f"  torchmark run {workload.name}"]
    if len(workload.modes) > 1:
        lines.append(f"  torchmark run {workload.name} --mode {','.join(workload.modes)}")
    chosen = [f"{each['name']}={','.join(each['choices'])}" for each in parameters if each["choices"]]
    lines += [f"  torchmark run {workload.name} -p {values}" for values in chosen]
    if numbers:
        name, default = numbers[0]["name"], numbers[0]["default"]
        lines.append(f"  torchmark run {workload.name} -p {name}={max(1, default // 8)}..{default}x2")
        lines.append(f"  torchmark run {workload.name}/{workload.modes[0]}:{name}={max(1, default // 2)}@cpu/float32")
    return lines


def _facts(workload: Workload) -> dict[str, Any]:
    """What is known about a workload without preparing it, as plain values."""
    import msgspec

    from torchmark.measure.parameters import list_parameters
    from torchmark.workloads.contract import Setting

    defaults = workload.params()
    work = {mode: workload.work(defaults, Setting(mode=mode)) for mode in workload.modes}
    facts = {
        "name": workload.name,
        "version": workload.version,
        "summary": workload.summary(),
        "modes": workload.modes,
        "dtypes": workload.dtypes,
        "ways": workload.ways,
        "parameters": list_parameters(workload),
        "work": work,
    }
    plain: dict[str, Any] = msgspec.to_builtins(facts)
    return plain


def _hang(start: str, text: str) -> str:
    """The text after its start, wrapped under itself."""
    return fill(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
