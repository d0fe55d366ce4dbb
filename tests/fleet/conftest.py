"""Commands of a fleet as a user gives them, and a cluster to give them on where Slurm is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import run_torchmark

LIMIT_S = 400
LOOK_S = 0.4  # between two looks at the jobs, at most: the commands of a user are more patient with schedulers
PROGRAM = f"""
from torchmark.__main__ import main
from torchmark.cli import fleet
fleet.LONGEST_S = {LOOK_S}
raise SystemExit(main())
"""
NEED = "TORCHMARK_NEED_SLURM"


class Shell:
    """Runs `torchmark fleet …` in an environment of its own, with a fake device whose steps take real time."""

    def __init__(self, home: Path, environment: dict[str, str] | None = None, step_s: float = 0.001) -> None:
        self.home = home
        self.environment = {
            **(environment or os.environ),
            "TORCHMARK_HOME": str(home / "home"),
            "TORCHMARK_LOCK": str(home / "lock"),
            "TORCHMARK_FAKE": f"sleep=on,step={step_s}",
            "COLUMNS": "120",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.home,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_torchmark(*arguments, environment=self.environment, folder=self.home)

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @staticmethod
    def wait_until(true: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.1)

    @staticmethod
    def results_in(folder: Path, name: str) -> int:
        """How many results a run file has so far, without asking anybody."""
        path = folder / f"{name}.jsonl"
        return path.read_bytes().count(b'"kind":"finished"') if path.exists() else 0

    def states(self, folder: Path) -> dict[str, dict[str, Any]]:
        """How every job stands, by its label."""
        done = self.run("fleet", "status", str(folder), "--names", "--format", "json")
        assert done.returncode == 0, done.stderr
        return {node["label"]: node for node in json.loads(done.stdout)["nodes"]}


@pytest.fixture
def make_shell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shell]:
    monkeypatch.setattr("torchmark.cli.fleet.LONGEST_S", LOOK_S)
    return Shell


@pytest.fixture(scope="session")
def cluster_module() -> ModuleType:
    found = importlib.util.spec_from_file_location("cluster", Path(__file__).with_name("cluster.py"))
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test session share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def hidden(shared: Path) -> Path:
    """A folder of which the second node sees nothing."""
    folder = shared / "hidden"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def served(cluster_module: ModuleType, shared: Path, hidden: Path) -> Iterator[dict[str, str]]:
    """One cluster of two nodes for all processes of this test session: the first to need it starts it, and it stops
    once none needs it. If none can be started, its tests are skipped, unless they are asked for."""
    if obstacle := cluster_module.obstacle():
        if os.environ.get(NEED):
            pytest.fail(f"{NEED} is set, and {obstacle}")
        pytest.skip(obstacle)
    place = shared / "cluster"
    place.mkdir(exist_ok=True)
    own = place / f"{os.getpid()}.user"
    with cluster_module.locked(place):
        own.touch()
        if not (place / "environment").exists():
            command = [sys.executable, cluster_module.__file__, "--serve", str(place), str(hidden)]
            # No child of this process: other tests here look for its workers, and kill them.
            subprocess.run(["setsid", "--fork", *command], check=True)
            Shell.wait_until((place / "environment").exists)
    yield json.loads((place / "environment").read_text())
    own.unlink()


@pytest.fixture
def cluster(served: dict[str, str], cluster_module: ModuleType, shared: Path) -> Iterator[dict[str, str]]:
    """The cluster, for one test at a time."""
    (shared / "test").mkdir(exist_ok=True)
    with cluster_module.locked(shared / "test"):
        yield served
        cluster_module.wait_until_idle(served)
