"""`torchmark list` tells what can be run, and every command that it suggests is a valid one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from torchmark.cli.list import command
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.parameters import split_settings
from torchmark.workloads import names


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_every_workload_is_listed_within_eighty_columns() -> None:
    output = shown()
    assert all(name in output for name in names())
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_workload_suggests_commands_that_work(name: str) -> None:
    output = shown(name)
    assert max(map(len, output.splitlines())) <= 80
    suggested = [shlex.split(line)[2:] for line in output.splitlines() if line.startswith("  torchmark run ")]
    assert suggested
    for workload, *options in suggested:
        modes = [options[1]] if options[:1] == ["--mode"] else []
        params = split_settings(options[1:]) if options[:1] == ["-p"] else {}
        assert expand(Sweep([workload], modes=modes, params=params))


def test_parameters_work_and_bounds_are_there_for_people_and_programs() -> None:
    page = shown("mlp")
    assert "batch      128      a whole number from 1 to" in page
    assert "train: 128 samples, 672 MFLOP" in page
    facts = json.loads(shown("mlp", "--format", "json"))["workloads"][0]
    assert facts["parameters"][0]["default"] == 128
    assert facts["work"]["infer"]["flops"] == 268_697_600
    assert [each["name"] for each in json.loads(shown("--format", "json"))["workloads"]] == list(names())


def test_listing_imports_no_torch() -> None:
    program = "import sys; from torchmark.cli import main; main(['list', 'mlp']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
