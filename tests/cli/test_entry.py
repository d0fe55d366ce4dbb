"""Whatever a person types: an answer or one line that helps, the right exit code, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest
from msgspec.structs import replace

from torchmark import cli
from torchmark.errors import DeviceError, StoreError, UsageError
from torchmark.store import RunWriter, new_path
from torchmark.store.lines import Samples, Started

COMMAND = [sys.executable, "-c", "import sys; from torchmark.cli import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_run) -> Path:
    """One stored run, in a home of the test's own."""
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHMARK_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    path = new_path(full_run.header)
    with RunWriter.create(path, full_run.header) as writer:
        for result in full_run.results:
            writer.write(Started(result.case.text, 0))
            if result.estimate:
                writer.write(Samples(result.case.text, 0, (0.001, 0.002, 0.003)))
            writer.finished(result)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_help_names_every_command_and_shows_examples(capsys) -> None:
    code, out, _ = answer(capsys, "--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)
    assert "Examples:" in out
    assert max(map(len, out.splitlines())) <= 80


def test_version(capsys) -> None:
    code, out, _ = answer(capsys, "--version")
    assert (code, out.split()[0]) == (0, "torchmark,")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["shw"], 2, "unknown command 'shw'. Did you mean 'show'?"),
        (["show"], 2, "Missing argument 'RUN'"),
        (["show", "last", "--cse", "x"], 2, "Did you mean '--case'"),
        (["show", "last", "--format", "xml"], 2, "'xml' is not one of"),
        (["show", "nightl"], 2, "Did you mean 'nightly'"),
        (["show", "last", "--case", "mlp/tarin"], 2, "unknown case"),
        (["--nonsense"], 2, "--nonsense"),
        (["show", "/"], 2, "there is no file"),
    ],
)
def test_a_mistake_is_one_line_that_helps(capsys, arguments: list[str], code: int, words: str) -> None:
    got, out, err = answer(capsys, *arguments)
    assert got == code
    assert out == ""
    assert err.startswith("torchmark: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_damaged_file_is_exit_4_and_one_line(capsys, stored: Path) -> None:
    stored.write_bytes(stored.read_bytes().replace(b'"ok"', b'"\xe2\x80\xaeok\\u001b[31m"', 1))
    code, out, err = answer(capsys, "show", str(stored))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert f"{stored}, line 4" in err
    assert "\u202e" not in err
    assert "\x1b" not in err


def test_an_argument_that_is_not_utf8_is_a_mistake_and_no_bug(capsys) -> None:
    code, _, err = answer(capsys, "run", "mlp", "--device", "cpu", "--dry-run", "-p", "batch=\udcff8")
    assert code == 2
    assert "'\ufffd8' is not valid UTF-8" in err


def test_what_would_leave_is_printed_with_the_same_values(capsys, stored: Path, full_run) -> None:
    hostile = replace(full_run.header, label="a\x9b8m\u202eb\x7f")
    stored.unlink()
    with RunWriter.create(stored, hostile) as writer:
        writer.finished(full_run.results[0])
    code, out, _ = answer(capsys, "export", str(stored), "--show")
    assert code == 0
    assert not {"\x9b", "\u202e", "\x7f"} & set(out)
    assert json.loads(out.splitlines()[0])["header"]["label"] == hostile.label


@pytest.mark.parametrize("command", ["export last -o", "report last -o", "new my-model -o"])
def test_the_name_of_a_new_file_forges_no_line(capsys, tmp_path: Path, command: str) -> None:
    ending = {"export": ".jsonl", "report": ".html", "new": ".py"}[command.split()[0]]
    code, out, err = answer(capsys, *command.split(), str(tmp_path / f"x\nforged{ending}"))
    assert code == 0, err
    assert not [line for line in (out + err).splitlines() if line.startswith("forged")]


def test_a_warning_of_a_library_is_printed_like_everything_else(capsys, monkeypatch) -> None:
    def warn() -> None:
        warnings.warn("\x1b]0;title\x07", UserWarning, stacklevel=1)

    monkeypatch.setattr("torchmark.cli.show.runs", click.Command("runs", callback=warn))
    assert answer(capsys, "runs")[2] == "UserWarning: ]0;title\n"


def test_a_file_that_is_left_out_is_named_on_one_harmless_line(capsys, stored: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "a\x1b]0;title\x07\ntorchmark: all well.jsonl"
    damaged.write_bytes(stored.read_bytes()[:99])
    code, _, err = answer(capsys, "report", str(stored), str(damaged), "--format", "md")
    assert (code, err.count("\n")) == (0, 1)
    assert "\x1b" not in err
    assert "\x07" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a", "b"), 2),
        (StoreError("a", "b"), 4),
        (DeviceError("a\nb", "c"), 4),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("by\nzero"), 70),
        (BrokenPipeError(), 0),
        (SystemExit(143), 143),
        (click.exceptions.Exit(3), 3),
    ],
)
def test_every_error_has_its_exit_code(capsys, monkeypatch, error: BaseException, code: int) -> None:
    @click.command()
    def command() -> None:
        raise error

    from torchmark.cli import show

    monkeypatch.setattr(show, "runs", command)
    if isinstance(error, SystemExit):
        with pytest.raises(SystemExit):
            cli.main(["runs"])
        return
    got, _, err = answer(capsys, "runs")
    assert got == code
    assert err.count("\n") <= 1
    assert ("TORCHMARK_DEBUG=1" in err) == (code == 70)
    monkeypatch.setenv("TORCHMARK_DEBUG", "1")
    if code == 70:
        assert "Traceback" in answer(capsys, "runs")[2]


