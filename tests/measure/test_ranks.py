"""Ranks share a case, and however one of them ends, the case ends with it: in time, by its name, with nothing left."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from torchmark.measure.engine import Progress, Settings
from torchmark.measure.messages import Failed, Measured, MeasureJob, Phase, Rendezvous
from torchmark.measure.process import Process, ProcessFailed
from torchmark.measure.ranks import root_cause, threads_per_rank
from torchmark.meters.process import allowed_cores
from torchmark.records import Result, parse_case

pytestmark = pytest.mark.usefixtures("faulty")

QUICK = Settings(budget_s=0.5, min_time_s=0.1, target=0.5)

# A workload whose second rank ends in the way that is asked for, in the middle of a step or before the first one.
FAULTY = '''
"""A step that ends badly on one rank."""
import os, signal, time
from pathlib import Path
from typing import Literal
from msgspec import Struct
from torchmark.records import Work
from torchmark.workloads.contract import Step, Workload

class Params(Struct, frozen=True):
    fault: Literal["none", "early", "kill", "raise", "exit", "oom", "wait"] = "none"

class Faulty(Workload):
    name, modes, params, tiny, distributed = "faulty", ("infer",), Params, Params(), True

    def prepare(self, params, setting):
        import torch
        import torch.distributed as dist
        Path(os.environ["TEST_FOLDER"], f"rank-{os.getpid()}").touch()
        value, count = torch.ones(8), [0]

        def fail():
            {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": lambda: os._exit(3),
             "oom": lambda: torch.empty(2**50), "raise": lambda: [][params.fault == "none"]}[params.fault]()

        def run():
            count[0] += 1
            if params.fault == "wait":
                time.sleep(0.2)
            elif count[0] > 4 and setting.rank == 1 and params.fault != "none":
                fail()
            dist.all_reduce(value)

        if params.fault == "early" and setting.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Step(run=run, work=Work(setting.world_size, "step"), alone=lambda: None)
'''


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the workers of this module a workload that fails: their fork server loads it when it starts."""
    folder = tmp_path_factory.mktemp("workload")
    (folder / "more").mkdir()
    (folder / "more" / "faulty.py").write_text(FAULTY)
    found = f"import torchmark.workloads\ntorchmark.workloads.__path__.append({str(folder / 'more')!r})\n"
    (folder / "sitecustomize.py").write_text(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        yield
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks leave their process ids."""
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    return tmp_path


def run(fault: str, listen: Callable[[object], None] = lambda _: None, **changes: object) -> Result:
    case = parse_case(f"faulty/infer:fault={fault}@cpu/float32+workers=2")
    try:
        with Process(timeout_s=200.0, listen=listen) as process:  # this process does not know the workload
            return process.ask(MeasureJob(case, QUICK, **changes), Measured).result  # type: ignore[arg-type]
    except ProcessFailed as failure:
        return failure.result


def living(folder: Path) -> list[int]:
    """Ranks that are still there."""
    numbers = [int(path.name.partition("-")[2]) for path in folder.glob("rank-*")]
    assert numbers
    return [number for number in numbers if lives(number)]


def lives(number: int) -> bool:
    """A process that was killed is a zombie for a moment; that is as good as gone."""
    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_rank_that_ends_badly_ends_the_case_by_its_name_and_leaves_nothing(folder: Path) -> None:
    for fault, status, words in (
        ("early", "crashed", ["rank 1 was ended by SIGKILL during"]),
        ("kill", "crashed", ["rank 1 was ended by SIGKILL during"]),
        ("exit", "crashed", ["rank 1 exited with code 3 during"]),
        ("raise", "crashed", ["rank 1: IndexError during its part of the work", "list index out of range"]),
        ("oom", "oom", ["rank 1: out of memory: RuntimeError", "allocate"]),
    ):
        result = run(fault)
        assert (fault, result.status) == (fault, status)
        assert all(word in result.explanation for word in words), (fault, result.explanation)
        assert living(folder) == []


def test_ranks_give_one_result_and_say_what_they_do(folder: Path) -> None:
    heard: list[object] = []
    result = run("none", heard.append)
    assert (result.status, result.reason) == ("ok", None)
    assert result.estimate is not None
    assert result.processes[0].samples_s
    assert result.work is not None
    assert result.work.items == 2
    assert 0 <= result.metrics["communication_share"] <= 1
    assert result.settings["threads"] == threads_per_rank(None, 2)
    assert (result.settings["backend"], result.settings["nodes"]) == ("gloo", 1)
    assert result.memory is not None
    assert (result.memory.host_peak_bytes or 0) > 2 * 50e6
    phases = [message.name for message in heard if isinstance(message, Phase)]
    assert phases[:5] == ["ranks", "import", "build", "first step", "steps"]
    assert set(phases) <= set(result.phases_s)
    assert any(isinstance(message, Progress) for message in heard)
    assert len(list(folder.glob("rank-*"))) == 2
    assert living(folder) == []


def test_a_port_behind_which_no_one_answers_is_given_up_in_time(folder: Path) -> None:
    del folder
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meeting = Rendezvous(f"127.0.0.1:{taken.getsockname()[1]}", nodes=2, patience_s=2.0)
        result = run("none", rendezvous=meeting)
    assert result.status == "crashed"
    assert "the nodes did not meet within 2 s" in (result.reason or "")


@pytest.mark.parametrize("who", ["session", "worker"])
def test_ranks_end_with_the_process_that_started_them(folder: Path, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # the started process finds this module by its name
    process = multiprocessing.get_context("spawn").Process(target=run, args=("wait",))
    process.start()
    wait_until(lambda: len(list(folder.glob("rank-*"))) == 2)
    ranks = living(folder)
    assert len(ranks) == 2
    worker = psutil.Process(ranks[0]).ppid()
    assert worker != process.pid
    os.kill(process.pid if who == "session" else worker, signal.SIGKILL)  # type: ignore[arg-type]
    wait_until(lambda: not living(folder) and not lives(worker))
    process.join(100)


TERM, KILL, ABORT = -signal.SIGTERM, -signal.SIGKILL, -signal.SIGABRT
LOST = Failed(0, "crashed", "RuntimeError during steps", "[gloo/transport/tcp/pair.cc:547] Connection closed by peer")


@pytest.mark.parametrize(
    ("codes", "failed", "status", "reason"),
    [
        ({0: TERM, 1: KILL, 2: TERM}, [], "crashed", "rank 1 was ended by SIGKILL during steps"),
        ({0: 1, 1: KILL}, [LOST], "crashed", "rank 1 was ended by SIGKILL during steps"),
        ({0: 1, 3: 7}, [LOST], "crashed", "rank 3 exited with code 7 during steps"),
        ({0: ABORT, 1: 1}, [LOST, Failed(1, "oom", "OutOfMemoryError: x")], "oom", "rank 1: OutOfMemoryError: x"),
        ({0: 1, 1: ABORT}, [LOST], "crashed", "rank 1 was ended by SIGABRT during steps"),
        ({0: 1, 1: 1}, [Failed(1, "unsupported", "a"), Failed(0, "unsupported", "a")], "unsupported", "a"),
        ({0: 1}, [LOST], "crashed", "rank 0 lost its connection to the others during steps"),
        ({2: TERM}, [], "crashed", "rank 2 was ended by SIGTERM during steps"),
    ],
)
def test_the_first_to_go_is_blamed(codes: dict[int, int], failed: list[Failed], status: str, reason: str) -> None:
    assert root_cause(codes, failed, "steps", for_memory=False)[:2] == (status, reason)


def test_a_rank_that_the_system_killed_for_memory_is_distinguished() -> None:
    assert root_cause({0: TERM, 1: KILL}, [], "build", for_memory=True)[0] == "host-oom"


def test_cores_are_shared_out_among_ranks_unless_threads_are_given() -> None:
    assert threads_per_rank(3, 8) == 3
    assert threads_per_rank(None, 1) == len(allowed_cores())
    assert threads_per_rank(None, 10_000) == 1


@pytest.mark.thorough  # two nodes of Slurm meet in the same way
def test_two_nodes_meet_and_end_with_the_same_figures(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = "-p batch=2 --workers 2,4 --budget 4s --rigor quick --format json"
    meeting = f"--nodes 2 --rendezvous 127.0.0.1:{port}"
    command = [sys.executable, "-m", "torchmark", "run", "mlp", "--mode", "train", *f"{sizes} {meeting}".split()]
    nodes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TORCHMARK_HOME": str(tmp_path / name), "TORCHMARK_LOCK": str(tmp_path / f"{name}.lock")},
        )
        for name in ("a", "b")
    ]
    answers = [node.communicate(timeout=300) for node in nodes]
    first, second = (json.loads(out)["results"] for out, _ in answers)
    assert [each["status"] for each in first] == ["ok", "ok"], answers
    assert [each["estimate"] for each in first] == [each["estimate"] for each in second]
    assert [each["metrics"] for each in first] == [each["metrics"] for each in second]
    assert {each["settings"]["nodes"] for each in first} == {2}
