"""What names a person, a host or a place is shown to the user of this machine and never shared."""

from __future__ import annotations

from pathlib import Path

import pytest

import canaries


@pytest.mark.parametrize(
    ("only", "reports", "formats"),
    [
        (["brief"], ("html", "svg"), ("md", "json")),
        (["workload"], ("html",), ("csv",)),
        pytest.param([], ("html", "svg", "md", "csv", "json"), ("md", "csv", "json"), marks=pytest.mark.thorough),
    ],
    ids=["failures", "names", "all-commands"],
)
def test_no_canary_is_in_anything_that_is_shared(
    tmp_path: Path, only: list[str], reports: tuple[str, ...], formats: tuple[str, ...]
) -> None:
    site = canaries.Site(tmp_path, canaries.Aviary(1))
    canaries.measure(site, only)
    canaries.share(site, reports, formats)
    assert len(site.aviary.all) >= 200
    assert [(name, each) for name, content in site.shared.items() for each in site.aviary.found_in(content)] == []
    local = b"".join(site.local)
    assert only == ["workload"] or len(site.aviary.found_in(local)) == len(site.aviary.all)


def test_a_canary_is_found_however_it_is_written() -> None:
    aviary = canaries.Aviary(1)
    canary = next(each for each in aviary.all if each.planted.startswith("clients/"))
    for text in (canary.planted, canary.planted.upper(), f"xy{canary.sought}z"):
        assert canary in aviary.found_in(text.encode())
    for before in (b"", b"x", b"xy"):
        assert canary in aviary.found_in(canaries.base64.b64encode(before + canary.sought.encode() + b"end"))
    assert aviary.found_in(b"torchmark run mlp") == []


def test_the_user_sees_the_message_and_where_the_rest_of_it_is(run_here, tmp_path: Path) -> None:
    """In tables on the terminal; other formats are made to be passed on."""
    (tmp_path / "bad.py").write_text("def build():\n    open('clients/bigbank-merger.pt')\n")
    out = tmp_path / "run.jsonl"
    done = run_here("run", str(tmp_path / "bad.py"), "--device", "cpu", "--steps", "3", "--out", str(out))
    reason = "FileNotFoundError during build (bad.py, line 2)"
    for text in (done.stdout, run_here("show", str(out)).stdout, run_here("show", str(out), "--details").stdout):
        words = " ".join(text.split())
        assert reason in words
        assert "No such file or directory: 'clients/bigbank-merger.pt'" in words
    assert f"Full errors and output of the workers: {out}.log" in done.stderr
    assert reason in run_here("show", str(out), "--format", "json").stdout
    shared = [run_here("show", str(out), "--format", each).stdout for each in ("md", "csv", "json", "jsonl")]
    assert all("bigbank" not in text for text in (*shared, out.read_text()))
    assert all(shared)
