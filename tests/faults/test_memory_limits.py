"""A case that exceeds any kind of memory limit ends as `oom`, and the others continue."""

from __future__ import annotations

import resource

import pytest

from torchmark.measure.outcomes import failure_of
from torchmark.store import load

# What the backends say, word for word but for sizes: found in the sources of torch and in reports of its users.
MESSAGES = [
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB.",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "HIP error: out of memory",
    "XPU out of memory. Tried to allocate 16.00 GiB",
    "UR error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "level_zero backend failed with error: 2147483646 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    "MPS backend out of memory (MPS allocated: 9.01 GB, other allocations: 384.00 KB, max allowed: 9.07 GB).",
    "Invalid buffer size: 37.25 GB",
    "Failed to allocate private MTLBuffer of size 8589934592",
    "[METAL] Command buffer failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 "
    "bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
    "unable to mmap 1024 bytes from file </x>: Cannot allocate memory (12)",
    "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
    "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64",
    "std::bad_alloc",
    "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory.",
]
OTHERS = [
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "shape '[2]' is invalid for input of size 3",
    "pin memory thread exited unexpectedly",
    "too many resources requested for launch",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_backend_is_understood_when_it_runs_out_of_memory(message: str) -> None:
    assert failure_of(RuntimeError(message.replace("\\\n", "\n")), "steps").status == "oom"


@pytest.mark.parametrize("message", OTHERS)
def test_other_trouble_with_memory_is_not_called_so(message: str) -> None:
    assert failure_of(RuntimeError(message), "steps").status == "crashed"


def test_a_type_is_believed_before_any_message() -> None:
    import torch

    assert failure_of(torch.OutOfMemoryError("no words that anybody knows"), "steps").status == "oom"
    assert failure_of(MemoryError(), "steps").status == "oom"


@pytest.mark.parametrize("limit", [pytest.param("RLIMIT_AS", marks=pytest.mark.thorough), "RLIMIT_DATA"])
def test_a_real_allocation_under_a_limit_is_oom_and_the_next_case_is_measured(run, tmp_path, limit: str) -> None:
    out = tmp_path / "run.jsonl"
    cases = ["matmul/infer:size=60000@cpu/float32", "mlp/infer:batch=2@cpu/float32"]
    bytes_ = (10 if limit == "RLIMIT_AS" else 4) << 30  # torch maps gigabytes that it never uses

    def lower() -> None:
        resource.setrlimit(getattr(resource, limit), (bytes_, bytes_))

    done = run("run", *cases, "--steps", "3", "--out", str(out), preexec_fn=lower)
    assert done.returncode == 0, done.stderr
    first, second = load(out, local=True).results
    assert (first.status, second.status) == ("oom", "ok")
    assert "allocate" in first.explanation
    assert "during build" in (first.reason or "")
