"""A fleet on a real Slurm of two nodes: every way that a job can end, and nodes that train together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from torchmark.fleet.folder import Fleet, FleetFolder, Task, Terms
from torchmark.records import Run
from torchmark.store import load

Shell = Any  # what `make_shell` makes
Make = Callable[..., Shell]
CASES = ("null", "--device", "fake", "--rigor", "quick", "--steps", "20")
THREE = (*CASES, "--dtype", "float32,float64,bfloat16")
# The two nodes are one machine, which would make the second wait for the first.
SETUP = ("--setup", 'export TORCHMARK_LOCK="$TORCHMARK_LOCK.$SLURMD_NODENAME"')


@pytest.fixture
def shell(make_shell: Make, cluster: dict[str, str], tmp_path: Path) -> Shell:
    return make_shell(tmp_path, cluster)


def slurm(shell: Shell, *command: str) -> str:
    return subprocess.run(command, env=shell.environment, capture_output=True, text=True, check=True).stdout


def ended_jobs(shell: Shell) -> list[dict[str, str]]:
    """What Slurm itself has written down about jobs that have ended."""
    log = Path(shell.environment["SLURM_CONF"]).with_name("jobcomp.log")
    lines = log.read_text().splitlines() if log.exists() else []
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]


def form(value: object) -> object:
    """The shape of plain data: which names there are, and what stands under them."""
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    return type(value).__name__


def plain(run: Run) -> object:
    results = [msgspec.to_builtins(result) for result in run.results]
    return [form(msgspec.to_builtins(run.header)), [form(result) for result in results]]


def test_all_nodes_are_measured_and_no_two_jobs_share_one(shell: Shell, tmp_path: Path) -> None:
    folders, known = [tmp_path / "first", tmp_path / "second"], len(ended_jobs(shell))
    for folder in folders:
        done = shell.run("fleet", "run", *CASES, *SETUP, "--folder", str(folder), "--detach")
        assert done.returncode == 0, done.stderr
    for folder in folders:
        done = shell.run("fleet", "run", "--resume", str(folder))  # nothing is missing: it only waits
        assert done.returncode == 0, done.stderr
        assert "2 nodes: 2 done" in done.stdout
        assert {name: node["names"] for name, node in shell.states(folder).items()} == {
            "A1": ["node0"],
            "A2": ["node1"],
        }
    jobs = [job for job in ended_jobs(shell)[known:] if re.fullmatch(r"torchmark-A[12]", job["Name"])]
    assert len(jobs) == 4
    for node in ("node0", "node1"):
        times = sorted((job["StartTime"], job["EndTime"]) for job in jobs if job["NodeList"] == node)
        assert len(times) == 2
        assert all(datetime.fromisoformat(one[1]) <= datetime.fromisoformat(two[0]) for one, two in pairwise(times))
    local = shell.run("run", *CASES, "--out", str(tmp_path / "local.jsonl"), "--label", "local")
    assert local.returncode == 0, local.stderr
    measured = [load(path) for folder in folders for path in sorted(folder.glob("*.jsonl"))]
    assert len(measured) == 4
    assert all(plain(run) == plain(load(tmp_path / "local.jsonl")) for run in measured)
    assert not any("node0" in path.read_text() for folder in folders for path in folder.glob("*.jsonl"))


def test_every_end_of_a_job_is_reported_and_the_table_completed(make_shell: Make, shell: Shell, tmp_path: Path) -> None:
    slow, folder = make_shell(tmp_path, shell.environment, step_s=0.7), tmp_path / "fleet"
    start = slow.start("fleet", "run", *THREE, *SETUP, "--folder", str(folder), "--no-probe")
    shell.wait_until(lambda: (folder / "A1.jsonl").exists() and job(folder, "A1"))
    # Slurm counts limits in minutes and looks at them every 30 s: this brings the end near, within the 42 s of the run.
    slurm(shell, "scontrol", "update", f"jobid={job(folder, 'A1')}", "TimeLimit=1", "EndTime=now+1")
    shell.wait_until(lambda: shell.results_in(folder, "A2") and job(folder, "A2"))
    slurm(shell, "scancel", job(folder, "A2"))
    slurm(shell, "scontrol", "update", "nodename=node1", "state=drain", "reason=bad fan")
    done = slow.finish(start)
    assert done.returncode == 4, done.stderr
    states = shell.states(folder)
    assert (states["A1"]["state"], states["A2"]["state"]) == ("time-limit", "cancelled"), states
    before = load(folder / "A2.jsonl").results[0]

    start = slow.start("fleet", "run", "--resume", str(folder), "--time", "5m", "--no-probe")
    shell.wait_until(lambda: kill_program(folder / "jobs" / "A1.order"))
    done = slow.finish(start)
    assert done.returncode == 4, done.stderr
    states = shell.states(folder)
    assert (states["A1"]["state"], states["A2"]["state"]) == ("killed", "unavailable"), states
    assert "bad fan" in states["A2"]["reason"]

    slurm(shell, "scontrol", "update", "nodename=node1", "state=resume")
    shell.wait_until(lambda: "*" not in slurm(shell, "sinfo", "--noheader", "--Node", "--format=%t"))  # all answer
    done = shell.run("fleet", "run", "--resume", str(folder), "--no-probe")
    assert done.returncode == 0, done.stderr
    assert {name: (node["state"], node["measured"]) for name, node in shell.states(folder).items()} == {
        "A1": ("done", 3),
        "A2": ("done", 3),
    }
    statuses = [result.status for name in ("A1", "A2") for result in load(folder / f"{name}.jsonl").results]
    assert statuses == ["ok"] * 6
    assert load(folder / "A2.jsonl").results[0] == before  # what had been measured was not measured again


def kill_program(order: Path) -> bool:
    """Kill the program that carries out this order, as a system does that is short of memory."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "torchmark.fleet.node" in command and str(order) in command:
            process.kill()
            return True
    return False


