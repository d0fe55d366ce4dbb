"""Every fault of a file is named with its line and field, and the next line is looked at all the same."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from torchmark.errors import StoreError
from torchmark.records import Fitting, Remark, RunHeader, Tuning, parse_case
from torchmark.store import RunWriter, load, write_export
from torchmark.store.lines import Checksum, Samples, Started
from torchmark.store.reader import Account, examine

A, B = "mlp/infer@cpu/float32", "matmul/infer:size=64@cpu/float32"
SAMPLES = (0.001, 0.0012, 0.0011)


@pytest.fixture
def path(tmp_path: Path, make_header, make_result, make_estimate) -> Path:
    path = tmp_path / "run.jsonl"
    with RunWriter.create(path, make_header((A, B))) as writer:
        for text in (A, B):
            writer.write(Started(text, 0))
            writer.write(Samples(text, 0, SAMPLES))
            writer.finished(make_result(text, processes=(make_estimate(),)))
    return path


def flaws(path: Path) -> list[tuple[int, str]]:
    return [(line, part.place) for line, part in examine(path) if isinstance(part, Remark)]


def edit(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    return path


def test_a_sound_file_is_handed_out_part_by_part(path: Path) -> None:
    (_, header), (line, first), (_, second), (_, end) = examine(path)
    assert isinstance(header, RunHeader)
    assert isinstance(first, Account)
    assert isinstance(second, Account)
    assert (line, first.result.case.text, tuple(first.samples[0])) == (4, A, SAMPLES)
    assert list(second.samples) == [0]
    assert isinstance(end, Checksum)


def test_the_checksum_is_that_of_all_bytes_before_it(path: Path) -> None:
    *lines, last = path.read_bytes().splitlines(keepends=True)
    assert hashlib.sha256(b"".join(lines)).hexdigest().encode() in last


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (b'"center_s":0.00253', b'"center_s":0.00253,"center_s":0.00253', "$.result.estimate.center_s"),
        (b'"kind":"started"', b'"kind":"started","kind":"started"', "$.kind"),
        (b'"process":0,"samples_s"', b'"process":0,"process":0,"samples_s"', "$.process"),
        (b'"seed":0}}', b'"seed":0,"host":"kestrel"}}', "$.header.host"),
        (b'"trend":{', b'"trend":{"more":[1,{"a":NaN}],', ""),
        (b'"trend":{', b'"trend":{"more":[1,{"a":2}],', "$.result.estimate.trend.more"),
        (b'"status":"ok"', b'"status":"great"', "$.result.status"),
        (b'"center_s":0.00253', b'"center_s":"fast"', "$.result.estimate.center_s"),
        (b'"center_s":0.00253', b'"center_s":1e999', "$.result.estimate.center_s"),
        (b'"process":0}', b'"process":1e99}', "$.process"),
        (b'"case":"mlp/infer@cpu/float32","process":0}', b'"case":"mlp/infer@cpu/float64","process":0}', "$.case"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(path: Path, old: bytes, new: bytes, place: str) -> None:
    edit(path, old, new)
    found = flaws(path)
    assert place in [where for _, where in found]
    assert found[-1] == (8, "$.sha256")  # after any change, the bytes are no longer those that were written


def test_one_damaged_line_hides_no_other(path: Path) -> None:
    edit(path, b'"status":"ok"', b'"status":"great"')
    edit(path, b'"kind":"samples"', b'"kind":"pickle"')
    edit(path, b'"status":"ok"', b'"status":"fine"')
    assert [line for line, place in flaws(path) if place != "$.sha256"] == [3, 4, 7]


def test_a_file_that_was_cut_off_says_so(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    assert flaws(path) == [(8, "")]
    for lines in range(1, 8):  # at the end of a line nothing is torn, and only the checksum shows that there was more
        path.write_bytes(b"".join(data.splitlines(keepends=True)[:lines]))
        ((line, flaw),) = [(line, part) for line, part in examine(path) if isinstance(part, Remark)]
        assert (flaw.kind, line, flaw.place) == ("well-formed", lines, "")
        assert flaw.cause.startswith("no checksum at its end")
        assert not any(isinstance(part, Checksum) for _, part in examine(path))


def test_a_checksum_speaks_for_the_end_of_a_file_only_where_it_is_the_end(path: Path) -> None:
    with RunWriter.resume(path) as writer:
        writer.write(Started(A, 1))
        path.with_suffix(".copy").write_bytes(path.read_bytes())
    assert isinstance([*examine(path)][-1][1], Checksum)
    assert flaws(path.with_suffix(".copy")) == [(9, "")]


def test_a_process_that_died_after_its_samples_and_was_begun_again_is_no_flaw(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    died = [*lines[:3], lines[1], lines[2].replace(b"0.0012", b"0.0013"), *lines[3:7]]
    path.write_bytes(b"".join(died))
    RunWriter.resume(path).__exit__(None, None, None)
    assert flaws(path) == []
    assert [tuple(part.samples[0])[1] for _, part in examine(path) if isinstance(part, Account)] == [0.0013, 0.0012]


def test_a_bit_that_fell_over_in_the_samples_is_found(path: Path) -> None:
    edit(path, b"0.0012", b"0.0013")
    assert len(load(path).results) == 2
    assert flaws(path) == [(8, "$.sha256")]


def test_lines_that_do_not_belong_are_reported(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[0], lines[2], lines[2], *lines[4:]]))
    assert flaws(path) == [(5, "$.kind"), (7, "$.process"), (11, "$.sha256")]


@pytest.mark.parametrize(
    ("winner", "gain", "places"),
    [
        (B, (1.5, 1.2, 1.8), []),
        (B, (None, None, None), []),
        (A, (None, None, None), []),
        (B, (3.0, 1.2, 1.8), ["$.tuning.gain"]),
        (B, (1.5, None, None), ["$.tuning.gain"]),
        (A, (1.5, 1.2, 1.8), ["$.tuning.winner"]),
        ("mlp/infer@cpu/float32+compile", (1.5, 1.2, 1.8), ["$.tuning.winner"]),
    ],
)
def test_a_search_concludes_what_its_file_can_know(
    path: Path, winner: str, gain: tuple[float | None, float | None, float | None], places: list[str]
) -> None:
    with RunWriter.resume(path) as writer:
        writer.concluded(Tuning(parse_case(A), parse_case(winner), *gain, 5))
    assert [place for _, place in flaws(path)] == places
    found_there = load(path).tuning
    assert found_there
    assert (found_there.winner.text, found_there.gain) == (winner, gain[0])


@pytest.mark.parametrize(
    ("largest", "efficient", "place"), [(8, 4, None), (8, 16, "$.fitting.efficient"), (None, 1, "$.fitting.efficient")]
)
def test_a_search_for_what_fits_does_not_contradict_itself(path: Path, largest, efficient: int, place) -> None:
    found_there = Fitting(parse_case(A), "batch", 1e9, "memory", largest, 3, efficient)
    with RunWriter.resume(path) as writer:
        writer.concluded(found_there)
    assert [found for _, found in flaws(path)] == ([place] if place else [])
    assert load(path).fitting == found_there


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"{}\n", b'{"kind":"spread","process_spread":1}\n'])
def test_another_kind_of_file_is_one_finding(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    assert len(flaws(path)) == 1


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        list(examine(tmp_path / "missing.jsonl"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    found_there: list[str] = []

    def read() -> None:
        try:
            load(pipe)
        except StoreError as error:
            found_there.append(error.cause)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    assert found_there == [f"cannot read {pipe}: it is not a file"]


def test_a_file_of_more_than_any_run_is_refused_before_it_fills_the_memory(path: Path, tmp_path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    many = [b'{"kind":"started","case":"mlp/infer:batch=%d@cpu/float32","process":0}\n' % n for n in range(10_001)]
    (tmp_path / "cases.jsonl").write_bytes(lines[0] + b"".join(many))
    with pytest.raises(StoreError, match="more than 10000 cases"):
        load(tmp_path / "cases.jsonl")
    long = b'{"kind":"samples","case":"%s","process":%d,"samples_s":[' + b"0," * 999_999 + b"0]}\n"
    (tmp_path / "samples.jsonl").write_bytes(lines[0] + b"".join(long % (A.encode(), n) for n in range(6)))
    assert load(tmp_path / "samples.jsonl").results == ()
    with pytest.raises(StoreError, match="more than 5000000 samples"):
        load(tmp_path / "samples.jsonl", samples=True)
    assert "$.samples_s" in [place for _, place in flaws(tmp_path / "samples.jsonl")]


def test_a_file_that_claims_to_be_huge_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # a hole: it takes no room on the disk
    with pytest.raises(StoreError, match="2048 MiB"):
        load(path)


def test_an_export_is_sound_and_a_second_one_is_the_same(path: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    write_export(path, once)
    write_export(once, twice)
    assert flaws(once) == []
    assert isinstance([*examine(once)][-1][1], Checksum)
    assert once.read_bytes() == twice.read_bytes()
    assert load(once, samples=True) == load(path, samples=True)


def test_an_export_leaves_out_what_no_field_is_for(path: Path, tmp_path: Path) -> None:
    edit(path, b'"seed":0}}', b'"seed":0,"host":"kestrel"}}')
    path.write_bytes(path.read_bytes() + b'{"kind":"finished","result":{"torn')
    write_export(path, tmp_path / "out.jsonl")
    assert b"kestrel" not in (tmp_path / "out.jsonl").read_bytes()
    assert flaws(tmp_path / "out.jsonl") == []


def test_an_export_overwrites_nothing_and_leaves_nothing_of_a_damaged_file(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.jsonl"
    target.write_text("mine")
    with pytest.raises(StoreError, match="already exists"):
        write_export(path, target)
    with pytest.raises(StoreError, match="cannot write"):
        write_export(path, tmp_path / "nowhere" / "target.jsonl")
    assert target.read_text() == "mine"
    edit(path, b'"status":"ok"', b'"status":"great"')
    with pytest.raises(StoreError, match=r"\$\.result\.status"):
        write_export(path, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()
