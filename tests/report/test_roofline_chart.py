"""The roofline of a report: roofs where the machine's limits are, and every result below them with its figures."""

from __future__ import annotations

import random
import re

import pytest
from msgspec.structs import replace

from torchmark.records import Peak, Run, Work
from torchmark.report import render
from torchmark.report.charts import draw, find_series, roofline
from torchmark.report.page import page_document
from torchmark.report.run import details_document


@pytest.fixture
def run(make_result, make_header) -> Run:
    """Three results with peaks: bound by arithmetic, by bandwidth, and by the loader; and one without."""
    peaks = [
        Peak(0.62, "compute", {"compute": 0.62, "bandwidth": 0.1}, 300e9, 25e9, limits="abcd1234"),
        Peak(0.81, "bandwidth", {"compute": 0.05, "bandwidth": 0.81}, 150e9, 60e9, again=True),
        Peak(0.03, "loader", {"compute": 0.03, "bandwidth": 0.01, "loader": 0.5}, 300e9, 25e9),
    ]
    texts = ("mlp/train@cpu/float32", "llm-decode/infer@cpu/bfloat16", "cifar-cnn/train@cpu/float32")
    works = (Work(128, "sample", 1e9, 4e6), Work(1, "token", 2e8, 4e8), Work(4, "image", 1e7, 1e6))
    results = [make_result(text, peak=peak, work=work) for text, peak, work in zip(texts, peaks, works, strict=True)]
    results.append(make_result("null/infer@cpu/float32", work=Work(0, "step", 0, 0)))
    return Run(make_header(tuple(each.case.text for each in results)), tuple(results))


def test_every_result_with_ceilings_is_a_point_below_a_roof(run: Run) -> None:
    (panel,) = roofline.find_rooflines(find_series([run]))
    assert [point["bound"] for point in panel.rows] == ["compute", "bandwidth", "loader"]
    roofs = ["float32 300 GFLOP/s", "bfloat16 150 GFLOP/s", "memory 25.0 GB/s", "cache 60.0 GB/s"]
    ends, places = panel.chart["datasets"]["roofs"], panel.chart["layer"][0]["encoding"]
    assert [end["roof"] for end in ends] == [name for name in roofs for _ in range(2)]
    (least_x, most_x), (least_y, most_y) = (places[axis]["scale"]["domain"] for axis in "xy")
    for left, right in zip(ends[::2], ends[1::2], strict=True):
        assert least_x <= left["x"] < right["x"] <= most_x
        assert least_y <= left["y"] <= right["y"] <= most_y
    assert panel.note == f"2 of 3 results reach at least half of their limit. Limits: {', '.join(roofs)}."


def test_the_chart_is_drawn_with_its_figures_for_those_who_do_not_see_it(run: Run) -> None:
    import altair

    (panel,) = roofline.find_rooflines(find_series([run]))
    altair.Chart.from_dict(panel.chart)
    drawing = draw(panel.chart, "Roofline")
    said = re.findall(r'aria-label="([^"]*of peak[^"]*)"', drawing)
    assert len(said) == 3
    assert any(text.startswith("mlp · train: 62% of peak, bound by compute; ") for text in said)


def test_roofs_and_points_with_room_are_named(run: Run) -> None:
    (panel,) = roofline.find_rooflines(find_series([run]))
    texts = [label["text"] for label in panel.chart["datasets"]["labels"]]
    assert texts[:4] == [roof["roof"] for roof in panel.chart["datasets"]["roofs"][::2]]
    assert {"mlp", "cifar-cnn"} <= {*texts[4:]} <= {"mlp", "cifar-cnn", "llm-decode"}


def test_a_label_without_room_is_left_out(run: Run) -> None:
    dice = random.Random(0)
    results = []
    for index, each in enumerate(run.results[:3] * 40):
        work = replace(each.work, flops=1e9 * dice.random())
        results.append(replace(each, case=replace(each.case, params={"batch": index}), work=work))
    (panel,) = roofline.find_rooflines(find_series([replace(run, results=tuple(results))]))
    assert len(panel.chart["datasets"]["labels"]) < len(results) / 2


def test_a_page_has_a_roofline_only_where_there_is_one(run: Run, full_run: Run) -> None:
    page = render(page_document([run], "0.1.0"), "html")
    assert ">Roofline</h2>" in page
    assert "of peak" in page
    assert "Roofline" not in render(page_document([full_run], "0.1.0"), "html")


def test_every_format_reports_the_share_and_its_bound(run: Run) -> None:
    narrow, wide = render(run, "table", 80), render(run, "table", 130)
    assert "Of this machine's peak, by what bounds it" in narrow
    assert re.search(r"compute +mlp/train 62%\n +bandwidth +llm-decode/infer@cpu/bfloat16 81%\n +loader", narrow)
    assert "of peak" in wide
    assert "62% compute" in wide
    assert "by what bounds it" not in wide
    assert "| 81% bandwidth |" in render(run, "md")
    assert ",0.62,compute," in render(run, "csv")
    assert '"bound": "loader"' in render(run, "json")
    full = render(details_document([run]), "table", 120)
    assert "62%, bound by compute (of a step: compute 62%, bandwidth 10%)" in full
    assert "150 GFLOP/s, 60.0 GB/s, found in this run, measured again right after it" in full
    assert all(max(map(len, text.splitlines())) <= width for text, width in ((narrow, 80), (wide, 130)))
