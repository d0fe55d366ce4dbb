"""Devices are found, named and diagnosed so that a person knows what to do."""

import os
import subprocess
import sys

import pytest

from torchmark import devices
from torchmark.devices.cuda import Cuda
from torchmark.devices.mps import Mps
from torchmark.devices.xpu import Xpu
from torchmark.errors import DeviceError, UnknownName, UsageError


@pytest.mark.usefixtures("simulation")
def test_accelerators_come_first_and_the_fake_device_never():
    assert devices.find_devices() == ("cuda:0", "cuda:1", "mps", "xpu:0", "xpu:1", "cpu")


@pytest.mark.usefixtures("simulation")
def test_a_kind_alone_is_its_first_device():
    assert devices.check_device("cuda") == "cuda:0"
    assert devices.check_device("mps:0") == "mps"
    assert devices.check_device("xpu:1") == "xpu:1"


@pytest.mark.usefixtures("simulation")
def test_gpu_means_the_accelerator_that_is_here():
    assert devices.check_device("gpu") == "cuda:0"


def test_gpu_without_any_accelerator_says_so():
    with pytest.raises(UsageError, match="no accelerator was found here"):
        devices.first_accelerator(["cpu"])


@pytest.mark.parametrize(
    ("given", "near"), [("cdua", "cuda"), ("cuda:x", "cuda"), ("CPU", "Valid: cpu"), ("", "Valid")]
)
def test_an_unknown_name_gets_the_nearest(given, near):
    with pytest.raises(UnknownName, match=near):
        devices.check_device(given)


@pytest.mark.usefixtures("simulation")
def test_a_device_that_is_not_here_says_what_is():
    with pytest.raises(DeviceError, match="Here: cuda:0, cuda:1"):
        devices.open_device("cuda:7")


def test_what_is_listed_here_opens_and_says_who_it_is():
    for name in devices.find_devices():
        device = devices.open_device(name)
        assert device.info().name == name
        assert device.info().model


@pytest.mark.usefixtures("simulation")
def test_a_broken_file_is_reported_and_hides_nothing(monkeypatch, tmp_path):
    (tmp_path / "toaster.py").write_text("import no_such_module")
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(tmp_path)])
    monkeypatch.setattr(devices, "KINDS", devices._list_kinds())
    assert "cpu" in devices.find_devices()
    assert "no_such_module" in devices.broken()["toaster"]
    assert any(caution.kind == "device-broken" and "toaster" in caution.cause for caution in devices.diagnose())
    with pytest.raises(DeviceError, match="broken"):
        devices.open_device("toaster")


def test_a_driver_that_raises_hides_no_other_device(simulation):
    def explode():
        raise RuntimeError("driver gone")

    simulation.torch.cuda.is_available = explode
    assert "xpu:0" in devices.find_devices()
    assert "driver gone" in devices.broken()["cuda"]


def test_a_gpu_with_a_cpu_only_torch_gets_cause_and_fix(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    simulated = pytest.importorskip("torch")
    monkeypatch.setattr(simulated.version, "cuda", None)
    monkeypatch.setattr(simulated.cuda, "is_available", lambda: False)
    (caution,) = Cuda.diagnose()
    assert caution.kind == "cpu-only-torch"
    assert "NVIDIA" in caution.cause
    assert "Install" in caution.fix
    with pytest.raises(DeviceError, match="CPU-only build"):
        devices.open_device("cuda")


def test_an_amd_gpu_is_seen_without_torch(simulation, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Cuda, "root", tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    simulation.torch.cuda.is_available = lambda: False
    (caution,) = Cuda.diagnose()
    assert "AMD" in caution.cause
    assert "ROCm" in caution.fix
    simulation.torch.version.hip = "6.2"
    assert Cuda.diagnose()[0].kind == "gpu-unusable"


@pytest.mark.usefixtures("simulation")
def test_the_nvidia_driver_is_read_from_the_kernel(monkeypatch, tmp_path):
    monkeypatch.setattr(Cuda, "root", tmp_path)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(line)
    assert devices.open_device("cuda").info().driver == "535.104.05"


def test_an_intel_gpu_is_named_only_where_it_is_meant_to_compute_on_it(simulation, monkeypatch, tmp_path):
    monkeypatch.setattr(Xpu, "root", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    simulation.torch.xpu.is_available = lambda: False
    simulation.torch.version.xpu = None
    card = tmp_path / "sys/class/drm/renderD128/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x8086\n")
    assert Xpu.diagnose() == ()
    (tmp_path / "opt/intel/oneapi").mkdir(parents=True)
    assert Xpu.diagnose()[0].kind == "cpu-only-torch"


def test_mps_that_is_built_but_not_available_is_explained(simulation, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    simulation.torch.backends.mps.is_available = lambda: False
    assert Mps.diagnose()[0].kind == "gpu-unusable"
    simulation.torch.backends.mps.is_built = lambda: False
    assert Mps.diagnose()[0].kind == "cpu-only-torch"


def test_fallback_is_off_before_torch_is_imported():
    code = (
        "import os, sys; from torchmark import devices; assert 'torch' not in sys.modules; devices.find_devices();"
        "assert 'torch' in sys.modules; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'])"
    )
    environment = {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "0"
