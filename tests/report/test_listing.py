"""The list of stored runs: one line for each, from which a person knows it again."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from torchmark.records import RunHeader
from torchmark.report import render
from torchmark.report.files import listing_document

Make = Callable[..., RunHeader]
MLP, MATMUL, LSTM = "mlp/infer@cpu/float32", "matmul/infer@cpu/float32", "lstm/train@cpu/float32"


@pytest.mark.parametrize(
    ("command", "cases", "what"),
    [
        (f"torchmark run {MLP} --budget 5s", (MLP,), "run mlp"),
        ("torchmark run", (MLP, f"{MLP}+compile", MATMUL), "run mlp, matmul, 3 cases"),
        ("torchmark run", (MLP, MATMUL, LSTM), "run mlp, matmul and 1 more, 3 cases"),
        (f"torchmark fit {MLP} --vary batch", (), "fit mlp"),
        ("torchmark limits cpu", (MATMUL,), "limits"),
        ("pytest", (MLP,), "pytest mlp"),
        ("pytest", (), "pytest"),
        ("", (), ""),
    ],
)
def test_a_row_says_what_was_measured(make_header: Make, command: str, cases: tuple[str, ...], what: str) -> None:
    header = make_header(cases, command=command)
    reported = next(csv.DictReader(io.StringIO(render(listing_document([header]), "csv"))))
    assert reported["what"] == what


def test_what_all_runs_have_in_common_is_said_once(make_header: Make) -> None:
    one, other = make_header((MLP,), id="aa11bb22"), make_header((MATMUL,), id="cc33dd44")
    text = render(listing_document([one, other]), width=120)
    assert f"All on {one.machine.cpu} with torch {one.machine.torch}" in text
    assert text.count(one.machine.cpu) == 1
    assert f"\nOn {one.machine.cpu} with torch {one.machine.torch}" in render(listing_document([one]), width=120)
    elsewhere = replace(other, machine=replace(other.machine, cpu="Another Processor"))
    text = render(listing_document([one, elsewhere]), width=120)
    assert "Another Processor" in text
    assert f"All with torch {one.machine.torch}" in text


@pytest.mark.parametrize("format", ["table", "csv", "md", "json", "jsonl"])
def test_the_newest_comes_first(make_header: Make, format: str) -> None:  # noqa: A002
    headers = [make_header(id=f"{day}{day}", created=f"2026-11-{day}T10:00:00Z") for day in (12, 14, 13)]
    text = render(listing_document(headers, ["a file that cannot be read"]), format)
    assert sorted(("1414", "1313", "1212"), key=text.index) == ["1414", "1313", "1212"]


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_it_fits_and_keeps_what_names_a_run(make_header: Make, width: int) -> None:
    long = make_header((MLP, MATMUL, LSTM), id="aa11bb22", label="a label that is rather a sentence than a name")
    other = replace(long, machine=replace(long.machine, cpu="A Processor With A Very Long Name", torch="2.14.0+cu130"))
    text = render(listing_document([long, other]), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("aa11bb22") == 2
