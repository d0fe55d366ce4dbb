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
from torchmark.records import MOST_CASES, SCHEMA_VERSION, Result, Run, RunHeader, parse_case
from torchmark.store import lines
from torchmark.store.files import explained, write_whole

# What a whole file may hold; reading one never takes more memory or time than these allow.
FILE_BYTES = 1 << 30
RESULTS_BYTES = 250 << 20  # in memory
MOST_SAMPLES_AT_ONCE = 5_000_000

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_BUFFER = 16 << 10  # a header and a bit more: lists of runs read no further

ProcessSamples = dict[int, tuple[float, ...]]


def load(path: str | Path, samples: bool = False, content: bytes | None = None, local: bool = False) -> Run:
    """The run in a file, or in the `content` that belongs in that file.

    The raw samples, which are most of the bytes, are left out unless asked for. So are messages of other programs about
    failures, unless `local`: they are not shared.
    """
    path = Path(path)
    seen = _Contents(path, samples, content)
    texts = dict.fromkeys((*seen.header.cases, *seen.began, *seen.finished))
    results = [seen.result(text) for text in texts if text in seen.finished or text in seen.began]
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
    return _Contents(Path(path), samples=True).samples


def completed(path: str | Path) -> dict[str, int]:
    """How many processes of each case ended, so that a resumed run knows where to continue."""
    return {text: len(processes) for text, processes in _Contents(Path(path), samples=False).done.items()}


def read_header(path: str | Path) -> RunHeader:
    """Only the first line, for lists of runs."""
    path = Path(path)
    for number, _, line in read_lines(path):
        if isinstance(line, StoreError):
            raise line
        if not isinstance(line, lines.Header):
            raise lines.damaged(path, number, "not a header")
        return line.header
    raise _empty(path)


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
        if line is None or isinstance(line, lines.Checksum):
            continue
        if isinstance(line, lines.Header):
            line = replace(line, schema=SCHEMA_VERSION)
        written = lines.encode_line(line)
        digest.update(written)
        yield written
    yield lines.encode_line(lines.Checksum(digest.hexdigest()))


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
) -> Iterator[tuple[int, bytes, lines.Line | StoreError | None]]:
    """Numbered lines, each with its record, the error if it is damaged, or None for samples that are not wanted.

    No line is read further than a sane length, whatever the file claims to be.
    """
    schema = number = 0
    try:
        with _opened(path) if content is None else io.BytesIO(content) as file:
            while raw := file.readline(lines.HEADER_BYTES + 1):
                number += 1
                most = lines.HEADER_BYTES if number == 1 else lines.LINE_BYTES
                if is_samples := lines.is_samples(raw):
                    most = lines.SAMPLES_BYTES
                    raw += b"" if raw.endswith(b"\n") else file.readline(most)
                if len(raw) > most:
                    raise lines.damaged(path, number, "the line is longer than any that torchmark writes")
                if number == 1:
                    schema = lines.decode_schema(raw, path)
                if is_samples and not samples and raw.endswith(b"\n"):
                    yield number, raw, None
                    continue
                try:
                    line: lines.Line | StoreError = lines.decode_line(raw, schema, path, number)
                except StoreError as error:
                    line = error
                yield number, raw, line
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
            raise _too_large(path, f"it has {found.st_size >> 20} MiB")
        yield file
    finally:
        with contextlib.suppress(OSError):  # everything needed has been read
            file.close()


class _Contents:
    """What the lines of a file say about every case."""

    header: RunHeader

    def __init__(self, path: Path, samples: bool, content: bytes | None = None) -> None:
        self._path = path
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
        self._weight = self._sample_count = number = 0
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
                self.running[line.case], self.ended = line.process, False
                self.began.setdefault(line.case, number)
            case lines.Samples():
                self.samples.setdefault(line.case, {})[line.process] = line.samples_s
                self._sample_count += len(line.samples_s)
            case lines.Finished():
                self._finish(line.result, size)
            case lines.Spread():
                self.spread = line.process_spread
            case lines.Concluded():
                self.concluded |= {name: found for name, found in asdict(line).items() if found is not None}
            case lines.Ended():
                self.ended = True
        # A file may be long, but what is kept of it may not.
        if self._weight > RESULTS_BYTES:
            raise _too_large(self._path, f"its results take {self._weight >> 20} MiB of memory")
        if max(len(self.began), len(self.finished)) > MOST_CASES:
            raise _too_large(self._path, f"it has more than {MOST_CASES} cases")
        if self._sample_count > MOST_SAMPLES_AT_ONCE:
            raise _too_large(self._path, f"it has more than {MOST_SAMPLES_AT_ONCE} samples")

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

    def result(self, text: str) -> Result:
        if text in self.finished:
            return self.finished[text]
        try:
            case = parse_case(text)
        except UsageError as error:
            raise lines.damaged(self._path, self.began[text], f"{error.cause} - at `$.case`") from error
        return Result(case=case, status="interrupted", reason="the run died while this case was measured")

    def unfinished(self) -> Iterator[str]:
        for text, process in self.running.items():
            if text in self.finished:
                yield f"{text}: process {process} never finished; the figures are those of the others"
        never = [text for text in self.header.cases if text not in self.began and text not in self.finished]
        if never:
            yield f"{len(never)} of {len(self.header.cases)} cases were never started"


def _too_large(path: Path, what: str) -> StoreError:
    return StoreError(f"{path}: {what}, more than any run file", "Use another copy of the file")


def _empty(path: Path) -> StoreError:
    return StoreError(f"{path} holds no run", "Its run died before it began: delete the file")


def _with_samples(result: Result, samples: ProcessSamples) -> Result:
    """Put samples back into the estimates that they were taken from."""
    ordered, processes = [samples[process] for process in sorted(samples)], result.processes
    if len(processes) == len(ordered):
        pairs = zip(processes, ordered, strict=True)
        processes = tuple(replace(estimate, samples_s=values) for estimate, values in pairs)
    together = tuple(value for values in ordered for value in values)
    estimate = result.estimate and replace(result.estimate, samples_s=together)
    return replace(result, estimate=estimate, processes=processes)
