"""`torchmark list` and `new`: workloads with their parameters, publications, and starters for own models."""

import keyword
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from torchmark import publications, workloads
from torchmark.cli.options import ListingOptions, Options, argument, command, flag, option
from torchmark.cli.output import emit, print_report
from torchmark.errors import UsageError
from torchmark.measure.cases import Parameter, list_parameters
from torchmark.publications import Publication
from torchmark.records import Work
from torchmark.report import units
from torchmark.report.document import Block, Cell, Code, Column, Document, Facts, Lines, Records, Section, Table, Title
from torchmark.report.text import clean
from torchmark.store.files import os_errors, write_whole
from torchmark.workloads.contract import Setting, Workload


class ListOptions(ListingOptions):
    name: str | None = argument(metavar="[NAME]", required=False)
    publications: bool = flag("List the publications with published figures instead.")


@command(ListOptions)
def list_command(options: ListOptions) -> None:
    """List the workloads, or show everything about one: parameters, work of a step, commands to try.

    With --publications: the publications with the number of their figures, or everything about one.

    Examples:
      torchmark list mlp
      torchmark list my_model.py
      torchmark list --publications m1-chips
    """
    print_report((_publications if options.publications else _workloads)(options.name), options.format)


def _workloads(name: str | None) -> Document:
    chosen = [workloads.find_workload(each) for each in ([name] if name else workloads.names())]
    broken = {} if name else workloads.broken()

    def facts(workload: Workload) -> dict[str, Any]:
        known = {name: getattr(workload, name) for name in ("name", "version", "modes", "dtypes", "options")}
        return known | {"summary": workload.summary(), "parameters": list_parameters(workload), "work": _work(workload)}

    def everything() -> Iterator[Block]:
        about = {each.name: each.summary().partition(":")[0].rstrip(".") for each in chosen}
        rows = [(each.name, ", ".join(each.modes), f"v{each.version}", about[each.name]) for each in chosen]
        rows += [(name, "broken", "", reason) for name, reason in broken.items()]
        yield Table([*map(_name, ("workload", "modes", "version")), Column("work")], rows, rule=False)
        example = next(each.name for each in chosen if each.name != "null")
        yield Code(f"torchmark list {example}    parameters, work of a step, commands to try")

    blocks = partial(_workload, chosen[0]) if name else everything
    return Document(blocks, Records(json=lambda: {"workloads": [*map(facts, chosen)], "broken": broken}))


def _work(workload: Workload) -> dict[str, Work | None]:
    return {mode: workload.work(workload.params(), Setting(mode=mode)) for mode in workload.modes}


def _workload(workload: Workload) -> Iterator[Block]:
    about = " ".join((workload.__doc__ or "").split())
    yield Title(f"{workload.name}, version {workload.version}: {workload.summary()}", [about])
    options = [("option", f"{each.name}={', '.join(each.values)}") for each in workload.options]
    yield Facts([("modes", ", ".join(workload.modes)), ("dtypes", ", ".join(workload.dtypes)), *options])
    parameters, typed = list_parameters(workload), {"True": "on", "False": "off"}
    rows = [(each.name, typed.get(str(each.default), str(each.default)), each.takes) for each in parameters]
    columns = _name("parameter"), _name("default"), Column("takes")
    yield Table(columns, rows, rule=False) if rows else Lines(["It has no parameters."])
    work = Facts([(mode, _amount(each)) for mode, each in _work(workload).items()])
    yield Section("One step, at the defaults in float32", [work])
    yield Section("Try", [Code("\n".join(f"torchmark run {each}" for each in _examples(workload, parameters)))])


def _amount(work: Work | None) -> str:
    if work is None:
        return "known once it is prepared"
    if work.items == 0:
        return "no work at all"
    count = f"{work.items:g} {work.unit}{'' if work.items == 1 else 's'}"
    amounts = count, units.arithmetic(work.flops).removesuffix("/s"), units.size(work.bytes)
    return ", ".join(text for text in amounts if text != units.NOTHING)


def _examples(workload: Workload, parameters: Sequence[Parameter]) -> Iterator[str]:
    name = workload.name
    yield name
    if len(workload.modes) > 1:
        yield f"{name} --mode {','.join(workload.modes)}"
    yield from (f"{name} -p {each.name}={','.join(each.choices)}" for each in parameters if each.choices)
    numbers = [(each.name, each.default) for each in parameters if type(each.default) is int and each.default > 0]
    for size, default in numbers[:1]:
        yield f"{name} -p {size}={max(1, default // 8)}..{default}x2"
        yield f"{name}/{workload.modes[0]}:{size}={max(1, default // 2)}@cpu/float32"


