"""The headline is the same in every format, fits where it is shown, and stands on the card as tiles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from leads import LEADS
from msgspec.structs import replace

from torchmark.analyze.headline import Headline, build_headline
from torchmark.publications import all_runs
from torchmark.records import JobEstimate, Result, Run, RunHeader, StageEstimate, Work
from torchmark.report import render
from torchmark.report.headline import render_card
from torchmark.report.page import page_document
from torchmark.report.run import runs_document

SLOW_MEMORY = {"tensor-add/infer:variant=as-run@cpu/float32": (0.0475, Work(1, "iteration"))}
JOB = JobEstimate(65.0, 60.0, 70.0, whole=False, stages=(StageEstimate("step", 8442, 6e-3, 6e-3, 6e-3),))


@pytest.fixture(scope="module")
def quick_run(make_result: Callable[..., Result], make_header: Callable[..., RunHeader]) -> Run:
    found = [
        make_result(text, step_s, work=work, job=JOB if text.startswith("mnist") else None)
        for text, (step_s, work) in (LEADS | SLOW_MEMORY).items()
    ]
    null = make_result("null/infer@cpu/float32", -2e-8, work=Work(0, "step"))
    return Run(make_header(), (null, *found))


@pytest.fixture(scope="module")
def headline(quick_run: Run) -> Headline:
    found = build_headline(quick_run, all_runs(), "last")
    assert found
    return found


def test_the_terminal_shows_it_above_the_table(quick_run: Run, headline: Headline) -> None:
    text = render(quick_run, "table", 80, headline=headline)
    assert text.startswith("Intel Xeon Platinum 8370C, 2 cores, 16 GiB · torch 2.13.0+cpu · CPU float32\n")
    places = [text.index(part) for part in ("next slower", "[a] ", "In short: ", "Confidence: ", "Details: ", "case ")]
    assert places == sorted(places)
    for row in (
        r"vision +15\.2 image/s +±0\.4% +Xeon Gold 1\.8× +M1 CPU 0\.51× \[a\]",
        r"text +9\.30 sample/s +±0\.4% +M1 Pro CPU 2\.8× +—",
        r"language +32\.3 token/s +±0\.4% +— +—",
        r"memory +21\.1 add/s +±0\.4% +Ryzen 5 5600G similar +Ryzen 9 3900X similar",
        r"small steps +1\.90 ms +±0\.4% +M1 Ultra CPU \S+ +Xeon Gold 0\.058× \[b\]",
        r"whole jobs +65\.0 s MNIST +±7\.7% +— +—",
    ):
        assert re.search(rf"(?m)^ *{row}$", text), row
    assert text.count("torch 2.13.0") == 1
    assert "65.0 s projected (60.0 s to 70.0 s): 8442 × step" in text


def test_what_is_pasted_names_no_folder_of_this_machine(quick_run: Run) -> None:
    headline = build_headline(quick_run, all_runs(), "/home/me/run.jsonl")
    assert headline
    assert "torchmark show /home/me/run.jsonl" in render(quick_run, headline=headline)
    assert "/home/me" not in render(quick_run, "md", headline=headline)


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 140])
def test_it_fits_and_cuts_nothing(quick_run: Run, headline: Headline, width: int) -> None:
    text = render(quick_run, "table", width, headline=headline).partition("\nrun ")[0]
    if width >= 60:  # commands are not broken
        assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("next slower" in text) == (width >= 80)
    assert ("next faster" in text) == (width >= 60)
    assert ("[a]" in text) == (width >= 80)  # no note without its figure
    assert "65.0 s MNIST" in text


def test_two_devices_are_two_blocks(quick_run: Run) -> None:
    fast = tuple(
        replace(each, case=replace(each.case, device="cuda:0"), estimate=replace(each.estimate, center_s=1e-3))
        for each in quick_run.results[1:3]
        if each.estimate
    )
    run = replace(quick_run, results=(*quick_run.results, *fast))
    found = build_headline(run, all_runs())
    for format_name in ("table", "md"):
        text = render(run, format_name, 80, headline=found)
        assert text.index("cuda:0 float32") < text.index("CPU float32")
        assert text.count("Confidence:") == 1


def test_a_column_without_any_neighbour_is_left_out(quick_run: Run) -> None:
    alone = replace(quick_run, results=quick_run.results[3:4])
    text = render(alone, headline=build_headline(alone, all_runs()))
    assert "32.3 token/s" in text
    assert "next" not in text


def test_json_and_markdown_have_it_too(quick_run: Run, headline: Headline) -> None:
    whole = json.loads(render(quick_run, "json", headline=headline))
    vision = whole["headline"]["blocks"][0]["areas"][0]
    assert (vision["name"], vision["faster"]["run"]) == ("vision", "m1-chips/Xeon Gold")
    several = json.loads(render(runs_document([quick_run], None, [headline]), "json"))
    assert several["runs"][0]["headline"] == whole["headline"]
    assert "headline" not in json.loads(render(quick_run, "json"))
    text = render(runs_document([quick_run], None, [headline]), "md")
    assert "| vision | 15.2 image/s | ±0.4% | good | Xeon Gold 1.8× | M1 CPU 0.51× \\[a\\] |" in text
    assert "\nIn short: " in text


def test_the_page_opens_with_it(quick_run: Run, headline: Headline) -> None:
    page = render(page_document([quick_run], "0.1.0", headlines=[headline]), "html")
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", page)
    assert titles[0] == "Headline"
    assert "M1 CPU 0.51× [a]" in page
    assert '<span class="chip good">good</span>' in page
    other = replace(quick_run, header=replace(quick_run.header, id="other"))
    both = page_document([quick_run, other], "0.1.0", headlines=[headline, headline])
    assert 'id="headline"' not in render(both, "html")


def test_strings_of_a_file_are_made_safe(quick_run: Run) -> None:
    evil = "\x1b[31m\u202e<script>"
    plain = [each for each in quick_run.results if not each.case.params]
    results = tuple(replace(each, case=replace(each.case, device=evil)) for each in plain)
    run = replace(quick_run, results=results)
    found = build_headline(run, all_runs(), evil)
    assert found
    texts = [render(run, name, headline=found) for name in ("table", "md", "json")]
    texts += [render(page_document([run], "0.1.0", headlines=[found]), "html"), render_card(run, "0.1.0", None, found)]
    assert not [text for text in texts if "\x1b" in text or "\u202e" in text or "\\u202e" in text]
    assert "<script>alert" not in texts[3]


def said(card: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(card).iter() if each.tag.endswith("}text")]


def test_the_tiles_of_a_card_are_the_areas(quick_run: Run, headline: Headline) -> None:
    texts = said(render_card(quick_run, "0.1.0", None, headline))
    for text in ("vision", "15.2 image/s", "±0.4% good", "faster: Xeon Gold 1.8×", "slower: M1 CPU 0.51× [a]"):
        assert text in texts
    assert "whole jobs" in texts
    assert "resnet50" not in texts
    assert any(text.startswith("[a] ") for text in texts)


def test_texts_of_own_models_stay_inside_their_tiles(quick_run: Run) -> None:
    name = "a_file_with_a_long_name.py:TheVeryLongestNameOfAModelThatAnybodyEverWrote"
    work = Work(1, "hyperspectral-image-with-many-bands")
    case = replace(quick_run.results[1].case, workload=name, params={"input": "float." + "x".join(["1024"] * 20)})
    card = render_card(replace(quick_run, results=(replace(quick_run.results[1], case=case, work=work),)), "0.1.0")
    texts = said(card)
    assert any(text.startswith("TheVeryLongestName") for text in texts)
    inside = [each for group in ElementTree.fromstring(card).iter() if group.tag.endswith("}g") for each in group]
    sized = [(float(each.get("font-size", 0)), "".join(each.itertext())) for each in inside if each.get("font-size")]
    assert len(sized) == 5
    assert all(len(text) * size * 0.5 <= 344 for size, text in sized)


def test_a_card_without_a_figure_says_what_failed(full_run: Run) -> None:
    failed = tuple(each for each in full_run.results if each.status == "oom")
    texts = said(render_card(replace(full_run, results=failed), "0.1.0"))
    assert "Nothing was measured" in texts
    assert any("oom, tried to allocate 37.3 GB" in text for text in texts)
    assert "Nothing was measured" in said(render_card(replace(full_run, results=()), "0.1.0"))
