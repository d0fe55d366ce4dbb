"""Run files changed at random, as strangers, editors and broken disks change them, and a judge of what comes of it.

A mutant depends on nothing but the file it is made from and its seed. `judge` gives it to everything that reads files:

    python benchmarks/mutations.py --files 10000 --seed 3
    python benchmarks/mutations.py --seed 4711 --show        one mutant, to see what it is
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest import mock

import torchmark
from specimen import rich_file
from torchmark import cli
from torchmark.analyze.efficiency import Prices
from torchmark.errors import TorchmarkError
from torchmark.report import FORMATS, render
from torchmark.report.comparison import comparison_document
from torchmark.report.files import listing_document
from torchmark.report.run import details_document
from torchmark.store import RunWriter, load, read_header, shareable_lines

RECORDED = Path(__file__).parents[1] / "tests" / "store" / "recorded" / "v2.jsonl"

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}\[\],:]|[^\s"{}\[\],:]+|\s+')
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")

WHOLES = b"0 1 -1 2 7 255 100000 2147483648 9007199254740993 9223372036854775807 9223372036854775808 -7".split()
REALS = b"0.0 -0.0 1e-320 -1e-12 1e-9 0.5 1.5 1e15 1e300 1.7976931348623157e308 -1.7e308 3e-308 -1e200".split()
NO_NUMBERS = b"1e999 -1e999 NaN Infinity 01 1. .5 0x10 1_000 --1".split()
NO_NUMBERS += [b"9" * 400, b"9" * 5000, b"0." + b"0" * 400 + b"1"]
WORDS = [
    b'""', b'"a"', b'"ok"', b'"oom"', b'"stable"', b'"mean"', b'"as-published"', b'"cpu"', b'"fake"', b'"mlp"',
    b'"infer"', b'"nan"', b'"mlp/infer@cpu/float32"', b'"a/b:c=d@e/f"', b'"2026-11-15T19:45:49Z"',
    b'"9999-99-99T99:99:99Z"', b'"\\u0000"', b'"\\ud83d\\ude00"', b'"\\u202egnp.exe"',
    b'"\\u0007\\u001b[2J\\u001b]0;x\\u0007"', b'"%s%n{0}"', b'"=HYPERLINK(\\"http://a\\")"', b'"+1"', b'"-1"',
    b'"@SUM(A1)"', b'"\\t=1"', b'"[bold red]x[/]"', b'"{{7*7}}"', b'"<script>alert(1)</script>"',
    b'"</script><img src=x onerror=alert(1)>"', b'"[x](javascript:alert(1))"', b'"|a|`b`|\\n# x"',
    b'"../../../../etc/passwd"', b'"/dev/zero"', b'"CON"', b'"os.system"', b'"' + b"a" * 400 + b'"',
    b'"' + b"\xc3\xa9" * 300 + b'"', b'"' + b"word " * 1900 + b'"',
]  # fmt: skip
NO_WORDS = [
    b'"\\ud800"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\\x41"',
    b'"\n"',
    b'"',
    b"'a'",
    b'"' + b"b" * 20_000 + b'"',
]
SHAPES = [b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[null]", b'{"a":{}}', b'{"":0}', b"[1,2,3]"]
SHAPES += [b"[" * 3000, b"[" * 900 + b"]" * 900, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" + b"0," * 30_000 + b"0]"]
VALUES = (WHOLES, REALS, NO_NUMBERS, WORDS, NO_WORDS, SHAPES)
NAMES = [b'"kind"', b'"schema"', b'"case"', b'"process"', b'"samples_s"', b'"result"', b'"center_s"', b'"estimate"']
NAMES += [b'"processes"', b'"params"', b'"devices"', b'"unknown"', b'""', b'"__class__"', b'"\\u0000"']
KINDS = [b"header", b"started", b"samples", b"finished", b"spread", b"concluded", b"checksum", b"pickle"]

Tokens = list[bytes]
Chance = random.Random


def mutate(data: bytes, seed: int) -> bytes:
    """The file with one to five changes, most of them inside a line and a few to the lines or bytes themselves."""
    chance = random.Random(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        lines = data.splitlines(keepends=True)
        if not lines or chance.random() < 0.1:
            data = chance.choice(RAW)(data, chance)
        elif chance.random() < 0.1:
            data = b"".join(chance.choice(LINES)(lines, chance))
        else:
            (at,) = chance.choices(range(len(lines)), [min(len(line), 3000) for line in lines])
            tokens: Tokens = _TOKEN.findall(lines[at])
            lines[at] = b"".join(chance.choices(INSIDE, (16, 2, 1, 1, 1, 1))[0](tokens, chance)) if tokens else b""
            data = b"".join(lines)
    return data


def _value(tokens: Tokens, chance: Chance) -> Tokens:
    """Another value in the place of one, or of a whole list or object; more often than not one of the same kind."""
    start, end = _span(tokens, chance)
    values = _alike(tokens[start]) if chance.random() < 0.7 else chance.choice(VALUES)
    return [*tokens[:start], chance.choice(values), *tokens[end:]]


def _alike(token: bytes) -> list[bytes]:
    if token.startswith(b'"'):
        return WORDS
    if re.fullmatch(rb"-?\d+", token):
        return WHOLES
    return REALS if re.match(rb"-?\d", token) else SHAPES


def _name(tokens: Tokens, chance: Chance) -> Tokens:
    """Another key in the place of one: so one is missing, one is unknown, and sometimes one stands twice."""
    keys = [at for at, token in enumerate(tokens[:-1]) if token.startswith(b'"') and tokens[at + 1] == b":"]
    if keys:
        tokens[chance.choice(keys)] = chance.choice(NAMES)
    return tokens


def _repeat(tokens: Tokens, chance: Chance) -> Tokens:
    """A value or an entry many times over."""
    start, end = _span(tokens, chance)
    if start >= 2 and tokens[start - 1] == b":":
        start -= 2
    times = chance.choice((1, 1, 2, 100))
    return [*tokens[:end], *([b",", *tokens[start:end]] * times), *tokens[end:]]


def _drop(tokens: Tokens, chance: Chance) -> Tokens:
    at = chance.randrange(len(tokens))
    return [*tokens[:at], *tokens[at + chance.randrange(1, 4) :]]


def _swap(tokens: Tokens, chance: Chance) -> Tokens:
    a, b = chance.randrange(len(tokens)), chance.randrange(len(tokens))
    tokens[a], tokens[b] = tokens[b], tokens[a]
    return tokens


def _kind(tokens: Tokens, chance: Chance) -> Tokens:
    """A line that says it is of another kind."""
    kinds = [b'"%s"' % kind for kind in KINDS]
    found = [at for at, token in enumerate(tokens) if token in kinds]
    if found:
        tokens[found[0]] = chance.choice(kinds)
    return tokens


def _span(tokens: Tokens, chance: Chance) -> tuple[int, int]:
    """Where a value begins and ends, chosen at random."""
    after = [*tokens[1:], b""]
    follows = [at for at in range(1, len(tokens)) if tokens[at - 1] in (b":", b"[", b",") and after[at] != b":"]
    start = chance.choice(follows) if follows else chance.randrange(len(tokens))
    depth, end = 0, start
    while end < len(tokens):
        depth += (tokens[end] in _OPENING) - (tokens[end] in _CLOSING)
        end += 1
        if depth <= 0:
            break
    return start, end


def _shuffle(lines: list[bytes], chance: Chance) -> list[bytes]:
    chance.shuffle(lines)
    return lines


def _copy_line(lines: list[bytes], chance: Chance) -> list[bytes]:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return lines


def _drop_line(lines: list[bytes], chance: Chance) -> list[bytes]:
    del lines[chance.randrange(len(lines))]
    return lines


def _add_line(lines: list[bytes], chance: Chance) -> list[bytes]:
    new = (b"\n", b"{}\n", b"null\n", b"[]\n", b"\xff\n", b'{"kind":"started","case":"x","process":-1}\n', b" \t\r\n")
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(new))
    return lines


def _cut(data: bytes, chance: Chance) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flip(data: bytes, chance: Chance) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _insert(data: bytes, chance: Chance) -> bytes:
    at = chance.randrange(len(data) + 1)
    return (
        data[:at]
        + chance.choice((b"\0", b"\n", b"\r\n", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"]", b" " * 99))
        + data[at:]
    )


def _encode(data: bytes, chance: Chance) -> bytes:
    return data.decode("utf-8", "replace").encode(chance.choice(("utf-16", "utf-8-sig", "utf-32")))


INSIDE: tuple[Callable[[Tokens, Chance], Tokens], ...] = (_value, _name, _repeat, _drop, _swap, _kind)
LINES: tuple[Callable[[list[bytes], Chance], list[bytes]], ...] = (_shuffle, _copy_line, _drop_line, _add_line)
RAW: tuple[Callable[[bytes, Chance], bytes], ...] = (_cut, _cut, _flip, _flip, _insert, _insert, _encode)


@cache
def originals() -> tuple[bytes, ...]:
    """Sound files to start from: a recorded one, and one that has everything a run file can have."""
    return RECORDED.read_bytes(), rich_file()


def judge(path: Path) -> str:
    """`fine` or `refused`, by everything that reads the file and is quick; any other error goes through."""
    found = {_outcome(lambda each=each: each(path)) for each in (_read, _look, _compare, _check, _export, _resume)}
    return "refused" if "refused" in found else "fine"


def judge_page(path: Path) -> str:
    """As `judge`, for what takes longer: the page with its charts, the leaderboard with its index, what a fleet has."""
    found = {_outcome(lambda each=each: each(path)) for each in (_draw, _rank, _gather)}
    return "refused" if "refused" in found else "fine"


@cache
def prepare_pages() -> None:
    """Import all that draws, once in a process: that it takes a second is not the fault of the first file."""
    _draw(RECORDED)


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except TorchmarkError:
        return "refused"
    return "fine"


def _draw(path: Path) -> None:
    from torchmark.report.headline import render_card
    from torchmark.report.page import page_document

    run = load(path, samples=True)
    render(page_document([run], "0", prices=Prices(2.5, 0.3)), "html")
    render_card(run, "0")


def _rank(path: Path) -> None:
    """The folder of the file, with an index of its own next to it. The check would refuse most mutants, so that it must
    not be what the ranking relies on: it is tried by itself."""
    from torchmark.cli import report

    report._why_unsound(path)
    with (
        mock.patch.dict(os.environ, {"TORCHMARK_HOME": str(path.parent / "home")}),
        mock.patch.object(report, "_why_unsound", return_value=""),
    ):
        for each in ("html", "md", "csv", "json"):
            report._leaderboard(report.ReportOptions(leaderboard=str(path.parent)), each)


def _gather(path: Path) -> None:
    """As one of two nodes."""
    from torchmark.report.machines import Member, gathered_document

    runs = [load(path), load(RECORDED)]
    found = [Member(f"A{number}", "A", "a node", "done", run=run) for number, run in enumerate(runs)]
    for each in FORMATS:
        render(gathered_document(found), each)


def _read(path: Path) -> None:
    read_header(path)
    load(path)


def _look(path: Path) -> None:
    run = load(path, samples=True)
    for each in FORMATS:
        render(run, each, prices=Prices(2.5, 0.3))
    render(details_document([run]))
    render(listing_document([run.header]))


def _compare(path: Path) -> None:
    """With itself and with a sound run."""
    run = load(path)
    for other in (run, load(RECORDED)):
        found = torchmark.compare_runs(run, other)
        for each in ("table", "md", "csv", "json"):
            render(comparison_document([found], [run, other]), each)


def _check(path: Path) -> None:
    """Through the command itself: a file that is no run is a finding there, never an error."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as printed:
        code = cli.main(["check", str(path), "--format", "table"])
    assert code in (0, 1), printed.getvalue()


def _export(path: Path) -> None:
    for _ in shareable_lines(path):
        pass


def _resume(path: Path) -> None:
    RunWriter.resume(path).close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant; the others follow")
    parser.add_argument("--pages", action="store_true", help="as pages, leaderboards and fleets instead")
    parser.add_argument("--show", action="store_true", help="print the first mutant and stop")
    options = parser.parse_args()
    if options.pages:
        prepare_pages()
    files, counts, longest_s = originals(), {"fine": 0, "refused": 0, "unhandled": 0}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        for seed in range(options.seed, options.seed + options.files):
            mutant = mutate(files[seed % len(files)], seed)
            if options.show:
                sys.stdout.buffer.write(mutant)
                return 0
            path.write_bytes(mutant)
            began = time.process_time()
            try:
                counts[(judge_page if options.pages else judge)(path)] += 1
            except Exception as error:
                counts["unhandled"] += 1
                print(f"seed {seed}: {type(error).__name__}: {error}"[:300])
            longest_s = max(longest_s, time.process_time() - began)
    counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"{counted}; the longest took {longest_s:.2f} s of processor time")
    return 1 if counts["unhandled"] else 0


if __name__ == "__main__":
    sys.exit(main())
