"""Read run files: as a run, as shareable lines, or line by line with every fault for `check`."""

import hashlib
import io
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from torchmark.case import MOST_CASES
from torchmark.errors import StoreError, UsageError
from torchmark.local_log import with_details
from torchmark.records import SCHEMA_VERSION, Remark, Result, Run, RunHeader, Tuning, parse_case
from torchmark.store import lines
from torchmark.store.files import open_regular, os_errors, write_whole

# Limits of what is read, as a file may come from a stranger.
FILE_BYTES = 1 << 30
RESULTS_BYTES = 250 << 20  # in memory
MOST_SAMPLES_AT_ONCE = 5_000_000
_UNSEALED = "no checksum at its end: the file was cut off, or its run was killed or is still under way"


def load(path: str | Path, samples: bool = False, content: bytes | None = None, local: bool = False) -> Run:
    """The run in a file, or in its `content`; raw samples and `local` messages only if asked for."""
    path = Path(path)
    seen = _Contents(path, samples, content)
    results = tuple(result if local else replace(result, detail=None) for result in seen.results())
    run = Run(seen.header, results, seen.spread, (*seen.problems, *seen.unfinished()), seen.ended, **seen.concluded)
    return with_details(run, path) if local else run


def read_header(path: str | Path) -> RunHeader:
    path = Path(path)
    _, _, line = next(read_lines(path), (0, b"", _empty(path)))
    if isinstance(line, lines.Header):
        return line.header
    raise line if isinstance(line, StoreError) else lines.damaged(path, 1, "not a header")


def shareable_lines(path: str | Path) -> Iterator[bytes]:
    """Every line that can leave this machine, and a checksum of them. Damage is an error."""
    path = Path(path)
    load(path)  # nothing leaves unless all of it is sound
    digest = hashlib.sha256()
    for _, raw, line in read_lines(path):
        if isinstance(line, StoreError):
            if raw.endswith(b"\n"):
                raise line
            break  # cut off when its run was killed
        if line is None or isinstance(line, lines.Checksum):
            continue
        written = lines.encode_line(replace(line, schema=SCHEMA_VERSION) if isinstance(line, lines.Header) else line)
        digest.update(written)
        yield written
    yield lines.encode_line(lines.Checksum(digest.hexdigest()))


def write_export(path: str | Path, target: str | Path) -> int:
    with os_errors("write", target, "Choose another place with -o"):
        try:
            return write_whole(Path(target), shareable_lines(path), replace=False)
        except FileExistsError as error:
            raise StoreError(f"{target} already exists", "Choose another name with -o") from error


def read_lines(
    path: Path, content: bytes | None = None, samples: bool = True
) -> Iterator[tuple[int, bytes, lines.Line | StoreError | None]]:
    """Numbered lines of limited length, each with its record or error, or None for unwanted samples."""
    schema, opened = 0, open_regular(path, "Name a run file") if content is None else io.BytesIO(content)
    with os_errors("read", path, "Check the name and the permissions"), opened as file:
        if content is None and (size := os.fstat(file.fileno()).st_size) > FILE_BYTES:
            raise _too_large(path, f"it has {size >> 20} MiB")
        for number in count(1):
            if not (raw := file.readline(lines.HEADER_BYTES + 1)):
                return
            most = lines.HEADER_BYTES if number == 1 else lines.LINE_BYTES
            if is_samples := lines.is_samples(raw):
                most = lines.SAMPLES_BYTES
                raw += b"" if raw.endswith(b"\n") else file.readline(most)
            if len(raw) > most:
                raise lines.damaged(path, number, "the line is longer than any that torchmark writes")
            if number == 1:
                schema = lines.decode_schema(raw, path)
            line: lines.Line | StoreError | None = None
            if samples or not is_samples or not raw.endswith(b"\n"):
                try:
                    line = lines.decode_line(raw, schema, path, number)
                except StoreError as error:
                    line = error
            yield number, raw, line


