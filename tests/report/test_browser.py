"""The page in a real browser: it runs nothing but its own script, asks for nothing, and can be used by everybody."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from playwright.sync_api import sync_playwright

import specimen
from torchmark import cli
from torchmark.analyze.machines import Entry, rank_boards
from torchmark.records import Metered, Peak, Remark, Result, Run, Work
from torchmark.report import render
from torchmark.report.machines import Source, leaderboard_document
from torchmark.report.page import page_document

HOSTILE = (
    '"><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "';alert(1)//",
    "</style><script>alert(1)</script>",
    "</title></svg><svg onload=alert(1)>",
    "{{ 7 * 7 }}${alert(1)}",
    "\u202eevil\u2066\x00\ufffe\U0001f525",
    "javascript:alert(1)",
    "x" * 400,
    "&lt;script&gt;",
)
FIXED = {"stopped", "why", "side", "status", "verdict", "estimand", "rigor", "transfer", "protocol", "bound"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium as the system has it. Where TORCHMARK_NEED_BROWSER is set, its absence is a failure and no excuse."""
    path = os.environ.get("TORCHMARK_CHROMIUM") or shutil.which("chromium")
    if not path:
        (pytest.fail if os.environ.get("TORCHMARK_NEED_BROWSER") else pytest.skip)("there is no chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, wide_run: Run, slower_run: Run) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(page_document([wide_run, slower_run], "0.1.0"), "html"), encoding="utf-8")
    return path


class Opened:
    """A page with everything that it said, asked for and popped up."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def go(path: Path = report, **options: Any) -> Opened:
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield go
    for each in opened:
        each.page.close()


def test_it_says_nothing_and_asks_for_nothing_but_itself(visit: Callable[..., Opened], report: Path) -> None:
    opened = visit()
    opened.page.get_by_role("button", name="Dark").click()
    assert opened.said == []
    assert opened.requests == [report.as_uri()]


def test_every_chart_is_drawn(visit: Callable[..., Opened]) -> None:
    charts = visit().page.locator("svg.chart")
    assert charts.count() > 20
    boxes = charts.evaluate_all(
        "charts => charts.map(chart => [chart, ...chart.querySelectorAll('.role-mark [aria-label]')]"
        ".map(mark => mark.getBoundingClientRect()).map(box => box.width + box.height))"
    )
    assert all(len(marks) > 1 and min(marks) > 0 for marks in boxes)


def test_headings_sort_by_value_and_say_so(visit: Callable[..., Opened]) -> None:
    page = visit().page
    heading = page.locator("th", has=page.get_by_role("button", name="per step"))

    def column() -> list[float]:
        cells = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.cells[3].dataset.sort)")
        known = [float(cell) for cell in cells if cell is not None]
        assert all(cell is None for cell in cells[len(known) :])  # what has no figure stays at the end
        return known

    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    assert "per step, ascending" in page.get_by_role("status").first.inner_text()


def test_the_filter_takes_words_and_counts(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.get_by_label("Filter").last.fill("ResNet50  bfloat16")
    shown = page.locator("tbody tr:visible")
    assert shown.count() == 2
    assert all("bfloat16" in text for text in shown.all_inner_texts())
    assert page.get_by_role("status").last.inner_text().startswith("2 of ")
    page.get_by_label("Filter").last.fill("")
    assert page.locator("tbody tr:visible").count() == page.locator("tbody tr").count()


def test_marks_report_their_figures_to_the_mouse_and_the_keyboard(visit: Callable[..., Opened]) -> None:
    page = visit().page
    tooltip = page.locator("#tooltip")
    first, second = (page.locator("svg.chart").first.locator(".role-mark [aria-label]").nth(place) for place in (0, 1))
    first.hover()
    assert tooltip.inner_text() == first.get_attribute("aria-label")
    page.mouse.move(0, 0)
    assert tooltip.is_hidden()
    first.focus()
    assert tooltip.inner_text() == first.get_attribute("aria-label")
    page.keyboard.press("ArrowDown")
    assert tooltip.inner_text() == second.get_attribute("aria-label")
    page.keyboard.press("Escape")
    assert tooltip.is_hidden()


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_the_page_never_scrolls_sideways(visit: Callable[..., Opened], width: int) -> None:
    root = "document.documentElement"
    assert visit(width=width).page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0


@pytest.fixture(scope="module")
def crowded_pages(tmp_path_factory: pytest.TempPathFactory, wide_run: Run) -> list[Path]:
    """Pages of 2, 4 and 8 runs whose tables have every column that there is, and long texts in them."""
    folder = tmp_path_factory.mktemp("crowded")
    run = replace(wide_run, results=tuple(crowded(each, place) for place, each in enumerate(wide_run.results)))
    pages = []
    for count in (2, 4, 8):
        labels = [f"Intel Xeon Platinum 8370C workstation {place}" for place in range(count)]
        runs = [replace(run, header=replace(run.header, id=label[-1] * 8, label=label)) for label in labels]
        pages.append(folder / f"{count}.html")
        pages[-1].write_text(render(page_document(runs, "0.1.0"), "html"), encoding="utf-8")
    return pages


def crowded(result: Result, place: int) -> Result:
    if result.estimate is None:
        return replace(result, reason="tried to allocate 37.3 GB with 14.1 GB free; use a smaller batch")
    flops = 3e9 * result.estimate.center_s * (1 + place % 7) ** 2
    work = Work(128, "sequence", flops, flops / 4 ** (place % 6))
    peak = Peak(0.5, "bandwidth" if place % 2 else "compute", {}, 300e9, 60e9 if place % 3 else 25e9)
    estimate = replace(result.estimate, metered=Metered(mean_w=133.0), flags=("oversubscribed",), samples_s=())
    processes = tuple(replace(each, samples_s=()) for each in result.processes)  # a chart of each would be drawn
    return replace(result, work=work, peak=peak, estimate=estimate, processes=processes)


def test_the_last_column_of_the_results_is_visible_with_many_runs(
    visit: Callable[..., Opened], crowded_pages: list[Path]
) -> None:
    for path in crowded_pages:
        page = visit(path).page
        for width in (1200, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.locator("#results thead th:visible").count() == 11
            right = "cells => cells.map(cell => cell.getBoundingClientRect().right)"
            edges = page.locator("#results tr > :last-child").evaluate_all(right)
            frame = page.locator("#results .scroller").evaluate("frame => frame.getBoundingClientRect().right")
            assert max(edges) <= frame <= width


def test_the_last_column_of_the_results_can_be_reached_on_a_phone(
    visit: Callable[..., Opened], crowded_pages: list[Path]
) -> None:
    page = visit(crowded_pages[-1], width=420).page
    page.locator("#results .scroller").evaluate("frame => frame.scrollLeft = frame.scrollWidth")
    assert page.locator("#results thead th").last.evaluate("cell => cell.getBoundingClientRect().right") <= 420


def test_labels_of_a_roofline_cover_neither_points_nor_lines_nor_each_other(
    visit: Callable[..., Opened], crowded_pages: list[Path]
) -> None:
    page = visit(crowded_pages[0]).page
    groups = page.locator("#roofline .role-mark.mark-text")
    labels = groups.evaluate_all("groups => groups.map(e => e.childElementCount)")
    assert min(labels) >= 3
    assert page.evaluate(COVERED) == []


def test_light_and_dark_follow_the_system_and_the_reader(visit: Callable[..., Opened]) -> None:
    def colors(page: Any) -> list[str]:
        mark = page.locator("svg.chart .role-mark [fill^=var]").first
        places = [(page.locator("body"), "backgroundColor"), (page.locator("body"), "color"), (mark, "fill")]
        return [place.evaluate(f"e => getComputedStyle(e).{name}") for place, name in places]

    light, dark = visit().page, visit(scheme="dark").page
    assert all(a != b for a, b in zip(colors(light), colors(dark), strict=True))
    light.get_by_role("button", name="Dark").click()
    assert colors(light) == colors(dark)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(visit: Callable[..., Opened], scheme: str) -> None:
    """The contrast that WCAG AA asks for, between each text and what lies behind it."""
    page = visit(scheme=scheme).page
    pale = page.evaluate(CONTRAST)
    assert pale == []


def test_it_prints_in_light_colours_without_controls(visit: Callable[..., Opened]) -> None:
    page = visit(scheme="dark").page
    page.emulate_media(media="print")
    assert page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav, .tools, .theme").evaluate_all("all => all.every(e => !e.checkVisibility())")


def test_landmarks_headings_and_a_way_past_them(visit: Callable[..., Opened]) -> None:
    page = visit().page
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(heading => Number(heading.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def poisoned(value: Any, words: Iterator[str], name: str = "") -> Any:
    """Plain data in which every string that may be anything is something bad, keys included."""
    if isinstance(value, str):
        return value if name in FIXED else next(words)
    if isinstance(value, dict):
        free = name in ("params", "ways", "settings", "phases_s", "metrics", "provenance", "shares")
        return {next(words) + key if free else key: poisoned(each, words, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [poisoned(each, words, name) for each in value]
    return value


def test_hostile_strings_run_nothing_and_break_nothing(
    visit: Callable[..., Opened], tmp_path: Path, wide_run: Run
) -> None:
    words = cycle(HOSTILE)
    cautions = (Remark("a", "b", "c"),) * len(HOSTILE)
    results = tuple(replace(each, cautions=cautions, reason="why") for each in wide_run.results)
    run = replace(wide_run, results=results, problems=("a",) * len(HOSTILE))
    runs = [msgspec.convert(poisoned(msgspec.to_builtins(run), words), Run) for _ in range(2)]
    path = tmp_path / "hostile.html"
    path.write_text(render(page_document([*runs, wide_run], "0.1.0"), "html"), encoding="utf-8")
    for width in (1280, 375):
        opened = visit(path, width=width)
        opened.page.get_by_role("button", name="rate").click()
        opened.page.get_by_label("Filter").last.fill("alert")
        assert opened.page.locator("tbody tr:visible").count() > 0
        assert (opened.said, opened.requests) == ([], [path.as_uri()])
        assert [opened.page.locator(tag).count() for tag in ("script", "style")] == [1, 1]
        assert opened.page.locator("img, iframe, object, embed, base, form").count() == 0
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def board_page(path: Path, runs: Iterable[Run]) -> Path:
    """The leaderboard of these runs, each with a processor of its own."""
    entries = [
        replace(entry, cpu=f"{entry.cpu} {place}") for place, run in enumerate(runs) for entry in Entry.of_run(run, "a")
    ]
    boards, _ = rank_boards(sorted(entries, key=attrgetter("group")), 10)
    source = Source(2, len(entries), (entries[0].cpu,))
    path.write_text(render(leaderboard_document(boards, source, "0.1.0"), "html"), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_boards_open_filter_and_can_be_read(
    visit: Callable[..., Opened], tmp_path: Path, wide_run: Run, slower_run: Run, scheme: str
) -> None:
    path = board_page(tmp_path / "board.html", [wide_run, slower_run])
    opened = visit(path, scheme=scheme, width=375)
    page = opened.page
    page.get_by_label("Filter").fill("RESNET50 bfloat16")
    shown = page.locator("details:visible")
    assert shown.count() == 1
    assert not shown.get_by_role("table").is_visible()
    page.locator("summary:visible").press("Enter")
    assert [text.split()[0] for text in shown.locator("tbody tr").all_inner_texts()] == ["1", "2"]
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert (opened.said, opened.requests) == ([], [path.as_uri()])


@pytest.fixture(scope="module")
def rich_file() -> bytes:
    """A run file in which every field that may be empty is filled in."""
    data: bytes = specimen.rich_file()
    return data


def hostile_file(path: Path, data: bytes, words: Iterator[str]) -> Path:
    """The same file with something bad in every string that may be anything."""
    lines: list[dict[str, Any]] = []
    for line in map(json.loads, data.splitlines()):
        if line["kind"] == "header":
            line["header"] = poisoned(line["header"], words)
        elif line["kind"] == "finished":
            line["result"] = poisoned(line["result"], words)
            lines[-1]["case"] = msgspec.convert(line["result"], Result).case.text  # its samples find it by that
        elif line["kind"] == "concluded":
            line |= {name: poisoned(study, words) for name, study in line.items() if name != "kind"}
        elif line["kind"] in ("started", "checksum"):
            continue
        lines.append(line)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def empty_fields(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from empty_fields(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        yield from empty_fields(value[0], place)
    elif value is None or value in ("", [], {}):
        yield place


def test_every_field_of_a_file_is_there_to_be_poisoned(rich_file: bytes) -> None:
    """A field that is new must be filled in there, or its effect on a page stays untested."""
    lines = [json.loads(line) for line in rich_file.splitlines()]
    full = [line["result"] for line in lines if line["kind"] == "finished"][1]
    numbers = {"p90_high_s", "p99_high_s", "wall_step_s", "issue_share", "contention", "samples_s", "spread", "freedom"}
    empty = {place for place in empty_fields(full) if not numbers & set(place.split("."))}
    assert {*empty, *empty_fields(lines[0]["header"])} == {"steps", "sustain_s"}


def test_a_hostile_file_runs_nothing_through_the_command_itself(
    visit: Callable[..., Opened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rich_file: bytes
) -> None:
    """As many files as there are bad words, so that every field has had every one of them."""
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "home"))
    (tmp_path / "runs").mkdir()
    files = [
        str(hostile_file(tmp_path / "runs" / f"{start}.jsonl", rich_file, islice(cycle(HOSTILE), start, None)))
        for start in range(len(HOSTILE))
    ]
    monkeypatch.setattr("torchmark.cli.report._why_unsound", lambda _: "")  # which refuses all of them
    page, board = tmp_path / "page.html", tmp_path / "board.html"
    assert cli.main(["report", *files, "-o", str(page)]) == 0
    assert cli.main(["report", "--leaderboard", str(tmp_path / "runs"), "-o", str(board)]) == 0
    for path in (page, board):
        opened = visit(path)
        opened.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        opened.page.get_by_label("Filter").last.fill("alert")
        for width in (1280, 375):
            opened.page.set_viewport_size({"width": width, "height": 900})
            assert opened.page.locator("tbody tr:visible").count() > 0
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert (opened.said, opened.requests) == ([], [path.as_uri()])
        assert [opened.page.locator(tag).count() for tag in ("script", "style")] == [1, 1]
        assert opened.page.locator("img, iframe, object, embed, base, form, a[href^=javascript]").count() == 0


COVERED = """() => {
  const covered = [];
  for (const chart of document.querySelectorAll("#roofline svg.chart")) {
    const labels = [...chart.querySelectorAll(".mark-text text")];
    const boxes = labels.map((label) => label.getBoundingClientRect());
    const points = [...chart.querySelectorAll(".mark-symbol [aria-label]")].map((each) => each.getBoundingClientRect());
    const places = [...chart.querySelectorAll(".mark-line path")].flatMap((line) => {
      const all = Array.from({ length: 400 }, (_, place) => line.getPointAtLength(line.getTotalLength() * place / 399));
      return all.map((place) => place.matrixTransform(line.getScreenCTM())).map(({ x, y }) => new DOMRect(x, y, 0, 0));
    });
    boxes.forEach((box, index) => {
      const others = [...points, ...places, ...boxes.slice(index + 1)];
      const hit = (o) => o.left < box.right && o.right > box.left && o.top < box.bottom && o.bottom > box.top;
      if (others.some(hit)) covered.push(labels[index].textContent);
    });
  }
  return covered;
}"""

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const srgb = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let node = element; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      const alpha = parse(color)[3];
      if (color !== "rgba(0, 0, 0, 0)" && (alpha === undefined || alpha > 0.5)) return srgb(color);
    }
    return [255, 255, 255, 255];
  };
  const pale = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, #tooltip, .skip")) continue;
    const style = getComputedStyle(element);
    const ink = srgb(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24;
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) pale.add(`${element.tagName}.${element.className} ${style.color}`);
  }
  return [...pale];
}"""
