"""The fake device plays scripted durations through the path that real devices take."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.devices import find_devices, open_device
from torchmark.devices.fake import FAULTS, Fake, Script, parse_script
from torchmark.devices.streams import KINDS, stream
from torchmark.errors import UsageError


def fake(monkeypatch, script=""):
    monkeypatch.setenv("TORCHMARK_FAKE", script)
    return open_device("fake")


def test_it_plays_the_stream_and_the_cost_of_a_synchronisation(monkeypatch):
    device = fake(monkeypatch, "stream=bimodal,step=0.02,sync=0.001,seed=7")
    calls = []
    time_block = device.timer(lambda: calls.append(1))
    started = device.clock()
    total_s = sum(time_block(count).total_s for count in (1, 4, 5))
    expected = stream("bimodal", np.random.default_rng(7), 100_000)[:10].sum() * 0.02 + 3 * 0.001
    assert total_s == pytest.approx(expected)
    assert device.clock() - started == pytest.approx(expected)
    assert len(calls) == 10


def test_it_is_opened_by_name_but_never_found(monkeypatch):
    assert fake(monkeypatch).info().name == "fake"
    assert "fake" not in find_devices()


def test_it_goes_on_beyond_the_length_of_its_stream():
    device = Fake("fake", Script())
    assert device.timer(lambda: None)(100_010).total_s == pytest.approx(1000, rel=0.01)


def test_it_runs_without_torch():
    code = (
        "import sys; from torchmark.devices import open_device; d = open_device('fake');"
        "print(d.timer(lambda: None)(3).total_s > 0, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "False"]


def test_with_sleep_time_really_passes(monkeypatch):
    import time

    device = fake(monkeypatch, "sleep=on,step=0.005")
    started = time.perf_counter()
    block = device.timer(lambda: None)(4)
    assert 0.015 < block.total_s <= time.perf_counter() - started


def test_without_synchronisation_only_a_hundredth_is_seen(monkeypatch):
    whole = fake(monkeypatch, "seed=1").timer(lambda: None)(1).total_s
    assert fake(monkeypatch, "seed=1,fault=no-sync").timer(lambda: None)(1).total_s == pytest.approx(whole / 100)


@pytest.mark.parametrize("text", ["oom", "crash"])
def test_it_fails_inside_a_step_after_some(text):
    code = (
        "from torchmark.devices import open_device; t = open_device('fake').timer(lambda: None); t(2); print(2); t(1)"
    )
    environment = {**os.environ, "TORCHMARK_FAKE": f"fault={text},after=2"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "2"
    assert answer.returncode != 0
    assert ("MemoryError" in answer.stderr) == (text == "oom")


def test_it_hangs_on_request():
    code = (
        "from torchmark.devices import open_device; t = open_device('fake').timer(lambda: None);"
        "print(1, flush=True); t(9)"
    )
    environment = {**os.environ, "TORCHMARK_FAKE": "fault=hang"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()


@pytest.mark.parametrize(
    "text",
    [
        "step",
        "step=0",
        "step=x",
        "step=nan",
        "sync=-1",
        "seed=1.5",
        "sleep=yes",
        "fault=nosync",
        "meter=cold",
        "strem=iid2",
        "stream=iid",
    ],
)
def test_bad_values_are_usage_errors(text):
    with pytest.raises(UsageError) as raised:
        parse_script(text)
    assert raised.value.fix


@given(
    st.sampled_from(KINDS),
    st.floats(1e-9, 10),
    st.floats(0, 1),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from(FAULTS),
)
def test_what_is_written_is_what_is_read(kind, step, sync, seed, sleep, fault):
    text = f"stream={kind},step={step!r},sync={sync!r},seed={seed},sleep={'on' if sleep else 'off'},fault={fault}"
    assert parse_script(text) == Script(kind, step, sync, seed, sleep, fault)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text):
    with contextlib.suppress(UsageError):
        assert isinstance(parse_script(text), Script)