class _Contents:
    header: RunHeader

    def __init__(self, path: Path, samples: bool, content: bytes | None = None) -> None:
        self._path, self._with_samples = path, samples
        self._running: dict[str, int] = {}  # the process whose `started` has no `finished` yet
        self._began: dict[str, int] = {}  # the line of the first `started`
        self._finished: dict[str, Result] = {}
        self._samples: dict[str, dict[int, tuple[float, ...]]] = {}  # of every process
        self._settled: dict[str, list[tuple[float, ...]]] = {}  # those in the last `finished` line
        self._weights: dict[str, int] = {}
        self._weight = self._sample_count = number = 0
        self.spread: float | None = None
        self.concluded: dict[str, Any] = {}  # by the name of the study
        self.ended = False
        self.problems: list[str] = []
        for number, raw, line in read_lines(path, content, samples):
            if not isinstance(line, StoreError):
                self._take(number, line, len(raw))
            elif raw.endswith(b"\n") or number == 1:
                raise line
            else:
                cut = f"line {number} is incomplete: the run was cut off while writing it; it is ignored"
                self.problems.append(cut)
        if not number:
            raise _empty(path)

    def _take(self, number: int, line: lines.Line | None, size: int) -> None:
        match line:
            case lines.Header():
                if number > 1:
                    raise lines.damaged(self._path, number, "a second header")
                self.header = line.header
            case lines.Started():
                self._running[line.case], self.ended = line.process, False
                self._began.setdefault(line.case, number)
            case lines.Samples():
                self._samples.setdefault(line.case, {})[line.process] = line.samples_s
                self._sample_count += len(line.samples_s)
            case lines.Finished(result):
                text = result.case.text
                self._running.pop(text, None)
                self._finished[text] = result
                self._settled[text] = [values for _, values in sorted(self._samples.get(text, {}).items())]
                # About the memory that it takes: short entries grow most.
                entries = len(result.params) + len(result.metrics) + len(result.phases_s) + len(result.settings)
                weight = 2 * size + 200 * entries + 600 * len(result.processes)
                self._weight += weight - self._weights.get(text, 0)
                self._weights[text] = weight
            case lines.Spread():
                self.spread = line.process_spread
            case lines.Concluded():
                self.concluded |= {name: found for name, found in asdict(line).items() if found is not None}
            case lines.Ended():
                self.ended = True
        if self._weight > RESULTS_BYTES:
            raise _too_large(self._path, f"its results take {self._weight >> 20} MiB of memory")
        if max(len(self._began), len(self._finished)) > MOST_CASES:
            raise _too_large(self._path, f"it has more than {MOST_CASES} cases")
        if self._sample_count > MOST_SAMPLES_AT_ONCE:
            raise _too_large(self._path, f"it has more than {MOST_SAMPLES_AT_ONCE} samples")

    def results(self) -> Iterator[Result]:
        for text in dict.fromkeys((*self.header.cases, *self._began, *self._finished)):
            if result := self._finished.get(text):
                yield _with_samples(result, self._settled[text]) if self._with_samples else result
            elif text in self._began:
                try:
                    case = parse_case(text)
                except UsageError as error:
                    raise lines.damaged(self._path, self._began[text], f"{error.cause} - at `$.case`") from error
                yield Result(case, "interrupted", reason="the run died while this case was measured")

    def unfinished(self) -> Iterator[str]:
        for text, process in self._running.items():
            if text in self._finished:
                yield f"{text}: process {process} never finished; the figures are those of the others"
        if never := [text for text in self.header.cases if text not in self._began and text not in self._finished]:
            yield f"{len(never)} of {len(self.header.cases)} cases were never started"


def _with_samples(result: Result, samples: list[tuple[float, ...]]) -> Result:
    together, processes = tuple(chain.from_iterable(samples)), result.processes
    if len(processes) == len(samples):
        processes = tuple(map(lambda each, values: replace(each, samples_s=values), processes, samples))
    estimate = result.estimate and replace(result.estimate, samples_s=together)
    return replace(result, estimate=estimate, processes=processes)


def _too_large(path: Path, what: str) -> StoreError:
    return StoreError(f"{path}: {what}, more than any run file", "Use another copy of the file")


def _empty(path: Path) -> StoreError:
    return StoreError(f"{path} holds no run", "Its run died before it began: delete the file")


class Account(Struct, frozen=True):
    result: Result  # of a `finished` line
    samples: dict[int, "array[float]"]  # since the one before, by process


Part = RunHeader | Account | lines.Checksum | Remark


def examine(path: str | Path, samples: bool = True) -> Iterator[tuple[int, Part]]:
    """Parts and faults of a run file, by line; an unchanged one ends with its checksum. Raises if it is unreadable."""
    path, examiner, digest, schema, number = Path(path), _Examiner(), hashlib.sha256(), SCHEMA_VERSION, 0
    end: Part | None = _damage("the file holds no run")
    try:
        for number, raw, line in read_lines(path, samples=samples):
            end = _damage(_UNSEALED)
            if isinstance(line, StoreError):
                if raw.endswith(b"\n"):
                    yield _fault(path, line)
                else:
                    end = _damage("the line is torn: the file was cut off")
            elif line is not None:
                schema = line.schema if isinstance(line, lines.Header) else schema
                if schema == SCHEMA_VERSION:  # older lines were upgraded, so they encode differently
                    yield from zip(repeat(number), _oddities(raw, line))
                if isinstance(line, lines.Checksum):
                    end = line if line.sha256 == digest.hexdigest() else None
                    if not end:
                        yield number, _damage("wrong checksum: the lines before it have changed", "$.sha256")
                yield from zip(repeat(number), examiner.check(line))
            digest.update(raw)
        if end:
            yield number, end
    except StoreError as error:
        if isinstance(error.__cause__, OSError):
            raise
        yield _fault(path, error)


