"""What is written into a run file: fields from a list, names of a known form, and texts of torchmark's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from torchmark.analyze.pairing import differences_of
from torchmark.records import DeviceInfo, JobEstimate, Machine, Metered, Peak, StageEstimate, Work
from torchmark.settings import VARIABLES, is_shareable, key_of, redacted
from torchmark.store import RunWriter, load, log_path, shareable_lines
from torchmark.store.lines import shareable

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-run.jsonl"
A = "mlp/infer:batch=64@cpu/float32+threads=2+workers=4"


PRIVATE = "clients/bigbank-merger.pt"
OWN = "my_model.py/infer:depth=3@cpu/float32"


def test_a_message_of_another_program_is_only_in_the_local_log(tmp_path: Path, make_header, make_result) -> None:
    path, reason = tmp_path / "run.jsonl", "ValueError during build"
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.finished(make_result(A, status="crashed", reason=reason, detail=f"no {PRIVATE}"))
        assert (writer.read().results[0].detail, writer.read(local=True).results[0].detail) == (None, f"no {PRIVATE}")
    assert PRIVATE not in path.read_text()
    assert PRIVATE not in b"".join(shareable_lines(path)).decode()
    assert PRIVATE in log_path(path).read_text()
    assert log_path(path).stat().st_mode & 0o077 == 0
    assert load(path).results[0].detail is None
    assert load(path, local=True).results[0].explanation == f"{reason}\nno {PRIVATE}"


def test_a_message_in_a_file_from_a_stranger_is_not_passed_on(tmp_path: Path, make_header, make_result) -> None:
    path = tmp_path / "run.jsonl"
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.finished(make_result(A, status="crashed", reason="it failed"))
    path.write_text(path.read_text().replace('"reason":"it failed"', f'"reason":"it failed","detail":"{PRIVATE}"'))
    assert load(path).results[0].detail is None
    assert PRIVATE not in b"".join(shareable_lines(path)).decode()


def test_a_log_that_cannot_be_written_or_read_costs_no_result(tmp_path: Path, make_header, make_result) -> None:
    path = tmp_path / "run.jsonl"
    log_path(path).mkdir()
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.finished(make_result(A, status="crashed", reason="it failed", detail="no"))
    assert load(path, local=True).results[0].explanation == "it failed"


def test_what_is_no_name_is_not_written_where_a_name_belongs(
    tmp_path: Path, make_header, make_result, make_estimate
) -> None:
    """A workload of the user's chooses what its metrics, stages and units are called, and what it notes."""
    path = tmp_path / "run.jsonl"
    found = make_estimate(flags=(PRIVATE,), metered=Metered(throttle=(PRIVATE,)))
    with RunWriter.create(path, make_header((A,))) as writer:
        writer.finished(
            make_result(
                A,
                estimate=found,
                processes=(found,),
                params={"batch": 64, PRIVATE: 1, "label": PRIVATE, "case": PRIVATE, "reason": PRIVATE},
                work=Work(1, PRIVATE),
                job=JobEstimate(3.0, 3.0, 3.0, False, (StageEstimate(PRIVATE, 3, 1.0, 1.0, 1.0),)),
                metrics={PRIVATE: 1.0},
                phases_s={PRIVATE: 1.0},
                settings={"attention": PRIVATE, "plugin": PRIVATE, PRIVATE: 1, "threads": 2},
                provenance={PRIVATE: "measured"},
                peak=Peak(0.5, "compute", {PRIVATE: 0.5}, limits=PRIVATE),
            )
        )
    assert "bigbank" not in path.read_text()
    assert load(path).results[0].settings == {"attention": "…", "plugin": "…", "threads": 2}


def test_defaults_in_a_model_file_are_not_shared(tmp_path: Path, make_header, make_result) -> None:
    path = tmp_path / "run.jsonl"
    with RunWriter.create(path, make_header((OWN,))) as writer:
        writer.finished(make_result(OWN, params={"depth": 3, "customer": "bigbank"}))
    assert load(path).results[0].params == {"depth": 3}


def test_the_name_of_hardware_may_have_brackets_and_slashes_between_numbers(tmp_path: Path, make_header) -> None:
    device = DeviceInfo("cuda:0", "GPU [A/B] #2", driver="1/2")
    machine = Machine("ARM A53/A72 [big]", 2, 2, 8, "Linux 6", "3.11", devices=(device,))
    header = make_header((A,), machine=machine)
    with RunWriter.create(tmp_path / "run.jsonl", header):
        pass
    assert load(tmp_path / "run.jsonl").header == header


@pytest.mark.parametrize(
    "name",
    [
        "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        "AMD EPYC 7B13 64-Core Processor",
        "Apple M1 Ultra",
        "ARMv8 Processor rev 1 (v8l)",
        "AMD Ryzen 7 5800X w/ Radeon Graphics",
        "AMD A10-7850K APU with Radeon(TM) R7 Graphics",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA GeForce RTX 3080 Ti / Laptop",
        "Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]",
        "Intel(R) Data Center GPU Max 1550",
    ],
)
def test_real_names_of_hardware_stay_whole(name: str) -> None:
    assert shareable({"cpu": name, "model": name}) == {"cpu": name, "model": name}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("host7.bigbank.de /home/x", "…"),
        ("Xeon /srv/bigbank E5", "Xeon E5"),
        ("Xeon clients/bigbank", "Xeon"),
        ("Xeon jane@bigbank 10.1.2.3 C:\\Users\\jane", "Xeon"),
    ],
)
def test_paths_and_hosts_are_no_part_of_a_hardware_name(name: str, kept: str) -> None:
    assert shareable({"cpu": name, "model": name, "driver": name}) == dict.fromkeys(("cpu", "model", "driver"), kept)


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("2.6.0", "2.6.0"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("2.6.0.dev20241112+cu124", "2.6.0.dev20241112+cu124"),
        ("2.6.0+rocm6.2.4", "2.6.0+rocm6.2.4"),
        ("2.6.0a0+git1234abc", "2.6.0a0+git1234abc"),
        ("2.6.0a0+df5bbc09d1.nv24.12", "2.6.0a0+df5bbc09d1.nv24.12"),
        ("2.1.0+cpu.cxx11.abi", "2.1.0+cpu.cxx11.abi"),
        ("2.6.0+acme.internal.git123", "2.6.0+local"),
        ("2.6.0+cu124.acme", "2.6.0+local"),
        ("acme", "…"),
    ],
)
def test_a_private_build_is_only_known_as_one(version: str, kept: str) -> None:
    assert shareable({"torch": version, "python": version}) == {"torch": kept, "python": kept}
    assert shareable({"torch": kept}) == {"torch": kept}


