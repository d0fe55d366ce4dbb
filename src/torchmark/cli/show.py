"""`torchmark runs`, `show`, `compare` and `export`: stored runs listed, printed, compared and shared."""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from torchmark.analyze.pairing import join_machines
from torchmark.cli import options as opt
from torchmark.cli.options import argument, command, flag, option
from torchmark.cli.output import emit, headline_of, print_report, say, screen
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED, UnknownName, UsageError
from torchmark.publications import find_publication
from torchmark.records import RunHeader
from torchmark.report import render
from torchmark.report.files import listing_document
from torchmark.report.text import clean, escape_json
from torchmark.store import find_run, home, load_runs, read_header, scan_runs, shareable_lines, write_export
from torchmark.store.files import plain

_RUNS_HELP = "A RUN of any command is an id or its beginning, a label, `last`, `last~1`, a publication, or a file."


@command(opt.FormatOptions, epilog=_RUNS_HELP)
def runs(options: opt.FormatOptions) -> None:
    """List the stored runs, newest first."""
    problems: list[str] = []

    def headers() -> Iterator[RunHeader]:  # one by one: there may be a hundred thousand
        for run in scan_runs():
            problems.extend([run.problem] if run.problem else [])
            if run.header:
                yield run.header

    text = render(listing_document(headers(), problems), options.format, *screen())
    emit(text or f"No runs in {home()}. Measure one with `torchmark run`.")


class ShowOptions(opt.PriceOptions, opt.FormatOptions):
    run: str = argument()
    case: str | None = option("Only cases whose text contains TEXT, in full.", metavar="TEXT")
    details: bool = flag("Every case in full.")
    samples: bool = flag("With the raw samples: drawn in a table, as numbers in json and jsonl.")


@command(ShowOptions)
def show(options: ShowOptions) -> None:
    """Show a stored RUN.

    RUN is a file, `last`, `last~1`, a publication or one of its machines, a label, or the beginning of an id.

    Examples:
      torchmark show last
      torchmark show last~1 --case mlp/train
      torchmark show 3f9c --samples --format json
      torchmark show last --price-per-hour 2.50
      torchmark show 'm1-chips/M1 Ultra GPU'
    """
    from torchmark.report.run import details_document

    is_table = options.format == "table"
    found = load_runs(options.run, samples=options.samples, repeats=options.format == "csv", local=is_table)
    if options.case is not None:  # this case, or else all that contain the text
        known = [result.case.text for run in found for result in run.results]
        wanted = {options.case} & set(known) or {text for text in known if options.case in text}
        if not wanted:
            raise UnknownName("case", options.case, known)
        left = (replace(run, results=tuple(each for each in run.results if each.case.text in wanted)) for run in found)
        found = tuple(run for run in left if run.results)
    if is_table and (options.details or options.samples or options.case is not None):
        print_report(details_document(found, options.prices))
    elif len(found) == 1:
        print_report(found[0], options.format, options.prices, headline_of(found[0], options.run))
    elif options.prices:
        raise UsageError(f"{options.run} has several machines, and a price is that of one", "Name one of them")
    else:
        from torchmark.report.publications import publication_document

        publication = find_publication(options.run)
        title = " · ".join(filter(None, (options.run, publication.title, str(publication.year or ""))))
        power = ", ".join(f"{figure.machine} {figure.printed}" for figure in publication.of_kind("power"))
        about = [publication.about, *([f"Peak power: {power}."] if power else [])]
        print_report(publication_document(found, title, about), options.format)


class CompareOptions(opt.GateOptions, opt.FormatOptions):
    names: tuple[str, ...] = argument(nargs=-1, required=True, metavar="RUN...")
    by: str | None = option("Compare what differs in this: device, dtype, compile, transfer, batch, …", metavar="WHAT")


@command(CompareOptions)
def compare(options: CompareOptions) -> int:
    """Compare RUNs case by case: each later one with the first.

    Only equal work is compared, and what else differs is named. With one RUN, --by compares inside it: each device with
    the CPU, each dtype with float32, each count of workers with one. A RUN is a file, `last`, `last~1`, a publication
    such as `m1-chips`, a label, the beginning of an id, or a published machine such as `3090` or `M1 CPU`.

    Examples:
      torchmark compare last~1 last                     before against after
      torchmark compare last 3090 'M1 CPU'              with published machines
      torchmark compare last --by device                the GPU against the CPU
      torchmark compare last --by transfer              what per-step copies cost
      torchmark compare last~1 last --fail-if-slower 5%   exit 1 where it is
    """
    from torchmark.analyze.comparison import compare_all, compare_within, gate_runs
    from torchmark.report.comparison import comparison_document, letter

    runs = [run for name in options.names for run in load_runs(name)]
    if options.by and len(options.names) == 1:
        runs = join_machines(runs)
        comparisons = compare_within(runs, options.by)
    elif len(runs) == 1:
        fix = "Name another one, or what to compare inside it with --by device, dtype, transfer, batch, …"
        raise UsageError(f"'{options.names[0]}' is one run, and there is nothing to compare it with", fix)
    else:
        comparisons = compare_all(runs, options.by, [f"in {letter(index)}" for index in range(len(runs))])
    print_report(comparison_document(comparisons, runs), options.format)
    is_paired = any(comparison.pairs for comparison in comparisons)
    code = EXIT_FINE if is_paired else EXIT_NOTHING_MEASURED
    if not is_paired and not any(each.kind == "failed" for comparison in comparisons for each in comparison.unpaired):
        say("torchmark: nothing could be compared: no case has a partner")
    elif options.limit is not None:
        gate = gate_runs(comparisons, options.limit, len(comparisons) == len(runs))
        return options.judge(gate) or code
    return code


class ExportOptions(opt.Options):
    run: str = argument()
    out: Path | None = option("The new file; default: named after the run.", "-o", "--out", type=opt.FILE)
    show: bool = flag("Print every byte that leaves; without -o, write nothing.")


@command(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a RUN to a file that can be shared.

    It holds models, versions, settings, times and the label that was given to the run; no names of hosts or people, no
    paths, addresses or environment. Its reader can verify with `torchmark check` that it arrived whole.

    Examples:
      torchmark export last --show            every byte that would leave; writes nothing
      torchmark export last -o result.jsonl
      torchmark export nightly                into the current folder, named after the run
    """
    path = find_run(options.run)
    if options.show:
        for line in shareable_lines(path):
            emit(escape_json(line.decode()))
    if options.out or not options.show:
        target = options.out or Path(f"torchmark-{plain(read_header(path).id)[:80]}.jsonl")
        size = write_export(path, target)
        say(f"Wrote {clean(str(target))}, {size} bytes: torchmark export {options.run} --show prints them")
