"""Shared fixtures: made-up records, a run that uses every field, and the worker processes that are alive.

Also sets up the processes of the tests: the default signal handlers, one fork server for all tests of a pytest process,
threads that sleep while they wait, and long tests first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from multiprocessing import forkserver, spawn
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from torchmark import workloads
from torchmark.records import (
    Contention,
    DeviceInfo,
    Estimate,
    Machine,
    Memory,
    NumericCheck,
    Remark,
    Result,
    Run,
    RunHeader,
    Trend,
    Work,
    parse_case,
)
from torchmark.workloads.own.files import VARIABLE

# `nohup` and some CI runners start programs with these signals ignored, which every process of a test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Hundreds of processes import the same modules: compiling them each time takes longer than most tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several tests run at once on few cores: OpenMP threads that spin while they wait would take the time of the others.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# Some virtual machines announce AMX and then die of it, and no promise here is about AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


class CurrentEnvironment:
    """Pickled for a new worker, replaces the environment there by the one of this process at that moment.

    The fork server keeps the environment it was started with. A test that sets a variable for workers would need a
    new server, which imports torch for seconds.
    """

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"import os; os.environ.clear(); os.environ.update({dict(os.environ)!r})",)


prepare, preload = spawn.get_preparation_data, forkserver.set_forkserver_preload


def prepare_with_environment(name: str) -> dict[str, Any]:
    return {**prepare(name), "environment": CurrentEnvironment()}


def preload_with_torch(modules: Sequence[str]) -> None:
    """The first test may not need torch, the next ones do. First, as what follows freezes what was imported."""
    preload(["torch", *modules])


spawn.get_preparation_data = prepare_with_environment  # type: ignore[assignment]
forkserver.set_forkserver_preload = preload_with_torch  # type: ignore[assignment]

# Tests may run on a busy machine and assert no times.
settings.register_profile("calm", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("calm")

# The files that take longest, by processor time or by waiting. No process takes over what another begins with, so only
# one starts a cluster.
SLOW_FILES = [
    "workloads/test_contract",
    "fleet/test_slurm_fleet",
    "faults/test_run_files",
    "measure/test_ranks",
    "faults/test_signals",
    "testing/test_pytest_fixture",
    "faults/test_failures",
    "workloads/test_ddp_workloads",
    "measure/test_interpreters",
    "test_testbed",
    "cli/test_ab",
    "faults/test_surroundings",
    "faults/test_pauses",
    "studies/test_replication",
    "faults/test_injection",
    "fleet/test_local_fleet",
]


@pytest.fixture(autouse=True)
def _forgotten_files() -> Iterator[None]:
    """A process knows the user's files by name, and imports what is next to them: each test begins as a new one."""
    paths = [*sys.path]
    yield
    if os.environ.get(VARIABLE):
        workloads.forget()
    sys.path[:] = paths
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_Siblings"]


LARGE = {"torch", "torch._dynamo", "transformers.modeling_utils", "diffusers.models"}
searched: set[str] = set()


