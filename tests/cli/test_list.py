"""`torchmark list` shows what can be run, and every command that it suggests is valid."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from torchmark import cli
from torchmark.measure.cases import expand, split_settings
from torchmark.workloads import names


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def show(*arguments: str) -> str:
        assert cli.main(["list", *arguments]) == 0
        return capsys.readouterr().out

    return show


def test_every_workload_is_listed_within_eighty_columns(shown) -> None:
    output = shown()
    assert all(name in output for name in names())
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_workload_suggests_commands_that_work(shown, name: str) -> None:
    output = shown(name)
    assert max(map(len, output.splitlines())) <= 80
    suggested = [shlex.split(line)[2:] for line in output.splitlines() if line.startswith("  torchmark run ")]
    assert suggested
    for workload, *options in suggested:
        axes = {"mode": [options[1]]} if options[:1] == ["--mode"] else {}
        params = split_settings(options[1:]) if options[:1] == ["-p"] else {}
        assert expand([workload], axes, params)


def test_parameters_work_and_bounds_are_there_for_people_and_programs(shown) -> None:
    page = shown("mlp")
    assert "batch      128      a whole number from 1 to" in page
    assert "train  128 samples, 672 MFLOP" in page
    facts = json.loads(shown("mlp", "--format", "json"))["workloads"][0]
    assert facts["parameters"][0]["default"] == 128
    assert facts["work"]["infer"]["flops"] == 268_697_600
    assert [each["name"] for each in json.loads(shown("--format", "json"))["workloads"]] == list(names())


def test_listing_imports_no_torch() -> None:
    program = "import sys; from torchmark.cli import main; main(['list', 'mlp']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
