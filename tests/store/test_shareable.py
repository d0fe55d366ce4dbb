"""What may be written into a run file: nothing that names a person, a host or a place, and all that torchmark says."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.records import Caution, JobEstimate, Memory, Metered, Peak, StageEstimate, Sustained, Work
from torchmark.settings import VARIABLES, key_of, may_be_told, told_of
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


HOST, USER, TOKEN = "kestrel", "quillfeather", "blue-42-heron"
PRIVATE = f"{USER} on {HOST}.lab.example with {TOKEN}"


def test_the_names_of_this_machine_are_taken_out_wherever_they_stand(
    tmp_path: Path, make_header, make_result, make_estimate, monkeypatch
) -> None:
    """Whoever writes a workload chooses what its metrics, stages and units are called, and what it notes."""
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("HOSTNAME", f"{HOST}.lab.example")
    monkeypatch.setenv("API_TOKEN", TOKEN)
    path = tmp_path / "run.jsonl"
    stage = StageEstimate(PRIVATE, 3, 1.0, 1.0, 1.0)
    found = make_estimate(flags=(USER,), evidence=(PRIVATE,), metered=Metered(throttle=(HOST,)))
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.finished(
            make_result(
                A,
                estimate=found,
                processes=(found,),
                params={"batch": 64, USER: TOKEN, "label": PRIVATE, "case": PRIVATE, "kind": PRIVATE},
                work=Work(1, USER),
                job=JobEstimate(3.0, 3.0, 3.0, False, (stage,)),
                metrics={USER: 1.0, f"cost of {HOST}": 2.0},
                phases_s={PRIVATE: 1.0},
                settings={"attention": USER, "data": PRIVATE, "plugin": f"{USER} 1.0", USER: 1, "threads": 2},
                provenance={"energy": f"unavailable because {PRIVATE}", USER: "measured"},
                sustained=Sustained(1.0, 1.0, 1.0, (0.0, 0.0), 0.0, PRIVATE),
                peak=Peak(0.5, "compute", {USER: 0.5}, limits=USER),
            )
        )
    told = path.read_text()
    assert [name for name in (HOST, USER, TOKEN) if name in told.lower()] == []
    assert load(path).results[0].settings == {"attention": "…", "data": "…", "plugin": "…", "threads": 2}


def test_a_user_who_is_called_like_a_field_or_a_word_of_ours_can_still_read_the_file(
    tmp_path: Path, make_header, make_result, monkeypatch
) -> None:
    for word in ("seed", "ok", "median", "stable", "quick", "Xeon", "mlp", "finished", "steady", "cause"):
        monkeypatch.setenv("USER", word)
        path = tmp_path / f"{word}.jsonl"
        with RunWriter.create(path, make_header((A,))) as writer:
            writer.finished(make_result(A))
        run = load(path)
        assert (run.header, run.results[0].case) == (make_header((A,)), make_result(A).case)
        assert run.results[0].estimate == make_result(A).estimate


def test_settings_are_a_list_of_what_may_be_told(tmp_path: Path, make_header, make_result) -> None:
    told = {"threads": 2, "attention": "sdpa", "data": "stand-in", "omp_proc_bind": "close", "nodes": None}
    told |= {"onednn_max_isa": "AVX512_CORE_AMX_FP16", "plugin": "soft-rows 1.0", "ran_on_cpu": "aten::svd"}
    told |= {"pytorch_cuda_alloc_conf": "max_split_size_mb:1024", "faults not tried": "autograd graph, eager attention"}
    others = {"note": "mine", "hostname": 1, "kmp_affinity": "jane", "backend": "10.1.2.3", "ld_preload": "libjane.so"}
    with RunWriter.create(tmp_path / "run.jsonl", make_header((A,))) as writer:
        writer.finished(make_result(A, settings=told | others))
    hidden = dict.fromkeys(("kmp_affinity", "backend", "ld_preload"), "…")
    assert load(tmp_path / "run.jsonl").results[0].settings == told | hidden


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OMP_NUM_THREADS", "4", 4),
        ("OMP_NUM_THREADS", "4,2", "4,2"),
        ("OMP_PLACES", "cores(4)", "cores(4)"),
        ("OMP_PROC_BIND", "CLOSE", "close"),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", "granularity=fine,compact,1,0"),
        ("GOMP_CPU_AFFINITY", "0-3 8", "0-3 8"),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", "AVX512_CORE_BF16"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:true"),
        ("NVIDIA_TF32_OVERRIDE", "0", 0),
        ("MALLOC_ARENA_MAX", "2", 2),
        ("MKL_NUM_THREADS", None, None),
        ("MKL_NUM_THREADS", "", None),
        ("MKL_NUM_THREADS", "four", "set"),
        ("KMP_AFFINITY", "proclist=[/home/jane],explicit", "set"),
        ("LD_PRELOAD", "/home/jane/libjemalloc.so", "set"),
    ],
)
def test_a_variable_is_told_by_a_value_that_it_can_have(variable: str, value: str | None, told: object) -> None:
    assert told_of(variable, value) == told
    assert may_be_told(key_of(variable), told)


def test_about_fifteen_variables_that_change_the_speed_are_on_record() -> None:
    assert 15 <= len(VARIABLES) <= 20
    assert len({key_of(name) for name in VARIABLES}) == len(VARIABLES)
    assert not {name for name in VARIABLES if may_be_told(key_of(name), "jane")}


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
