"""The inventory says what is here and what is wrong, with its fix."""

import platform
import subprocess
import sys

import pytest

from torchmark.case import DTYPES
from torchmark.devices import KINDS
from torchmark.measure import machine, process
from torchmark.measure.machine import DtypeSupport, Threads
from torchmark.meters.cpu import Power
from torchmark.records import Conditions, DeviceInfo


def test_each_dtype_runs_or_says_why_not():
    supports = machine.try_dtypes("cpu")
    assert tuple(support.dtype for support in supports) == DTYPES
    assert all(support.runs or support.reason for support in supports)
    assert {support.dtype for support in supports if support.runs} >= {"float32", "float64"}


def test_twenty_times_slower_than_float32_is_no_fast_path():
    assert DtypeSupport("cpu", "float16", runs=True, slowdown=19.0).fast
    assert not DtypeSupport("cpu", "float16", runs=True, slowdown=21.0).fast
    assert not DtypeSupport("cpu", "float16", runs=False).fast


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_dtype_that_kills_its_process_is_an_answer_and_the_others_are_tried(monkeypatch):
    monkeypatch.setenv("TORCHMARK_FAKE", "fault=crash,after=6")  # two dtypes need four pieces of work each
    outcomes = list(
        process.try_each(
            "torchmark.measure.check:check_outputs", "fake", ("float64", "float32"), object, lambda *died: died
        )
    )
    assert outcomes[-1][:2] == ("fake", "float32")
    assert "SIGABRT" in outcomes[-1][2]
    assert len(outcomes) == 2


def test_a_crashing_dtype_becomes_a_caution_with_a_fix():
    reason = "the worker was ended by SIGILL during a bfloat16 product"
    crashed = DtypeSupport("cpu", "bfloat16", runs=False, reason=reason, crashed=True)
    refused = DtypeSupport("mps", "float64", runs=False, reason="no float64")
    (caution,) = machine.judge_dtypes([crashed, refused])
    assert "bfloat16" in caution.cause
    assert "ONEDNN_MAX_CPU_ISA" in caution.fix


@pytest.mark.parametrize(
    ("threads", "cores", "worth", "fix"), [(8, 2, 2.0, "=2"), (4, 4, 1.5, "=2"), (2, 2, 2.0, None)]
)
def test_more_threads_than_cores(threads, cores, worth, fix):
    cautions = machine.judge_threads(Threads(threads, 2, cores, worth))
    assert [caution.fix.endswith(fix) for caution in cautions] == ([True] if fix else [])


def test_other_programs_and_a_greedy_hypervisor():
    before = Conditions(at_s=10.0, capacity=2.0, other_cpu_s=100.0, steal_s=5.0)
    busy = Conditions(at_s=11.0, capacity=2.0, other_cpu_s=101.0, steal_s=5.5)
    quiet = Conditions(at_s=11.0, capacity=2.0, other_cpu_s=100.01, steal_s=5.0)
    assert [caution.kind for caution in machine.judge_load(before, busy)] == ["busy", "steal"]
    assert [*machine.judge_load(before, quiet)] == []
    assert [*machine.judge_load(Conditions(at_s=1), Conditions(at_s=2))] == []


def test_power_saver_and_battery(monkeypatch):
    monkeypatch.setattr("torchmark.measure.machine.read_power", lambda: Power(True, "profile low-power", True))
    assert [caution.kind for caution in machine.judge_power()] == ["power-saver", "on-battery"]


def test_the_machine_is_described_without_torch_and_without_naming_its_host():
    code = (
        "import sys; from torchmark.measure.machine import describe_machine; import msgspec;"
        "print(msgspec.json.encode(describe_machine()).decode()); sys.exit('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert '"torch":"2.' in answer.stdout
    if len(platform.node()) > 3:
        assert platform.node() not in answer.stdout


def test_devices_passed_in_are_kept():
    info = DeviceInfo("cpu", "Test")
    described = machine.describe_machine([info])
    assert described.devices == (info,)
    assert described.memory_gib >= 1
    assert described.physical_cores <= described.logical_cores


def test_memory_is_rounded_so_that_it_reports_no_machine_from_its_like():
    found = machine.describe_machine([DeviceInfo("cpu", "Test", memory_bytes=25_274_793_984)])
    assert found.devices[0].memory_bytes == round(23.5 * 2**30)
    assert machine.describe_machine([DeviceInfo("cpu", "Test", memory_bytes=1)]).devices[0].memory_bytes == 2**28


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n", "CUDA 12.6"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2.41133-dd7f95766'\n", "ROCm 6.2.41133-dd7f95766"),
        ("cuda = None\nhip = None\nxpu: Optional[str] = '20250101'\n", "XPU 20250101"),
    ],
)
def test_the_build_is_read_from_torchs_version_file(text, build):
    assert machine.read_build(text) == build


def test_the_installed_build_agrees_with_torch():
    torch = pytest.importorskip("torch")
    described = machine.describe_machine()
    assert described.torch == torch.__version__
    assert (torch.version.cuda is None) == (not described.torch_build.startswith("CUDA"))


def test_every_kind_has_a_name():
    assert {"cpu", "cuda", "fake", "mps", "xpu"} <= set(KINDS)
