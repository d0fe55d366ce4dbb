"""A stored study says what its command said: on the terminal, as Markdown and on the page."""

from __future__ import annotations

import re
from html import unescape

import pytest
from msgspec.structs import replace

from torchmark.analyze.comparison import LiveComparison, LiveSide
from torchmark.records import Fitting, Limiting, Run, Tried, Tuning, parse_case
from torchmark.report import render
from torchmark.report.comparison import live_answer
from torchmark.report.page import page_document
from torchmark.report.run import conclusion
from torchmark.report.searches import fitting_document, tuning_document

DEFAULT, WINNER = (parse_case(f"mlp/infer@cpu/{dtype}") for dtype in ("float32", "bfloat16"))
SIZES = (1, 2, 4, 8)


@pytest.fixture
def fitting() -> Fitting:
    tried = [Tried(f"mlp/infer:batch={size}@cpu/float32", size, 100.0 * size, 2, (1e8 * size,)) for size in SIZES]
    return Fitting(DEFAULT, "batch", 2 << 30, "memory", 8, 2, 8, 1e7, 1e8, 0.01, unit="sample", tried=tuple(tried))


@pytest.fixture
def stored(make_header, make_result, fitting: Fitting) -> dict[str, Run]:
    """A run of each study, as it is read back."""
    results = (make_result(DEFAULT.text, 2e-3), make_result(WINNER.text, 1e-3))
    relative = {DEFAULT.text: 1.0, WINNER.text: 2.0}
    tuning = Tuning(DEFAULT, WINNER, 2.0, 1.9, 2.1, 5, same_precision=DEFAULT, relative=relative)
    a, b = (LiveSide(result, "python") for result in results)
    found = LiveComparison(a, b, "faster", "clear", 0.5, 0.49, 0.51, (0.5,) * 5)
    plain = Run(make_header((DEFAULT.text,)), results)
    return {
        "tune": replace(plain, tuning=tuning),
        "fit": replace(plain, results=tuple(make_result(each.case, 1e-3) for each in fitting.tried), fitting=fitting),
        "limits": replace(plain, limiting=Limiting(True, missing=("cpu bfloat16",))),
        "ab": replace(plain, live=found.conclusion("B")),
    }


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("study", ["tune", "fit", "limits", "ab"])
def test_show_and_the_page_repeat_the_conclusion(stored: dict[str, Run], study: str) -> None:
    run = stored[study]
    said = conclusion(run)
    assert said
    table, markdown = (words(render(run, form, 200).replace("\\", "")) for form in ("table", "md"))
    page = words(unescape(re.sub(r"<[^>]*>", "", render(page_document([run], "1.0"), "html"))))
    for line in said:
        assert line in table
        assert line in markdown
        assert line in page


def test_show_prints_what_tune_and_fit_printed(stored: dict[str, Run]) -> None:
    assert render(stored["tune"]) == render(tuning_document(stored["tune"]))
    assert render(stored["fit"]) == render(fitting_document(stored["fit"]))
    assert "2 GiB" in render(stored["fit"])


def test_an_ab_run_says_which_side_it_is(stored: dict[str, Run]) -> None:
    said = conclusion(stored["ab"])
    assert said[2] == f"This run is side B, measured against {DEFAULT.text}."
    results = stored["ab"].results
    a, b = (LiveSide(result, "python") for result in results)
    found = LiveComparison(a, b, "faster", "clear", 0.5, 0.49, 0.51, (0.5,) * 5)
    assert said[:2] == live_answer(found)


def test_a_curve_of_sizes_has_no_caption_about_workers(stored: dict[str, Run]) -> None:
    page = render(page_document([stored["fit"]], "1.0"), "html")
    assert "Speed at each value that was measured." in page
    assert "workers" not in page.partition('id="growth"')[2].partition("</section>")[0]


def test_what_an_older_version_stored_unconfirmed_is_not_recommended(stored: dict[str, Run]) -> None:
    old = replace(stored["tune"].tuning, gain=None, low=None, high=None)
    text = render(replace(stored["tune"], tuning=old))
    assert "Inconclusive: bfloat16" in text
    assert "import torch" not in text


@pytest.mark.parametrize(
    ("doubt", "words"), [("contended", "batch 4 is not reliable (contended)"), ("noisy", "Most efficient: batch 8")]
)
def test_a_most_efficient_size_is_named_only_where_nothing_is_in_doubt(
    stored: dict[str, Run], fitting: Fitting, doubt: str, words: str
) -> None:
    """Noise at a size that is far from the best changes nothing; one that was slowed might have been the best."""
    tried = tuple(replace(each, doubt=doubt) if each.size == 4 else each for each in fitting.tried)
    efficient = None if doubt == "contended" else 8
    text = render(replace(stored["fit"], fitting=replace(fitting, tried=tried, efficient=efficient)), width=200)
    assert words in text
    assert ("close other programs and run: torchmark" in text) == (doubt == "contended")
