"""Comparisons say the same in every format, fit where they are shown, and obey nothing that a file says."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace

from torchmark.analyze.comparison import compare_all, compare_within
from torchmark.errors import UnknownName
from torchmark.records import Remark, Result, Run, parse_case
from torchmark.report import FORMATS, render
from torchmark.report.comparison import comparison_document, letter

EVIL = "\x1b[31m\u202eevil\u2066\x00\x9b\u200b\n<script>|`*"


@pytest.fixture
def make_run(make_result, make_estimate, make_header):
    """Runs whose cases have three processes each, named by the step time of each case."""

    def make(name: str, times: dict[str, float], **changes) -> Run:
        results = []
        for text, center in times.items():
            processes = tuple(make_estimate(center * (1 + step / 300)) for step in (-1, 0, 1))
            results.append(make_result(text, center, processes=processes))
        run = Run(make_header(tuple(times), id=f"{name}0001", label=name), tuple(results))
        return replace(run, header=replace(run.header, **changes))

    return make


@pytest.fixture
def runs(make_run) -> list[Run]:
    """Everything that two runs can show: faster, slower, the same, another torch, failed, missing, refused."""
    before = {
        "mlp/infer@cpu/float32": 2e-3,
        "mlp/train:batch=512@cpu/float32+threads=2": 30e-3,
        "matmul/infer@cpu/float32": 50e-3,
        "lstm/infer@cpu/float32": 0.1,
        "venv-ppo/train@cpu/float32": 1.0,
        "resnet50/infer@cpu/float32": 2.0,
    }
    after = before | {"mlp/infer@cpu/float32": 1.5e-3, "mlp/train:batch=512@cpu/float32+threads=2": 36e-3}
    del after["lstm/infer@cpu/float32"]
    first, second = make_run("before", before), make_run("after", after)
    *others, ppo, resnet = second.results
    ppo = replace(ppo, cautions=(Remark("not-comparable", "it is other code", ""),))
    others[0] = replace(others[0], settings={**others[0].settings, "threads": 4})
    second = replace(second, results=(*others, ppo, Result(resnet.case, "oom", reason="too large")))
    machine = replace(first.header.machine, torch="2.14.0+cpu")
    return [first, replace(second, header=replace(second.header, machine=machine))]


def rendered(runs: list[Run], format_name: str = "table", width: int = 80, color: bool = False) -> str:
    comparisons = compare_all(runs, None, [f"in {letter(index)}" for index in range(len(runs))])
    return render(comparison_document(comparisons, runs), format_name, width, color)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_two_runs_fit_and_say_what_matters(runs: list[Run], width: int) -> None:
    text = rendered(runs, width=width)
    assert max(map(len, text.splitlines())) <= width
    lines = text.splitlines()
    assert lines[0].startswith("A  run before0001 · before")
    assert any(line.startswith("B  run after0001 · after") for line in lines)
    (fast,) = [line for line in lines if line.startswith("mlp/infer")]
    assert fast.split()[1:6] == ["2.00", "ms", "1.50", "ms", "1.33×"]
    assert fast.endswith("faster")
    assert lines[lines.index(fast) + 1].strip() == "threads 2 → 4"
    assert sum(line.endswith("slower") for line in lines) >= 1
    assert "Every pair · torch 2.13.0+cpu → 2.14.0+cpu" in text
    flat = " ".join(text.split())
    assert "mlp, 2 cases" in flat
    assert "not comparable: it is other code" in flat
    assert "oom in B" in flat
    assert "not in B" in flat


def test_a_published_figure_has_a_rough_ratio_with_its_flaws_as_footnotes(make_run, make_result, make_estimate) -> None:
    mine = make_run("mine", {"mlp/infer@cpu/float32": 2e-3})
    figure = make_estimate(1e-3, 0.0, verdict="as-published", estimand="mean", mean_s=1e-3)
    cautions = (
        Remark("no-sync", "the device was not synchronised", "wait"),
        Remark("other-shape", "the text is wrong", "read"),
    )
    published = make_result(
        "mlp/infer@mps/float32+as-published", estimate=figure, settings={"printed": "10"}, cautions=cautions
    )
    theirs = replace(mine, results=(published,), header=replace(mine.header, id="p/M1", label="p/M1"))
    text = rendered([mine, theirs])
    assert "device cpu → mps · protocol steady → as-published" in text
    (row,) = [line for line in text.splitlines() if line.startswith("mlp/infer")]
    assert row.split()[-4:-2] == ["2.0×", "[a]"]
    assert row.split()[-1] == "faster"
    assert "[a]  the device was not synchronised" in text
    assert "unsure" not in text
    assert "would not be visible" not in text
    markdown = rendered([mine, theirs], "md")
    assert r"2.0× \[a\]" in markdown
    assert r"- \[a\]: the device was not synchronised" in markdown
    (pair,) = json.loads(rendered([mine, theirs], "json"))["comparisons"][0]["pairs"]
    assert [flaw["cause"] for flaw in pair["flaws"]] == ["the device was not synchronised"]
    assert pair["assumed"] >= 0.15
    (cells,) = csv.DictReader(io.StringIO(rendered([mine, theirs], "csv")))
    assert (cells["flaws"], float(cells["assumed"])) == ("the device was not synchronised", pair["assumed"])
    several = rendered([mine, theirs, mine])
    assert "2.0× ▲ [a]" in several
    assert "[a]  the device was not synchronised" in several


def test_a_comparison_says_what_it_could_have_seen(runs: list[Run]) -> None:
    text = " ".join(rendered(runs).split())
    assert "1 row is slower, 1 row is faster; differences under" in text
    assert "would not be visible" in rendered(runs, "md")
    (comparison,) = json.loads(rendered(runs, "json"))["comparisons"]
    assert 0 < comparison["visible"] <= comparison["visible_worst"]
    assert all(pair["visible"] for pair in comparison["pairs"])
    same = " ".join(rendered([runs[0], runs[0]]).split())
    assert "No row is slower; differences under" in same


@pytest.mark.parametrize(("cases", "others"), [(1, 4), (6, 2), (6, 12)])
def test_several_runs_are_a_matrix_against_the_first(make_run, cases: int, others: int) -> None:
    times = {f"mlp/infer:batch={2**size}@cpu/float32": 1e-3 for size in range(cases)}
    runs = [make_run(f"run number {n}", {text: t / (n + 1) for text, t in times.items()}) for n in range(others + 1)]
    text = rendered(runs)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("2.00× ▲") >= cases
    assert "▲ faster  ▼ slower  = same  ? unsure" in text
    assert all(f"run number {n}" in text for n in range(others + 1))
    assert ("mean of" in text) == (cases > 1)


def test_inside_a_run_the_columns_are_the_two_values(make_run) -> None:
    run = make_run(
        "mine", {"mlp/infer@cpu/float32": 2e-3, "mlp/infer@mps/float32": 1e-3, "lstm/infer@cpu/float32": 1.0}
    )
    text = render(comparison_document(compare_within([run], "device"), [run]))
    head, row = (line for line in text.splitlines() if line.startswith(("case", "mlp/infer")))
    assert head.split()[:3] == ["case", "cpu", "mps"]
    assert "2.00×" in row
    assert "only one value of device was measured" in text
    more = make_run("mine", {f"mlp/infer@{device}/float32": 1e-3 for device in ("cpu", "mps", "cuda:0")})
    text = render(comparison_document(compare_within([more], "device"), [more]))
    assert "cpu → mps" in text
    assert "cpu → cuda:0" in text


def test_every_format_has_every_case(runs: list[Run]) -> None:
    texts = {result.case.text for result in runs[0].results}
    whole = json.loads(rendered(runs, "json"))
    assert [run["label"] for run in whole["runs"]] == ["before", "after"]
    (comparison,) = whole["comparisons"]
    rows = [*comparison["pairs"], *comparison["unpaired"]]
    assert {row["case"] for row in rows} == texts
    assert {json.loads(line)["case"] for line in rendered(runs, "jsonl").splitlines()} == texts
    cells = list(csv.DictReader(io.StringIO(rendered(runs, "csv"))))
    assert {row["case"] for row in cells} == texts
    (first,) = [row for row in cells if row["case"] == "mlp/infer@cpu/float32"]
    assert float(first["speed"]) == pytest.approx(1 / float(first["ratio"]))
    assert float(first["speed_low"]) < float(first["speed"]) < float(first["speed_high"])
    assert first["differences"] == "threads 2 → 4; torch 2.13.0+cpu → 2.14.0+cpu"
    markdown = rendered(runs, "md")
    assert "| `mlp/infer` | 2.00 ms | 1.50 ms | 1.33× |" in markdown
    assert "threads 2 → 4" in markdown
    assert all(name in markdown for name in ("venv-ppo/train", "lstm/infer", "resnet50/infer"))
    with pytest.raises(UnknownName):
        rendered(runs, "xml")


def test_nothing_in_a_file_is_obeyed(runs: list[Run], make_result) -> None:
    first, second = runs
    evil = make_result(reason=EVIL, settings={EVIL: EVIL}, cautions=(Remark("not-comparable", EVIL, EVIL),))
    evil = replace(evil, case=parse_case("lstm/infer@cpu/float32"))
    machine = replace(first.header.machine, cpu=EVIL, torch=EVIL)
    poisoned = replace(
        second, header=replace(second.header, label=EVIL, machine=machine), results=(evil, *second.results)
    )
    for format_name in FORMATS:
        text = rendered([first, poisoned], format_name)
        assert not {"\x1b", "\u202e", "\u2066", "\x00", "\x9b", "\u200b"} & set(text)
        assert format_name != "md" or "<script>" not in text


def test_nothing_in_common_is_said(make_run) -> None:
    text = rendered([make_run("a", {"mlp/infer@cpu/float32": 1.0}), make_run("b", {"lstm/infer@cpu/float32": 1.0})])
    assert "Nothing could be compared." in text
    assert [letter(index) for index in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]


def test_colour_is_there_only_when_wanted(runs: list[Run]) -> None:
    assert "\x1b" not in rendered(runs)
    assert "\x1b[32m" in rendered(runs, color=True)
