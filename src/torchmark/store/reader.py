"""Run files read back: as a run, as samples, as shareable lines, or only as far as a question needs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import asdict, replace

from torchmark.errors import StoreError, UsageError
from torchmark.local_log import with_details
from torchmark.records import MOST_CASES, SCHEMA_VERSION, Estimate, Result, Run, RunHeader, parse_case
from torchmark.store.files import explained, write_whole
from torchmark.store.lines import (
    FILE_BYTES,
    HEADER_BYTES,
    MOST_SAMPLES_AT_ONCE,
    RESULTS_BYTES,
    SAMPLES_BYTES,
    Checksum,
    Concluded,
    Ended,
    Finished,
    Header,
    Line,
    RunName,
    Samples,
    Spread,
    Started,
    check_schema,
    check_size,
    damaged,
    decode_line,
    decode_name,
    decode_schema,
    encode_line,
    is_samples,
    too_large,
)

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_BUFFER = 16 << 10  # a header and a bit more: lists of runs read no further

ProcessSamples = dict[int, tuple[float, ...]]


def load(path: str | Path, samples: bool = False, content: bytes | None = None, local: bool = False) -> Run:
    """The run in a file, or in the `content` that belongs in that file.

    The raw samples, which are most of the bytes, are left out unless asked for. So are messages of other programs about
    failures, unless `local`: they are not shared.
    """
    path = Path(path)
    seen = _read(path, samples, content)
    assert seen.header is not None
    texts = dict.fromkeys((*seen.header.cases, *seen.began, *seen.finished))
    results = [seen.result(text, path) for text in texts if text in seen.finished or text in seen.began]
    if samples:
        results = [_with_samples(result, seen.settled.get(result.case.text, {})) for result in results]
    if not local:
        results = [replace(result, detail=None) if result.detail else result for result in results]
    run = Run(
        header=seen.header,
        results=tuple(results),
        process_spread=seen.spread,
        problems=(*seen.problems, *seen.unfinished()),
        **seen.concluded,
        ended=seen.ended,
    )
    return with_details(run, path) if local else run


def load_samples(path: str | Path) -> dict[str, ProcessSamples]:
    """Seconds per step, by the text of the case and the number of the process."""
    return _read(Path(path), samples=True).samples


def completed(path: str | Path) -> dict[str, int]:
    """How many processes of each case ended, so that a resumed run knows where to continue."""
    return {text: len(processes) for text, processes in _read(Path(path), samples=False).done.items()}


def read_header(path: str | Path) -> RunHeader:
    """Only the first line, for lists of runs."""
    path = Path(path)
    for number, _, line in read_lines(path):
        if isinstance(line, StoreError):
            raise line
        if not isinstance(line, Header):
            raise damaged(path, number, "not a header")
        return line.header
    raise _empty(path)


def read_name(path: Path) -> RunName:
    """As little of the first line as it takes to find a run among ten thousand."""
    raw = next((raw for _, raw in raw_lines(path)), b"")
    name = decode_name(raw)
    if name:
        return name
    header = read_header(path)
    return RunName(header.id, header.created, header.label)


def sound_bytes(path: Path) -> tuple[int, bool, int]:
    """How many bytes of a file are whole lines, whether the last of them lacks its newline, and the schema."""
    length = schema = 0
    for number, raw in raw_lines(path):
        if number == 1:
            schema = decode_schema(raw, path)
        if not raw.endswith(b"\n"):
            try:
                decode_line(raw, schema, path, number)
            except StoreError:
                return length, False, schema
            return length + len(raw), True, schema
        length += len(raw)
    return length, False, schema


def shareable_lines(path: str | Path) -> Iterator[bytes]:
    """Every line that can leave this machine, the last one a checksum of the others. Damage is an error."""
    path = Path(path)
    load(path)  # all of it is sound, or nothing leaves
    digest = hashlib.sha256()
    for _, raw, line in read_lines(path):
        if isinstance(line, StoreError):
            if raw.endswith(b"\n"):
                raise line
            break  # cut off when its run was killed
        if isinstance(line, Checksum):
            continue
        written = encode_line(Header(SCHEMA_VERSION, line.header) if isinstance(line, Header) else line)
        digest.update(written)
        yield written
    yield encode_line(Checksum(digest.hexdigest()))


def write_export(path: str | Path, target: str | Path) -> int:
    """Write what can leave this machine into a new file, whole or not at all; returns the number of bytes."""
    target = Path(target)
    try:
        return write_whole(target, shareable_lines(path), replace=False)
    except FileExistsError as error:
        raise StoreError(f"{target} already exists", "Choose another name with -o") from error
    except OSError as error:
        raise explained(target, error, "Choose another place with -o") from error


def read_lines(
    path: Path, content: bytes | None = None, samples: bool = True
) -> Iterator[tuple[int, bytes, Line | StoreError]]:
    """Numbered lines with their record, or the error of one that is damaged; whole lines of samples only if wanted."""
    schema = 0
    for number, raw in raw_lines(path, content):
        if number == 1:
            schema = decode_schema(raw, path)
            check_schema(schema, path)
        if not samples and is_samples(raw) and raw.endswith(b"\n"):
            continue
        try:
            yield number, raw, decode_line(raw, schema, path, number)
        except StoreError as error:
            yield number, raw, error


def raw_lines(path: Path, content: bytes | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; none is read further than a sane length, whatever the file claims to be."""
    try:
        with _opened(path) if content is None else io.BytesIO(content) as file:
            number = 0
            while raw := file.readline(HEADER_BYTES + 1):
                if is_samples(raw) and not raw.endswith(b"\n"):
                    raw += file.readline(SAMPLES_BYTES)
                number += 1
                check_size(raw, path, number)
                yield number, raw
                if not raw.endswith(b"\n"):
                    return
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror or error}", "Check the name and the permissions"
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Only regular files are read: a pipe would wait for a writer, so the file is opened without waiting."""
    file = open(os.open(path, _FLAGS), "rb", _BUFFER)  # noqa: PTH123, SIM115 -- a failing close must not matter
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"cannot read {path}: it is not a file", "Name a run file")
        if found.st_size > FILE_BYTES:
            raise too_large(path, f"it has {found.st_size >> 20} MiB")
        yield file
    finally:
        with contextlib.suppress(OSError):  # everything needed has been read
            file.close()


class _Contents:
    """What the lines so far say about every case."""

    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.running: dict[str, int] = {}  # the process whose `started` has no `finished` yet
        self.began: dict[str, int] = {}  # the line of the first `started`
        self.finished: dict[str, Result] = {}
        self.done: dict[str, set[int]] = {}
        self.samples: dict[str, ProcessSamples] = {}
        self.settled: dict[str, ProcessSamples] = {}  # the samples that the last `finished` line includes
        self.spread: float | None = None
        self.concluded: dict[str, Any] = {}  # by the name of the study
        self.ended = False
        self.problems: list[str] = []
        self._weights: dict[str, int] = {}  # of the results that count so far
        self._weight = self._sample_count = 0

    def take(self, line: Line, size: int, path: Path, number: int) -> None:
        match line:
            case Header():
                if self.header is not None:
                    raise damaged(path, number, "a second header")
                self.header = line.header
            case Started():
                self.running[line.case], self.ended = line.process, False
                self.began.setdefault(line.case, number)
            case Samples():
                self.samples.setdefault(line.case, {})[line.process] = line.samples_s
                self._sample_count += len(line.samples_s)
            case Finished():
                self._finish(line.result, size)
            case Spread():
                self.spread = line.process_spread
            case Concluded():
                self.concluded |= {name: found for name, found in asdict(line).items() if found is not None}
            case Ended():
                self.ended = True
        # A file may be long, but what is kept of it may not.
        if self._weight > RESULTS_BYTES:
            raise too_large(path, f"its results take {self._weight >> 20} MiB of memory")
        if max(len(self.began), len(self.finished)) > MOST_CASES:
            raise too_large(path, f"it has more than {MOST_CASES} cases")
        if self._sample_count > MOST_SAMPLES_AT_ONCE:
            raise too_large(path, f"it has more than {MOST_SAMPLES_AT_ONCE} samples")

    def _finish(self, result: Result, size: int) -> None:
        text = result.case.text
        process = self.running.pop(text, 0)
        self.finished[text] = result
        self.settled[text] = dict(self.samples.get(text, {}))
        if result.status != "interrupted":
            self.done.setdefault(text, set()).add(process)
        # About how much memory it takes: short entries grow most.
        entries = len(result.params) + len(result.metrics) + len(result.phases_s) + len(result.settings)
        weight = 2 * size + 200 * entries + 600 * len(result.processes)
        self._weight += weight - self._weights.get(text, 0)
        self._weights[text] = weight

    def result(self, text: str, path: Path) -> Result:
        if text in self.finished:
            return self.finished[text]
        try:
            case = parse_case(text)
        except UsageError as error:
            raise damaged(path, self.began[text], f"{error.cause} - at `$.case`") from error
        return Result(case=case, status="interrupted", reason="the run died while this case was measured")

    def unfinished(self) -> Iterator[str]:
        for text, process in self.running.items():
            if text in self.finished:
                yield f"{text}: process {process} never finished; the figures are those of the others"
        cases = self.header.cases if self.header else ()
        never = [text for text in cases if text not in self.began and text not in self.finished]
        if never:
            yield f"{len(never)} of {len(cases)} cases were never started"


def _read(path: Path, samples: bool, content: bytes | None = None) -> _Contents:
    seen = _Contents()
    for number, raw, line in read_lines(path, content, samples):
        if isinstance(line, StoreError):
            if raw.endswith(b"\n") or number == 1:
                raise line
            seen.problems.append(f"line {number} is incomplete: the run was cut off while writing it; it is ignored")
            break
        seen.take(line, len(raw), path, number)
    if seen.header is None:
        raise _empty(path)
    return seen


def _empty(path: Path) -> StoreError:
    return StoreError(f"{path} holds no run", "Its run died before it began: delete the file")


def _with_samples(result: Result, samples: ProcessSamples) -> Result:
    """Put samples back into the estimates that they were taken from."""
    ordered = [samples[process] for process in sorted(samples)]
    together = tuple(value for values in ordered for value in values)
    processes: tuple[Estimate, ...] = result.processes
    if len(processes) == len(ordered):
        pairs = zip(processes, ordered, strict=True)
        processes = tuple(replace(estimate, samples_s=values) for estimate, values in pairs)
    estimate = result.estimate and replace(result.estimate, samples_s=together)
    return replace(result, estimate=estimate, processes=processes)