def pytest_runtest_setup() -> None:
    """Search large libraries for garbage once, and not before every step that is timed in this process."""
    if new := sys.modules.keys() & LARGE - searched:
        searched.update(new)
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process of pytest-xdist begin with some of the slow files, so that none is left for the end.

    xdist gives each process an equal share of consecutive tests; those that finish early take over the ends of others.
    """
    folder, count = Path(__file__).parent, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow: dict[str, list[pytest.Item]] = {name: [] for name in SLOW_FILES}
    quick: list[pytest.Item] = []
    for item in items:
        slow.get(item.path.relative_to(folder).with_suffix("").as_posix(), quick).append(item)
    rest, ordered, files = iter(quick), list[pytest.Item](), list(slow.values())
    for number in range(count):
        first = [item for tests in files[number::count] for item in tests]
        share = (len(items) - len(ordered)) // (count - number)
        ordered += [*first, *islice(rest, max(0, share - len(first)))]
    items[:] = [*ordered, *rest]


MACHINE = Machine(
    cpu="Intel Xeon Platinum 8370C",
    physical_cores=2,
    logical_cores=4,
    memory_gib=16,
    os="Linux 6.1",
    python="3.11.7",
    torch="2.13.0+cpu",
    devices=(DeviceInfo("cpu", "Intel Xeon Platinum 8370C"),),
)


def estimate(center_s: float = 2.53e-3, half: float = 0.004, **changes: Any) -> Estimate:
    fields: dict[str, Any] = {
        "center_s": center_s,
        "low_s": center_s * (1 - half),
        "high_s": center_s * (1 + half),
        "estimand": "median",
        "verdict": "stable",
        "first_step_s": center_s * 9,
        "effective_samples": 212.0,
        "warmup_cut": 12,
        "trend": Trend(0.001, 0.4),
        "sample_count": 400,
        "median_s": center_s,
        "mean_s": center_s * 1.01,
        "mean_low_s": center_s,
        "mean_high_s": center_s * 1.02,
        "min_s": center_s * 0.9,
        "p90_s": center_s * 1.1,
        "p90_high_s": center_s * 1.2,
        "p99_s": center_s * 1.4,
        "mad_s": center_s * 0.01,
        "contention": Contention(wait_share=0.001, switches=3),
        "spread": 0.003,
    }
    return Estimate(**(fields | changes))


def result(text: str = "mlp/infer@cpu/float32", center_s: float = 2.53e-3, **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "case": parse_case(text),
        "status": "ok",
        "estimate": estimate(center_s),
        "work": Work(items=128, unit="sample", flops=1.1e9, bytes=4.2e6),
        "memory": Memory(host_peak_bytes=310_000_000),
        "numeric": NumericCheck(1.2e-7, 1e-4, "float64 on the cpu"),
        "phases_s": {"prepare": 0.21, "warm-up": 0.4, "measure": 3.1},
        "settings": {"threads": 2, "matmul_precision": "highest", "omp_proc_bind": None},
    }
    return Result(**(fields | changes))


def header(cases: tuple[str, ...] = (), **changes: Any) -> RunHeader:
    fields: dict[str, Any] = {
        "id": "3f9c2a71",
        "created": "2026-11-15T19:45:49Z",
        "machine": MACHINE,
        "cases": cases,
        "command": "torchmark run mlp",
        "version": "0.1.0",
    }
    return RunHeader(**(fields | changes))


def rich_run() -> Run:
    busy = Remark("contended", "other processes used 38% of the CPU", "stop them and run again")
    results = (
        result("null/infer@cpu/float32", 4.1e-8, work=Work(items=0, unit="step")),
        result("mlp/infer@cpu/float32", processes=tuple(map(estimate, (2.50e-3, 2.53e-3, 2.55e-3)))),
        result(
            "mlp/train:batch=512@cpu/float32+compile+threads=2",
            31.4e-3,
            estimate=estimate(31.4e-3, 0.12, verdict="contended", flags=("oversubscribed", "bimodal")),
            cautions=(busy,),
        ),
        result(
            "matmul/infer:size=4096@cpu/float32",
            1.92,
            estimate=estimate(1.92, 0.021, verdict="noisy", flags=("single-process",)),
            cautions=(busy, Remark("few-samples", "only 6 steps fitted into the budget", "give it --budget 5m")),
        ),
        result(
            "tensor-add/infer:size=100000000,variant=in-place@cpu/float32",
            status="oom",
            reason="tried to allocate 37.3 GB with 14.1 GB free",
            estimate=None,
        ),
    )
    return Run(header(tuple(each.case.text for each in results), label="nightly"), results, process_spread=0.041)


@pytest.fixture(scope="session")
def make_estimate() -> Callable[..., Estimate]:
    return estimate


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    return result


@pytest.fixture(scope="session")
def make_header() -> Callable[..., RunHeader]:
    return header


@pytest.fixture(scope="session")
def full_run() -> Run:
    return rich_run()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tests that run at the same time do not wait for one another's threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def workers() -> Callable[[], list[psutil.Process]]:
    return living_workers


def living_workers() -> list[psutil.Process]:
    """Living descendants that lead a session of their own, as only workers do."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if os.getsid(child.pid) == child.pid and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except (OSError, psutil.Error):
            continue
    return found