def job(folder: Path, name: str) -> str:
    path = folder / "jobs" / f"{name}.job"
    return path.read_text() if path.exists() else ""


def test_a_job_that_waits_for_a_drained_node_is_given_up(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    blocker = slurm(shell, "sbatch", "--parsable", "--nodelist=node1", "--exclusive", "-o/dev/null", "--wrap=sleep 900")
    shell.wait_until(lambda: "RUNNING" in slurm(shell, "squeue", "-h", "-j", blocker.strip(), "-o%T"))
    start = shell.start("fleet", "run", *CASES, *SETUP, "--folder", str(folder), "--no-probe")
    shell.wait_until(lambda: job(folder, "A2"))
    slurm(shell, "scontrol", "update", "nodename=node1", "state=drain", "reason=bad fan")
    done = shell.finish(start)
    assert done.returncode == 4, done.stderr
    states = shell.states(folder)
    assert (states["A1"]["state"], states["A2"]["state"]) == ("done", "unavailable"), states
    assert "unavailable" in done.stdout
    assert "bad fan" in done.stderr
    assert "bad fan" not in done.stdout  # free text may name anything, and tables are sent around


def test_a_forged_number_does_not_end_the_job_of_another_user(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    other = slurm(shell, "sbatch", "--parsable", "-Jthesis", "-o/dev/null", "--wrap=sleep 900").strip()
    shell.wait_until(lambda: "RUNNING" in slurm(shell, "squeue", "-h", "-j", other, "-o%T"))
    place = FleetFolder(folder)
    place.prepare()
    place.keep(Fleet("", Terms(), (Task("A1", "A", ("node0",), CASES, "A1"),)))
    for number in (other, "--user=root", f"{other},--state=RUNNING"):
        (folder / "jobs" / "A1.job").write_text(number)
        (folder / "jobs" / "A1.fate").unlink(missing_ok=True)
        assert shell.run("fleet", "cancel", str(folder)).stdout == "cancelled 0 of 1 jobs\n"
        assert "RUNNING" in slurm(shell, "squeue", "-h", "-j", other, "-o%T")
    started = shell.run("fleet", "run", *CASES, *SETUP, "--folder", str(tmp_path / "own"), "--no-probe", "--detach")
    assert started.returncode == 0, started.stderr
    assert shell.run("fleet", "cancel", str(tmp_path / "own")).stdout.startswith("cancelled ")
    assert slurm(shell, "squeue", "-h", "-o%i").split() == [other]


def test_mistakes_are_reported_before_anything_measures(shell: Shell, hidden: Path, tmp_path: Path) -> None:
    known = len(ended_jobs(shell))  # no other job is left
    shared = tmp_path / "fleet"
    for folder, more, words in (
        (shared, ("--partition", "nosuch"), ("unknown partition 'nosuch'", "bench")),
        (shared, ("--nodelist", "node7"), ("unknown node 'node7'", "node")),
        (shared, ("--nodelist", "node0", "--python", "/usr/bin/python3"), ("cannot import torchmark", "--python")),
        (hidden / "fleet", ("--nodelist", "node1"), ("does not see", "--folder")),
    ):
        done = shell.run("fleet", "run", *CASES, "--folder", str(folder), *more)
        assert done.returncode in (2, 4), done.stderr
        assert all(word in done.stderr for word in words), done.stderr
        assert done.stderr.count("\n") == 1
    assert {each["Name"] for each in ended_jobs(shell)[known:]} == {"torchmark-probe"}
    assert not slurm(shell, "squeue", "-h")
    kinds = shell.run("fleet", "run", *CASES, "--each-kind", "--dry-run", "--folder", str(shared))
    assert kinds.stdout.count("\n") == 1  # both nodes are of one kind


def test_two_nodes_train_together_and_give_the_scaling_table(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    sizes = "-p batch=2 --together 1,2 --threads 1 --steps 20 --rigor quick"
    done = shell.run(
        "fleet", "run", "mlp", "--mode", "train", *sizes.split(), *SETUP, "--folder", str(folder), "--no-probe"
    )
    assert done.returncode == 0, done.stderr
    assert "Scaling of mlp/train:batch=2@cpu/float32+threads=" in done.stdout
    gathered = json.loads(shell.run("fleet", "gather", str(folder), "--format", "json").stdout)
    (scaling,) = gathered["scaling"]
    assert [(row["nodes"], row["workers"]) for row in scaling["rows"]] == [(1, 1), (2, 2)]
    assert all(row["rate"] > 0 and row["efficiency"] > 0 for row in scaling["rows"])
    assert scaling["rows"][1]["communication_share"] is not None
    (two,) = (each for each in ended_jobs(shell) if each["Name"] == "torchmark-2-nodes")
    assert (two["NodeList"], two["JobState"]) == ("node[0-1]", "COMPLETED")
