"""`torchmark check` and `torchmark export` as a person uses them: one line for each finding, and what leaves."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.store import load

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example-run.jsonl"
CASE = "null/infer@fake/float32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three real runs of the same device, each with noise of its own."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate("abc"):
        measure(folder / f"{name}.jsonl", f"stream=iid2,step=0.01,seed={seed}", "--rigor", "quick")
    return folder


def measure(path: Path, script: str, *options: str) -> None:
    environment = {"TORCHMARK_FAKE": script, "TORCHMARK_LOCK": str(path.with_suffix(".lock"))}
    assert run_torchmark("run", CASE, "--out", str(path), *options, environment=environment).returncode == 0


@pytest.fixture(autouse=True)
def inside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a folder with copies of the three, so that they can be spoilt."""
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes((folder / f"{name}.jsonl").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    return tmp_path


def edit(path: str, pattern: str, new: str) -> None:
    data, count = re.subn(pattern, new, Path(path).read_text(), count=1)
    assert count
    Path(path).write_text(data)


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = cli.main(["check", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    assert "verified" not in out
    return code, out.splitlines()


def test_a_sound_file_is_well_formed_and_consistent(capsys) -> None:
    code, lines = check(capsys, "a.jsonl")
    assert code == 0
    assert lines[0] == "a.jsonl: well-formed, consistent"
    assert lines[1] == "  1 case, 1 of 1 processes recomputed from samples, checksum right"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("digits", [17, 9, 7])
def test_copies_times_a_factor_do_not_corroborate_each_other(capsys, inside: Path, digits: int) -> None:
    """Every time in the file is scaled, so that the copy is consistent in itself; so it is if they are rounded."""
    for name, factor in (("b", 1.003), ("c", 1.006)):
        lines = [json.loads(line) for line in (inside / "a.jsonl").read_text().splitlines()]
        lines[0]["header"]["id"] = name * 8
        write_sealed(inside / f"{name}.jsonl", [scale(line, factor, digits) for line in lines[:-1]])
    code, shown = check(capsys, "a.jsonl", "b.jsonl", "c.jsonl")
    assert code == 1
    assert not any("corroborated" in line for line in shown if not line.startswith(" "))
    assert sum("has the samples of a.jsonl, which calls itself another run" in line for line in shown) == 2


def scale(value, factor: float, digits: int, name: str = ""):
    if isinstance(value, dict):
        return {key: scale(inner, factor, digits, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [scale(inner, factor, digits, name) for inner in value]
    return float(f"{value * factor:.{digits}g}") if isinstance(value, float) and name.endswith("_s") else value


def write_sealed(path: Path, lines: list[dict]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    seal = {"kind": "checksum", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(text + json.dumps(seal) + "\n")


@pytest.mark.parametrize("spoil", ["inconsistent", "without samples", "cut off"])
def test_only_consistent_files_corroborate_others(capsys, inside: Path, spoil: str) -> None:
    lines = [json.loads(line) for line in (inside / "c.jsonl").read_text().splitlines()]
    if spoil == "inconsistent":
        next(line for line in lines if line["kind"] == "finished")["result"]["estimate"]["high_s"] *= 2
    if spoil == "without samples":
        lines = [line for line in lines if line["kind"] != "samples"]
    write_sealed(inside / "c.jsonl", lines[:-1])
    if spoil == "cut off":
        (inside / "c.jsonl").write_text("".join((inside / "c.jsonl").read_text().splitlines(keepends=True)[:-1]))
    _, shown = check(capsys, "a.jsonl", "b.jsonl", "c.jsonl")
    assert "a.jsonl: well-formed, consistent" in shown
    assert "b.jsonl: well-formed, consistent" in shown


def test_a_file_without_samples_is_only_well_formed(capsys) -> None:
    code, lines = check(capsys, str(EXAMPLE))
    assert code == 0
    assert lines[0] == f"{EXAMPLE}: well-formed"
    assert "no samples to recompute from" in lines[1]


def test_a_file_that_was_cut_off_between_two_lines_is_reported(capsys) -> None:
    lines = Path("a.jsonl").read_text().splitlines(keepends=True)
    Path("a.jsonl").write_text("".join(lines[:-1]))
    code, reported = check(capsys, "a.jsonl")
    assert code == 1
    assert reported[0].startswith(
        "a.jsonl: line 5: no checksum at its end: the file was cut off, or its run was killed"
    )
    assert "a.jsonl: not well-formed" in reported
    assert reported[reported.index("a.jsonl: not well-formed") + 1].endswith("no checksum")


def test_cases_without_a_result_are_reported_unless_the_run_says_that_it_was_stopped(capsys) -> None:
    header, started, samples, finished, *_ = Path("a.jsonl").read_text().splitlines(keepends=True)
    other = CASE + "+threads=2"
    header = header.replace(f'"cases":["{CASE}"]', f'"cases":["{CASE}","{other}","{CASE}+threads=3"]')

    def written(*more: str) -> list[str]:
        Path("short.jsonl").write_text("".join([header, started, samples, finished, *more]))
        Path("sealed.jsonl").unlink(missing_ok=True)
        assert cli.main(["export", "short.jsonl", "-o", "sealed.jsonl"]) == 0
        capsys.readouterr()
        return check(capsys, "sealed.jsonl")[1]

    reported = written()
    assert reported[0].startswith("sealed.jsonl: line 1: $.header.cases: 2 of 3 cases have no result, such as")
    assert "sealed.jsonl: well-formed, but not consistent" in reported
    stopped = '{"kind":"finished","result":{"case":{"workload":"null","mode":"infer","device":"fake","threads":2},'
    stopped += '"status":"interrupted","reason":"the run was stopped while it was being measured"}}\n'
    reported = written(stopped)
    assert reported[0] == "sealed.jsonl: well-formed, consistent"
    assert "2 of 3 cases" in reported[1]


def test_a_run_that_was_killed_is_reported_and_one_that_was_completed_is_sound(capsys, inside: Path) -> None:
    lines = Path("a.jsonl").read_text().splitlines(keepends=True)
    Path("a.jsonl").write_text("".join(lines[:2]))
    code, reported = check(capsys, "a.jsonl")
    assert code == 1
    assert any("1 of 1 cases have no result" in line for line in reported)
    environment = {"TORCHMARK_FAKE": "stream=iid2,step=0.01", "TORCHMARK_LOCK": str(inside / "lock")}
    assert run_torchmark("run", "--resume", "a.jsonl", environment=environment).returncode == 0
    assert check(capsys, "a.jsonl")[0] == 0


def test_three_files_that_agree_are_corroborated_and_nothing_more_is_claimed(capsys) -> None:
    code, lines = check(capsys, "a.jsonl", "b.jsonl", "c.jsonl")
    assert code == 0
    assert [line for line in lines if line.endswith("well-formed, corroborated")] == [
        f"{name}.jsonl: well-formed, corroborated" for name in "abc"
    ]
    assert "claimed, not known" in " ".join(lines)


def test_a_finding_is_one_line_with_file_and_field(capsys) -> None:
    edit("a.jsonl", r'("processes":\[\{.*?"median_s":)[0-9.]+', r"\g<1>0.005")
    code, lines = check(capsys, "a.jsonl", "b.jsonl")
    assert code == 1
    assert re.fullmatch(
        r"a\.jsonl: line 4: \$\.result\.processes\[0\]\.median_s: 0\.005, but its samples give 0\.01\S*", lines[0]
    )
    assert lines[1].endswith("$.sha256: wrong checksum: the lines before it have changed")
    assert "a.jsonl: not well-formed" in lines
    assert lines[lines.index("a.jsonl: not well-formed") + 1].endswith("wrong checksum")
    assert "b.jsonl: well-formed, consistent" in lines


def test_figures_that_are_made_up_with_a_checksum_are_reported_by_their_samples(capsys) -> None:
    edit("a.jsonl", r'("processes":\[\{.*?"median_s":)[0-9.]+', r"\g<1>0.005")
    assert cli.main(["export", "a.jsonl", "-o", "resealed.jsonl"]) == 0
    capsys.readouterr()
    code, lines = check(capsys, "resealed.jsonl")
    assert code == 1
    assert "resealed.jsonl: well-formed, but not consistent" in lines


def test_one_file_that_stands_apart_from_the_others_is_reported(capsys, inside: Path) -> None:
    measure(inside / "d.jsonl", "stream=iid2,step=0.02", "--rigor", "quick")
    code, lines = check(capsys, "a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
    assert code == 1
    assert re.match(r"d\.jsonl: line 4: \$\.result\.estimate\.center_s: .*is 0\.4\d+× as fast", lines[0])
    assert "d.jsonl: consistent, but not as other files have it" in lines
    assert "a.jsonl: well-formed, corroborated" in lines


def test_the_same_samples_under_another_name_are_reported_and_count_once(capsys) -> None:
    edit("a.jsonl", r'"id":"\w+"', '"id":"0badcafe"')
    Path("b.jsonl").unlink()
    cli.main(["export", "a.jsonl", "-o", "b.jsonl"])
    Path("a.jsonl").write_bytes(Path("b.jsonl").read_bytes())
    edit("a.jsonl", r'"id":"\w+"', '"id":"c0ffee00"')
    capsys.readouterr()
    code, lines = check(capsys, "b.jsonl", "a.jsonl", "c.jsonl")
    assert code == 1
    assert any("has the samples of b.jsonl, which calls itself another run" in line for line in lines)
    assert not [line for line in lines if line.endswith("corroborated")]


def test_later_lines_must_not_say_otherwise_about_earlier_processes(capsys, inside: Path) -> None:
    measure(inside / "three.jsonl", "stream=iid2,step=0.01")
    assert check(capsys, "three.jsonl")[0] == 0
    lines = Path("three.jsonl").read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"finished"' in line)
    lines[last] = re.sub(r'("processes":\[\{"center_s":)[0-9.]+', r"\g<1>0.0098", lines[last])
    Path("three.jsonl").write_text("\n".join(lines) + "\n")
    code, reported = check(capsys, "three.jsonl")
    assert code == 1
    assert any("$.result.processes[0]: an earlier line says otherwise" in line for line in reported)


def test_for_other_programs(capsys) -> None:
    edit("a.jsonl", '"status":"ok"', '"status":"great"')
    assert cli.main(["check", "a.jsonl", "b.jsonl", "--format", "json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["files"]
    assert (first["level"], second["level"]) == (None, "consistent")
    assert first["flaws"][0]["place"] == "$.result.status"
    assert cli.main(["check", "a.jsonl", "--format", "csv"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "file,line,place,level,finding"
    assert cli.main(["check", "a.jsonl", "--format", "md"]) == 1
    assert cli.main(["check", "a.jsonl", "--format", "jsonl"]) == 1


def test_a_file_that_is_no_run_is_a_finding_and_one_that_is_not_there_an_error(capsys) -> None:
    Path("x.jsonl").write_text("hello\n")
    code, lines = check(capsys, "x.jsonl", "a.jsonl")
    assert code == 1
    assert lines[0].startswith("x.jsonl: is not a run file: line 1: ")
    assert "a.jsonl: well-formed, consistent" in lines
    assert cli.main(["check", "nowhere.jsonl"]) == 2
    assert "there is no file 'nowhere.jsonl'" in capsys.readouterr().err


def test_a_folder_means_every_run_file_in_it(capsys, inside: Path) -> None:
    (inside / "a.jsonl.log").write_text("what workers print")
    (inside / "empty").mkdir()
    code, lines = check(capsys, ".")
    assert (code, lines[:3]) == (0, [f"{name}.jsonl: well-formed, corroborated" for name in "abc"])
    Path("b.jsonl").write_text("hello\n")
    code, lines = check(capsys, str(inside))
    assert code == 1
    assert lines[0].startswith(f"{inside / 'b.jsonl'}: is not a run file")
    assert f"{inside / 'b.jsonl'}: not well-formed, 1 finding" in lines
    assert f"{inside / 'a.jsonl'}: well-formed, consistent" in lines
    assert cli.main(["check", "empty"]) == 2
    assert "there are no run files in empty" in capsys.readouterr().err


def test_what_a_file_says_cannot_act_on_the_terminal(capsys) -> None:
    edit("a.jsonl", r'"cases":\["[^"]*"', r'"cases":["\\u001b[2J\\u202e\\u0007"')
    code = cli.main(["check", "a.jsonl"])
    out = capsys.readouterr().out
    assert code == 1
    assert not {"\x1b", "\u202e", "\x07"} & set(out)


def test_an_export_shows_every_byte_that_leaves(capsys, inside: Path) -> None:
    assert cli.main(["export", "a.jsonl", "--show"]) == 0
    shown, err = capsys.readouterr()
    assert err == ""
    assert sorted(path.name for path in inside.glob("*.jsonl")) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert cli.main(["export", "a.jsonl"]) == 0
    out, err = capsys.readouterr()
    (written,) = inside.glob("torchmark-*.jsonl")
    assert out == ""
    assert f"Wrote {written.name}, {len(shown.encode())} bytes" in err
    assert written.read_text() == shown
    assert load(written).results == load("a.jsonl").results


def test_an_export_overwrites_nothing(capsys) -> None:
    assert cli.main(["export", "a.jsonl", "-o", "b.jsonl"]) == 4
    assert "b.jsonl already exists" in capsys.readouterr().err


def test_files_of_a_folder_that_cannot_be_read_are_findings(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "loop.jsonl").symlink_to("loop.jsonl")
    (inside / "nowhere.jsonl").symlink_to("gone")
    assert cli.main(["check", "."]) == 1
    out = capsys.readouterr().out
    assert "loop.jsonl: cannot read loop.jsonl: Too many levels of symbolic links" in out
    assert "nowhere.jsonl: cannot read nowhere.jsonl: No such file or directory" in out
    assert re.search(r"^a\.jsonl: (well-formed|consistent|corroborated)", out, re.MULTILINE)
