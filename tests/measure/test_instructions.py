"""AMX counts where the processor announces it, for as long as the machine is up."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmark.measure.machine import DtypeSupport, announced_amx, lacks_amx


@pytest.fixture
def machine(tmp_path: Path):
    def made(flags: str, boot: str = "one") -> Path:
        boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_text(boot)
        (tmp_path / "proc/cpuinfo").write_text(f"model name\t: Xeon\nflags\t\t: fpu {flags} sse\nbugs\t: amx_tile\n")
        return tmp_path

    return made


def test_only_an_announcement_counts(machine) -> None:
    assert announced_amx(machine("avx512_bf16")) is None
    assert announced_amx(machine("amx_bf16 amx_tile amx_int8")) is not None


def test_a_machine_that_was_started_again_may_be_another(machine) -> None:
    names = [announced_amx(machine("amx_tile", boot)) for boot in ("one", "one", "two")]
    assert names[0] == names[1] != names[2]
    assert "one" not in str(names)


def test_a_product_that_works_is_no_lack() -> None:
    assert not lacks_amx()


@pytest.mark.parametrize(
    ("cause", "lacks"), [("the worker was ended by SIGILL", True), ("no result after 30 s", None), ("an error", None)]
)
def test_only_an_illegal_instruction_proves_a_lack(monkeypatch, cause: str, lacks: bool | None) -> None:
    died = DtypeSupport("cpu", "bfloat16", runs=False, reason=cause, crashed=True)
    monkeypatch.setattr("torchmark.measure.machine.try_dtypes", lambda *_: (died,))
    assert lacks_amx() is lacks
