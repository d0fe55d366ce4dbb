"""The documentation is true: its commands and examples run, its links lead somewhere, its tables match the code.

Commands in console, bash and sh blocks are run through the real entry point, with this rule: `run` only plans
(`--dry-run`) and uses the fake device unless --device, a case or --resume names one; `replicate`, `limits`, `tune` and
`fit` only plan, too, and so does `ab`, with this interpreter for each that is named and nothing in its settings files;
`new` writes to stdout; `my_model.py` is the file that `torchmark new` writes, `config.json` and `mobilenetv2.py` are
small stand-ins; `report` writes to stdout; `--audit` audits the fake device; `fleet run` only plans, on this machine,
and /shared/fleet is a made-up fleet. Everything else is run as it stands.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import tomllib
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click
import pytest

import torchmark
from torchmark import cli
from torchmark.cli import LazyGroup
from torchmark.cli.fleet import FORWARDED
from torchmark.cli.output import headline_of
from torchmark.fleet.folder import Fleet, FleetFolder, JobOutcome, Task, Terms
from torchmark.measure import session
from torchmark.report import render
from torchmark.store import load

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FILES_TO_COPY = {"add-a-device.md", "add-a-workload.md"}  # their examples are whole files, tested with their room
EXAMPLE = ROOT / "docs" / "example-run.jsonl"
FLEET = "/shared/fleet"
RUN = "pip install -c constraints.txt . && torchmark run"
TEST = 'pip install -c constraints.txt -e ".[dev]" && pytest'


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> list[str]:
    return [
        body for language, body in re.findall(r"```(\w*)\n(.*?)```", text(page), re.DOTALL) if language in languages
    ]


def command_lines(page: Path) -> list[str]:
    shown = [line.removeprefix("$ ") for line in "\n".join(blocks(page, "console", "bash", "sh")).splitlines()]
    return [line.split("#")[0].strip() for line in shown if line.startswith("torchmark ")]


COMMAND_LINES = sorted({line for page in PAGES for line in command_lines(page)})


def as_tested(line: str) -> list[str]:
    """The rule at the top of this file."""
    arguments = shlex.split(line)[1:]
    fake = ["--device", "fake"]
    if arguments[0] == "run":
        named = any("@" in argument or argument in ("--device", "--resume") for argument in arguments)
        return [*arguments, "--dry-run", *([] if named else fake)]
    if arguments[0] == "ab":
        stand_ins = {"--python": sys.executable, "--settings": os.devnull}
        named = [stand_ins.get(before, argument) for before, argument in pairwise(["", *arguments])]
        return [*named, "--dry-run", *fake]
    if arguments[:2] == ["fleet", "run"]:
        return [*_without_cluster(arguments), "--dry-run"]
    if arguments[0] in ("replicate", "limits", "tune", "fit"):
        return [*arguments, "--dry-run"]
    if arguments[0] in ("report", "new"):
        return [*arguments, "--out", "-"]
    return [*arguments, *(fake if "--audit" in arguments and "--device" not in arguments else [])]


def _without_cluster(arguments: list[str]) -> list[str]:
    """Without the examples that need a cluster."""
    if "--resume" in arguments:
        return arguments
    theirs = {"--partition", "--constraint", "--nodelist"}
    kept = [each for before, each in pairwise(["", *arguments]) if each not in theirs and before not in theirs]
    return [*(each for each in kept if not each.startswith("--sbatch")), "--engine", "local"]


def make_fleet(folder: Path) -> None:
    """One node is done, the job of another was cancelled."""
    tasks = tuple(Task(name, "A", (f"local{index}",), ("mlp",), name) for index, name in enumerate(("A1", "A2")))
    fleet = FleetFolder(folder)
    fleet.prepare()
    fleet.keep(Fleet("2026-11-16T02:00:00Z", Terms(engine="local"), tasks))
    fleet.keep_outcome(tasks[0], JobOutcome("done"))
    fleet.keep_outcome(tasks[1], JobOutcome("cancelled"))
    fleet.run_file(tasks[0]).write_bytes(EXAMPLE.read_bytes())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs that holds the recorded one, and an earlier one like it."""
    monkeypatch.setenv("TORCHMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    run = text(EXAMPLE)
    (tmp_path / EXAMPLE.name).write_text(run, encoding="utf-8")
    earlier = run.replace('"created":"2026', '"created":"2025', 1).replace('"id":"', '"id":"e', 1)
    (tmp_path / "earlier.jsonl").write_text(earlier, encoding="utf-8")
    return tmp_path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the user files that the examples name."""
    (tmp_path / "my_model.py").write_text(text(Path(cli.__file__).parent / "starters" / "model.txt"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "mobilenetv2.py").write_text("def MobileNetV2(): ...")
    return tmp_path


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_that_is_shown_runs(
    line: str, home: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if FLEET in line:
        make_fleet(home / "fleet")
    own = ("my_model.py", "config.json", "mobilenetv2.py")
    found = [str(files / each) if each.startswith(own) else each for each in as_tested(line)]
    code = cli.main([argument.replace(FLEET, str(home / "fleet")) for argument in found])
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.out.strip()


def test_there_are_commands_to_try() -> None:
    assert {line.split()[1] for line in COMMAND_LINES} == set(cli.COMMANDS)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("page", "code"),
    [(page, code) for page in PAGES if page.name not in FILES_TO_COPY for code in blocks(page, "python")],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_every_python_example_runs(page: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PREHEAT_S", 0.05)
    exec(compile(code, page.name, "exec"), {"__name__": "__main__"})


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([\w/-]+\.md)", text(README))}
    assert linked >= set(PAGES) - {README}


def test_the_two_commands_of_the_readme_are_exact() -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines() if line.startswith("pip ")]
    assert lines == [RUN, TEST]
    after = text(README).split(TEST)[1]
    assert "Already have the torch you want to measure? `pip install .` never replaces it." in after[:120]


def test_ci_takes_the_test_command_from_the_readme() -> None:
    script = text(ROOT / ".ci" / "run")
    pattern = re.search(r"grep -E '([^']+)' README\.md", script)
    assert pattern
    assert [line for line in text(README).splitlines() if re.search(pattern[1], line)] == [TEST]
    assert "pytest" not in script.replace(pattern[1], "").replace("pip install … && pytest", "").replace(
        ".pytest_cache", ""
    )


def test_the_readme_names_every_command_and_public_name() -> None:
    assert {name for name in cli.COMMANDS if f"`torchmark {name}" in text(README)} == set(cli.COMMANDS)
    names = set(torchmark.__all__) - {"__version__"}
    assert {name for name in names if f"{name}(" in text(README)} == names


@pytest.mark.parametrize("name", [*cli.COMMANDS, *(f"fleet {name}" for name in cli.FLEET_COMMANDS)])
def test_option_tables_match_the_commands(name: str) -> None:
    """`fleet run` describes the options that it takes from `run`."""
    section = text(ROOT / "docs" / "commands.md").split(f"## torchmark {name}\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    group = cli.fleet_group if " " in name else cli.torchmark
    params = _params(group, name.split()[-1])
    forwarded = {option.name for option in FORWARDED} if name == "fleet run" else set()
    own = [option for option in params if option.name not in forwarded]
    options = [set(option.opts) for option in own]
    assert [set(re.findall(r"`(-[^`]+)`", row)) for row in rows] == options


def _params(group: LazyGroup, name: str) -> list[click.Parameter]:
    command = group.get_command(click.Context(group), name)
    assert command
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def test_exit_codes_are_those_of_the_code() -> None:
    from torchmark import errors

    section = text(ROOT / "docs" / "commands.md").split("## Exit codes\n")[1].split("\n## ")[0]
    documented = {
        int(code) for codes in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in codes.split(",")
    }
    assert documented == {getattr(errors, name) for name in dir(errors) if name.startswith("EXIT_")} | {129, 130, 143}


def constants() -> list[tuple[str, str, str]]:
    section = text(ROOT / "docs" / "method.md").split("## Constants\n")[1]
    return re.findall(r"^\| `(\w+)` \| (\S+) \| `(\S+)\.py` \|", section, re.MULTILINE)


@pytest.mark.parametrize(("name", "value", "module"), constants(), ids=[name for name, _, _ in constants()])
def test_the_method_names_the_constants_that_are_used(name: str, value: str, module: str) -> None:
    assert getattr(import_module("torchmark." + module.replace("/", ".")), name) == float(value)


def test_the_method_explains_every_verdict_in_order() -> None:
    from torchmark.records import VERDICTS

    for page in (README, ROOT / "docs" / "method.md"):
        rows = [row for row in re.findall(r"^\| `([\w-]+)` \|", text(page), re.MULTILINE) if row in VERDICTS]
        assert tuple(rows) == VERDICTS, page.name


def test_the_method_explains_every_flag_that_warns() -> None:
    from torchmark.analyze.verdict import _FLAGS

    documented = set(re.findall(r"^\| `([\w-]+)` \|", text(ROOT / "docs" / "method.md"), re.MULTILINE))
    assert set(_FLAGS) <= documented


def test_the_output_in_the_readme_is_the_recorded_run() -> None:
    run = load(EXAMPLE)
    assert render(run, "table", 80, headline=headline_of(run, "last")) in text(README)


def test_the_picture_is_that_of_the_recorded_run() -> None:
    found = importlib.util.spec_from_file_location("make_picture", ROOT / "docs" / "make_picture.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.draw() == text(ROOT / "docs" / "picture.svg")


def test_the_changelog_has_the_version_of_the_package() -> None:
    assert tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["dynamic"] == ["version"]
    assert f"## [{torchmark.__version__}]" in text(ROOT / "CHANGELOG.md")


def test_the_first_pin_is_torch_and_every_dependency_has_one() -> None:
    pins = [line for line in text(ROOT / "constraints.txt").splitlines() if not line.startswith("#")]
    assert pins[0] == "torch==2.13.0"
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    project = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[<>=]", each)[0] for each in wanted} <= {pin.split("==")[0] for pin in pins}
