"""`torchmark compare` from the command line: what it prints, what its exit code says, and what it never imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run_torchmark

from torchmark import cli
from torchmark.records import Run
from torchmark.store import RunWriter
from torchmark.store.lines import Started

MLP, MATMUL, LSTM = (f"{name}/infer@cpu/float32" for name in ("mlp", "matmul", "lstm"))


@pytest.fixture
def store(tmp_path: Path, make_result, make_estimate, make_header) -> Callable[..., str]:
    """Keeps a run of the given step times, in three processes each; a word instead of a time is how a case failed."""

    def keep(name: str, times: dict[str, float | str]) -> str:
        results = []
        for text, center in times.items():
            result = make_result(text, status=center, estimate=None)
            if isinstance(center, float):
                processes = tuple(make_estimate(center * (1 + step / 300)) for step in (-1, 0, 1))
                result = make_result(text, center, processes=processes, work=None)
            results.append(result)
        return _write(
            tmp_path / f"{name}.jsonl", Run(make_header(tuple(times), id=f"{name}01", label=name), tuple(results))
        )

    return keep


def _write(path: Path, run: Run) -> str:
    with RunWriter.create(path, run.header) as writer:
        for result in run.results:
            writer.write(Started(result.case.text, 0))
            writer.finished(result)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["compare", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_two_runs_are_compared(capsys, store) -> None:
    a, b = store("before", {MLP: 2e-3, MATMUL: 0.1}), store("after", {MLP: 1e-3, MATMUL: 0.1})
    code, out, err = answer(capsys, a, b)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line}
    assert (rows["mlp/infer"], rows["matmul/infer"]) == ("faster", "same")


@pytest.mark.parametrize(
    ("after", "code", "words"),
    [
        ({MLP: 2e-3, MATMUL: 0.1}, 0, "PASS: nothing is slower by more than 5.0%; differences under"),
        ({MLP: 2.06e-3, MATMUL: 0.1}, 0, "PASS"),
        ({MLP: 2.4e-3, MATMUL: 0.1}, 1, "FAIL: slower by more than 5.0%: mlp/infer@cpu/float32 (0.833×)"),
        ({MLP: 2e-3, MATMUL: "oom"}, 1, "failed or missing now: matmul/infer@cpu/float32 (oom in B)"),
        ({MLP: 2e-3}, 1, "failed or missing now: matmul/infer@cpu/float32 (not in B)"),
        ({MLP: 2e-3, MATMUL: 0.1, LSTM: 1.0}, 0, "PASS"),
        ({MLP: "crashed", MATMUL: "skipped"}, 1, "(crashed in B), matmul/infer@cpu/float32 (skipped in B)"),
        ({LSTM: 1.0}, 3, "nothing could be compared"),
    ],
)
def test_the_check_for_ci(capsys, store, after, code: int, words: str) -> None:
    a, b = store("before", {MLP: 2e-3, MATMUL: 0.1}), store("after", after)
    got, out, err = answer(capsys, a, b, "--fail-if-slower", "5%")
    assert got == code
    assert out
    assert words in err
    assert code == 3 or ("would not be visible" in err) == (MLP in after and isinstance(after[MLP], float))


def test_a_gate_that_cannot_see_does_not_pass(capsys, store) -> None:
    a, b = store("before", {MLP: 2e-3}), store("after", {MLP: 2e-3})
    code, _, err = answer(capsys, a, b, "--fail-if-slower", "0.5%")
    assert code == 5
    assert f"INCONCLUSIVE: a slowdown of 0.5% would not be visible in {MLP}; differences under" in err
    limit = re.search(r"--fail-if-slower (\d+%) can be decided by this data", err)[1]
    assert answer(capsys, a, b, "--fail-if-slower", "0.5%", "--allow-inconclusive")[0] == 0
    assert answer(capsys, a, b, "--fail-if-slower", limit)[0] == 0
    slow = store("slow", {MLP: 4e-3})
    assert answer(capsys, a, slow, "--fail-if-slower", "0.5%", "--allow-inconclusive")[0] == 1


def test_a_published_baseline_is_too_rough_for_a_tight_gate(capsys, store) -> None:
    mine = store("mine", {"tensor-add/infer:variant=as-run@cpu/float32": 1 / 50})
    code, _, err = answer(capsys, "simple-add/Apple M1 CPU", mine, "--fail-if-slower", "5%")
    assert code == 5
    assert "INCONCLUSIVE" in err


def test_nothing_to_compare_is_exit_3_without_the_check_too(capsys, store) -> None:
    a, b = store("before", {MLP: 2e-3}), store("after", {LSTM: 1.0})
    code, out, err = answer(capsys, a, b)
    assert code == 3
    assert "Nothing could be compared." in out
    assert err == "torchmark: nothing could be compared: no case has a partner\n"
    assert answer(capsys, a, store("failed", {MLP: "oom"}))[0] == 3


def test_a_third_run_makes_a_matrix(capsys, store) -> None:
    runs = [store(name, {MLP: center, MATMUL: 0.1}) for name, center in (("a", 2e-3), ("b", 1e-3), ("c", 4e-3))]
    code, out, _ = answer(capsys, *runs)
    assert code == 0
    assert "2.00× ▲" in out
    assert "0.500× ▼" in out
    assert "1.000× =" in out
    assert answer(capsys, *runs, "--fail-if-slower", "10%")[0] == 1


def test_by_compares_inside_one_run(capsys, store) -> None:
    run = store("mine", {MLP: 2e-3, MLP.replace("cpu", "mps"): 1e-3, MLP + "+per-step": 2.2e-3})
    code, out, _ = answer(capsys, run, "--by", "device")
    assert code == 0
    assert "how many times as fast mps is as cpu" in out
    assert answer(capsys, run, "--by", "transfer", "--fail-if-slower", "5%")[0] == 1
    assert answer(capsys, run, "--by", "device", "--fail-if-slower", "5%")[0] == 0
    assert answer(capsys, run, "--by", "dtype")[0] == 3


def test_another_dtype_only_by_dtype(capsys, store) -> None:
    a, b = store("full", {MLP: 2e-3}), store("half", {MLP.replace("float32", "bfloat16"): 1e-3})
    code, out, _ = answer(capsys, a, b)
    assert code == 3
    assert "(--by dtype compares them)" in " ".join(out.split())
    code, out, _ = answer(capsys, a, b, "--by", "dtype")
    assert code == 0
    assert "Every pair · dtype float32 → bfloat16" in out


def test_published_machines_can_be_compared(capsys, store) -> None:
    mine = store("mine", {"resnet50/infer@cpu/float32": 2.0, "venv-ppo/train@cpu/float32": 1.0})
    code, out, _ = answer(capsys, mine, "m1-chips/M1 Ultra CPU")
    assert code == 0
    assert re.search(r"resnet50/infer .* 0\.48× \[\w+\] .* slower", out)
    assert "unsure" not in out
    assert "the convolutions of that torch build" in " ".join(out.split())
    assert "not comparable" in out
    code, out, _ = answer(capsys, "m1-chips", "--by", "device", "--format", "json")
    speeds = {pair["case"]: 1 / pair["ratio"] for each in json.loads(out)["comparisons"] for pair in each["pairs"]}
    assert speeds["venv-ppo/train@cpu/float32+as-published"] == pytest.approx(54 / 597)
    assert answer(capsys, "simple-add")[0] == 0


def test_published_machines_are_found_by_their_names(capsys, store) -> None:
    add, resnet = "tensor-add/infer:variant=as-run@cpu/float32", "resnet50/infer@cpu/float32"
    mine = store("mine", {resnet: 2.0, add: 0.04, "mnist-cnn/train@cpu/float32": 0.01})
    code, out, _ = answer(capsys, mine, "3090")
    assert code == 0
    assert "RTX 3090 (m1-chips, simple-add)" in out
    assert re.search(r"resnet50/infer .* 3\d× \[\w+\]", out)
    assert re.search(r"2\d× \[\w+\]", out)  # tensor-add, from the other publication
    code, out, _ = answer(capsys, mine, "m1 cpu", "v100")
    assert code == 0
    assert "M1 CPU (m1-chips, simple-add)" in out
    code, out, err = answer(capsys, mine, "M1")
    assert (code, out) == (2, "")
    assert "could be 8 published machines: 'M1 Max CPU'" in err
    code, out, _ = answer(capsys, mine, "M2 Max")
    assert code == 3
    assert "image loading is not the published work yet" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument 'RUN...'"),
        (["{a}"], "is one run, and there is nothing to compare it with. Name another one"),
        (["{a}", "--by", "bacth"], "unknown thing to compare by 'bacth'"),
        (["{a}", "{a}", "--fail-if-slower", "5"], "'5' is not a share between 0 and 1"),
        (["{a}", "nothing"], "unknown run 'nothing'"),
    ],
)
def test_a_mistake_is_one_line_that_helps(capsys, store, arguments: list[str], words: str) -> None:
    path = store("a", {MLP: 2e-3})
    code, out, err = answer(capsys, *(each.format(a=path) for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_it_is_quick_because_it_imports_little(store) -> None:
    a, b = store("before", {MLP: 2e-3, MLP.replace("cpu", "mps"): 1e-3}), store("after", {MLP: 1e-3})
    program = "import sys; from torchmark.cli import main; code = main(['compare', *sys.argv[1:]]); print(); "
    program += "print(*sys.modules); sys.exit(code)"
    for arguments in ((a, b), (a, b, b), (a, "--by", "device"), ("m1-chips", "--format", "json")):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        loaded = set(done.stdout.splitlines()[-1].split())
        assert "torchmark.analyze.comparison" in loaded
        assert not loaded & {"torch", "numpy", "scipy", "jinja2", "altair"}


def test_a_slower_device_is_found_from_end_to_end() -> None:
    """Two real runs of the fake device, the second with steps that take a tenth longer."""
    for name, step in (("before", "0.01"), ("after", "0.011")):
        command = ["run", "null/infer@fake/float32", "--budget", "60s", "--label", name]
        script = {"TORCHMARK_FAKE": f"stream=iid2,step={step}"}
        assert run_torchmark(*command, environment=script).returncode == 0
    done = run_torchmark("compare", "before", "after", "--fail-if-slower", "5%", "--format", "json")
    assert done.returncode == 1, done.stderr
    ((pair,),) = (each["pairs"] for each in json.loads(done.stdout)["comparisons"])
    assert pair["low"] < 1.1 < pair["high"]
    assert pair["verdict"] == "slower"
    assert "slower by more than 5.0%: null/infer@fake/float32" in done.stderr
