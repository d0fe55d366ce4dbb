"""Published figures as runs: one for each machine, in seconds per step, with the cautions that belong to them."""

from __future__ import annotations

import msgspec
import pytest

from torchmark.errors import UsageError
from torchmark.publications import as_runs, find_publication, find_published, names
from torchmark.records import Result, Run, Work

RUNS = [run for name in names() for run in as_runs(find_publication(name))]


def result_of(run: str, case: str) -> Result:
    (found,) = find_published(run)
    (result,) = [result for result in found.results if result.case.text.partition("@")[0] == case]
    return result


def test_every_machine_is_a_run_and_every_measured_figure_a_result() -> None:
    assert len(RUNS) == 27
    whole = [run for name in names() for run in as_runs(find_publication(name), repeats=True)]
    assert sum(len(run.results) for run in whole) == 113
    # Six figures of the first table of m1-chips are printed again in its second.
    assert sum(len(run.results) for run in RUNS) == 107
    for run in RUNS:
        texts = [result.case.text for result in run.results]
        assert len(set(texts)) == len(texts) > 0
        assert run.header.cases == tuple(texts)


@pytest.mark.parametrize(
    ("run", "case", "step_s", "rate", "total_s"),
    [
        ("m1-chips/M1 CPU", "mlp/infer:outputs=512", 1.26e-3, 128 / 1.26e-3, 12.6),
        ("m1-chips/M1 Ultra GPU", "venv-ppo/train", 597 / 50, 50 / 597, 597),
        ("apple-silicon-bert/T4", "bert-classify/train:batch=64", 1.2, 64 / 1.2, 120),
        ("intel-vs-m2/M2 Max CPU", "mnist-cnn/train", 124.96 / 8442, 64 * 8442 / 124.96, 124.96),
        ("simple-add/Nvidia 3090 GPU", "tensor-add/infer:variant=as-run", 1 / 670, 670, None),
        ("m1-gpu-for-ml/M1 Pro CPU", "bert-encode/infer:batch=4,sequence=512", 0.752, 4 / 0.752, None),
        ("m1-gpu-for-ml/M1 Pro GPU", "stable-diffusion/infer", 1.18, 1 / 1.18, None),
    ],
)
def test_totals_rates_and_times_become_seconds_per_step(
    run: str, case: str, step_s: float, rate: float, total_s: float | None
) -> None:
    result = result_of(run, case)
    assert result.estimate.center_s == pytest.approx(step_s)
    assert result.work.items / result.estimate.center_s == pytest.approx(rate)
    assert (result.job.seconds if result.job else None) == total_s


def test_bandwidth_follows_where_the_bytes_of_a_step_are_known() -> None:
    result = result_of("simple-add/Nvidia 3090 GPU", "tensor-add/infer:variant=as-run")
    assert result.work == Work(1, "iteration", bytes=2 * 4 * 12288**2)
    assert result.work.bytes / result.estimate.center_s == pytest.approx(809e9, rel=1e-3)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.header.label)
def test_nothing_is_made_up(run: Run) -> None:
    assert run.header.machine.torch is None
    for result in run.results:
        estimate = result.estimate
        if estimate is None:
            assert (result.status, result.cautions, result.job) == ("oom", (), None)
            continue
        assert (estimate.verdict, result.case.protocol) == ("as-published", "as-published")
        assert estimate.low_s == estimate.center_s == estimate.high_s
        assert (estimate.first_step_s, estimate.samples_s, estimate.p99_s) == (0.0, (), 0.0)
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_out_of_memory_is_a_result() -> None:
    (v100,) = find_published("apple-silicon-bert/V100")
    assert [result.status for result in v100.results].count("oom") == 3


def test_only_the_job_of_the_sdk_must_not_be_compared() -> None:
    marked = {
        result.case.workload
        for run in RUNS
        for result in run.results
        if "not-comparable" in {caution.kind for caution in result.cautions}
    }
    assert marked == {"venv-ppo"}
    assert len([result for run in RUNS for result in run.results if result.case.workload == "venv-ppo"]) == 5


def test_a_caution_stands_only_where_it_can_matter() -> None:
    """Nothing is queued on a CPU, so nothing can be missed by not waiting for it; a copy to the host waits itself."""
    for run in RUNS:
        for result in run.results:
            kinds = {caution.kind for caution in result.cautions}
            if result.case.device == "cpu" or result.case.transfer == "per-step":
                assert "no-sync" not in kinds


def test_peak_power_goes_with_the_figures_of_its_device() -> None:
    assert result_of("apple-silicon-bert/M1 Max GPU", "bert-classify/infer").metrics == {"peak_power_w": 41}
    assert result_of("apple-silicon-bert/T4", "bert-classify/infer").metrics == {}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("m1-chips/M1 Ultra GPU", "m1-chips/M1 Ultra GPU"),
        ("m1-chips/m1 ultra gpu", "m1-chips/M1 Ultra GPU"),
        ("m1-chips/rtx 3090", "m1-chips/RTX3090"),
        ("m1-chips/xeon", "m1-chips/Xeon Gold"),
        ("simple-add/server gpu overheat", "simple-add/Server GPU (Overheat)"),
    ],
)
def test_a_machine_is_found_however_it_is_written(text: str, label: str) -> None:
    (run,) = find_published(text)
    assert run.header.label == label


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m1-chips/M1", "4 machines: 'm1-chips/M1 GPU', 'm1-chips/M1 Ultra GPU'"),
        ("m1-chips/", "Valid: M1 CPU, M1 GPU"),
        ("m1-chips/M1 Utra GPU", "Did you mean 'M1 Ultra GPU'"),
        ("simple-ad", "Did you mean 'simple-add'"),
    ],
)
def test_a_machine_that_is_not_there_is_helped(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_published(text)
