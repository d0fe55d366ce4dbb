"""Reports say the same in every format, fit where they are shown, and obey nothing that a file says."""

from __future__ import annotations

import csv
import io
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchmark.errors import UnknownName
from torchmark.records import Case, Remark, Result, Run, Work
from torchmark.report import FORMATS, render, write_csv, write_json, write_lines
from torchmark.report.document import Cell, Code, Column, Document, Facts, Lines, Remarks, Section, Table, Title
from torchmark.report.run import details_document, strip
from torchmark.report.terminal import draw, fold_case
from torchmark.report.text import clean, printable

EVIL = "\x1b[31m\u202eevil\u2066\x00\x9b\u200b\n<script>|`*"


def test_the_table_fits_and_grows_with_the_terminal(full_run: Run) -> None:
    for width in (80, 100, 120, 160):
        text = render(full_run, "table", width)
        assert max(map(len, text.splitlines())) <= width
        assert ("first step" in text) == ("p99" in text) == (width >= 120)
        assert "…" not in text


def test_the_table_says_what_matters(full_run: Run) -> None:
    text = render(full_run, "table", 120)
    heading, rows = text.split("─" * 10, 1)
    assert all(part in heading for part in ("3f9c2a71", "nightly", "cpu/float32", "torch 2.13.0+cpu"))
    assert "@cpu" not in rows
    (mlp,) = [line for line in rows.splitlines() if line.startswith("mlp/infer")]
    assert mlp.split() == ["mlp/infer", "2.53", "ms", "±0.4%", "50.6k", "sample/s", "22.8", "ms", "3.54", "ms", "good"]
    (null,) = [line for line in rows.splitlines() if line.startswith("null/infer")]
    assert "step/s" not in null
    assert "tried to allocate 37.3 GB" in rows
    assert "other processes used 38% of the CPU" in rows
    assert "→ stop them and run again" in rows
    assert "1 to 3 processes per case" in rows


def test_a_failed_case_has_a_status_and_no_figure(full_run: Run) -> None:
    lines = render(full_run, "table", 120).splitlines()
    (row,) = [line for line in lines if line.startswith("tensor-add") and line.endswith("oom")]
    assert row.split()[1:] == ["-", "-", "-", "-", "-", "oom"]


def test_people_see_grades_and_programs_the_verdict_as_well(full_run: Run) -> None:
    for format_name in ("table", "md"):
        text = render(full_run, format_name, 120)
        assert "grade" in text
        assert "fair: noisy" in text  # ±12%
        assert not [word for word in ("verdict", "stable", "single-process") if word in text]
    rows = list(csv.DictReader(io.StringIO(render(full_run, "csv"))))
    assert [row["grade"] for row in rows] == ["good", "good", "fair", "good", ""]
    assert [row["verdict"] for row in rows] == ["stable", "stable", "contended", "noisy", ""]
    assert "contended oversubscribed bimodal" in render(details_document([full_run]))


def test_what_a_good_grade_answers_is_no_caution(full_run: Run, make_result, make_estimate) -> None:
    kinds = ("noisy", "warming", "drifting", "slowing", "contended", "few-samples", "process-spread", "oversubscribed")
    cautions = tuple(Remark(kind, f"because of {kind}", "wait") for kind in kinds)
    good = replace(full_run, results=(make_result(cautions=cautions),))
    for format_name in ("table", "md"):
        text = render(good, format_name)
        assert "because of oversubscribed" in text
        assert text.count("because of") == 1
        poor = replace(good, results=(make_result(cautions=cautions, estimate=make_estimate(half=0.5)),))
        assert render(poor, format_name).count("because of") == len(kinds)
    assert render(details_document([good])).count("because of") == len(kinds)


def test_a_narrow_terminal_loses_columns_and_no_unit(full_run: Run) -> None:
    for width in (40, 50, 60, 70):
        text = render(full_run, "table", width)
        table = text.partition("─\n")[2].partition("± is")[0]
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in table
        assert "2.53 ms" in table
        assert "±0.4%" in table
        assert ("sample/s" in table) == (width > 50)