def test_a_private_build_differs_from_the_published_one(tmp_path: Path, make_header, make_result) -> None:
    machine = make_header((A,)).machine
    runs = []
    for version in ("2.6.0", "2.6.0+acme.internal"):
        path = tmp_path / f"{len(runs)}.jsonl"
        with RunWriter.create(path, make_header((A,), machine=replace(machine, torch=version))) as writer:
            writer.finished(make_result(A))
        runs.append(load(path))
    (a, b) = runs
    found = differences_of(a.results[0], b.results[0], a.header, b.header)
    assert [(each.name, each.a, each.b) for each in found] == [("torch", "2.6.0", "2.6.0+local")]


def test_only_published_systems_builds_and_versions_of_plugins_are_named() -> None:
    private = {"os": "Bigbank-linux 7", "torch_build": "CUDA 12.6-bigbank", "settings": {"plugin": "rows 1+acme.de"}}
    assert shareable(private) == {"os": "…", "torch_build": "CUDA", "settings": {"plugin": "rows 1+local"}}
    for system in ("Debian 12", "Linux 6.1", "macOS 14", "Windows 2019Server", "Opensuse-leap 15", "Arch", ""):
        assert shareable({"os": system}) == {"os": system}
    for build in ("CPU", "MPS", "CUDA 12.6", "ROCm 6.2.41133-dd7f95766", "XPU 20250101"):
        assert shareable({"torch_build": build}) == {"torch_build": build}


def test_settings_are_a_list_of_what_may_be_reported(tmp_path: Path, make_header, make_result) -> None:
    shared = {"threads": 2, "attention": "sdpa", "data": "stand-in", "omp_proc_bind": "close", "nodes": None}
    shared |= {"onednn_max_isa": "AVX512_CORE_AMX_FP16", "plugin": "soft-rows 1.0", "ran_on_cpu": "aten::svd"}
    shared |= {
        "pytorch_cuda_alloc_conf": "max_split_size_mb:1024",
        "faults not tried": "autograd graph, eager attention",
    }
    others = {"note": "mine", "hostname": 1, "kmp_affinity": "jane", "backend": "10.1.2.3", "ld_preload": "libjane.so"}
    with RunWriter.create(tmp_path / "run.jsonl", make_header((A,))) as writer:
        writer.finished(make_result(A, settings=shared | others))
    hidden = dict.fromkeys(("kmp_affinity", "backend", "ld_preload"), "…")
    assert load(tmp_path / "run.jsonl").results[0].settings == shared | hidden


@pytest.mark.parametrize(
    ("variable", "value", "shared"),
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
        ("KMP_AFFINITY", "granularity=numa_domain,scatter", "granularity=numa_domain,scatter"),
        ("KMP_AFFINITY", "granularity=hunter", "set"),
        ("ONEDNN_MAX_CPU_ISA", "AVX10_1_512_AMX_FP16", "AVX10_1_512_AMX_FP16"),
        ("ONEDNN_MAX_CPU_ISA", "AVX10_2_512_AMX_2", "AVX10_2_512_AMX_2"),
        ("ONEDNN_MAX_CPU_ISA", "AVX10_1_1_AMX_HUNT", "set"),
    ],
)
def test_a_variable_is_reported_by_a_value_that_it_can_have(variable: str, value: str | None, shared: object) -> None:
    assert redacted(variable, value) == shared
    assert is_shareable(key_of(variable), shared)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ARCHITECTURE", "hunter"), ("ARCHITECTURE", "HunterModel"), ("PLUGIN", "bigbank 1"), ("threads", "4")],
)
def test_a_setting_that_is_no_variable_does_not_open_one_of_its_name(variable: str, value: str) -> None:
    assert redacted(variable, value) == "set"


@pytest.mark.parametrize(
    ("key", "value", "is_kept"),
    [
        ("ran_on_cpu", "an operator, aten::svd", True),
        ("ran_on_cpu", "bigbank::merger_hunter", False),
        ("ran_on_cpu", "hunter", False),
        ("architecture", "GPT2LMHeadModel", True),
        ("architecture", "Qwen2_5_VLModel", True),
        ("architecture", "XLNetForQuestionAnsweringSimple", True),
        ("architecture", "MergerHunter", False),
        ("faults not tried", "evaluation mode", True),
        ("faults not tried", "merger hunter", False),
    ],
)
def test_no_setting_takes_any_word(key: str, value: str, is_kept: bool) -> None:
    assert is_shareable(key, value) is is_kept


def test_about_fifteen_variables_that_change_the_speed_are_on_record() -> None:
    assert 15 <= len(VARIABLES) <= 20
    assert len({key_of(name) for name in VARIABLES}) == len(VARIABLES)
    assert not {name for name in VARIABLES if is_shareable(key_of(name), "jane")}


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
