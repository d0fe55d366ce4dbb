"""CUDA, XPU and MPS time what the device does, not what the host launches."""

import pytest

from torchmark.devices import open_device
from torchmark.errors import DeviceError


@pytest.mark.parametrize("name", ["cuda:1", "xpu:1"])
def test_a_block_has_the_wall_time_and_every_steps_own_time_after_one_synchronisation(simulation, name):
    device = open_device(name)
    device.clock = lambda: simulation.host_s
    durations = iter([0.002, 0.004, 0.003, 0.005, 0.005])
    time_block = device.timer(lambda: simulation.launch(next(durations)))
    before = simulation.synchronized
    block = time_block(3)
    assert simulation.synchronized == before + 1
    assert block.step_s == pytest.approx((0.002, 0.004, 0.003), abs=2e-5)
    assert block.total_s == pytest.approx(0.009, abs=4e-5)
    assert time_block(2).step_s == pytest.approx((0.005, 0.005), abs=2e-5)


def test_mps_times_a_block_by_one_synchronisation_and_samples_memory(simulation):
    device = open_device("mps")
    device.clock = lambda: simulation.host_s
    device.reset_peak_memory()
    time_block = device.timer(lambda: simulation.launch(0.002))
    simulation.driver_bytes = 900
    before = simulation.synchronized
    block = time_block(4)
    simulation.driver_bytes = 50
    assert simulation.synchronized == before + 1
    assert block.total_s == pytest.approx(0.008, abs=5e-5)
    assert block.step_s is None
    assert (device.memory().device_peak_bytes, device.memory().provenance) == (900, "sampled")


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_peak_memory_counts_from_the_reset(simulation, name):
    device = open_device(name)
    device.reset_peak_memory()
    simulation.peak_bytes = 700
    memory = device.memory()
    assert (memory.device_peak_bytes, memory.device_reserved_bytes, memory.provenance) == (700, 1400, "measured")


def test_the_opened_device_is_the_one_that_takes_the_work(simulation):
    open_device("cuda:1")
    assert simulation.selected == 1


@pytest.mark.parametrize(
    ("name", "model", "capability"),
    [("cuda", "NVIDIA Test", "sm_90"), ("xpu", "Intel Test", "12.55.8"), ("mps", "GPU", None)],
)
@pytest.mark.usefixtures("simulation")
def test_identity(name, model, capability):
    info = open_device(name).info()
    assert model in info.model
    assert info.capability == capability
    assert info.memory_bytes


def test_rocm_is_cuda_with_an_architecture_name(simulation):
    simulation.torch.version.hip = "6.2"
    assert open_device("cuda").info().capability == "gfx942"


@pytest.mark.parametrize(
    ("message", "fix"), [("no kernel image is available", "Install a torch build"), ("out of memory", "close them")]
)
def test_a_device_that_runs_no_kernel_is_refused_with_its_fix(simulation, message, fix):
    simulation.kernel_error = RuntimeError(f"{message}\nmore")
    with pytest.raises(DeviceError, match=message) as raised:
        open_device("cuda:0")
    assert fix in raised.value.fix


@pytest.mark.parametrize(
    ("name", "variable"), [("mps", "PYTORCH_ENABLE_MPS_FALLBACK"), ("xpu", "PYTORCH_ENABLE_XPU_FALLBACK")]
)
@pytest.mark.usefixtures("simulation")
def test_a_torch_that_would_fall_back_to_the_cpu_unseen_is_refused(monkeypatch, name, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DeviceError, match=variable):
        open_device(name)