def test_published_rows_have_no_grade(full_run: Run, make_result, make_estimate) -> None:
    estimate = make_estimate(verdict="as-published")
    shown = make_result("mlp/infer@cpu/float32+as-published", estimate=estimate, settings={"printed": "2.5 s"})
    text = render(replace(full_run, results=(shown,)))
    assert "grade" not in text
    assert "as-published" not in text


def test_the_interval_is_named(full_run: Run, make_result, make_estimate) -> None:
    one = replace(full_run, results=(make_result(),))
    meaning = "± is where a repeat of this command on this machine would land (95%)."
    assert f"{meaning} 1 process per case." in render(one, width=120)
    three = replace(full_run, results=(make_result(processes=(make_estimate(),) * 3),))
    assert f"{meaning} 3 processes per case." in render(three, width=120)


def test_cases_at_different_places_keep_their_place(full_run: Run, make_result) -> None:
    mixed = replace(full_run, results=(make_result("mlp/infer@cpu/float32"), make_result("mlp/infer@cuda:0/float16")))
    text = render(mixed)
    assert "mlp/infer@cuda:0/float16" in text
    assert " on cpu" not in text


def test_a_caution_of_all_cases_is_said_once(full_run: Run, make_result) -> None:
    battery = Remark("on-battery", "the machine runs on battery", "plug it in")
    results = tuple(make_result(f"mlp/infer:batch={size}@cpu/float32", cautions=(battery,)) for size in (1, 2, 3))
    text = render(replace(full_run, results=results))
    assert text.count("plug it in") == 1
    assert "all cases" in text
    assert "- **on-battery** (all cases): " in render(replace(full_run, results=results), "md")


def test_colour_is_there_only_when_wanted(full_run: Run) -> None:
    assert "\x1b" not in render(full_run, "table", 80, color=False)
    assert "\x1b[" in render(full_run, "table", 80, color=True)


def test_an_empty_run_is_a_report_too(full_run: Run) -> None:
    for format_name in FORMATS:
        render(replace(full_run, results=()), format_name)
    assert "No results" in render(replace(full_run, results=(), problems=("line 2 is torn",)))


