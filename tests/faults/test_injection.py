"""A small part of what `benchmarks/faults.py` tries in large: changed files, failing system calls, hostile folders."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from injection import changes, folders, syscalls


@pytest.mark.parametrize("change", ["edited", "cut", "emptied", "folder_deleted"])
def test_a_run_file_that_another_program_changes(change):
    tally = changes.change_file(getattr(changes, change), seed=1, number=0)
    assert tally.held, tally


# One of each kind that once ended in a traceback, exit code 70 or a wrong message.
@pytest.mark.parametrize(
    ("name", "path", "call", "error", "when"),
    [
        ("resume", "work/run.jsonl", "newfstatat", "EIO", 1),
        ("resume", "work/run.jsonl", "close", "EIO", 1),
        ("check", "work/run.jsonl", "newfstatat", "EMFILE", 1),
        ("run", "work", "fsync", "EIO", 1),
        ("export", "work", "linkat", "ENOSPC", 1),
    ],
)
@pytest.mark.usefixtures("strace")
def test_a_system_call_that_fails(name, path, call, error, when):
    command = next(command for command, _ in syscalls.COMMANDS if command.name == name)
    tally = syscalls.fail_call(syscalls.Fault(command, path, call, error, when))
    assert tally.held, tally


@pytest.mark.parametrize(
    "words",
    [
        "report {}/big.jsonl -o {}/work/report.html",
        "export {}/big.jsonl -o {}/work/a.jsonl",
        f"run {folders.FAKE} --steps 3",  # starts the server that forks workers
        "devices",  # starts the process that may crash
    ],
)
def test_a_folder_full_of_module_names(words):
    tally = folders.run_in_hostile_folder(folders.STARTS[1], tuple(words.split()))
    assert tally.held, tally


def test_the_module_form_imports_nothing_from_the_current_folder(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}  # other tests set it

    def run_module(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    (tmp_path / "probe.py").write_text("import sys\nprint(*sys.modules)\n")
    by_python = set(run_module("probe").stdout.split())  # before the module that it runs
    for name in set(folders.NAMES) - by_python:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    done = run_module("torchmark", "--version")
    assert (done.returncode, done.stderr) == (0, "")