@pytest.mark.parametrize("interrupt", [SystemExit(143), KeyboardInterrupt()])
def test_an_interrupt_that_meets_the_making_of_a_class_ends_the_command(monkeypatch, interrupt) -> None:
    """Before Python 3.12, a RuntimeError hides what is raised in `__set_name__`."""

    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise interrupt

    from torchmark.cli import show

    command = click.Command("runs", callback=lambda: type("Made", (), {"field": Interrupted()}))
    monkeypatch.setattr(show, "runs", command)
    if isinstance(interrupt, SystemExit) or sys.version_info < (3, 12):
        with pytest.raises(type(interrupt)):
            cli.main(["runs"])
    else:
        assert cli.main(["runs"]) == 130


def test_a_command_may_return_its_exit_code(capsys, monkeypatch) -> None:
    from torchmark.cli import show

    monkeypatch.setattr(show, "runs", click.Command("runs", callback=lambda: 3))
    assert answer(capsys, "runs")[0] == 3


def test_runs_are_listed(capsys, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_bytes(b"x")
    code, out, _ = answer(capsys, "runs")
    assert code == 0
    assert "3f9c2a71" in out
    assert "nightly" in out
    assert "broken.jsonl" in out
    assert json.loads(answer(capsys, "runs", "--format", "json")[1])["runs"][0]["label"] == "nightly"
    assert answer(capsys, "runs", "--format", "csv")[1].count("\n") == 2
    assert answer(capsys, "runs", "--format", "md")[1].count("\n|") == 2  # below the headings, a rule and the run
    assert json.loads(answer(capsys, "runs", "--format", "jsonl")[1])["id"] == "3f9c2a71"


def test_no_runs_yet_is_no_error(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path / "empty"))
    assert answer(capsys, "runs")[:2] == (0, f"No runs in {tmp_path / 'empty'}. Measure one with `torchmark run`.\n")


def test_a_run_is_shown_as_it_was_printed(capsys, full_run) -> None:
    from torchmark.cli.output import headline_of
    from torchmark.report import render

    code, out, _ = answer(capsys, "show", "last")
    assert code == 0
    shown = render(full_run, "table", 80, headline=headline_of(full_run, "last")).split("± is")[0]
    assert "Details: torchmark show last" in shown
    assert out.startswith(shown)


def test_one_case_is_shown_in_full(capsys) -> None:
    code, out, _ = answer(capsys, "show", "last", "--case", "mlp/train", "--samples")
    assert code == 0
    assert out.startswith("mlp/train:batch=512")
    assert "numeric check" in out
    assert "▁" in out
    assert "matmul/" not in out
    assert answer(capsys, "show", "last", "--details")[1].count("numeric check") == 5


def test_samples_are_in_json_when_asked_for(capsys) -> None:
    for asked, samples in (([], []), (["--samples"], [0.001, 0.002, 0.003])):
        code, out, _ = answer(capsys, "show", "last", "--format", "json", *asked)
        assert code == 0
        assert json.loads(out)["results"][0]["estimate"]["samples_s"] == samples


def test_piped_output_is_plain_and_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run([*COMMAND, "show", "last"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    script = f"'{COMMAND[0]}' -c '{COMMAND[2]}' show last --format json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_disk_behind_stdout_is_exit_4() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "show", "last"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1


def test_a_terminal_that_knows_only_ascii_is_no_obstacle() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "show", "last"], capture_output=True, env=environment, check=True)
    assert b"mlp/infer" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("setting", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_that_want_it(setting: dict[str, str], colored: bool) -> None:
    import pty

    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"} | setting
    parent, child = pty.openpty()
    process = subprocess.Popen([*COMMAND, "show", "last"], stdout=child, env=environment)
    os.close(child)
    output = b""
    try:
        while piece := os.read(parent, 65536):
            output += piece
    except OSError:
        pass  # the way Linux says that the other end is closed
    assert process.wait() == 0
    assert (b"\x1b[" in output) == colored
