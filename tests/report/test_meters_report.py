"""Energy, heat, cases that were kept going, and costs: said in every format, and nothing is said that is unknown."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace

from torchmark.analyze.efficiency import Prices
from torchmark.records import JobEstimate, Metered, Run, StageEstimate, Sustained, Work
from torchmark.report import render
from torchmark.report.figures import sustained
from torchmark.report.page import page_document
from torchmark.report.run import details_document, runs_document

DARK = "unavailable because the system shows no energy counter of the processor"
HOT = Metered(65.0, 80.0, (3e9, 2.4e9), (50.0, 97.0), ("heat",), 3)
SLOWED = Sustained(10.0, 0.0100, 0.0120, (0.18, 0.22), 0.031, "the clock fell from 3.00 to 2.40 GHz")
PRICES = Prices(hour=2.5, kilowatt_hour=0.3)


@pytest.fixture
def bright(make_result, make_estimate, make_header) -> Run:
    """Every meter was there, and the case was kept going for two minutes."""
    samples = tuple([0.010] * 5000 + [0.012] * 5000)
    seen = make_estimate(0.012, metered=HOT, wall_step_s=0.012, samples_s=samples, duration_s=110.0, warmup_cut=0)
    job = JobEstimate(36.0, 35.0, 37.0, whole=False, stages=(StageEstimate("step", 3000, 0.012, 0.01, 0.02),), epochs=2)
    result = make_result(
        estimate=seen, sustained=SLOWED, job=job, provenance={"energy": "measured by RAPL: the whole processor"}
    )
    return Run(make_header((result.case.text,)), (result,))


@pytest.fixture
def dark(make_result, make_header) -> Run:
    sources = {"energy": DARK, "clock": "unavailable because the system does not report it", "steal": "measured by it"}
    result = make_result(provenance=sources)
    return Run(make_header((result.case.text,)), (result,))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_table_shows_energy_only_where_it_is_known_and_there_is_room(bright: Run, dark: Run) -> None:
    assert "6.09 mJ/sample" in render(bright, "table", 120)
    assert "mJ" not in render(bright, "table", 80)
    assert "energy" not in render(dark, "table", 160)


def test_an_estimate_is_marked_as_one(bright: Run) -> None:
    (result,) = bright.results
    rough = replace(bright, results=(replace(result, provenance={"energy": "estimated from the power"}),))
    assert "~6.09 mJ/sample" in render(rough, "table", 120)


def test_details_say_where_a_reading_comes_from_or_why_there_is_none(bright: Run, dark: Run) -> None:
    reported = flat(render(details_document([bright]), "table", 100))
    assert (
        "energy 65.0 W (peak 80.0 W), 780 mJ/step, 6.09 mJ/sample (measured by RAPL: the whole processor)" in reported
    )
    assert "clock 2.40 GHz at last, at most 3.00 GHz" in reported
    assert "temperature 50 °C at first, at most 97 °C" in reported
    assert "throttling heat" in reported
    assert "from disk 3 pages" in reported
    reported = flat(render(details_document([dark]), "table", 100))
    assert f"energy {DARK} clock unavailable because the system does not report it" in reported
    assert "steal" not in reported


def test_a_case_that_was_kept_going_reports_its_ends_in_every_format(bright: Run) -> None:
    words = "10.0 ms a step in the first 10.0 s, 12.0 ms in the last: 20% slower (18% to 22%), +3.1% a minute"
    for text in (render(bright, "table", 80), render(bright, "md"), render(details_document([bright]))):
        assert words in flat(text)
        assert "the clock fell" in text
    (row,) = csv.DictReader(io.StringIO(render(bright, "csv")))
    assert (float(row["burst_step_s"]), float(row["sustained_step_s"])) == (0.010, 0.012)
    assert (float(row["mean_w"]), float(row["step_j"])) == (65.0, pytest.approx(0.78))
    assert json.loads(render(bright, "json"))["results"][0]["sustained"]["slope"] == 0.031


@pytest.mark.parametrize(
    ("last_s", "interval", "words"),
    [
        (0.0101, (-0.01, 0.03), "the same within 3.0%"),
        (0.01005, (0.004, 0.006), "the same within 0.6%"),
        (0.0380, (-0.4, 3.67), "too noisy to distinguish (-40% to +367%)"),
        (0.0090, (-0.12, -0.08), "10% faster (8.0% to 12%)"),
        (0.0120, (0.18, 0.22), "no meter shows why"),
    ],
)
def test_only_a_change_beyond_chance_is_one(bright: Run, last_s: float, interval, words: str) -> None:
    found = replace(SLOWED, last_s=last_s, interval=interval, cause=None)
    assert words in sustained(replace(bright.results[0], sustained=found))


def test_the_strip_marks_both_ends(bright: Run, strip_of) -> None:
    strip, _, (low, high) = strip_of(bright.results[0])
    first, last = strip.chart["datasets"]["ends"]
    assert (first["sample"], last["end"]) == (0, 10_000)
    assert (first["end"], last["sample"]) == (pytest.approx(1000, abs=5), pytest.approx(10_000 - 833, abs=5))
    assert (first["middle"], last["middle"]) == (pytest.approx(10.0), pytest.approx(12.0))
    assert low < first["middle"] < last["middle"] < high
    assert "20% slower" in strip.note


def test_a_fast_start_that_was_cut_is_still_in_the_picture(bright: Run, strip_of) -> None:
    (result,) = bright.results
    assert result.estimate is not None
    _, _, (low, _) = strip_of(replace(result, estimate=replace(result.estimate, warmup_cut=5000)))
    assert low < 10.0


def test_a_million_of_any_unit_is_a_plural(bright: Run) -> None:
    passing = replace(bright, results=(replace(bright.results[0], work=Work(items=128, unit="pass")),))
    assert "for a million passes," in flat(render(passing, "md", prices=PRICES))


def test_costs_are_labelled_as_the_users_numbers_in_every_format(bright: Run) -> None:
    heading = "Cost at your prices: 2.50 an hour of this machine, 0.300 a kilowatt-hour"
    for text in (render(bright, "table", 80, prices=PRICES), render(bright, "md", prices=PRICES)):
        assert heading in flat(text)
        assert "for a million samples" in flat(text)
        assert "an epoch" in flat(text)
    hour, power = 0.012 / 128 * 1e6 / 3600, 65.0 * 0.012 / 128 * 1e6 / 3.6e6
    expected = pytest.approx(2.5 * hour + 0.3 * power)
    (row,) = csv.DictReader(io.StringIO(render(bright, "csv", prices=PRICES)))
    assert float(row["cost_per_million_items"]) == expected
    assert float(row["cost_per_job"]) == pytest.approx(2 * float(row["cost_per_epoch"]))
    for text in (render(bright, "json", prices=PRICES), render(runs_document([bright], PRICES, [None]), "json")):
        whole = json.loads(text)
        run = whole["runs"][0] if "runs" in whole else whole
        assert run["prices"] == {"hour": 2.5, "kilowatt_hour": 0.3}
        assert run["results"][0]["cost"]["million_items"] == expected
    assert json.loads(render(bright, "jsonl", prices=PRICES))["cost"]["million_items"] == expected
    assert "cost" not in json.loads(render(bright, "json"))["results"][0]
    assert "cost" not in (render(bright, "table") + render(bright, "csv")).lower()


def test_power_that_no_one_saw_is_not_priced_and_that_is_said(dark: Run) -> None:
    reported = flat(render(dark, "table", 80, prices=PRICES))
    assert f"Power is {DARK}, so that its price is not in the cost." in reported
    assert "for a million samples" in reported


def test_the_page_has_energy_costs_and_the_reasons_for_what_is_missing(bright: Run, dark: Run) -> None:
    page = render(page_document([bright], "0.1.0", prices=PRICES), "html")
    for words in ("6.09 mJ/sample", "Cost at your prices", "20% slower", "measured by RAPL", "per million items"):
        assert words in page
    page = render(page_document([dark], "0.1.0"), "html")
    assert f"energy {DARK}" in page
    assert "Cost" not in page


def test_a_result_of_an_older_file_says_nothing_of_meters(make_result, make_header) -> None:
    assert "energy" not in render(details_document([Run(make_header(), (make_result(),))]))
