"""Published tables with this machine in a further column: in their own unit and shape, and never without a reason."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from torchmark.analyze.jobs import Bias, Own, Printed, Replicated, Row, Sheet
from torchmark.records import Run
from torchmark.report import FORMATS, render
from torchmark.report.publications import like_printed, replication_document


@pytest.mark.parametrize(
    ("value", "unit", "examples", "written"),
    [
        (98.123, "s", ["12.6", "330"], "98.1"),
        (149.0, "s", ["52s", "2m 29s"], "2m 29s"),
        (23587.0, "s", ["6h 33m 7s"], "6h 33m 7s"),
        (43.2, "s", ["2m"], "43s"),
        (3.14159, "s", ["2m"], "3.14s"),
        (124.96, "s", ["124.96s"], "125s"),
        (59.4, "ms/it", ["59 ms/it", "199 ms/it"], "59.4 ms/it"),
        (1.18, "s/it", ["1.18s/it"], "1.18s/it"),
        (6.11, "it/s", ["670"], "6.11"),
    ],
)
def test_a_figure_is_written_as_those_around_it(value: float, unit: str, examples: list[str], written: str) -> None:
    assert like_printed(value, unit, examples) == written


def by_machine(**changes: Any) -> Sheet:
    def row(chip: str, device: str, value: float, own: Own) -> Row:
        return Row((chip, device), (Printed(chip, "time cost(seconds)", f"{value:g}", value, "s"),), (own,), "s")

    own = Own("mlp/infer@cpu/float32+as-published", "cpu", "ok", 25.2, 24.0, 26.4, extrapolated=True, steady=24.0)
    fields: dict[str, Any] = {
        "publication": "m1-chips",
        "title": "Compare of inference time",
        "protocol": "",
        "headers": ("chips", "device"),
        "columns": ("time cost(seconds)",),
        "places": ("this machine",),
        "rows": (
            row("M1", "CPU", 12.6, own),
            row("M1", "GPU", 4.8, Own(reason="no accelerator here")),
            row("Xeon", "CPU", 330, Own("resnet50/infer@cpu/float32", "cpu", "oom", reason="it needs 58 GiB")),
            row("Ultra", "CPU", 14.8, Own("x/infer@cpu/float32", "cpu", "skipped", reason="would take 9 min. More")),
        ),
        "by_machine": True,
    }
    return Sheet(**(fields | changes))


BIAS = Bias("mlp/infer@cpu/float32", 2.52e-3, 2.4e-3, 0.01, "stable", {"autograd graph": 0.04})


def rendered(run: Run, sheet: Sheet, format: str = "table", width: int = 80) -> str:  # noqa: A002
    return render(replication_document(run, [Replicated("m1-chips", "A title", (sheet,), (BIAS,))]), format, width)


def test_every_row_has_a_figure_or_its_reason(full_run: Run) -> None:
    lines = [line.strip() for line in rendered(full_run, by_machine()).splitlines()]
    rows = {tuple(line.split()[:2]): line for line in lines if line[:2] in ("M1", "Xe", "Ul")}
    assert "~25.2" in rows["M1", "CPU"]
    assert rows["M1", "CPU"].rstrip().endswith("0.500×")
    assert "±4.8%" in rows["M1", "CPU"]
    assert "no accelerator here" in rows["M1", "GPU"]
    assert rows["Xeon", "CPU"].split()[-1] == "-"
    assert "would take 9 min" in rows["Ultra", "CPU"]
    text = "\n".join(lines)
    assert "out of memory: it needs 58 GiB" in text
    assert "~ is extrapolated" in text


def test_figures_of_other_code_get_no_ratio(full_run: Run) -> None:
    assert "as fast" in rendered(full_run, by_machine())
    assert "as fast" not in rendered(full_run, by_machine(is_comparable=False))


def test_cpu_against_accelerator_with_the_speedup(full_run: Run) -> None:
    printed = (Printed("M1", "CPU", "59 ms/it", 59, "ms/it"), Printed("M1", "speedup", "199.6%", 1.996, "x"))
    own = (Own("a", "cpu", "ok", 80.0), Own("b", "cuda:0", "ok", 20.0))
    sheet = by_machine(
        headers=("Batch", "Seq"),
        columns=("CPU", "speedup"),
        places=("this CPU", "this cuda:0"),
        rows=(Row(("1", "128"), printed, own, "ms/it"),),
        by_machine=False,
        has_speedup=True,
    )
    (row,) = [line for line in rendered(full_run, sheet).splitlines() if line.startswith("  1 ")]
    assert row.split() == ["1", "128", "59", "ms/it", "199.6%", "80.0", "ms/it", "20.0", "ms/it", "4.00×"]


def test_the_bias_and_what_it_is_made_of(full_run: Run) -> None:
    text = rendered(full_run, by_machine())
    assert "+5.0%" in text
    assert "autograd graph +4.0%, not explained +1.0%" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal(full_run: Run, width: int) -> None:
    assert max(map(len, rendered(full_run, by_machine(), width=width).splitlines())) <= width


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_every_figure(full_run: Run, format: str) -> None:  # noqa: A002
    text = rendered(full_run, by_machine(), format)
    assert all(word in text for word in ("m1-chips", "12.6", "25.2", "no accelerator here"))


def test_formats_for_programs_can_be_read(full_run: Run) -> None:
    lines = list(csv.DictReader(io.StringIO(rendered(full_run, by_machine(), "csv"))))
    assert [(line["row"], line["published"], line["here"]) for line in lines[:2]] == [
        ("M1 / CPU", "12.6", "25.2"),
        ("M1 / GPU", "4.8", ""),
    ]
    whole = json.loads(rendered(full_run, by_machine(), "json"))
    assert set(whole) == {"run", "results", "publications"}
    assert whole["publications"][0]["sheets"][0]["rows"][0]["own"][0]["value"] == 25.2
    assert len(rendered(full_run, by_machine(), "jsonl").splitlines()) == 4
    bare = Row(("M1",), (Printed("", "", "", None, ""),), (Own(reason="no accelerator here"),), "")
    line = json.loads(rendered(full_run, by_machine(rows=(bare,)), "jsonl"))  # not tried here is null, not empty
    assert [line[name] for name in ("printed", "machine", "column", "unit")] == ["", "", "", ""]
    assert [line[name] for name in ("case", "device", "status", "published")] == [None, None, None, None]


def test_what_came_from_elsewhere_cannot_steer_the_terminal(full_run: Run) -> None:
    text = rendered(full_run, by_machine(title="a\x1b[2Jb\u202ec"))
    assert "\x1b" not in text
    assert "\u202e" not in text
