"""The page says what the runs say, needs nothing else, and stays small with any number of results."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec.structs import replace

from torchmark.records import Remark, Result, Run, Work
from torchmark.report import render
from torchmark.report.charts import Panel, factor_ticks, find_series, speeds
from torchmark.report.document import Cell, Column, Document, Lines, Remarks, Section, Table, Title
from torchmark.report.headline import draw_png, headline_results, render_card
from torchmark.report.html import is_own_page
from torchmark.report.names import run_names
from torchmark.report.page import MOST_CARDS, caveats, page_document

LARGEST = 1_500_000

StripOf = Callable[[Result], tuple[Panel, str, tuple[float, float]]]


class Tags(HTMLParser):
    """Every tag with its attributes, and the text inside style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inner: dict[str, str] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open in ("style", "script"):
            self.inner[self._open] = self.inner.get(self._open, "") + data

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._open = ""

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(wide_run: Run, slower_run: Run) -> str:
    return render(page_document([wide_run, slower_run], "0.1.0"), "html")


def titles(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(page: str) -> None:
    tags = Tags(page)
    (policy,) = [each["content"] for each in tags.named("meta") if each.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(tags.inner[name].encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert rules == dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")


@pytest.mark.parametrize(
    ("command", "is_shown"),
    [
        ("torchmark run mlp/infer:batch=8@cpu/float32+threads=2 --rigor default --budget 60s", True),
        ("torchmark run mlp; curl evil.example", False),
        ("torchmark run mlp && true", False),
        ("torchmark run $(true)", False),
        ("sudo torchmark run mlp", False),
        ("torchmark run /tmp/other.py", False),
        ("torchmark run ../other.py", False),
        ("pytest -p other", False),
        ("torchmark replicate m1-chips --device cpu --scale 0.01 --budget 60s --seed 0", True),
        ("torchmark tune some.py:Net/train:batch=8,input=float.3x4@cuda:0/float32+compile --keep dtype,batch", True),
        ("torchmark run " + "mlp/infer@cpu/float32 " * 1000 + "--seed 0", False),
    ],
)
def test_only_a_command_that_is_safe_to_paste_is_offered(wide_run: Run, command: str, is_shown: bool) -> None:
    page = render(page_document([replace(wide_run, header=replace(wide_run.header, command=command))], "0.1.0"), "html")
    assert ("Command to reproduce" in page) is is_shown
    assert (command in page) is is_shown


def test_nothing_in_it_needs_more_than_the_policy_allows(page: str) -> None:
    for tag, attributes in Tags(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "form", "base")
        assert not {"style", "src", "srcset", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "http://" not in page
    assert "https://" not in page


def test_every_link_and_label_leads_to_an_element_of_its_own(page: str) -> None:
    tags = Tags(page).tags
    anchors = [attributes["id"] for _, attributes in tags if attributes.get("id")]
    assert len(anchors) == len(set(anchors))
    wanted = {(attributes.get("href") or "").removeprefix("#") for _, attributes in tags}
    for name in ("for", "aria-labelledby"):
        wanted |= {attributes.get(name) or "" for _, attributes in tags}
    assert wanted - {""} <= set(anchors)


def test_sections_are_there_for_what_there_is_to_say(page: str, full_run: Run, slower_run: Run) -> None:
    everything = ["Speed", "Compared with workstation", "Diminishing returns", "Results", "Step times", "Caveats"]
    assert [title for title in titles(page) if title in everything] == everything
    plain = titles(render(page_document([full_run], "0.1.0"), "html"))
    assert {"Speed", "Results", "Caveats", "Machine"} <= set(plain)
    assert not {"Compared with workstation", "Diminishing returns", "Step times"} & set(plain)
    second = render(page_document([full_run, slower_run], "0.1.0", baseline=1), "html")
    assert "Compared with after-upgrade" in titles(second)


def test_a_run_without_results_is_a_page_too(full_run: Run) -> None:
    page = render(page_document([replace(full_run, results=())], "0.1.0"), "html")
    assert titles(page) == ["Results", "Machine"]
    assert "No case was finished." in page
    assert "<table" not in page


def test_a_run_of_failures_says_so_and_gives_the_reasons(full_run: Run, make_result: Callable[..., Result]) -> None:
    failed = make_result(status="crashed", estimate=None, reason="killed by signal 9")
    page = render(page_document([replace(full_run, results=(failed,))], "0.1.0"), "html")
    assert titles(page) == ["Results", "Caveats", "Machine"]
    assert "No case gave a figure." in page
    assert "killed by signal 9" in page
    assert "No case gave a figure." not in render(page_document([full_run], "0.1.0"), "html")


def test_equal_cautions_of_several_machines_are_one_note() -> None:
    from torchmark.store import load_runs

    runs = load_runs("m1-chips")
    page = render(page_document(runs, "0.1.0"), "html")
    caveats = page[page.index('<section id="caveats"') :]
    assert caveats.count("no step was run beforehand") == 1
    assert "6 machines" in caveats
    assert "M1 GPU, M1 Ultra GPU, RTX3090" in caveats
    assert "<li>M1 GPU: all cases</li>" in caveats


def test_cautions_that_differ_in_their_figures_are_one_note_with_every_figure(
    full_run: Run, make_result: Callable[..., Result]
) -> None:
    cautions = [Remark("paging", f"the interval is ±{percent}%", "Give it more time") for percent in (3, 5)]
    runs = []
    for name, caution in zip(("one", "two"), cautions, strict=True):
        results = (make_result(cautions=(caution,)), make_result("mlp/train@cpu/float32"))
        runs.append(replace(full_run, header=replace(full_run.header, id=name, label=name), results=results))
    found = caveats(runs, ["one", "two"])
    (note,) = found.remarks
    assert (note.kind, found.where, note.fix) == ("paging", ["one, two"], "Give it more time")
    assert note.cause == "For example: the interval is ±3%"
    assert note.cases == ("one: mlp/infer: the interval is ±3%", "two: mlp/infer: the interval is ±5%")


def test_two_dozen_series_are_drawn_in_two_dozen_ways(full_run: Run) -> None:
    runs = [replace(full_run, header=replace(full_run.header, id=f"{index:08x}", label=None)) for index in range(24)]
    page = render(page_document(runs, "0.1.0"), "html")
    fills = {each.color for each in find_series(runs)}
    assert len(fills) == 24
    for fill_ in fills:
        name = re.findall(r"series-[\d-]+", fill_)[0]
        assert (f"--{name}: " in page) or (f'<pattern id="{name}"' in page)
        assert f'fill="{fill_}"' in page
    assert "<pattern" not in render(page_document(runs[:8], "0.1.0"), "html")


def test_what_fails_is_shown_with_its_reason(full_run: Run) -> None:
    page = render(page_document([full_run], "0.1.0"), "html")
    assert page.count("tried to allocate 37.3 GB with 14.1 GB free") >= 2
    assert "other processes used 38% of the CPU" in page
    assert "stop them and run again" in page


def test_thousands_of_results_are_still_a_page_to_send_around(
    full_run: Run, make_result: Callable[..., Result]
) -> None:
    base = make_result()
    assert base.estimate
    sampled = replace(base, estimate=replace(base.estimate, samples_s=(0.002, 0.003) * 200))
    results = tuple(
        replace(sampled, case=replace(base.case, workload=f"w{index % 100}", params={"batch": 1 + index // 100}))
        for index in range(2_000)
    )
    page = render(page_document([replace(full_run, results=results)], "0.1.0"), "html")
    assert len(page.encode()) <= LARGEST
    assert page.count('<svg class="chart"') <= 4 * MOST_CARDS
    assert "Showing the first 1000 of 2000" in page
    assert "more not shown" in page


def test_many_runs_are_still_a_page_to_send_around(full_run: Run) -> None:
    runs = [replace(full_run, header=replace(full_run.header, id=f"{index:08x}", label=None)) for index in range(150)]
    page = render(page_document(runs, "0.1.0"), "html")
    assert len(page.encode()) <= LARGEST
    assert "102 more not shown" in page


@pytest.mark.filterwarnings("error")
def test_absurd_numbers_make_a_page_without_absurd_figures(wide_run: Run) -> None:
    times = [(0.0, 0.0, 0.0), (-1.0, -2.0, 3.0), (1e99, 1e98, 1e100), (5e-324, 0.0, 1e-323), (1.0, 2.0, 0.5)]
    times += [(1e-300, 1e-301, 1e100), (1e-3, -1e100, 1e100)]
    results = []
    for index, result in enumerate(wide_run.results):
        center_s, low_s, high_s = times[index % len(times)]
        samples = (center_s, low_s, high_s, 1e100, -1e100, 0.0, 5e-324) * 3
        figures = {"center_s": center_s, "low_s": low_s, "high_s": high_s, "samples_s": samples, "warmup_cut": 2**62}
        results.append(replace(result, estimate=result.estimate and replace(result.estimate, **figures)))
    odd = replace(wide_run, results=tuple(results), process_spread=1e100)
    page = render(page_document([odd, wide_run], "0.1.0"), "html")
    shown = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(nan|inf|infinity)\b", shown, re.I)


def test_every_chart_is_valid_vega_lite(wide_run: Run, slower_run: Run) -> None:
    import altair

    runs = [wide_run, slower_run]
    series = find_series(runs)
    panels = [*speeds.find_speeds(series), *speeds.find_curves(series), *speeds.find_ratios(runs, baseline=0)]
    panels += speeds.find_scalings(series)
    panels += [found for each in series for result in each.results if (found := speeds.find_steps(each, result, True))]
    drawn = [panel.chart for panel in panels if panel.chart]
    assert len(drawn) > 15
    for chart in drawn:
        altair.Chart.from_dict(chart)  # altair refuses what its schema does not know


def test_the_same_work_stands_together_with_the_fastest_first(wide_run: Run, slower_run: Run) -> None:
    panels = {panel.title: panel for panel in speeds.find_speeds(find_series([wide_run, slower_run]))}
    mlp = panels["mlp · infer"].rows
    names = [f"{name} · {device}" for device in ("cuda:0", "cpu") for name in ("workstation", "after-upgrade")]
    assert [bar["label"] for bar in mlp] == names
    assert mlp[0]["value"] == pytest.approx(128 / 1.1e-4)
    assert mlp[0]["low"] < mlp[0]["value"] < mlp[0]["high"]
    assert "±0.4%" in mlp[0]["about"]


def test_other_units_and_other_versions_never_share_a_panel(full_run: Run, make_result: Callable[..., Result]) -> None:
    results = (make_result(), make_result("mlp/train@cpu/float32", work=Work(1, "epoch")), make_result(version=2))
    panels = speeds.find_speeds(find_series([replace(full_run, results=results)]))
    assert [len(panel.rows) for panel in panels] == [1, 1]


def test_what_is_no_speed_is_not_drawn(full_run: Run, make_result: Callable[..., Result]) -> None:
    results = (make_result("null/infer@cpu/float32", work=Work(0, "step")), make_result(center_s=0.0))
    assert speeds.find_speeds(find_series([replace(full_run, results=results)])) == []


def test_factors_are_of_speed_and_stand_by_workload_or_by_run(wide_run: Run, slower_run: Run) -> None:
    panels = {panel.title: panel for panel in speeds.find_ratios([wide_run, slower_run], baseline=0)}
    (resnet,) = panels["resnet50"].rows
    assert resnet["value"] == pytest.approx(1 / 0.7)
    assert resnet["low"] < resnet["value"] < resnet["high"]
    assert "faster" in resnet["figure"]
    assert "On average 0.926× as fast" in panels["bert-encode"].note
    third = replace(slower_run, header=replace(slower_run.header, id="ff", label="third"))
    by_run = speeds.find_ratios([wide_run, slower_run, third], baseline=2)
    assert [panel.title for panel in by_run] == ["workstation", "after-upgrade"]


def test_curves_follow_a_sweep_and_mark_where_it_broke_off(wide_run: Run) -> None:
    (panel,) = speeds.find_curves(find_series([wide_run]))
    assert (panel.title, panel.note) == ("bert-encode/infer", "sample/s by batch")
    points = [(row["curve"], row["x"]) for row in panel.rows]
    assert points == [(name, x) for name in ("cpu", "cuda:0") for x in (1, 2, 4, 8, 16, 32)]
    assert panel.chart
    assert {"x": 64.0, "status": "oom", "curve": "cpu"} in panel.chart["datasets"]["lost"]


def test_published_batches_make_curves_although_the_usual_one_is_unsaid() -> None:
    from torchmark.store import load_runs

    panels = speeds.find_curves(find_series(load_runs("apple-silicon-bert")))
    assert all(panel.note.endswith(" by batch") for panel in panels)
    curves = {(panel.title, row["curve"]) for panel in panels for row in panel.rows}
    for title, curve in curves:
        rows = next(panel.rows for panel in panels if panel.title == title)
        assert [row["x"] for row in rows if row["curve"] == curve] == [16, 64, 256]


def test_strips_keep_the_extremes_of_every_column(make_result: Callable[..., Result], strip_of: StripOf) -> None:
    samples = [0.010] * 50_000
    samples[20_000], samples[40_000] = 0.012, 0.009
    result = make_result(center_s=0.010)
    assert result.estimate
    strip, unit, (_, high) = strip_of(replace(result, estimate=replace(result.estimate, samples_s=tuple(samples))))
    assert len(strip.rows) == speeds.COLUMNS
    assert unit == "ms"
    assert min(column["low"] for column in strip.rows) == pytest.approx(9, abs=0.5)
    assert max(column["high"] for column in strip.rows) == pytest.approx(high)
    assert strip.chart["datasets"]["cuts"] == [{"sample": 0, "end": 12}]
    assert "50000 samples, 12 cut as warm-up; from 9.00 ms to 12.0 ms" in strip.note


def test_a_slow_first_step_does_not_flatten_the_strip(wide_run: Run, strip_of: StripOf) -> None:
    drifting = next(result for result in wide_run.results if result.case.text == "mlp/train@cpu/float32")
    strip, _, (low, high) = strip_of(drifting)
    assert max(drifting.estimate.samples_s) * 1e3 > high
    first, last = strip.rows[len(strip.rows) // 4], strip.rows[-1]
    assert (last["middle"] - first["middle"]) / (high - low) > 0.3  # the drift is what one sees


def test_processes_stand_side_by_side(wide_run: Run, strip_of: StripOf) -> None:
    several = next(result for result in wide_run.results if len(result.processes) == 3)
    strip, _, _ = strip_of(several)
    data = strip.chart["datasets"]
    assert [seam["sample"] for seam in data["seams"]] == [5000, 10000]
    assert [cut["sample"] for cut in data["cuts"]] == [0, 5000, 10000]
    assert len(strip.rows) <= speeds.COLUMNS + 3


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.8, 1.3, [0.8, 0.9, 1, 1.1, 1.25]), (0.4, 30, [0.5, 1, 2, 5, 10, 20]), (1e-9, 1e9, None)],
)
def test_factors_are_marked_by_round_numbers(low: float, high: float, ticks: list[float] | None) -> None:
    found = factor_ticks(low, high)
    assert ticks is None or found == ticks
    assert 2 <= len(found) <= 6


def test_runs_are_distinguished(wide_run: Run) -> None:
    nameless = replace(wide_run, header=replace(wide_run.header, label=None))
    other = replace(nameless, header=replace(nameless.header, id="ee55"))
    assert run_names([wide_run, nameless]) == ["workstation", "NVIDIA GeForce RTX 3090"]
    assert run_names([nameless, other]) == ["NVIDIA GeForce RTX 3090 (aa11bb22)", "NVIDIA GeForce RTX 3090 (ee55)"]


def test_templates_escape_for_any_they_are_given() -> None:
    evil = "\u202e<blink>"
    table = Table([Column(evil)], [[Cell(evil, "good", note=evil, chip=True)]], caption=evil)
    blocks = [Lines([evil]), table, Remarks([Remark(evil, evil, evil, (evil, evil))])]
    page = render(Document(lambda: [Title(evil, [evil]), Section(evil, blocks, evil)], version=evil), "html")
    assert page.count("&lt;blink&gt;") > 10
    assert "\u202e" not in page
    assert "blink" not in {tag for tag, _ in Tags(page).tags}
    assert is_own_page(page.encode()[:4096])
    assert not is_own_page(b"<!doctype html><title>torchmark</title>")


def test_the_card_shows_one_figure_for_each_workload_with_its_grade(wide_run: Run, slower_run: Run) -> None:
    names = [result.case.workload for result in headline_results(wide_run)]
    assert names == ["resnet50", "mlp", "venv-ppo", "bert-encode", "mnist-ddp-mlp"]
    card = render_card(wide_run, "0.1.0")
    texts = ("NVIDIA GeForce RTX 3090", "resnet50", "35.6", "image/s", "±0.4%", "good", "torchmark 0.1.0", "2026-11-15")
    assert all(text in card for text in texts)
    assert "1.43×" in render_card(slower_run, "0.1.0", wide_run)
    assert is_own_page(card.encode())


def test_the_card_is_a_picture_of_the_size_of_a_post(wide_run: Run) -> None:
    picture = draw_png(render_card(wide_run, "0.1.0"))
    assert picture.startswith(b"\x89PNG")
    assert (int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")) == (1200, 630)


@pytest.mark.parametrize("evil", ['"><script>alert(1)</script>', "]]>&<", "\ufffe\uffff\x00", "x" * 400])
def test_a_card_survives_any_name(wide_run: Run, evil: str) -> None:
    from xml.etree import ElementTree

    machine: Any = replace(wide_run.header.machine, cpu=evil, os=evil, torch=evil, devices=())
    run = replace(wide_run, header=replace(wide_run.header, label=evil, id=evil, created=evil, machine=machine))
    card = render_card(run, "0.1.0")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(card).iter()}
    assert tags == {"svg", "title", "metadata", "rect", "g", "path", "text", "tspan"}
    assert draw_png(card)
