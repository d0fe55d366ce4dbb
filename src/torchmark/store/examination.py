"""Examine a run file line by line for `torchmark check`: every fault is reported, none ends it."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from torchmark.errors import StoreError
from torchmark.records import SCHEMA_VERSION, Fitting, Remark, Result, RunHeader, Tuning
from torchmark.store.lines import Checksum, Concluded, Finished, Header, Line, Samples, Started, is_samples
from torchmark.store.reader import MOST_SAMPLES_AT_ONCE, read_lines

UNSEALED = "no checksum at its end: the file was cut off, or its run was killed or is still under way"


class HeaderLine(Struct, frozen=True):
    """The header, and its line."""

    line: int
    header: RunHeader


class Account(Struct, frozen=True):
    """A `finished` line with the raw samples since the one before it, by process."""

    line: int
    result: Result
    samples: dict[int, array[float]]


class Sealed(Struct, frozen=True):
    """The end of an unchanged file: its last line is a checksum, and the checksum is right."""

    line: int


Part = HeaderLine | Account | Sealed | Remark


def examine(path: str | Path, samples: bool = True) -> Iterator[Part]:
    """Yield the parts of a run file in order, and what is not well-formed about them.

    Without `samples`, their lines count for the checksum alone. Raises only if the file cannot be opened, and holds no
    more than the samples of the cases under way.
    """
    path = Path(path)
    reader = _Reader(path)
    try:
        for number, raw, line in read_lines(path, samples=samples):
            yield from reader.take(number, raw, line)
    except StoreError as error:
        if isinstance(error.__cause__, OSError):
            raise
        yield _fault(path, error)
        return
    if not reader.number:
        yield _damage("the file holds no run")
    elif reader.is_sealed:
        yield Sealed(reader.number)
    elif not reader.is_end_reported:
        yield _damage(UNSEALED, reader.number)


class _Reader:
    """The state that later lines must agree with."""

    def __init__(self, path: Path) -> None:
        self.number = 0
        self.is_sealed = False
        self.is_end_reported = False  # the last line is torn or a wrong checksum, which is reported already
        self._path, self._schema = path, SCHEMA_VERSION
        self._digest = hashlib.sha256()
        self._header: RunHeader | None = None
        self._cases: frozenset[str] = frozenset()
        self._begun: set[str] = set()
        self._samples: dict[str, dict[int, array[float]]] = {}
        self._count = 0

    def take(self, number: int, raw: bytes, line: Line | StoreError | None) -> Iterator[Part]:
        self.number, digest = number, self._digest.hexdigest()
        is_torn = isinstance(line, StoreError) and not raw.endswith(b"\n")
        if is_torn:
            yield _damage("the line is torn: the file was cut off", number)
        elif isinstance(line, StoreError):
            yield _fault(self._path, line)
        elif line is not None:
            self._schema = line.schema if isinstance(line, Header) else self._schema
            if self._schema == SCHEMA_VERSION:  # older lines were upgraded, so they encode differently
                yield from (_damage(text, number, place) for place, text in _oddities(raw, line))
            yield from self._check(number, line, digest)
        self.is_end_reported = is_torn or isinstance(line, Checksum)
        self.is_sealed = isinstance(line, Checksum) and line.sha256 == digest
        self._digest.update(raw)

    def _check(self, number: int, line: Line, digest: str) -> Iterator[Part]:
        match line:
            case Header() if self._header is not None:
                yield _damage("a second header", number, "$.kind")
            case Header():
                self._header, self._cases = line.header, frozenset(line.header.cases)
                yield HeaderLine(number, line.header)
            case Started():
                self._begun.add(line.case)
                # A process that is started again had died: its result does not include the samples from before.
                self._count -= len(self._samples.get(line.case, {}).pop(line.process, ()))
                yield from self._known(number, "$.case", line.case)
            case Samples():
                kept = self._samples.setdefault(line.case, {})
                if line.case not in self._begun:
                    yield _damage("samples of a case that was never started", number, "$.case")
                if line.process in kept:
                    yield _damage(f"process {line.process} has samples already", number, "$.process")
                elif self._count + len(line.samples_s) > MOST_SAMPLES_AT_ONCE:
                    yield _damage("more samples than ever belong to cases under way", number, "$.samples_s")
                else:
                    kept[line.process] = array("d", line.samples_s)
                    self._count += len(line.samples_s)
            case Finished():
                text = line.result.case.text
                yield from self._known(number, "$.result.case", text)
                if any(remark.cases or remark.line or remark.place for remark in line.result.cautions):
                    yield _damage("a field that torchmark does not write", number, "$.result.cautions")
                samples = self._samples.pop(text, {})
                self._count -= sum(map(len, samples.values()))
                yield Account(number, line.result, samples)
            case Concluded():
                if sum(each is not None for each in asdict(line).values()) != 1:
                    yield _damage("a study concludes one thing", number, "$")
                yield from self._check_tuning(number, line.tuning) if line.tuning else ()
                yield from _check_fitting(number, line.fitting) if line.fitting else ()
            case Checksum() if line.sha256 != digest:
                yield _damage("wrong checksum: the lines before it have changed", number, "$.sha256")

    def _check_tuning(self, number: int, tuning: Tuning) -> Iterator[Remark]:
        for name, case in (("case", tuning.default), ("winner", tuning.winner)):
            if case.text not in self._begun:
                yield _damage(f"{case.text} was never started", number, f"$.tuning.{name}")
        known = [value for value in (tuning.low, tuning.gain, tuning.high) if value is not None]
        if known and (len(known) < 3 or known != sorted(known)):
            yield Remark("consistent", "it is outside of its own interval", line=number, place="$.tuning.gain")
        if known and tuning.winner == tuning.default and tuning.unconfirmed is None:
            yield Remark("consistent", "the default has a gain over itself", line=number, place="$.tuning.winner")

    def _known(self, number: int, place: str, text: str) -> Iterator[Remark]:
        if text not in self._cases and not (self._header and self._header.open_ended):
            yield _damage(f"{text} is none of the cases in the header", number, place)


def _check_fitting(number: int, fitting: Fitting) -> Iterator[Remark]:
    largest, efficient = fitting.largest, fitting.efficient
    if efficient is not None and (largest is None or efficient > largest):
        yield Remark("consistent", "larger than the largest that fits", line=number, place="$.fitting.efficient")


def _fault(path: Path, error: StoreError) -> Remark:
    """The fault that an error reports, with the line and the field that it names."""
    form = r", line (\d+): (.*?)(?: - at `([^`]*)`)?|:? (.*)"
    found = re.fullmatch(form, error.cause.removeprefix(str(path)), re.DOTALL)
    return _damage(found[2] or found[4], int(found[1] or 0), found[3] or "") if found else _damage(error.cause)


def _damage(cause: str, line: int = 0, place: str = "") -> Remark:
    return Remark("well-formed", cause, line=line, place=place)


def _oddities(raw: bytes, line: Line) -> Iterator[tuple[str, str]]:
    """Repeated and unknown keys, which the decoder accepts. A line that encodes to itself has neither."""
    if msgspec.json.encode(line) + b"\n" == raw:
        return
    text = re.sub(rb"\[[^\[\]{}\"]*\]", b"[]", raw) if is_samples(raw) else raw  # without the numbers
    try:
        found = json.loads(text, object_pairs_hook=_Object, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        yield "", f"not plain JSON: {error}"
        return
    yield from _compare(found, msgspec.to_builtins(line) if not isinstance(line, Samples) else None, "$")


class _Object(dict[str, Any]):
    """A JSON object, with its repeated keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _compare(found: Any, known: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(found, _Object):
        for name in found.repeated:
            yield f"{place}.{name}", "the key is repeated"
        for name, inner in found.items():
            if isinstance(known, dict) and name not in known:
                yield f"{place}.{name}", "torchmark writes no such field"
            else:
                yield from _compare(inner, known[name] if isinstance(known, dict) else None, f"{place}.{name}")
    elif isinstance(found, list):
        for index, inner in enumerate(found):
            within = known[index] if isinstance(known, list | tuple) and index < len(known) else None
            yield from _compare(inner, within, f"{place}[{index}]")
