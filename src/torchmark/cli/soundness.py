"""Goes through a run file part by part and gathers what is odd about it, from every room that can tell."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from torchmark import __version__
from torchmark.analyze.consistency import Oddity, check_header, check_result, check_samples
from torchmark.analyze.corroboration import Corroboration, Series, Witness, corroborate, keep, witness
from torchmark.measure.recognition import recognise
from torchmark.records import Flaw, Level, Result, RunHeader
from torchmark.report.soundness import FileReport
from torchmark.store import Account, HeaderLine, Sealed, examine

MOST_FLAWS = 100  # of one file; who reads more of them?


class FileCheck:
    """One file: its flaws so far, and its figures as they are held against those of other files."""

    def __init__(self, name: str, path: Path, samples: bool = True) -> None:
        self._name, self._path, self._samples = name, path, samples
        self._header: RunHeader | None = None
        self._seen: dict[Flaw, None] = {}
        self._told: dict[str, list[bytes]] = {}  # by case: what was said of each of its processes
        self._series: dict[str, list[Series]] = {}  # of all processes of a case
        self._recounted: dict[str, int] = {}
        self._ok: dict[str, int] = {}  # processes of each case that has a figure
        self._statuses: dict[str, str] = {}  # of each case, as last told
        self._sealed = False
        self.witnesses: dict[str, Witness] = {}

    def run(self) -> FileCheck:
        """Read the file to its end, or until nobody would read on."""
        with np.errstate(all="ignore"):  # a stranger's figures may be anything
            for part in examine(self._path, self._samples):
                for flaw in self._take(part):
                    self._seen[flaw] = None
                if len(self._seen) >= MOST_FLAWS:
                    return self
        self._seen.update(dict.fromkeys(self._missing()))
        return self

    def add(self, cause: str) -> None:
        """Why the file could not be read."""
        self._seen[Flaw("well-formed", 0, "", cause)] = None

    def report(self, others: Corroboration) -> FileReport:
        """What was found, with what the other files say of it."""
        flaws = (*self._seen, *_told_by_others(self._name, others))
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
    def flaws(self) -> tuple[Flaw, ...]:
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

    def _missing(self) -> Iterator[Flaw]:
        """Cases that the header promises. A run that was stopped and says so ends where it was stopped."""
        missing = sorted(self._planned - self._statuses.keys())
        if missing and not (self._sealed and "interrupted" in self._statuses.values()):
            which = f"{len(missing)} of {len(self._planned)} cases have no result, such as {missing[0]}"
            yield Flaw("consistent", 1, "$.header.cases", which)

    def _level(self, flaws: tuple[Flaw, ...], supported: int) -> Level | None:
        broken = {flaw.level for flaw in flaws}
        if "well-formed" in broken or self._header is None:
            return None
        if "consistent" in broken or any(self._recounted.get(case, 0) < count for case, count in self._ok.items()):
            return "well-formed"
        return "corroborated" if supported == len(self._ok) > 0 and "corroborated" not in broken else "consistent"

    def _take(self, part: HeaderLine | Account | Sealed | Flaw) -> Iterator[Flaw]:
        match part:
            case Flaw():
                yield part
            case HeaderLine():
                self._header = part.header
                yield from _flaws(part.line, check_header(part.header, datetime.now(UTC)))
            case Account():
                self._statuses[part.result.case.text] = part.result.status
                yield from _flaws(part.line, self._check(part))
            case Sealed():
                self._sealed = True

    def _check(self, account: Account) -> Iterator[Oddity]:
        result, text = account.result, account.result.case.text
        same_method = self._header is not None and self._header.version == __version__
        yield from check_result(result, same_method)
        yield from recognise(result)
        yield from self._remember(result)
        if self._samples:
            yield from check_samples(result, account.samples, same_method)
        self._recounted[text] = self._recounted.get(text, 0) + len(account.samples)
        self._ok.pop(text, None)
        if result.status == "ok":
            self._ok[text] = max(1, len(result.processes))
        if self._samples:
            self._testify(account)

    def _remember(self, result: Result) -> Iterator[Oddity]:
        """What was said of a process once must not be said otherwise later."""
        said = [blake2b(msgspec.json.encode(process)).digest() for process in result.processes]
        before = self._told.get(result.case.text, [])
        for index, (now, then) in enumerate(zip(said, before, strict=False)):
            if now != then:
                yield f"$.result.processes[{index}]", "an earlier line says otherwise"
        self._told[result.case.text] = max(said, before, key=len)

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


def _flaws(line: int, oddities: Iterator[Oddity]) -> Iterator[Flaw]:
    return (Flaw("consistent", line, place, text) for place, text in oddities)


def _told_by_others(file: str, found: Corroboration) -> Iterator[Flaw]:
    for each, ratio, count in found.apart:
        if each.file == file:
            text = f"{each.case} is {1 / ratio:.3g}× as fast as in {count} other files of this device and software"
            yield Flaw("corroborated", each.line, "$.result.estimate.center_s", text)
    for first, copy in found.copies:
        if copy.file == file and copy.run != first.run:
            text = f"{copy.case} has the samples of {first.file}, which calls itself another run"
            yield Flaw("corroborated", copy.line, "$.result.estimate", text)
