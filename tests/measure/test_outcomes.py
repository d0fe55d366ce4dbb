"""Every way to fail ends in the right status, with a reason that can be shared."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from torchmark.errors import DeviceError, DoesNotFitError, UnsupportedError, UsageError, WrongResultError
from torchmark.measure.outcomes import LONGEST_DETAIL, death_of, failure_of, may_be_memory, memory_kills
from torchmark.records import Result, parse_case


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WrongResultError("too far off", "Look"), "wrong-result"),
        (DoesNotFitError("it takes an hour", "Wait"), "skipped"),
        (UnsupportedError("no such operator"), "unsupported"),
        (DeviceError("no such device"), "unsupported"),
        (UsageError("what is this"), "crashed"),
        (MemoryError(), "oom"),
        (OutOfMemoryError("CUDA ran dry"), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.01 GB)"), "oom"),
        (RuntimeError("Invalid buffer size: 37.25 GB"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), "oom"),
        (RuntimeError("std::bad_alloc"), "oom"),
        (NotImplementedError("The operator 'aten::x' is not currently implemented for the MPS device"), "unsupported"),
        (RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"), "unsupported"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "unsupported"),
        (TypeError("BFloat16 is not supported on MPS"), "unsupported"),
        (ValueError("something else"), "crashed"),
    ],
)
def test_an_error_becomes_a_status(error: Exception, status: str) -> None:
    failure = failure_of(error, "build")
    assert failure.status == status
    assert failure.reason
    assert "\n" not in failure.reason


def test_the_detail_is_one_line_however_long_the_message_is() -> None:
    assert failure_of(RuntimeError("\n\nfailed in layer 3\n  more\n"), "build").detail == "failed in layer 3"
    both = "Error(s) in loading state_dict for Net: Missing key(s): 'a'."
    message = "Error(s) in loading state_dict for Net:\n\tMissing key(s): 'a'.\n\tmore"
    assert failure_of(RuntimeError(message), "build").detail == both
    assert len(failure_of(RuntimeError("y" * 100_000), "build").detail or "") == LONGEST_DETAIL
    assert failure_of(RuntimeError(), "build").detail is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("hunter"), "KeyError during build"),
        (MemoryError("hunter"), "out of memory: MemoryError during build"),
        (OutOfMemoryError("hunter"), "out of memory: RuntimeError during build"),  # a class of an unknown library
        (RuntimeError("hunter: std::bad_alloc"), "out of memory: RuntimeError during build"),
        (
            RuntimeError("\"hunter\" not implemented for 'Half'"),
            "an operator is not implemented for float16: RuntimeError during build",
        ),
        (
            RuntimeError("\"addmm\" not implemented for 'Hunter'"),
            "an operator is not implemented: RuntimeError during build",
        ),
        (
            NotImplementedError("The operator 'aten::hunter' is not currently implemented for hunter"),
            "not supported here: NotImplementedError during build",
        ),
        (
            RuntimeError("no kernel image: hunter"),
            "this torch has no kernels for this device: RuntimeError during build",
        ),
        (UsageError("there is no file 'hunter'"), "UsageError during build"),
        (
            UnsupportedError("no head for this task", "Choose another", "hunter"),
            "no head for this task. Choose another",
        ),
    ],
)
def test_a_reason_is_in_words_of_our_own(error: Exception, reason: str) -> None:
    failure = failure_of(error, "build")
    assert failure.reason == reason
    assert "hunter" in (failure.detail or "").lower()


def test_an_operator_is_named_where_torch_knows_it() -> None:
    pytest.importorskip("torch")
    error = NotImplementedError("The operator 'aten::_linalg_svd.U' is not currently implemented for the MPS device")
    assert failure_of(error, "steps").reason == "aten::_linalg_svd is not implemented: NotImplementedError during steps"


def test_an_error_of_ours_that_a_plug_in_raises_is_not_in_our_words() -> None:
    class HunterError(UnsupportedError):
        pass

    for error, detail in ((UnsupportedError("at hunter"), "at hunter"), (HunterError("x"), "HunterError: x")):
        with pytest.raises(UnsupportedError) as caught:
            raise error
        failure = failure_of(caught.value, "build")
        assert failure == ("unsupported", "not supported here: UnsupportedError during build", detail)


@pytest.mark.parametrize(
    ("exit_code", "for_memory", "status", "words"),
    [
        (3, False, "crashed", "exited with code 3 during build"),
        (0, False, "crashed", "exited with code 0 during build"),
        (-signal.SIGSEGV, False, "crashed", "ended by SIGSEGV during build"),
        (-signal.SIGKILL, False, "crashed", "ended by SIGKILL during build"),
        (-signal.SIGKILL, True, "host-oom", "ran out of memory during build"),
        (-signal.SIGABRT, True, "crashed", "ended by SIGABRT"),
        (-signal.SIGILL, False, "crashed", "set ONEDNN_MAX_CPU_ISA"),
        (-250, False, "crashed", "signal 250"),
        (None, False, "crashed", "stopped answering during build"),
    ],
)
def test_a_death_is_reported_by_how_it_came(exit_code, for_memory: bool, status: str, words: str) -> None:
    found, reason = death_of(exit_code, for_memory, "build")
    assert found == status
    assert words in reason


@pytest.mark.parametrize(
    ("reason", "detail", "may"),
    [
        ("the worker was ended by SIGSEGV during steps", None, True),
        ("the worker exited with code 1 during build", None, True),
        ("RuntimeError during steps", "could not create a primitive", True),
        ("RuntimeError during steps (model.py, line 3)", "helper.py, line 12: could not allocate", True),
        ("the worker sent an unreadable message during steps", None, False),
        ("RuntimeError during steps (memory_net.py, line 12)", "mat1 and mat2 shapes cannot be multiplied", False),
        ("RuntimeError during steps", "memory.py, line 12: mat1 and mat2 shapes cannot be multiplied", False),
        ("IndexError during steps", "index out of range in self", False),
        ("RuntimeError during steps", "CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_crash_for_lack_of_memory_is_distinguished_from_an_error_of_the_model(reason, detail, may: bool) -> None:
    result = Result(parse_case("mlp/infer@cpu/float32"), "crashed", reason=reason, detail=detail)
    assert may_be_memory(result) == may


def test_the_kernels_count_of_memory_kills_can_be_read_anywhere() -> None:
    assert memory_kills() >= 0


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("4:memory:/a/b\n1:cpu:/\n0::/\n", "sys/fs/cgroup/memory/a/b/memory.oom_control"),
        ("4:memory:/elsewhere\n", "sys/fs/cgroup/memory/memory.oom_control"),  # a container sees its own as the top
        ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events"),
        ("0::/\n", "proc/vmstat"),
        (None, "proc/vmstat"),
    ],
)
def test_only_kills_of_the_own_control_group_count_where_it_reports(tmp_path: Path, groups, file: str) -> None:
    texts = {"proc/vmstat": "oom_kill 35\n", "sys/fs/cgroup/memory.events": "oom 1\n"} | {file: "oom 9\noom_kill 3\n"}
    for name, content in (texts | ({"proc/self/cgroup": groups} if groups else {})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert memory_kills(tmp_path) == 3
    assert memory_kills(tmp_path / "nothing") == 0


def test_a_message_of_any_length_becomes_a_short_detail() -> None:
    failure = failure_of(ImportError("x y " * 1_000_000), "build")
    assert failure.reason == "ImportError during build"
    assert failure.detail is not None
    assert len(failure.detail) <= LONGEST_DETAIL
