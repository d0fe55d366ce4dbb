"""A run file looked at line by line for `torchmark check`: goes on after a fault, and names every one of them."""

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
from torchmark.records import SCHEMA_VERSION, Fitting, Flaw, Result, RunHeader, Tuning
from torchmark.store.lines import (
    MOST_SAMPLES_AT_ONCE,
    Checksum,
    Concluded,
    Finished,
    Header,
    Line,
    Samples,
    Started,
    decode_line,
    decode_schema,
    is_samples,
)
from torchmark.store.reader import raw_lines
from torchmark.store.upgrade import check_schema

UNSEALED = "no checksum at its end: the file was cut off, or its run was killed or is still under way"

_NUMBERS = re.compile(rb"\[[^\[\]{}\"]*\]")


class HeaderLine(Struct, frozen=True):
    """The header, and the line that it stands in."""

    line: int
    header: RunHeader


class Account(Struct, frozen=True):
    """What a `finished` line says, with the raw samples that came since the one before it, by process."""

    line: int
    result: Result
    samples: dict[int, array[float]]


class Sealed(Struct, frozen=True):
    """The end of a file that is as it was written: its last line is a checksum, and that is right."""

    line: int


Part = HeaderLine | Account | Sealed | Flaw


def examine(path: str | Path, samples: bool = True) -> Iterator[Part]:
    """The parts of a run file in their order, and what is not well-formed about them. Without samples their lines count
    for the checksum alone.

    Raises only where the file cannot be opened. It never holds more than the samples of the cases under way.
    """
    path = Path(path)
    try:
        yield from _parts(path, samples)
    except StoreError as error:
        if isinstance(error.__cause__, OSError):
            raise
        told = re.fullmatch(r"(?:, line (\d+))?:? (.*)", error.cause.removeprefix(str(path)), re.DOTALL)
        yield Flaw("well-formed", int(told[1] or 0) if told else 0, "", told[2] if told else error.cause)


def _parts(path: Path, samples: bool) -> Iterator[Part]:
    reader, number, schema = _Reader(), 0, 0
    for number, raw in raw_lines(path):
        if number == 1:
            schema = decode_schema(raw, path)
            check_schema(schema, path)
        if not samples and is_samples(raw) and raw.endswith(b"\n"):
            reader.skip(raw)
            continue
        try:
            line = decode_line(raw, schema, path, number)
        except StoreError as error:
            yield _malformed(path, number, raw, error)
            reader.skip(raw)
            continue
        if schema == SCHEMA_VERSION:  # older lines were another form when they were written
            yield from (Flaw("well-formed", number, place, text) for place, text in _oddities(raw, line))
        yield from reader.take(number, raw, line)
    if not schema:
        yield Flaw("well-formed", 0, "", "it holds no run")
    elif reader.sealed:
        yield Sealed(number)
    elif not reader.told_of_end:
        yield Flaw("well-formed", number, "", UNSEALED)


