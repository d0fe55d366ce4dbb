"""Processes in other interpreters: real ones, that lack things, chatter, crash, hang, or lose their parent."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import psutil
import pytest

from torchmark.errors import TorchmarkError, UsageError
from torchmark.measure import bootstrap
from torchmark.measure.engine import DEFAULTS
from torchmark.measure.machine import survey_in
from torchmark.measure.messages import (
    Measured,
    MeasureJob,
    Opened,
    Prepare,
    Prepared,
    SumUp,
    TakeTurn,
    Turned,
)
from torchmark.measure.process import Process, ProcessFailed, find_interpreter, needed_modules
from torchmark.records import Result, parse_case

CASE = parse_case("null/infer@fake/float32")
JOB = MeasureJob(CASE, DEFAULTS, turns=8)


def start(environment: dict[str, str] | None = None, timeout_s: float = 60.0, python: str = sys.executable) -> Process:
    return Process(CASE, name="A", python=python, environment=environment, timeout_s=timeout_s)


def measure(process: Process) -> Result:
    process.ask(JOB, Opened)
    prepared = process.ask(Prepare(), Prepared)
    process.ask(TakeTurn(0.3, prepared.block_size, timed=False), Turned)
    process.ask(TakeTurn(0.3, prepared.block_size), Turned)
    return process.ask(SumUp(), Measured).result


def failure(script: str, timeout_s: float = 60.0, **environment: str) -> ProcessFailed:
    with start({"TORCHMARK_FAKE": script, **environment}, timeout_s) as process, pytest.raises(ProcessFailed) as caught:
        measure(process)
    assert not psutil.pid_exists(process.pid)
    return caught.value


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, "it is still there"
            time.sleep(0.02)


def test_a_side_measures_what_is_set_for_it_and_reports_where() -> None:
    with start({"TORCHMARK_FAKE": "step=0.02"}) as process:
        result = measure(process)
    assert result.status == "ok"
    assert result.estimate is not None
    assert result.estimate.center_s == pytest.approx(0.02, rel=0.05)
    with start() as process:
        machine = survey_in(process, ["fake"]).machine
    assert machine.devices[0].name == "fake"


def test_what_libraries_print_never_gets_between_the_answers(tmp_path: Path) -> None:
    """At the start, and all the time: a thread that prints to Python's output and to the system's."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading, time\n"
        "print('welcome', flush=True)\n"
        "def chatter():\n"
        "    while True:\n"
        "        print('bla', flush=True); os.write(1, b'bla\\n'); time.sleep(0.005)\n"
        "threading.Timer(0.1, chatter).start()\n"
    )
    with start({"PYTHONPATH": str(tmp_path)}) as process:
        assert measure(process).status == "ok"


def test_an_environment_that_lacks_something_says_what_and_how_to_get_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = find_interpreter(str(tmp_path / "bare"))
    with start(python=python) as process, pytest.raises(TorchmarkError) as caught:
        process.ask(JOB, Opened)
    assert caught.value.cause == f"A, {python}, cannot take part: it has no msgspec, no numpy, no psutil"
    assert caught.value.fix.endswith(f"{python} -m pip install msgspec numpy psutil")


def test_an_old_python_could_read_that_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    ast.parse(Path(bootstrap.__file__).read_text(encoding="utf-8"), feature_version=(3, 7))
    monkeypatch.setattr(bootstrap, "OLDEST", (99, 0))
    assert bootstrap.find_refusal([])["cause"].startswith("it is Python 3.")


def test_our_torchmark_is_lent_and_nothing_that_lies_next_to_it(tmp_path: Path) -> None:
    """Were all of our site-packages lent, both sides would run the same torch. As where a data loader starts one."""
    program = (
        f"import runpy; runpy.run_path({bootstrap.__file__!r}, run_name='__mp_main__')\n"
        "import torchmark.errors, importlib.util\n"
        "assert importlib.util.find_spec('msgspec') is None\n"
    )
    subprocess.run([sys.executable, "-S", "-c", program], check=True, cwd=tmp_path)


def test_a_case_says_what_it_needs() -> None:
    assert "torch" not in needed_modules(CASE)
    assert "torch" in needed_modules(parse_case("null/infer@cpu/float32"))
    assert {"torch", "transformers"} <= {*needed_modules(parse_case("bert-encode/infer@cpu/float32"))}


def test_interpreters_are_found_as_people_name_them(tmp_path: Path) -> None:
    assert find_interpreter(sys.executable) == sys.executable
    with pytest.raises(UsageError, match="no Python interpreter"):
        find_interpreter(str(tmp_path / "nowhere"))
    unrunnable = tmp_path / "python"
    unrunnable.write_text("no program")
    unrunnable.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be started"):
        start(python=find_interpreter(str(unrunnable)))


def test_a_crash_is_reported_with_its_signal_its_phase_and_its_last_words() -> None:
    found = failure("fault=crash,after=0", PYTHONFAULTHANDLER="1")
    assert (found.name, found.result.status) == ("A", "crashed")
    assert found.result.reason == "the worker was ended by SIGABRT during first step"
    assert any("fake.py" in line for line in found.last_words)


def test_an_exception_is_reported_as_the_case_ends_with_it() -> None:
    found = failure("fault=oom,after=0")
    assert found.result.status == "oom"
    assert found.last_words[-1].startswith("MemoryError")


def test_one_that_hangs_is_ended_in_time() -> None:
    found = failure("fault=hang,after=0", timeout_s=20.0)  # a busy machine takes seconds to come to the first step
    assert found.result.status == "timeout"
    assert re.fullmatch(r"no result after \d+(\.\d+)? s; it was busy with: first step", found.result.reason or "")


def test_one_that_exits_without_a_word_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    found = failure("", PYTHONPATH=str(tmp_path))
    assert found.result.reason == "the worker exited with code 7 during start"


PARENT = """
import sys
from torchmark.measure.process import Process
from torchmark.measure.machine import survey_in
from torchmark.measure.messages import Opened, MeasureJob, Prepare, Phase
from torchmark.measure.engine import DEFAULTS
from torchmark.records import parse_case
case = parse_case("null/infer@fake/float32")
def say(phase):
    print(phase.name, process.pid, flush=True)
process = Process(case, environment={"TORCHMARK_FAKE": "fault=hang,after=0"}, listen=say)
process.ask(MeasureJob(case, DEFAULTS, turns=8), Opened)
process.ask(Prepare(), Phase)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_nothing_is_left_when_the_parent_dies(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            phase, pid = line.rsplit(maxsplit=1)
            if phase == "first step":
                break
        os.kill(parent.pid, number)
    wait_until_gone(int(pid))
