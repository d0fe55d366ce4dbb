"""What a run file promises: nothing finished is lost, and nothing in a file can do more harm than one clear error."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.errors import StoreError
from torchmark.records import Case, Estimate, NumericCheck, Remark, Result, Trend, Work, parse_case
from torchmark.settings import SETTINGS
from torchmark.store import RunWriter, check_writable, load
from torchmark.store.lines import Samples, Spread, Started
from torchmark.store.reader import Account, examine

A, B = "mlp/infer@cpu/float32", "matmul/infer:size=64@cpu/float32"
SAMPLES = (0.001, 0.0012, 0.0011)

finite = st.floats(-1e100, 1e100)
# Without what paths and addresses are made of: those are never written.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=r"/\:~@.x"), max_size=8)
names = st.from_regex(r"[a-z][a-z0-9 ,-]{0,7}", fullmatch=True)
estimates = st.builds(
    Estimate,
    center_s=finite,
    low_s=finite,
    high_s=finite,
    estimand=st.sampled_from(["median", "mean"]),
    verdict=st.sampled_from(["stable", "noisy", "contended"]),
    first_step_s=finite,
    effective_samples=finite,
    warmup_cut=st.integers(0, 10**9),
    trend=st.builds(Trend, finite, finite),
    flags=st.lists(names, max_size=2).map(tuple),
    p99_high_s=st.none() | finite,
)
results = st.builds(
    Result,
    case=st.builds(Case, workload=st.just("mlp"), mode=st.just("infer"), threads=st.none() | st.integers(1, 9)),
    status=st.sampled_from(["ok", "oom", "crashed"]),
    reason=st.none() | words,
    estimate=st.none() | estimates,
    processes=st.lists(estimates, max_size=2).map(tuple),
    work=st.none() | st.builds(Work, items=finite, unit=names, flops=st.none() | finite),
    numeric=st.none() | st.builds(NumericCheck, finite, finite, words),
    settings=st.dictionaries(  # any value under a known key, and only texts of its form
        st.sampled_from(sorted(SETTINGS)), st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite
    ),
    cautions=st.lists(st.builds(Remark, names, words, words), max_size=2).map(tuple),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def ended_processes(path: Path) -> Counter[str]:
    """How many processes of each case have a result."""
    return Counter(part.result.case.text for _, part in examine(path) if isinstance(part, Account))


@pytest.fixture
def whole(path: Path, make_header, make_result, make_estimate) -> Path:
    """Two cases in two processes each, taken in turn, as a run of default rigor writes them."""
    with RunWriter.create(path, make_header((A, B))) as writer:
        writer.write(Spread(0.04))
        for process in (0, 1):
            for text in (B, A):
                writer.write(Started(text, process))
                writer.write(Samples(text, process, tuple(value + process for value in SAMPLES)))
                known = tuple(make_estimate(1e-3 * (1 + each)) for each in range(process + 1))
                writer.finished(make_result(text, processes=known))
    return path


@settings(max_examples=40)
@given(st.lists(results, max_size=2, unique_by=lambda result: result.case.text))
def test_what_is_written_is_read_back(tmp_path: Path, make_header, written: list[Result]) -> None:
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    header = make_header(tuple(result.case.text for result in written), label="a\u2028b")
    with RunWriter.create(path, header) as writer:
        for result in written:
            writer.finished(result)
    run = load(path)
    assert run.header == header
    assert run.results == tuple(written)
    assert run.problems == ()


def test_the_last_word_on_a_case_counts_in_the_order_of_the_header(whole: Path) -> None:
    run = load(whole)
    assert [result.case.text for result in run.results] == [A, B]
    assert [len(result.processes) for result in run.results] == [2, 2]
    assert run.process_spread == 0.04
    assert ended_processes(whole) == {A: 2, B: 2}


def test_samples_come_back_only_when_asked_for(whole: Path) -> None:
    second = tuple(value + 1 for value in SAMPLES)
    assert all(result.estimate.samples_s == () for result in load(whole).results)
    for result in load(whole, samples=True).results:
        assert result.estimate.samples_s == SAMPLES + second
        assert [process.samples_s for process in result.processes] == [SAMPLES, second]


def test_samples_are_not_decoded_unless_asked_for(whole: Path) -> None:
    edited(whole, 4, lambda line: line.replace(b'"samples_s":[', b'"samples_s":[nonsense,'))
    assert len(load(whole).results) == 2
    with pytest.raises(StoreError, match=r"line 4"):
        load(whole, samples=True)


def test_raw_samples_never_reach_a_finished_line(path: Path, make_header, make_result, make_estimate) -> None:
    with RunWriter.create(path, make_header((A,))) as writer:
        heavy = make_estimate(samples_s=SAMPLES)
        writer.finished(make_result(A, estimate=heavy, processes=(heavy,)))
    assert b"0.0012" not in path.read_bytes()


def test_a_case_that_never_finished_is_interrupted(path: Path, make_header) -> None:
    with RunWriter.create(path, make_header((A, B))) as writer:
        writer.write(Started(A, 0))
    run = load(path)
    assert [(result.case.text, result.status) for result in run.results] == [(A, "interrupted")]
    assert run.results[0].reason
    assert "1 of 2 cases were never started" in run.problems
    assert not ended_processes(path)


def test_a_second_process_that_died_leaves_the_first_ones_figures(path: Path, make_header, make_result) -> None:
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.write(Started(A, 0))
        writer.finished(make_result(A))
        writer.write(Started(A, 1))
        writer.write(Samples(A, 1, SAMPLES))
    run = load(path, samples=True)
    assert run.results[0].status == "ok"
    assert run.results[0].estimate.samples_s == ()
    assert any("process 1" in problem for problem in run.problems)
    assert ended_processes(path) == {A: 1}


def test_cut_at_every_byte_no_finished_line_is_lost(path: Path, tmp_path: Path, make_header) -> None:
    with RunWriter.create(path, make_header((A, B))) as writer:
        for process, text in ((0, A), (0, B), (1, A)):
            writer.write(Started(text, process))
            writer.write(Samples(text, process, SAMPLES))
            writer.finished(Result(parse_case(text), "oom"))
    data, cut = path.read_bytes(), tmp_path / "cut.jsonl"
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    finished = [end for end in ends if data[:end].splitlines()[-1].startswith(b'{"kind":"finished"')]
    for length in range(ends[0], len(data)):
        cut.write_bytes(data[:length])
        assert ended_processes(cut).total() >= sum(end <= length for end in finished)
        torn = length not in ends and length + 1 not in ends
        assert any("incomplete" in problem for problem in load(cut).problems) == torn


def test_a_file_cut_inside_its_header_is_no_run(whole: Path, tmp_path: Path) -> None:
    data, cut = whole.read_bytes(), tmp_path / "cut.jsonl"
    for length in range(0, data.index(b"\n") - 1, 7):
        cut.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"cut\.jsonl"):
            load(cut)


@pytest.mark.parametrize("dropped", [0, 1, 2, 40])
def test_a_resumed_run_goes_on_after_the_last_sound_line(whole: Path, make_result, dropped: int) -> None:
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) - dropped])
    with RunWriter.resume(whole) as writer:
        writer.write(Started(A, 2))
        writer.finished(make_result(A, status="timeout", estimate=None))
    run = load(whole)
    assert run.problems == ()
    assert run.results[0].status == "timeout"
    assert whole.read_bytes().startswith(data[: data.rindex(b"\n", 0, -1) + 1])


def test_an_existing_file_is_never_overwritten(whole: Path, make_header) -> None:
    data = whole.read_bytes()
    with pytest.raises(StoreError, match="--resume"):
        RunWriter.create(whole, make_header())
    with pytest.raises(StoreError):
        check_writable(whole)
    assert whole.read_bytes() == data


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_writer_refuses_what_is_not_finite(path: Path, make_header, make_result, make_estimate, value) -> None:
    with RunWriter.create(path, make_header((A,))) as writer:
        before = path.read_bytes()
        for name in ("p99_s", "p99_high_s"):
            with pytest.raises(StoreError, match=rf"{path}, line 2 .*result\.estimate\.{name}"):
                writer.finished(make_result(A, estimate=make_estimate(**{name: value})))
        with pytest.raises(StoreError, match=r"result\.metrics\.loss"):
            writer.finished(make_result(A, metrics={"loss": value}))
        with pytest.raises(StoreError, match="samples_s"):
            writer.write(Samples(A, 0, (1.0, value)))
        with pytest.raises(StoreError, match="process_spread"):
            writer.write(Spread(value))
        assert path.read_bytes() == before


def edited(path: Path, line: int, change) -> Path:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = change(lines[line - 1])
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b'"center_s":0.00253', b'"center_s":"fast"', r"\$\.result\.estimate\.center_s"),
        (b'"center_s":0.00253', b'"center_s":1e999', r"\$\.result\.estimate\.center_s"),
        (b'"center_s":0.00253', b'"center_s":NaN', "line 5"),
        (b'"center_s":0.00253', b'"center_s":Infinity', "line 5"),
        (b'"status":"ok"', b'"status":"great"', r"\$\.result\.status"),
        (b'"kind":"finished"', b'"kind":"pickle"', r"\$\.kind"),
        (b'"params":{}', b'"params":{"\\ud800":1}', "line 5"),
        (b'"params":{}', b'"params":' + b"[" * 100_000, "line 5"),
        (b'"params":{}', b'"params":{},"more":' + b"[" * 100_000 + b"]" * 100_000, "line 5"),
        (b'"params":{}', b'"params":{"x":"' + b"y" * (5 << 20) + b'"}', "longer"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_file_line_and_field(whole: Path, old, new, field) -> None:
    edited(whole, 5, lambda line: line.replace(old, new, 1))
    with pytest.raises(StoreError, match=field) as raised:
        load(whole)
    assert f"{whole}, line 5" in str(raised.value)
    assert raised.value.fix


@pytest.mark.parametrize("schema", [3, 10**15, -1, -(10**15), 0])
def test_an_unknown_version_is_refused(whole: Path, schema: int) -> None:
    edited(whole, 1, lambda line: line.replace(b'"schema":2', b'"schema":%d' % schema))
    with pytest.raises(StoreError, match=f"schema is {schema}"):
        load(whole)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"kind":"spread","process_spread":1}\n']
)
def test_another_kind_of_file_is_no_run(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError):
        load(path)


def test_a_folder_or_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        with pytest.raises(StoreError, match="cannot read"):
            load(path)
        with pytest.raises(StoreError):
            RunWriter.resume(path)


@settings(max_examples=300)
@given(data=st.data())
def test_fuzzed_bytes_raise_nothing_but_a_store_error(whole: Path, tmp_path: Path, data) -> None:
    raw = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3) | st.sampled_from(TOKENS))
    fuzzed = tmp_path / "fuzzed.jsonl"
    fuzzed.write_bytes(raw)
    for read in (load, lambda path: load(path, samples=True), lambda path: RunWriter.resume(path).close()):
        with contextlib.suppress(StoreError):
            read(fuzzed)


TOKENS = [b'"', b"\n", b"{", b"[", b"null", b"1e999", b"-1", b"9" * 400, b"\xff", b"\\ud800", b"true", b'{"kind":']


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_store_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "random.jsonl"
    path.write_bytes(data)
    with pytest.raises(StoreError):
        load(path)


def test_a_disk_that_fills_up_leaves_a_sound_file(whole: Path) -> None:
    """The limit on file sizes stands for the full disk: the kernel writes a part of the line, then refuses."""
    program = (
        "import resource, sys, pathlib\n"
        "from torchmark.errors import StoreError\n"
        "from torchmark.store import RunWriter\n"
        "from torchmark.store.lines import Samples\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "with RunWriter.resume(path) as writer:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20,) * 2)\n"
        "    try:\n"
        "        writer.write(Samples('mlp/infer@cpu/float32', 9, tuple([0.5] * 1000)))\n"
        "    except StoreError as error:\n"
        "        print(error)\n"
    )
    data = whole.read_bytes()
    done = subprocess.run([sys.executable, "-c", program, whole], capture_output=True, text=True, check=True)
    assert f"cannot write {whole}" in done.stdout
    assert whole.read_bytes() == data


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="/proc is the read-only folder of this test")
def test_a_place_that_cannot_be_written_is_known_before_measuring(make_header) -> None:
    place = Path("/proc/torchmark/run.jsonl")
    with pytest.raises(StoreError) as raised:
        check_writable(place)
    assert str(place) in str(raised.value)
    assert raised.value.fix
    with pytest.raises(StoreError):
        RunWriter.create(place, make_header())


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        check_writable(tmp_path / "file" / "run.jsonl")


def test_checking_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_every_line_is_one_object_with_its_kind_first(whole: Path) -> None:
    kinds = [next(iter(json.loads(line).items())) for line in whole.read_text().splitlines()]
    assert {key for key, _ in kinds} == {"kind"}
    assert [kind for _, kind in kinds[:5]] == ["header", "spread", "started", "samples", "finished"]


def test_an_unprintable_number_in_the_settings_is_refused(path: Path, make_header, make_result) -> None:
    with RunWriter.create(path, make_header((A,))) as writer, pytest.raises(StoreError):
        writer.finished(replace(make_result(A), settings={"threads": 10**5000}))
    assert not [line for line in path.read_bytes().splitlines() if msgspec.json.decode(line)["kind"] == "finished"]
