"""Workers are started, heard and ended, and nothing of them is left, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from torchmark.errors import DeviceError
from torchmark.measure import process
from torchmark.measure.engine import Progress, Settings
from torchmark.measure.machine import survey, survey_in
from torchmark.measure.messages import MeasureJob, Message, Phase
from torchmark.measure.process import MODULES, STARTER, Process, deferred_signals, measure_case
from torchmark.records import Result, parse_case

CASE = parse_case("null/infer@fake/float32")


def run(listen=lambda _: None, timeout_s: float = 60.0, fresh: bool = False, **settings) -> Result:
    return measure_case(MeasureJob(CASE, Settings(**settings)), timeout_s, listen, fresh=fresh)


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "spawned"])
def test_a_worker_says_what_it_does_and_gives_its_result(workers, play, fresh: bool) -> None:
    play("stream=iid2,step=0.01")
    heard: list[Message] = []
    result = run(heard.append, fresh=fresh)
    assert result.status == "ok"
    assert result.processes[0].samples_s
    phases = [message.name for message in heard if isinstance(message, Phase)]
    assert phases[:5] == ["import", "build", "first step", "steps", "job"]
    assert any(isinstance(message, Progress) for message in heard)
    assert workers() == []


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_server_that_replaces_a_dead_one_is_set_up_alike(play) -> None:
    """In particular it prints nothing to the terminal, and imports what all workers share."""
    play("stream=iid2,step=0.01")
    run()
    replace_server()  # the first one may have started before other tests asked for more modules
    before = set_up(server())
    replace_server()
    assert set_up(server()) == before
    assert before[0] == "/dev/null"


def replace_server() -> None:
    first = server()
    first.kill()
    while first.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)
    assert run().status == "ok"
    assert server() != first


def server() -> psutil.Process:
    children = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    (found,) = (each for each in children if "multiprocessing.forkserver" in str(each.cmdline()))
    return found


def set_up(process: psutil.Process) -> tuple[str, str, str]:
    environment = process.environ()
    return str(Path(f"/proc/{process.pid}/fd/2").readlink()), environment[MODULES], environment[STARTER]


def test_the_start_is_timed_from_outside_where_all_of_it_is_seen(play) -> None:
    play("stream=iid2,step=0.01")
    began = time.monotonic()
    phases = run(fresh=True).phases_s
    took_s = time.monotonic() - began
    assert 0.05 < phases["start"] < took_s  # a new interpreter
    assert sum(seconds for name, seconds in phases.items() if name != "start") < took_s


def test_a_worker_is_ended_where_no_one_follows_it_to_its_end(workers, play) -> None:
    play("fault=hang,after=0")
    with Process(CASE) as started:
        started.ask(MeasureJob(CASE, Settings()), Phase)
        assert workers()
    assert workers() == []


def test_a_worker_that_aborts_is_a_crash_with_its_signal_and_its_phase(play) -> None:
    play("fault=crash")
    result = run()
    assert result.status == "crashed"
    assert result.reason == "the worker was ended by SIGABRT during steps"


def test_a_worker_that_hangs_is_ended_in_time_and_is_gone(workers, play) -> None:
    play("fault=hang,after=0")
    started = time.monotonic()
    result = run(timeout_s=4.0)
    assert result.status == "timeout"
    assert result.reason == "no result after 4 s; it was busy with: first step"
    assert time.monotonic() - started < 30
    assert workers() == []


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal here")
def test_a_worker_that_does_not_answer_to_sigterm_is_killed(workers, play) -> None:
    play("fault=hang,after=0")
    stopped: list[int] = []

    def stop(message: Message) -> None:
        if isinstance(message, Phase) and message.name == "first step":
            (worker,) = workers()
            os.kill(worker.pid, signal.SIGSTOP)  # a stopped process handles no signal but SIGKILL
            stopped.append(worker.pid)

    assert run(stop, timeout_s=4.0).status == "timeout"
    assert stopped
    assert not psutil.pid_exists(stopped[0])


def test_who_is_asked_to_end_after_its_worker_says_so_and_not_that_it_crashed(workers, play, monkeypatch) -> None:
    """A cluster that cancels a job signals its processes one after another."""
    play("fault=hang,after=0")
    monkeypatch.setattr(process, "OUR_TURN_S", 30.0)

    def end(*_: object) -> None:
        raise InterruptedError

    def cancel(message: Message) -> None:
        if isinstance(message, Phase) and message.name == "first step":
            (worker,) = workers()
            worker.kill()
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(InterruptedError):
            run(cancel)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert workers() == []


def test_a_worker_that_is_killed_in_the_middle_is_a_crash(workers, play) -> None:
    play("fault=hang,after=0")

    def kill(message: Message) -> None:
        if isinstance(message, Phase) and message.name == "first step":
            threading.Thread(target=lambda: [os.kill(worker.pid, signal.SIGKILL) for worker in workers()]).start()

    result = run(kill)
    assert result.status == "crashed"
    assert "SIGKILL" in (result.reason or "")


def test_a_run_that_stops_listening_leaves_no_worker_behind(workers, play) -> None:
    play("fault=hang,after=0")

    def leave(_: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(leave)
    assert workers() == []


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "spawned"])
def test_an_interrupt_before_a_worker_could_be_closed_leaves_none_behind(play, monkeypatch, fresh: bool) -> None:
    started = []

    def interrupt(process: Process) -> None:
        started.append(psutil.Process(process.pid))
        raise KeyboardInterrupt

    play("fault=hang,after=0")
    monkeypatch.setattr(Process, "__enter__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(fresh=fresh)
    started[0].wait(60)


def test_what_libraries_print_goes_to_the_log(play, tmp_path) -> None:
    play("fault=oom")
    log = tmp_path / "log"
    assert measure_case(MeasureJob(CASE, Settings()), 60.0, log=log).status == "oom"
    assert "Traceback" in log.read_text()


def test_a_survey_reports_the_machine_without_torch_here(play) -> None:
    play("stream=sticky")
    with Process(CASE) as started:
        found = survey_in(started, ["fake"])
    assert survey(["fake"]) == found
    assert found.machine.devices[0].model == "fake device playing sticky"


def test_a_device_that_cannot_be_opened_is_one_error(play) -> None:
    play("stream=nonsense")
    with pytest.raises(DeviceError, match="unknown stream 'nonsense'"):
        survey(["fake"])


@pytest.mark.parametrize(("starter", "lives"), [(os.getpid, True), (lambda: 2**22 + 1, False)])
def test_a_server_whose_run_was_killed_before_it_could_ask_is_gone_at_once(starter, lives: bool) -> None:
    code = "import torchmark.measure.process; print('goes on')"
    environment = os.environ | {"TORCHMARK_STARTER": str(starter())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (("goes on\n", 0) if lives else ("", 1))


def test_a_signal_waits_until_a_worker_is_started_whichever_thread_it_comes_to() -> None:
    def end(number: int, _) -> None:
        raise InterruptedError(number)

    def start_disturbed() -> None:
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            started.append(True)

    before, done, started = signal.signal(signal.SIGTERM, end), threading.Event(), []
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(InterruptedError):
            start_disturbed()
        assert started
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
        done.set()
        other.join()