class _Reader:
    """What was seen so far, as far as later lines must fit to it."""

    def __init__(self) -> None:
        self.sealed = False
        self.told_of_end = False  # the last line is torn, or a checksum of something else: a finding already
        self._digest = hashlib.sha256()
        self._header: RunHeader | None = None
        self._cases: frozenset[str] = frozenset()
        self._begun: set[str] = set()
        self._samples: dict[str, dict[int, array[float]]] = {}
        self._count = 0

    def skip(self, raw: bytes) -> None:
        self.sealed, self.told_of_end = False, not raw.endswith(b"\n")
        self._digest.update(raw)

    def take(self, number: int, raw: bytes, line: Line) -> Iterator[Part]:
        match line:
            case Header():
                yield from self._begin(number, line.header)
            case Started():
                self._begun.add(line.case)
                # A process that is begun again had died: what it had said by then is not what its result speaks of.
                self._count -= len(self._samples.get(line.case, {}).pop(line.process, ()))
                yield from self._known(number, "$.case", line.case)
            case Samples():
                yield from self._keep(number, line)
            case Finished():
                text = line.result.case.text
                yield from self._known(number, "$.result.case", text)
                samples = self._samples.pop(text, {})
                self._count -= sum(map(len, samples.values()))
                yield Account(number, line.result, samples)
            case Concluded():
                if sum(each is not None for each in asdict(line).values()) != 1:
                    yield Flaw("well-formed", number, "$", "a study concludes one thing")
                yield from self._check_tuning(number, line.tuning) if line.tuning else ()
                yield from self._check_fitting(number, line.fitting) if line.fitting else ()
            case Checksum():
                if line.sha256 != self._digest.hexdigest():
                    yield Flaw("well-formed", number, "$.sha256", "wrong checksum: the lines before it have changed")
        self.told_of_end = isinstance(line, Checksum)
        self.sealed = isinstance(line, Checksum) and line.sha256 == self._digest.hexdigest()
        self._digest.update(raw)

    def _begin(self, number: int, header: RunHeader) -> Iterator[Part]:
        if self._header is not None:
            yield Flaw("well-formed", number, "$.kind", "a second header")
            return
        self._header, self._cases = header, frozenset(header.cases)
        yield HeaderLine(number, header)

    def _check_tuning(self, number: int, tuning: Tuning) -> Iterator[Flaw]:
        for name, case in (("case", tuning.case), ("winner", tuning.winner)):
            if case.text not in self._begun:
                yield Flaw("well-formed", number, f"$.tuning.{name}", f"{case.text} was never started")
        known = [value for value in (tuning.low, tuning.gain, tuning.high) if value is not None]
        if known and (len(known) < 3 or known != sorted(known)):
            yield Flaw("consistent", number, "$.tuning.gain", "it is outside of its own interval")
        if known and tuning.winner == tuning.case and tuning.unconfirmed is None:
            yield Flaw("consistent", number, "$.tuning.winner", "a gain of the default over itself")

    def _check_fitting(self, number: int, fitting: Fitting) -> Iterator[Flaw]:
        largest, efficient = fitting.largest, fitting.efficient
        if efficient is not None and (largest is None or efficient > largest):
            yield Flaw("consistent", number, "$.fitting.efficient", "it is larger than the largest that fits")

    def _known(self, number: int, place: str, text: str) -> Iterator[Flaw]:
        if text not in self._cases and not (self._header and self._header.open_ended):
            yield Flaw("well-formed", number, place, f"{text} is none of the cases in the header")

    def _keep(self, number: int, line: Samples) -> Iterator[Flaw]:
        kept = self._samples.setdefault(line.case, {})
        if line.case not in self._begun:
            yield Flaw("well-formed", number, "$.case", "samples of a case that was never started")
        if line.process in kept:
            yield Flaw("well-formed", number, "$.process", f"process {line.process} has samples already")
        elif self._count + len(line.samples_s) > MOST_SAMPLES_AT_ONCE:
            yield Flaw("well-formed", number, "$.samples_s", "more samples than ever belong to cases under way")
        else:
            kept[line.process] = array("d", line.samples_s)
            self._count += len(line.samples_s)


def _malformed(path: Path, number: int, raw: bytes, error: StoreError) -> Flaw:
    """The fault of a line that cannot be read, with the field taken out of the decoder's words."""
    if not raw.endswith(b"\n"):
        return Flaw("well-formed", number, "", "the line is torn: the file was cut off")
    told = error.cause.removeprefix(f"{path}, line {number}: ")
    what, _, place = told.rpartition(" - at `")
    return Flaw("well-formed", number, place.rstrip("`") if what else "", what or told)


class _Object(dict[str, Any]):
    """An object of a line, with the keys that stand in it twice."""

    repeated: tuple[str, ...] = ()


def _oddities(raw: bytes, line: Line) -> Iterator[tuple[str, str]]:
    """What the quick decoder lets pass: keys that stand twice, and keys that mean nothing. A line that is just as
    torchmark writes it has neither, which is quickly seen."""
    if msgspec.json.encode(line) + b"\n" == raw:
        return
    text = _NUMBERS.sub(b"[]", raw) if is_samples(raw) else raw
    try:
        found = json.loads(text, object_pairs_hook=_paired, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        yield "", f"not plain JSON: {error}"
        return
    yield from _compare(found, msgspec.to_builtins(line) if not isinstance(line, Samples) else None, "$")


def _paired(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.repeated = tuple(name for name, count in counts.items() if count > 1)
    return found


def _compare(found: Any, known: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(found, _Object):
        for name in found.repeated:
            yield f"{place}.{name}", "the key stands there twice"
        for name, inner in found.items():
            if isinstance(known, dict) and name not in known:
                yield f"{place}.{name}", "no field that torchmark writes"
            else:
                yield from _compare(inner, known[name] if isinstance(known, dict) else None, f"{place}.{name}")
    elif isinstance(found, list):
        for index, inner in enumerate(found):
            within = known[index] if isinstance(known, list | tuple) and index < len(known) else None
            yield from _compare(inner, within, f"{place}[{index}]")
