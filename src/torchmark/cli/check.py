"""`torchmark check`: whether run files are sound, from their content and from each other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from torchmark import __version__
from torchmark.analyze import check as analysis
from torchmark.cli.execution import noted
from torchmark.cli.options import FormatOptions, argument, command
from torchmark.cli.output import print_report
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, StoreError, UsageError
from torchmark.measure.cases import compare_with_known
from torchmark.records import Level, Remark, RunHeader
from torchmark.report.files import FileReport, check_document
from torchmark.store import find_run, is_folder
from torchmark.store.lines import Checksum
from torchmark.store.reader import Account, examine


class CheckOptions(FormatOptions):
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")


@command(CheckOptions)
def check(options: CheckOptions) -> int:
    """Check run files for damage and inconsistencies; exit code 1 if there is a finding.

    A file is well-formed where every line can be read and the checksum is right; consistent where its figures follow
    from its raw samples and everything in it fits; corroborated where at least three files of the same device and
    software agree. No level proves that a figure is true. FILE may be anything that names a run, or a folder of runs.

    Examples:
      torchmark check their-result.jsonl
      torchmark check lab                              every run file in a folder
      torchmark check lab/*.jsonl --format json
    """
    found: dict[str, Path] = {}
    for text in options.files:
        inside = {str(path): path for path in sorted(Path(text).glob("*.jsonl"))} if is_folder(text) else {}
        if is_folder(text) and not inside:
            raise UsageError(f"there are no run files in {text}", "Run files end with .jsonl")
        found |= inside or {text: find_run(text)}
    checks = [FileCheck(name, path) for name, path in found.items()]
    with noted("") as progress:
        for number, each in enumerate(checks, 1):
            progress.note(f"checking {each.name} ({number} of {len(checks)})")
            try:
                each.run()
            except StoreError as error:
                if len(checks) == 1:
                    raise
                each.flaws[Remark("well-formed", error.cause)] = None  # the others are checked all the same
    others = analysis.corroborate(  # doubtful figures support no other
        replace(case.witness, counts=case.is_recounted and not each.flaws)
        for each in checks
        for case in each.cases.values()
        if case.witness
    )
    reports = [check.report(others) for check in checks]
    print_report(check_document(reports, brief=any(map(is_folder, options.files))), options.format)
    return EXIT_CHECK_FAILED if any(report.flaws for report in reports) else EXIT_FINE


@dataclass
class _CaseRecord:
    status: str = ""  # the last one
    said: list[bytes] = field(default_factory=list)  # a digest of each process
    series: list[analysis.SampleKey] = field(default_factory=list)  # of all processes
    recounted: int = 0
    processes: int = 0  # of a case that has a figure
    witness: analysis.Witness | None = None

    @property
    def is_recounted(self) -> bool:  # its figure follows from the samples
        return self.recounted >= max(1, self.processes)


class FileCheck:
    """What is wrong with one file so far, and its figures to compare with other files."""

    def __init__(self, name: str, path: Path, samples: bool = True) -> None:
        self.flaws: dict[Remark, None] = {}  # each once, in the order of the file
        self.name, self._path, self._samples = name, path, samples
        self._header: RunHeader | None = None
        self._planned: set[str] = set()
        self.cases: dict[str, _CaseRecord] = {}
        self._sealed = False

    @np.errstate(all="ignore")  # a foreign file may hold any figures
    def run(self) -> None:
        for number, part in examine(self._path, self._samples):
            found: Iterable[Remark] = ()
            match part:
                case Remark():
                    found = (part,)
                case RunHeader():
                    self._header, self._planned = part, set() if part.open_ended else {*part.cases}
                    found = analysis.check_header(part, datetime.now(UTC))
                case Account():
                    found = self._check(part, number)
                case Checksum():
                    self._sealed = True
            self.flaws |= {replace(each, line=number): None for each in found}
            if len(self.flaws) >= 100:  # enough to report
                return
        missing, stopped = sorted(self._planned - self.cases.keys()), {each.status for each in self.cases.values()}
        if missing and not (self._sealed and "interrupted" in stopped):  # a run that was stopped says so
            which = f"{len(missing)} of {len(self._planned)} cases have no result, such as {missing[0]}"
            self.flaws[Remark("consistent", which, line=1, place="$.header.cases")] = None

    def report(self, others: analysis.Corroboration) -> FileReport:
        flaws, place = [*self.flaws], "$.result.estimate"
        for each, ratio, count in others.apart:
            if each.file == self.name:
                text = f"{each.case} is {1 / ratio:.3g}× as fast as in {count} other files of this device and software"
                flaws.append(Remark("corroborated", text, line=each.line, place=f"{place}.center_s"))
        for first, copy in others.copies:
            if copy.file == self.name and copy.run != first.run:
                text = f"{copy.case} has the samples of {first.file}, which calls itself another run"
                flaws.append(Remark("corroborated", text, line=copy.line, place=place))
        supported = sum(file == self.name for file, _ in others.supported)
        measured = [case for case in self.cases.values() if case.processes]
        broken = {flaw.kind for flaw in flaws}
        level: Level | None = None
        if self._header and "well-formed" not in broken:
            is_consistent = "consistent" not in broken and all(case.is_recounted for case in measured)
            is_corroborated = "corroborated" not in broken and supported == len(measured) > 0
            level = "well-formed" if not is_consistent else "corroborated" if is_corroborated else "consistent"
        run, planned = self._header.id if self._header else "", self.cases.keys() | self._planned
        return FileReport(
            *(self.name, run, level, self._sealed, len(self.cases), len(planned)),
            figures=len(measured),
            processes=sum(case.processes for case in measured),
            recounted=sum(min(case.recounted, case.processes) for case in measured),
            supported=supported,
            flaws=tuple(flaws),
        )

    def _check(self, account: Account, line: int) -> Iterator[Remark]:
        result, header = account.result, self._header
        case = self.cases.setdefault(result.case.text, _CaseRecord())
        case.status = result.status
        same_method = header is not None and header.version == __version__
        yield from analysis.check_result(result, same_method)
        yield from (Remark("consistent", cause, place=place) for place, cause in compare_with_known(result))
        said = [blake2b(msgspec.json.encode(process)).digest() for process in result.processes]
        for index, (now, before) in enumerate(zip(said, case.said, strict=False)):
            if now != before:
                yield Remark("consistent", "an earlier line says otherwise", place=f"$.result.processes[{index}]")
        case.said = max(said, case.said, key=len)
        case.recounted += len(account.samples)
        case.processes = max(1, len(result.processes)) if result.status == "ok" else 0
        if self._samples:
            yield from analysis.check_samples(result, account.samples, same_method)
            case.series += map(analysis.keep, account.samples.values())
            if header:
                case.witness = analysis.witness(self.name, header.id, line, header.machine, result, case.series)
