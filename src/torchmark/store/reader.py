"""Run files read back: as a run, as samples, or only as far as a question needs."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import asdict, replace

from torchmark.errors import StoreError, UsageError
from torchmark.records import MOST_CASES, Estimate, Result, Run, RunHeader, parse_case
from torchmark.store.details import with_details
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
    check_size,
    damaged,
    decode_line,
    decode_name,
    decode_schema,
    is_samples,
    too_large,
)
from torchmark.store.upgrade import check_schema

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_BUFFER = 16 << 10  # a header and a bit more: lists of runs read no further

ProcessSamples = dict[int, tuple[float, ...]]


class _Story:
    """What the lines told so far about every case."""

    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.running: dict[str, int] = {}  # the process whose `started` has no `finished` yet
        self.began: dict[str, int] = {}  # the line of the first `started`
        self.finished: dict[str, Result] = {}
        self.done: dict[str, set[int]] = {}
        self.samples: dict[str, ProcessSamples] = {}
        self.settled: dict[str, ProcessSamples] = {}  # the samples that the last `finished` line speaks of
        self.spread: float | None = None
        self.concluded: dict[str, Any] = {}  # by the name of the study
        self.ended = False
        self.problems: list[str] = []
        self._weights: dict[str, int] = {}  # of the results that count so far
        self._weight = self._sample_count = 0

    def take(self, line: Line, path: Path, number: int) -> None:
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
            case Finished():
                self._finish(line.result)
            case Spread():
                self.spread = line.process_spread
            case Concluded():
                self.concluded |= {name: found for name, found in asdict(line).items() if found is not None}
            case Ended():
                self.ended = True
            case Checksum():
                pass  # `torchmark check` looks at it

    def weigh(self, line: Line, size: int, path: Path) -> None:
        """A file may be long; what is kept of it may not."""
        match line:
            case Finished():
                text, weight = line.result.case.text, _weight(line.result, size)
                self._weight += weight - self._weights.get(text, 0)
                self._weights[text] = weight
            case Samples():
                self._sample_count += len(line.samples_s)
        if self._weight > RESULTS_BYTES:
            raise too_large(path, f"its results take {self._weight >> 20} MiB of memory")
        if max(len(self.began), len(self.finished)) > MOST_CASES:
            raise too_large(path, f"it has more than {MOST_CASES} cases")
        if self._sample_count > MOST_SAMPLES_AT_ONCE:
            raise too_large(path, f"it has more than {MOST_SAMPLES_AT_ONCE} samples")

    def _finish(self, result: Result) -> None:
        text = result.case.text
        process = self.running.pop(text, 0)
        self.finished[text] = result
        self.settled[text] = dict(self.samples.get(text, {}))
        if result.status != "interrupted":
            self.done.setdefault(text, set()).add(process)


def load(path: str | Path, samples: bool = False, content: bytes | None = None, local: bool = False) -> Run:
    """The run in a file, or in the `content` that belongs into that file. The raw samples, most of its bytes, are left
    out unless asked for. So are, unless `local`, messages of other programs about failures: they are not shared."""
    path = Path(path)
    story = _read(path, samples, content)
    assert story.header is not None
    texts = dict.fromkeys((*story.header.cases, *story.began, *story.finished))
    results = [_result(story, text, path) for text in texts if text in story.finished or text in story.began]
    if samples:
        results = [_with_samples(result, story.settled.get(result.case.text, {})) for result in results]
    if not local:
        results = [replace(result, detail=None) if result.detail else result for result in results]
    run = Run(
        header=story.header,
        results=tuple(results),
        process_spread=story.spread,
        problems=(*story.problems, *_unfinished(story)),
        **story.concluded,
        ended=story.ended,
    )
    return with_details(run, path) if local else run


def load_samples(path: str | Path) -> dict[str, ProcessSamples]:
    """Seconds per step, by the text of the case and the number of the process."""
    return _read(Path(path), samples=True).samples


def completed(path: str | Path) -> dict[str, int]:
    """How many processes of each case came to an end, so that a resumed run knows where to go on."""
    return {text: len(processes) for text, processes in _read(Path(path), samples=False).done.items()}


def read_header(path: str | Path) -> RunHeader:
    """Only the first line, for lists of runs."""
    path = Path(path)
    for number, raw in raw_lines(path):
        schema = decode_schema(raw, path)
        check_schema(schema, path)
        line = decode_line(raw, schema, path, number)
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
    """How many bytes of a file hold whole lines, whether the last of them lacks its newline, and the schema."""
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


def _read(path: Path, samples: bool, content: bytes | None = None) -> _Story:
    story, schema = _Story(), 0
    for number, raw in raw_lines(path, content):
        if number == 1:
            schema = decode_schema(raw, path)
            check_schema(schema, path)
        if is_samples(raw) and not samples and raw.endswith(b"\n"):
            continue
        try:
            line = decode_line(raw, schema, path, number)
        except StoreError:
            if raw.endswith(b"\n") or number == 1:
                raise
            story.problems.append(f"line {number} is torn: the run was cut off while writing it, and it is left out")
            break
        story.take(line, path, number)
        story.weigh(line, len(raw), path)
    if story.header is None:
        raise _empty(path)
    return story


def _empty(path: Path) -> StoreError:
    return StoreError(f"{path} holds no run", "Its run died before it began: delete the file")


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
    file = _open(path)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # all that was wanted has been read
            file.close()


def _open(path: Path) -> BinaryIO:
    """Only regular files are read: a pipe would wait for a writer, so the file is opened without waiting."""
    file = open(os.open(path, _FLAGS), "rb", _BUFFER)  # noqa: PTH123, SIM115 -- the caller closes it
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size <= FILE_BYTES:
        return file
    file.close()
    if stat.S_ISREG(found.st_mode):
        raise too_large(path, f"it has {found.st_size >> 20} MiB")
    raise StoreError(f"cannot read {path}: it is not a file", "Name a run file")


def _weight(result: Result, size: int) -> int:
    """About how much memory a result takes that was written in so many bytes: short entries grow most."""
    entries = len(result.params) + len(result.metrics) + len(result.phases_s) + len(result.settings)
    return 2 * size + 200 * entries + 600 * len(result.processes)


def _result(story: _Story, text: str, path: Path) -> Result:
    if text in story.finished:
        return story.finished[text]
    try:
        case = parse_case(text)
    except UsageError as error:
        raise damaged(path, story.began[text], f"{error.cause} - at `$.case`") from error
    return Result(case=case, status="interrupted", reason="the run died while this case was measured")


def _unfinished(story: _Story) -> Iterator[str]:
    assert story.header is not None
    for text, process in story.running.items():
        if text in story.finished:
            yield f"{text}: process {process} never finished; the figures are those of the others"
    never = [text for text in story.header.cases if text not in story.began and text not in story.finished]
    if never:
        yield f"{len(never)} of {len(story.header.cases)} cases were never started"


def _with_samples(result: Result, samples: ProcessSamples) -> Result:
    """Samples go back to where they were before the file took them apart."""
    ordered = [samples[process] for process in sorted(samples)]
    together = tuple(value for values in ordered for value in values)
    processes: tuple[Estimate, ...] = result.processes
    if len(processes) == len(ordered):
        pairs = zip(processes, ordered, strict=True)
        processes = tuple(replace(estimate, samples_s=values) for estimate, values in pairs)
    estimate = result.estimate and replace(result.estimate, samples_s=together)
    return replace(result, estimate=estimate, processes=processes)
