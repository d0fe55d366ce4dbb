"""`torchmark check`: whether run files are sound, from their content and from each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from torchmark import __version__
from torchmark.analyze.check import (
    Corroboration,
    SampleKey,
    Witness,
    check_header,
    check_result,
    check_samples,
    corroborate,
    keep,
    witness,
)
from torchmark.cli.options import FormatOptions, argument, command
from torchmark.cli.output import print_report
from torchmark.cli.progress import ProgressLine
from torchmark.errors import EXIT_CHECK_FAILED, EXIT_FINE, StoreError, UsageError
from torchmark.measure.known_work import compare_with_known
from torchmark.records import Level, Remark, Result, RunHeader
from torchmark.report.soundness import FileReport, soundness_document
from torchmark.store import Account, HeaderLine, Sealed, examine
from torchmark.store.runs import find_run, is_folder

MOST_FLAWS = 100  # of one file
EXAMPLES = """\b
Examples:
  torchmark check last
  torchmark check result-from-somebody.jsonl
  torchmark check lab                              every run file in a folder
  torchmark check lab/*.jsonl --format json
"""


class CheckOptions(FormatOptions):
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")


@command(CheckOptions, epilog=EXAMPLES)
def check(options: CheckOptions) -> int:
    """Check run files for damage and inconsistencies; exit code 1 if there is a finding.

    A file is well-formed where every line can be read and the checksum is right; consistent where its figures follow
    from its raw samples and everything in it fits; corroborated where at least three files of the same device and
    software agree. No level proves that a figure is true. FILE may be anything that names a run, or a folder of runs.
    """
    progress, checks = ProgressLine(), []
    found = dict(each for file in options.files for each in _files(file))
    for number, (name, path) in enumerate(found.items(), 1):
        progress.note(f"checking {name} ({number} of {len(found)})")
        checks.append(file_check := FileCheck(name, path))
        try:
            file_check.run()
        except StoreError as error:
            if len(found) == 1:
                raise
            file_check.add(error.cause)  # the others are checked all the same
    progress.clear()
    reports = check_files(checks)
    document = soundness_document(reports, brief=any(map(is_folder, options.files)))
    print_report(document, options.format)
    return EXIT_CHECK_FAILED if any(report.flaws for report in reports) else EXIT_FINE


def _files(text: str) -> list[tuple[str, Path]]:
    """The run file with this name, or all run files of a folder, each with its name."""
    if not is_folder(text):
        return [(text, find_run(text))]
    found = sorted(Path(text).glob("*.jsonl"))
    if not found:
        raise UsageError(f"there are no run files in {text}", "Run files end with .jsonl")
    return [(str(path), path) for path in found]


class FileCheck:
    """One file: what is wrong with it so far, and its figures to compare with those of other files."""

    def __init__(self, name: str, path: Path, samples: bool = True) -> None:
        self._name, self._path, self._samples = name, path, samples
        self._header: RunHeader | None = None
        self._seen: dict[Remark, None] = {}
        self._said: dict[str, list[bytes]] = {}  # by case: what was said of each of its processes
        self._series: dict[str, list[SampleKey]] = {}  # of all processes of a case
        self._recounted: dict[str, int] = {}
        self._ok: dict[str, int] = {}  # processes of each case that has a figure
        self._statuses: dict[str, str] = {}  # of each case, as last recorded
        self._sealed = False
        self.witnesses: dict[str, Witness] = {}

    def run(self) -> FileCheck:
        """Read the file to its end, or until there are too many findings."""
        with np.errstate(all="ignore"):  # a foreign file may hold any figures
            for part in examine(self._path, self._samples):
                for flaw in self._take(part):
                    self._seen[flaw] = None
                if len(self._seen) >= MOST_FLAWS:
                    return self
        self._seen.update(dict.fromkeys(self._missing()))
        return self

    def add(self, cause: str) -> None:
        """Why the file could not be read."""
        self._seen[Remark("well-formed", cause)] = None

    def report(self, others: Corroboration) -> FileReport:
        """What was found, with what the other files say of it."""
        flaws = (*self._seen, *_from_others(self._name, others))
        supported = sum(file == self._name for file, _ in others.supported)
        return FileReport(
            file=self._name,
            run=self._header.id if self._header else "",
            level=self._level(flaws, supported),
            sealed=self._sealed,
            cases=len(self._statuses),
            planned=len(self._statuses.keys() | self._planned),
            figures=len(self._ok),
            processes=sum(self._ok.values()),
            recounted=sum(min(self._recounted.get(case, 0), count) for case, count in self._ok.items()),
            supported=supported,
            flaws=flaws,
        )

    @property
    def flaws(self) -> tuple[Remark, ...]:
        """What the file itself shows."""
        return tuple(self._seen)

    def testimony(self) -> Iterator[Witness]:
        """The figures to compare with other files. Those of a file with findings, and those that could not be
        recomputed from samples, support no other."""
        for case, each in self.witnesses.items():
            recounted = self._recounted.get(case, 0) >= self._ok.get(case, 1)
            yield replace(each, counts=recounted and not self._seen)

    @property
    def _planned(self) -> set[str]:
        return set(self._header.cases) if self._header and not self._header.open_ended else set()

    def _missing(self) -> Iterator[Remark]:
        """Cases that the header promises. A run that was stopped and says so ends where it was stopped."""
        missing = sorted(self._planned - self._statuses.keys())
        if missing and not (self._sealed and "interrupted" in self._statuses.values()):
            which = f"{len(missing)} of {len(self._planned)} cases have no result, such as {missing[0]}"
            yield Remark("consistent", which, line=1, place="$.header.cases")

    def _level(self, flaws: tuple[Remark, ...], supported: int) -> Level | None:
        broken = {flaw.kind for flaw in flaws}
        if "well-formed" in broken or self._header is None:
            return None
        if "consistent" in broken or any(self._recounted.get(case, 0) < count for case, count in self._ok.items()):
            return "well-formed"
        return "corroborated" if supported == len(self._ok) > 0 and "corroborated" not in broken else "consistent"

    def _take(self, part: HeaderLine | Account | Sealed | Remark) -> Iterator[Remark]:
        match part:
            case Remark():
                yield part
            case HeaderLine():
                self._header = part.header
                found = check_header(part.header, datetime.now(UTC))
                yield from (replace(each, line=part.line) for each in found)
            case Account():
                self._statuses[part.result.case.text] = part.result.status
                yield from (replace(each, line=part.line) for each in self._check(part))
            case Sealed():
                self._sealed = True

    def _check(self, account: Account) -> Iterator[Remark]:
        result, text = account.result, account.result.case.text
        same_method = self._header is not None and self._header.version == __version__
        yield from check_result(result, same_method)
        yield from (Remark("consistent", cause, place=place) for place, cause in compare_with_known(result))
        yield from self._remember(result)
        if self._samples:
            yield from check_samples(result, account.samples, same_method)
        self._recounted[text] = self._recounted.get(text, 0) + len(account.samples)
        self._ok.pop(text, None)
        if result.status == "ok":
            self._ok[text] = max(1, len(result.processes))
        if self._samples:
            self._testify(account)

    def _remember(self, result: Result) -> Iterator[Remark]:
        """Yield a finding where a later line contradicts what an earlier one said of a process."""
        said = [blake2b(msgspec.json.encode(process)).digest() for process in result.processes]
        before = self._said.get(result.case.text, [])
        for index, (now, then) in enumerate(zip(said, before, strict=False)):
            if now != then:
                yield Remark("consistent", "an earlier line says otherwise", place=f"$.result.processes[{index}]")
        self._said[result.case.text] = max(said, before, key=len)

    def _testify(self, account: Account) -> None:
        if self._header is None:
            return
        text = account.result.case.text
        kept = self._series.setdefault(text, [])
        kept += map(keep, account.samples.values())
        found = witness(self._name, self._header.id, account.line, self._header.machine, account.result, kept)
        self.witnesses.pop(text, None)
        if found:
            self.witnesses[text] = found


def check_files(checks: list[FileCheck]) -> list[FileReport]:
    """All files, each by itself and then against the others."""
    found = corroborate(each for check in checks for each in check.testimony())
    return [check.report(found) for check in checks]


def _from_others(file: str, found: Corroboration) -> Iterator[Remark]:
    for each, ratio, count in found.apart:
        if each.file == file:
            text = f"{each.case} is {1 / ratio:.3g}× as fast as in {count} other files of this device and software"
            yield Remark("corroborated", text, line=each.line, place="$.result.estimate.center_s")
    for first, copy in found.copies:
        if copy.file == file and copy.run != first.run:
            text = f"{copy.case} has the samples of {first.file}, which calls itself another run"
            yield Remark("corroborated", text, line=copy.line, place="$.result.estimate")