def test_csv_has_one_line_per_result_and_no_formula(full_run: Run) -> None:
    poisoned = replace(full_run.results[0], reason="=cmd|' /C calc'!A0", work=Work(2, "@x"))
    text = render(replace(full_run, results=(*full_run.results[1:], poisoned)), "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(full_run.results)
    assert float(rows[0]["step_s"]) == 2.53e-3
    assert float(rows[0]["items_per_s"]) == pytest.approx(128 / 2.53e-3)
    assert rows[0]["processes"] == "3"
    assert rows[3]["status"] == "oom"
    assert rows[3]["step_s"] == ""
    assert rows[4]["reason"].startswith("'=")
    assert rows[4]["unit"] == "'@x"


@pytest.mark.parametrize("separator", ["", ";", "|", "\t", "\n", "; ", ';"', ";\0"])
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝"])
def test_no_cell_holds_a_formula_for_any_separator(separator: str, sign: str) -> None:
    text = write_csv({"cell": "0"}, [(f"{'a' * bool(separator)}{separator}{sign}1",)])
    for piece in re.split(r"[;|\t\n]", text.partition("\n")[2]):
        assert not piece.strip(' "').startswith(sign)


def test_csv_leaves_all_other_cells_alone() -> None:
    cells = ("mlp/train:batch=512@cpu/float32+compile", "a; b | c-d", -1.5, None, "a=b;c", True, False)
    columns = {name: str(index) for index, name in enumerate("abcdefg")}
    written = next(csv.reader(write_csv(columns, [cells]).splitlines()[1:]))
    assert written == [*cells[:2], "-1.5", "", cells[4], "true", "false"]


def test_json_is_the_records(full_run: Run) -> None:
    whole = json.loads(render(full_run, "json"))
    assert set(whole) == {"run", "results"}
    assert whole["run"]["id"] == "3f9c2a71"
    assert whole["run"]["process_spread"] == 0.041
    assert msgspec.convert(whole["results"], tuple[Result, ...]) == full_run.results
    lines = render(full_run, "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == whole["results"]


def test_markdown_is_one_table(full_run: Run) -> None:
    table = [line for line in render(full_run, "md").splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(full_run.results)
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("color", [False, True])
def test_nothing_in_a_file_reaches_the_terminal_unfiltered(full_run: Run, make_result, format_name, color) -> None:
    bad = make_result(status="crashed", reason=EVIL, cautions=(Remark(EVIL, EVIL, EVIL),), work=Work(1, EVIL))
    bad = replace(bad, case=Case(EVIL, EVIL, {EVIL: EVIL}, EVIL, EVIL), settings={EVIL: EVIL})
    run = replace(full_run, header=replace(full_run.header, label=EVIL, id=EVIL), results=(bad,), problems=(EVIL,))
    for text in (render(run, format_name, 80, color), render(details_document([run]), "table", 80, color)):
        for character in "\u202e\u2066\u200b\x00\x9b":
            assert character not in text
            assert f"\\u{ord(character):04x}" not in text.lower()
        assert "\x1b[31m\u202e" not in text
        assert "\x1b[31mevil" not in text


@pytest.mark.parametrize("format_name", ["table", "md", "html"])
@pytest.mark.parametrize("split", [False, True])
def test_every_text_of_a_block_is_cleaned(format_name: str, split: bool) -> None:
    wide = [Column(EVIL, kind) for kind in ("case", "figure", "value", "name", "cut", "text")]
    row = [EVIL, Cell(EVIL, "bad", note=EVIL), *[EVIL] * 4]
    grid = Table(wide, [row], [EVIL], EVIL, [(EVIL, EVIL)], split=split)
    grouped = Table([Column(EVIL, repeats="heading"), Column(EVIL)], [[EVIL, EVIL]])
    remarks = [Remark(EVIL, EVIL, EVIL, cases=(EVIL,)), Remark("", EVIL)]
    said = [Remarks(remarks, where=[EVIL, EVIL], local=[EVIL, None]), Remarks(remarks, brief=True)]
    inner = [Lines([EVIL, Cell(EVIL, "strong")]), Facts([(EVIL, EVIL)]), Code(EVIL), grid, grouped, *said]
    document = Document(lambda: [Title(EVIL, [EVIL]), Section(EVIL, inner, EVIL), *inner], version=EVIL)
    for color in (False, True):
        text = re.sub(r"\x1b\[(?:0|[12]|3[123])m", "", render(document, format_name, 80, color))
        assert "evil" in text
        assert clean(text.replace("\n", "")) == text.replace("\n", "")
        assert "\x1b[31m\u202e" not in render(document, format_name, 80, color)


def test_markdown_and_html_in_a_file_stay_text(full_run: Run, make_result) -> None:
    bad = make_result(status="crashed", reason="<script>| [x](y) **b**", cautions=(Remark("a|b", "<img>", "`"),))
    text = render(replace(full_run, results=(bad,)), "md")
    outside = re.sub(r"`[^`]*`", "", text.replace("\\`", ""))
    assert "<" not in outside
    assert "[x](y)" not in outside
    assert "a|b" not in outside


@given(st.text())
def test_cleaned_text_is_printable(text: str) -> None:
    cleaned = clean(text)
    assert "\n" not in cleaned
    assert "\x1b" not in cleaned
    assert clean(cleaned) == cleaned


def test_printed_text_keeps_its_lines_and_nothing_to_obey() -> None:
    assert printable("one\x1b[8m\x9b2J\n\ttwo\r\u202e\x7f\U000e0041\n") == "one[8m2J\n two \n"
    assert printable("r\udce9sum\udce9") == "r\ufffdsum\ufffd"


def test_colours_are_ours_alone() -> None:
    drawn = draw([Lines([Cell("faint\x1b[8m hidden\x1b]0;title\x07", "quiet")])], 80, color=True)
    assert drawn == "\x1b[2mfaint[8m hidden]0;title\x1b[0m\n"
    assert printable(drawn) is drawn
    assert "\x1b" not in printable(drawn + "and more")


@given(st.text())
def test_json_for_a_terminal_has_the_same_value_and_nothing_to_obey(text: str) -> None:
    for written in (write_json({"a": text}), write_lines([{"a": text}])):
        assert json.loads(written) == {"a": printable(text)}
        assert printable(written) == written


@pytest.mark.parametrize("format_name", FORMATS)
def test_half_a_character_is_shown_as_one_that_is_missing(full_run: Run, format_name: str) -> None:
    text = render(replace(full_run, header=replace(full_run.header, label="r\udce9sum")), format_name)
    assert text.encode()
    assert "r\ufffdsum" in text or format_name == "jsonl"
    assert json.loads(write_json({"a": "\udcff"})) == {"a": "\ufffd"}


def test_an_unknown_format_is_named(full_run: Run) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'json'"):
        render(full_run, "jsn")


@given(st.from_regex(r"[a-z]{1,20}/[a-z]{1,9}(:[a-z]{1,30}=[0-9]{1,30}(,[a-z]{1,9}=[0-9]{1,9}){0,3})?", fullmatch=True),
       st.integers(8, 40))  # fmt: skip
def test_a_folded_case_keeps_every_character_and_the_width(text: str, width: int) -> None:
    folded = fold_case(text, width)
    assert folded.replace("\n  ", "") == text
    assert max(map(len, folded.split("\n"))) <= width


def test_details_report_everything(full_run: Run, make_estimate) -> None:
    processes = tuple(make_estimate(samples_s=(1e-3, 2e-3, 3e-3)) for _ in range(2))
    run = replace(full_run, results=(replace(full_run.results[1], processes=processes),))
    text = render(details_document([run]), "table", 100)
    for words in ("p90, p99", "phases", "matmul_precision highest", "numeric check", "process 2", "310 MB", "▁▄█"):
        assert words in text


@given(st.lists(st.floats(0, 1e6), max_size=300))
def test_a_strip_of_step_times_never_exceeds_its_width(samples: list[float]) -> None:
    assert len(strip(samples, 50)) == min(50, len(samples))


@pytest.fixture
def sweep(full_run: Run, make_result, make_estimate) -> Run:
    """One workload at three batches on two devices, measured in three processes each."""

    def measured(text: str, center: float):
        processes = tuple(make_estimate(center * (1 + step / 500)) for step in (-1, 0, 1))
        return make_result(text, center, processes=processes)

    cases = {
        f"mlp/infer:batch={batch}@{device}/float32": (batch, device) for batch in (16, 64) for device in ("cpu", "mps")
    }
    results = [measured(text, 1e-3 if device == "mps" else 1e-4 * batch) for text, (batch, device) in cases.items()]
    return replace(full_run, results=tuple(results))


def test_findings_follow_the_table_and_fit(sweep: Run) -> None:
    text = render(sweep, "table", 80)
    table, findings = text.split("\nFindings\n")
    assert "mlp/infer:batch=16@mps/float32" in table
    assert "Use mps for mlp (3.2× the CPU)" in findings
    assert max(map(len, text.splitlines())) <= 80


def test_one_case_has_no_findings(sweep: Run) -> None:
    assert "Findings" not in render(replace(sweep, results=sweep.results[:1]))


def test_cautions_are_not_said_twice(full_run: Run) -> None:
    text = render(full_run)
    assert "contended" in text
    assert "slowed by a busy machine" not in text
