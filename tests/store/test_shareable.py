"""What may be written into a run file: nothing that names a person, a host or a place, and all that torchmark says."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.records import Caution, Memory
from torchmark.store import RunWriter, load
from torchmark.store.shareable import without_private

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-run.jsonl"
A = "mlp/infer:batch=64@cpu/float32+threads=2+workers=4"


@pytest.mark.parametrize(
    ("private", "left"),
    [
        ("failed in /home/jane/secret/model.py at 0x7f00deadbeef", "failed in … at …"),
        ("No such file or directory: '/Users/Jane Doe/a b.bin'", "No such file or directory: …"),
        ("cannot open C:\\Users\\jane\\model.pt", "cannot open …"),
        ("cannot open \\\\server\\share\\model.pt", "cannot open …"),
        ("see ~/models and ../jane/models/a.pt", "see … and …"),
        ("file:///srv/a or https://jane:pw@host/x?y=1", "… or …"),
        ("jane@example.com asked node7.cluster.example.org", "… asked …"),
        ("connect to 10.1.2.3:29500 failed", "connect to … failed"),
        ("connect to node7:29500 failed", "connect to … failed"),
        ("fe80::1ff:fe23:4567:890a%eth2, 2001:db8:85a3:0:0:8a2e:370:7334, ::1", "…, …, …"),
        ("eth0 is 00:1a:2b:3c:4d:5e", "eth0 is …"),
        ("GPU-3f9c2a71-0123-4567-89ab-0123456789ab fell off", "… fell off"),
        ("hf_abcdefgHIJKLMNOPQRSTUVWXYZ0123456789 is no token", "… is no token"),
        ("password=hunter2 and Authorization: Bearer abcdef", "… and …"),
    ],
)
def test_what_is_private_is_taken_out(private: str, left: str) -> None:
    assert without_private(private) == left


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.99 GiB total capacity)",
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate 40000000000 bytes",
        "UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "The operator 'aten::scaled_dot_product_attention_v2' is not currently implemented for the MPS device",
        "mat1 and mat2 shapes cannot be multiplied (64x1024 and 512x10)",
        "c10::Error in at::native::addmm, std::bad_alloc",
        f"{A} takes 12.5 GB/s where 3.2 TFLOP/s and/or 10% are due at 12:30:45",
        "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
        "driver 32.0.15.6094, torch 2.13.0+cu126",
        "the interval reached ±18.1% where ±1% was asked for",
    ],
)  # fmt: skip
def test_what_a_person_needs_to_know_stays(text: str) -> None:
    assert without_private(text) == text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("USER", "quillfeather"),
        ("HOSTNAME", "kestrel.lab.example"),
        ("USERDNSDOMAIN", "CORP.EXAMPLE"),
        ("API_TOKEN", "swordfish"),
        ("MY_SETTING", "blue-42-heron"),
    ],
)
def test_this_machines_own_names_and_values_are_taken_out(monkeypatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    left = without_private(f"asked {value.lower()}_x, {value} and ({value.partition('.')[0]}): no")
    assert left.startswith("asked …")
    assert value.partition(".")[0].lower() not in left.lower()
    assert left.endswith("no")


def test_the_real_names_of_this_machine_are_taken_out() -> None:
    names = {platform.node(), Path.home().name, os.environ.get("USER", "")} - {"root", "runner", "localhost", ""}
    assert not {name for name in names if name in without_private(f"{name} said no")}
    assert str(Path.home()) not in without_private(f"in {Path.home()}/a.pt")


@given(st.text(max_size=80), st.text("abc/._-@:0123456789 '\\", max_size=40))
def test_a_path_never_survives_whatever_stands_around_it(before: str, after: str) -> None:
    assert "jane" not in without_private(f"{before} /home/jane/x {after}")
    assert "jane" not in without_private(f"{before} 'C:\\Users\\jane\\x' {after}")


def test_a_long_text_takes_no_time_worth_speaking_of() -> None:
    for piece in ("a.", "a-", "a/", "a@", "1:", "0", "'/", "://", "x_1", "::", "\\\\"):
        assert len(without_private(piece * (20_000 // len(piece)))) <= 20_000


def test_every_text_of_a_line_is_looked_at(tmp_path: Path, make_header, make_result) -> None:
    path, private = tmp_path / "run.jsonl", "/home/jane/model.pt"
    with RunWriter.create(path, make_header((A,), command=f"torchmark run {A} --data {private}")) as writer:
        writer.finished(
            make_result(
                A,
                reason=f"no {private}",
                memory=Memory(provenance=f"unavailable because {private} is not there"),
                cautions=(Caution("x", f"because of {private}", f"remove {private}"),),
                settings={"data": private, private: 1},
                metrics={private: 1.0},
                phases_s={private: 1.0},
            )
        )
    assert b"jane" not in path.read_bytes()
    run = load(path)
    assert run.header.command == f"torchmark run {A} --data …"
    assert run.results[0].reason == "no …"
    assert run.results[0].case.text == A


def test_a_recorded_run_is_written_again_as_it_is(tmp_path: Path) -> None:
    """Nothing that torchmark itself says looks private to it."""
    run = load(EXAMPLE)
    with RunWriter.create(tmp_path / "again.jsonl", run.header) as writer:
        for result in run.results:
            writer.finished(result)
    again = load(tmp_path / "again.jsonl")
    assert (again.header, again.results) == (run.header, run.results)


def test_a_text_without_end_is_made_short_so_that_it_can_be_read_again(tmp_path, make_header, make_result) -> None:
    with RunWriter.create(tmp_path / "run.jsonl", make_header((A,), label="z" * 50_000)) as writer:
        writer.finished(make_result(A, status="crashed", reason="y " * 50_000, settings={"n" * 9999: "v" * 9999}))
    run = load(tmp_path / "run.jsonl")
    assert run.results[0].reason.startswith("y y")