class _Examiner:
    def __init__(self) -> None:
        self._header: RunHeader | None = None
        self._cases: frozenset[str] = frozenset()
        self._begun: set[str] = set()
        self._samples: dict[str, dict[int, array[float]]] = {}
        self._sample_count = 0

    def check(self, line: lines.Line) -> Iterator[Part]:
        match line:
            case lines.Header() if self._header is not None:
                yield _damage("a second header", "$.kind")
            case lines.Header():
                self._header, self._cases = line.header, frozenset(line.header.cases)
                yield line.header
            case lines.Started():
                self._begun.add(line.case)
                # A process that is started again had died: its samples do not count.
                self._sample_count -= len(self._samples.get(line.case, {}).pop(line.process, ()))
                yield from self._known("$.case", line.case)
            case lines.Samples():
                kept = self._samples.setdefault(line.case, {})
                if line.case not in self._begun:
                    yield _damage("samples of a case that was never started", "$.case")
                if line.process in kept:
                    yield _damage(f"process {line.process} has samples already", "$.process")
                elif self._sample_count + len(line.samples_s) > MOST_SAMPLES_AT_ONCE:
                    yield _damage("more samples than ever belong to cases under way", "$.samples_s")
                else:
                    kept[line.process] = array("d", line.samples_s)
                    self._sample_count += len(line.samples_s)
            case lines.Finished():
                text = line.result.case.text
                yield from self._known("$.result.case", text)
                if any(remark.cases or remark.line or remark.place for remark in line.result.cautions):
                    yield _damage("a field that torchmark does not write", "$.result.cautions")
                samples = self._samples.pop(text, {})
                self._sample_count -= sum(map(len, samples.values()))
                yield Account(line.result, samples)
            case lines.Concluded():
                if sum(each is not None for each in asdict(line).values()) != 1:
                    yield _damage("a study concludes one thing", "$")
                yield from self._check_tuning(line.tuning) if line.tuning else ()
                if (fit := line.fitting) and fit.efficient is not None and fit.efficient > (fit.largest or 0):
                    yield Remark("consistent", "larger than the largest that fits", place="$.fitting.efficient")

    def _check_tuning(self, tuning: Tuning) -> Iterator[Remark]:
        for name, case in (("case", tuning.default), ("winner", tuning.winner)):
            if case.text not in self._begun:
                yield _damage(f"{case.text} was never started", f"$.tuning.{name}")
        known = [value for value in (tuning.low, tuning.gain, tuning.high) if value is not None]
        if known and (len(known) < 3 or known != sorted(known)):
            yield Remark("consistent", "it is outside of its own interval", place="$.tuning.gain")
        if known and tuning.winner == tuning.default and tuning.unconfirmed is None:
            yield Remark("consistent", "the default has a gain over itself", place="$.tuning.winner")

    def _known(self, place: str, text: str) -> Iterator[Remark]:
        if text not in self._cases and not (self._header and self._header.open_ended):
            yield _damage(f"{text} is none of the cases in the header", place)


def _fault(path: Path, error: StoreError) -> tuple[int, Remark]:
    """The line, and the fault with its field, that an error reports."""
    form = r", line (\d+): (.*?)(?: - at `([^`]*)`)?|:? (.*)"
    found = re.fullmatch(form, error.cause.removeprefix(str(path)), re.DOTALL)
    return (int(found[1] or 0), _damage(found[2] or found[4], found[3] or "")) if found else (0, _damage(error.cause))


def _damage(cause: str, place: str = "") -> Remark:
    return Remark("well-formed", cause, place=place)


def _oddities(raw: bytes, line: lines.Line) -> Iterator[Remark]:
    """Repeated and unknown keys, which the decoder accepts; a line that encodes to itself has none."""
    if msgspec.json.encode(line) + b"\n" != raw:
        text = re.sub(rb"\[[^\[\]{}\"]*\]", b"[]", raw) if lines.is_samples(raw) else raw  # without the numbers
        try:
            found = json.loads(text, object_pairs_hook=_Object, parse_int=str, parse_float=str)
        except (ValueError, RecursionError) as error:
            yield _damage(f"not plain JSON: {error}")
        else:
            yield from _compare(found, None if isinstance(line, lines.Samples) else msgspec.to_builtins(line), "$")


class _Object(dict[str, Any]):
    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _compare(found: Any, known: Any, place: str) -> Iterator[Remark]:
    if isinstance(found, _Object):
        yield from (_damage("the key is repeated", f"{place}.{name}") for name in found.repeated)
        for name, inner in found.items():
            if isinstance(known, dict) and name not in known:
                yield _damage("torchmark writes no such field", f"{place}.{name}")
            else:
                yield from _compare(inner, known and known[name], f"{place}.{name}")
    elif isinstance(found, list):
        for index, inner in enumerate(found):
            within = known[index] if isinstance(known, list | tuple) and index < len(known) else None
            yield from _compare(inner, within, f"{place}[{index}]")
