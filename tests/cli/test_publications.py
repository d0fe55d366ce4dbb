"""Published figures on the command line: counted, listed as they were printed, and shown like runs."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchmark import cli
from torchmark.publications import find_publication, names


@pytest.fixture(autouse=True)
def _no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def run(*arguments: str, width: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert cli.main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


def test_the_figures_are_counted_by_publication(shown) -> None:
    counts = {row[0]: row[1:] for line in shown("list", "--publications").splitlines() if len(row := line.split()) == 5}
    assert counts == {
        "publication": ["measured", "powers", "speedups", "machines"],
        "apple-silicon-bert": ["48", "3", "-", "4"],
        "intel-vs-m2": ["8", "-", "4", "2"],
        "m1-chips": ["29", "-", "-", "6"],
        "m1-gpu-for-ml": ["17", "-", "4", "4"],
        "simple-add": ["11", "-", "-", "11"],
        "all": ["113", "3", "8", "27"],
    }
    listed = json.loads(shown("list", "--publications", "--format", "json"))
    assert listed["counts"] == {"measured": 113, "powers": 3, "speedups": 8, "machines": 27}
    assert [each["name"] for each in listed["publications"]] == list(names())


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_publication_has_every_figure_as_it_was_printed(shown, name: str) -> None:
    page = shown("list", "--publications", name)
    assert max(map(len, page.splitlines())) <= 80
    printed = {figure.printed for figure in find_publication(name).figures}
    assert {text for text in printed if text in page} == printed
    (facts,) = json.loads(shown("list", "--publications", name, "--format", "json"))["publications"]
    assert sum(len(table["figures"]) for table in facts["tables"]) == len(find_publication(name).figures)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", names())
def test_a_publication_is_one_table_of_all_its_machines(shown, name: str, width: int) -> None:
    output = shown("show", name, width=width)
    assert max(map(len, output.splitlines())) <= width
    publication = find_publication(name)
    for machine in publication.machines:
        rows = [line for line in output.splitlines() if line.startswith(f"  {machine.name}  ")]
        cases = {figure.case for figure in publication.figures if figure.machine == machine.name and figure.case}
        assert len(rows) == len(cases)
    assert "±" not in output
    assert "…" not in output
    assert "+as-published" not in output


@pytest.mark.parametrize("name", names())
def test_the_letters_of_the_cautions_follow_the_rows(shown, name: str) -> None:
    table, _, care = shown("show", name, width=160).partition("\nCare\n")
    used = re.findall(r"  ([a-z]+)$", table.partition("  care\n")[2], re.MULTILINE)
    named = re.findall(r"^  ([a-z]) [a-z-]+  ", care, re.MULTILINE)
    assert list(dict.fromkeys("".join(used))) == named == sorted(named)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_one_machine_is_shown_like_a_run_without_what_no_one_knows(shown, width: int) -> None:
    output = shown("show", "m1-chips/m1 ultra gpu", width=width)
    heading, machine, *_ = output.splitlines()
    assert heading == "m1-chips/M1 Ultra GPU · 2022 · on mps/float32 as published"
    assert machine == "Apple M1 Ultra (Mac Studio)"
    (row,) = [line for line in output.splitlines() if line.startswith("resnet50/infer ")]
    assert row.split()[:7] == ["resnet50/infer", "54.0", "ms", "2.7", "s", "593", "image/s"]
    for unknown in ("±", "core", "torch ", "first step", "p99"):
        assert unknown not in output.split("Cautions")[0]
    assert "not-comparable" in output
    assert max(map(len, output.splitlines())) <= width


def test_out_of_memory_is_shown_with_its_reason(shown) -> None:
    output = shown("show", "apple-silicon-bert/v100")
    assert "published as '-': out of memory" in " ".join(output.split())
    assert output.startswith("apple-silicon-bert/V100 · 2022 · on cuda/float32 as published\nNVIDIA V100 SXM2\n")
    assert "\nApple M1 Max, 10 cores, 32 GiB\n" in shown("show", "apple-silicon-bert/M1 Max CPU")


@pytest.mark.parametrize("name", names())
def test_csv_has_one_line_for_each_published_figure(shown, name: str) -> None:
    rows = list(csv.DictReader(io.StringIO(shown("show", name, "--format", "csv"))))
    assert len(rows) == len(find_publication(name).of_kind("measured"))
    assert {row["label"] for row in rows} == {f"{name}/{machine.name}" for machine in find_publication(name).machines}
    assert all(row["machine"] for row in rows)
    for row in rows:
        assert (row["low_s"], row["p99_s"], row["first_step_s"]) == ("", "", "")
        assert (row["step_s"] == "") == (row["status"] == "oom")


def test_json_has_one_run_for_each_machine(shown) -> None:
    runs = json.loads(shown("show", "intel-vs-m2", "--format", "json"))["runs"]
    assert [each["run"]["label"] for each in runs] == ["intel-vs-m2/M2 Max CPU", "intel-vs-m2/Intel i9 CPU"]
    lines = shown("show", "intel-vs-m2", "--format", "jsonl").splitlines()
    assert [json.loads(line)["settings"]["machine"] for line in lines] == ["M2 Max CPU"] * 4 + ["Intel i9 CPU"] * 4
    one = json.loads(shown("show", "intel-vs-m2/intel", "--format", "json"))
    assert one["results"][0]["estimate"]["center_s"] == pytest.approx(208.54 / 8442)


def test_markdown_says_the_same(shown) -> None:
    whole = shown("show", "simple-add", "--format", "md")
    assert (
        "| `tensor-add/infer:variant=as-run` | Nvidia 3090 GPU | 1.49 ms | 670 it/s | 670 iteration/s | ab |" in whole
    )
    assert "- **folded**: all figures:" in whole
    one = shown("show", "simple-add/nvidia 3090", "--format", "md")
    assert "| `tensor-add/infer:variant=as-run` | 1.49 ms | 670 it/s | 670 iteration/s |" in one


def test_details_name_the_table_and_every_caution(shown) -> None:
    output = shown("show", "m1-chips", "--case", "mlp/infer:outputs=512@cpu")
    assert [line for line in output.splitlines() if line.startswith("m1-chips/")] == [
        f"m1-chips/{name} · 2022 · on cpu/float32 as published" for name in ("M1 CPU", "M1 Ultra CPU", "Xeon Gold")
    ]
    assert "caution thread-oversubscription" in output
    assert "±" not in output
    assert "rigor" not in output
    assert output in shown("show", "m1-chips", "--details", "--case", "mlp/infer:outputs=512@cpu")


def test_what_is_not_in_a_publication_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "m1-chips", "--case", "lstm"]) == 2
    assert "unknown case 'lstm'" in capsys.readouterr().err
    assert cli.main(["list", "--publications", "m1-chip"]) == 2
    assert "Did you mean 'm1-chips'" in capsys.readouterr().err


def test_run_sends_a_published_case_to_replicate(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "mlp/infer:outputs=512@cpu/float32+as-published"]) == 2
    error = capsys.readouterr().err
    assert "torchmark replicate" in error
    assert "measure mlp/infer:outputs=512@cpu/float32" in error


@pytest.mark.parametrize("arguments", [["show", "m1-chips"], ["list", "--publications", "m1-chips"]])
def test_published_figures_need_no_torch(arguments: list[str]) -> None:
    program = f"import sys; from torchmark.cli import main; main({arguments!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