def _publications(name: str | None) -> Document:
    found = [publications.find_publication(each) for each in ([name] if name else publications.names())]
    total = _count(*found)

    def facts(publication: Publication) -> dict[str, Any]:
        known = msgspec.to_builtins(publication) | {"counts": _count(publication)}
        return {key: value for key, value in known.items() if name or key not in ("tables", "notes")}

    def everything() -> Iterator[Block]:
        counts = {each.name: _count(each) for each in found} | {"all": total}
        rows = [(name, *(str(count or "-") for count in each.values())) for name, each in counts.items()]
        yield Table([_name("publication"), *(Column(title, "figure") for title in total)], rows, rule=False)
        for each in found:
            machines = Lines([", ".join(machine.name for machine in each.machines)])
            yield Section(f"{each.name}: {_title(each)}", [machines])
        example = found[0].name
        commands = {f"list --publications {example}": "every figure as printed", f"show {example}": "the same per step"}
        yield Code("\n".join(f"torchmark {name:40}{about}" for name, about in commands.items()))

    blocks = partial(_publication, found[0]) if name else everything
    return Document(blocks, Records(json=lambda: {"publications": [*map(facts, found)], "counts": total}))


def _count(*found: Publication) -> dict[str, int]:
    kinds = Counter(figure.kind for each in found for figure in each.figures)
    counts = {"measured": kinds["measured"], "powers": kinds["power"], "speedups": kinds["derived"]}
    return counts | {"machines": sum(len(each.machines) for each in found)}


def _name(title: str) -> Column:
    return Column(title, "name")


def _title(publication: Publication) -> str:
    return publication.title + (f" ({publication.year})" if publication.year else "")


def _publication(publication: Publication) -> Iterator[Block]:
    yield Title(f"{publication.name}: {_title(publication)}", [f"{publication.source}. {publication.about}"])
    yield Lines([", ".join(f"{count} {title}" for title, count in _count(publication).items() if count)])
    machines = []
    for each in publication.machines:
        parts = each.hardware, each.cores and f"{each.cores} cores", each.memory_gib and f"{each.memory_gib} GB"
        machines.append([each.name, each.device, ", ".join(part for part in parts if part)])
    yield Table([_name("machine"), _name("device"), Column("hardware")], machines, headings=False)
    for table in publication.tables:  # each in its own shape: a line for each row, a column for each heading
        columns = list(dict.fromkeys(figure.column for figure in table.figures))
        cells: dict[tuple[str, ...], dict[str, str]] = {}
        for figure in table.figures:
            cells.setdefault(figure.labels, {})[figure.column] = figure.printed
        rows = [[*labels, *(row.get(column, "") for column in columns)] for labels, row in cells.items()]
        titles = [*(Column(header) for header in table.headers), *(Column(title, "value") for title in columns)]
        yield Section(table.title, [Lines([Cell(table.protocol, "quiet")]), Table(titles, rows)])
    commands = f"torchmark show {publication.name}\ntorchmark replicate {publication.name} --scale 0.01"
    yield Section("Try", [Code(commands)])


class NewOptions(Options):
    name: str = argument()
    workload: bool = flag("A Workload, which also says what its work is worth.")
    out: str | None = option("Where to write it; - for stdout; default: NAME.py.", "-o", "--out", metavar="FILE")


@command(NewOptions)
def new(options: NewOptions) -> None:
    """Write a commented starter file for a model of your own.

    It runs as it is: `torchmark run my_model.py`, `pytest my_model.py`. Replace the model in it with yours.

    Examples:
      torchmark new my-model                my_model.py, with a model to replace
      torchmark new my-model --out -        show it, write nothing
      torchmark new my-kernel --workload    with full control
    """
    stem = options.name.removesuffix(".py").replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", stem, re.ASCII):
        fix = "Use letters, digits and dashes, as in my-model"
        raise UsageError(f"'{options.name}' is not a name for a Python file", fix)
    starter = files("torchmark.cli") / "starters" / ("workload.txt" if options.workload else "model.txt")
    text = starter.read_text("utf-8")
    if options.out == "-":
        emit(text.replace("my_model", stem))
        return
    path = Path(options.out or f"{stem}.py")
    kind = "keyword" if keyword.iskeyword(path.stem) else "module"
    try:
        is_taken = kind == "keyword" or find_spec(path.stem) is not None
    except ValueError:  # of a module without a spec, such as __main__
        is_taken = True
    if is_taken and not path.exists():
        raise UsageError(f"'{path.stem}' is already a Python {kind}", "Choose another name")
    with os_errors("write", path, "Choose another place with -o"):
        try:
            write_whole(path, [text.replace("my_model", path.stem).encode()], replace=False)
        except FileExistsError as error:
            raise UsageError(f"{path} already exists", "Choose another name") from error
    name = clean(str(path))
    emit(f"Wrote {name}. Try it:\n  torchmark run {name}\n  torchmark list {name}\n  pytest {name}")
