"""Published procedures are replayed in processes of their own; every row ends with a figure or a reason."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import psutil
import pytest
from msgspec.structs import replace

from torchmark.analyze.check import check_result, check_samples
from torchmark.measure import session
from torchmark.measure.messages import Message, Phase
from torchmark.measure.session import Finished, Started
from torchmark.publications import Figure, Publication, PublishedMachine, PublishedTable, find_publication
from torchmark.records import DeviceInfo, Machine, Result
from torchmark.report import render
from torchmark.report.publications import replication_document
from torchmark.studies.replicate import ReplicateOptions, Replication, plan_tasks, published_tables
from torchmark.studies.study import Listen

TINY = {
    "m1-chips": [
        "mlp/infer:batch=2@cpu/float32+as-published",
        "resnet50/infer:batch=2,image=32@cpu/float32+as-published",
        "venv-ppo/train:batch=8,horizon=5,policy_batch=4,width=16@cpu/float32+as-published",
    ],
    "apple-silicon-bert": [
        "bert-classify/train:batch=2,sequence=8,size=tiny@cpu/float32+as-published",
        "bert-classify/infer:batch=2,sequence=8,size=tiny@cpu/float32+as-published",
    ],
    "m1-gpu-for-ml": [
        "bert-encode/infer:batch=2,sequence=8,size=tiny@cpu/float32+as-published",
        "bert-encode/infer:sequence=8,size=tiny@cpu/float32+as-published",
        "stable-diffusion/infer:model=tiny,size=64,steps=4@cpu/float32+as-published",
    ],
    "simple-add": ["tensor-add/infer:size=64,variant=as-run@cpu/float32+as-published"],
    "intel-vs-m2": [
        "mnist-cnn/train:batch=2,images=24@cpu/float32+as-published",
        "mnist-ddp-mlp/train:batch=2,images=24@cpu/float32+workers=2+as-published",
    ],
}
STEPS = 12
GIB = 2**30


def tiny(name: str, *cases: str, steps: int = STEPS) -> Publication:
    """A publication of that name whose work takes no time."""
    unit = "it/s" if name == "simple-add" else "s"
    figures = tuple(Figure("there", (case,), "time", "1.0", unit, 1.0, case=case, steps=steps) for case in cases)
    table = PublishedTable("Results", ("work",), "as it was", figures)
    there = PublishedMachine("there", "a machine", "cpu")
    return Publication(name, "A test", "nowhere", "Tiny.", (there,), (table,), {})


def machine(memory_bytes: int = 8 * GIB) -> Machine:
    return Machine("cpu", 1, 1, 8, "Linux", "3", devices=(DeviceInfo("cpu", "cpu", memory_bytes),))


def replicate(request: ReplicateOptions, listen: Listen = lambda *_: None) -> dict[str, Result]:
    found = {}
    study = Replication(request, machine())
    study.listen = listen
    for event in study.events():
        if isinstance(event, Finished):
            found[event.result.case.text] = event.result
    return found


# The command replays the first of them; the others are slow.
MARKS = dict.fromkeys(("m1-chips", "intel-vs-m2", "m1-gpu-for-ml"), pytest.mark.thorough)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in TINY])
def test_each_publication_is_replayed_by_its_own_procedure(name: str) -> None:
    request = ReplicateOptions((tiny(name, *TINY[name]),), ("cpu",), scale=0.5, budget_s=300.0)
    results = replicate(request)
    assert set(results) == {task.case.text for task in plan_tasks(request)} >= set(TINY[name])
    for result in results.values():
        assert result.status == "ok", result.reason
        assert result.case.protocol == "as-published"
        estimate = result.estimate
        assert estimate is not None
        assert (estimate.verdict, estimate.low_s, estimate.high_s) == (
            "as-published",
            estimate.center_s,
            estimate.center_s,
        )
        if result.job:
            assert result.job.seconds == pytest.approx(sum(stage.steps * stage.center_s for stage in result.job.stages))
            assert estimate.center_s == pytest.approx(result.job.seconds / STEPS)
        assert [*check_result(result, True), *check_samples(result, {0: estimate.samples_s}, True)] == []
        slower = tuple(seconds * 1.001 for seconds in estimate.samples_s)
        assert [*check_samples(result, {0: slower}, True)]


def test_at_full_scale_every_step_is_run_and_nothing_extrapolated() -> None:
    (text,) = TINY["m1-chips"][:1]
    result = replicate(ReplicateOptions((tiny("m1-chips", text),), ("cpu",), budget_s=120.0))[text]
    assert result.job is not None
    assert result.job.whole
    assert [(stage.name, stage.steps) for stage in result.job.stages] == [
        ("model to the device", 1),
        ("first step", 1),
        ("later step", STEPS - 1),
    ]
    assert result.estimate is not None
    assert len(result.estimate.samples_s) == STEPS


def test_the_compiler_is_seen_to_fold_the_listing() -> None:
    publication = tiny("simple-add", *TINY["simple-add"])
    results = replicate(ReplicateOptions((publication,), ("cpu",), scale=0.01, budget_s=120.0))
    assert {result.params["variant"] for result in results.values()} == {"as-run", "as-written", "resident"}
    readings = published_tables(publication, list(results.values()), ["cpu"]).sheets[-1]
    assert [row.labels for row in readings.rows] == [("as-run",), ("as-written",), ("resident",)]
    folded, ratio = readings.notes
    assert "the very same memory" in folded
    assert ratio.startswith("as-written / as-run = ")


def test_the_right_way_next_to_it_and_what_the_difference_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PREHEAT_S", 0.05)
    (text,) = TINY["m1-chips"][:1]
    publication = tiny("m1-chips", text)
    results = replicate(ReplicateOptions((publication,), ("cpu",), scale=0.5, budget_s=25.0, steady=True))
    assert set(results) == {text, text.removesuffix("+as-published")}
    (bias,) = published_tables(publication, list(results.values()), ["cpu"]).biases
    assert bias.share == pytest.approx(sum(bias.causes.values()) + bias.rest)
    assert "cost of autograd graph" in results[text].metrics
    assert "seconds of warm-up" in results[text].metrics


def test_what_cannot_fit_into_memory_is_not_tried_and_its_cell_says_so(full_run) -> None:
    text = "bert-classify/train:batch=256,sequence=512@cpu/float32+as-published"
    publication = tiny("apple-silicon-bert", text)
    (result,) = replicate(ReplicateOptions((publication,), ("cpu",), budget_s=60.0)).values()
    assert result.status == "skipped"
    assert "GiB where there are 8" in (result.reason or "")
    shown = render(replication_document(full_run, [published_tables(publication, [result], ["cpu"])]), width=120)
    assert "needs about" in shown
    assert "--budget" not in shown


def test_cases_of_one_process_are_kept_one_by_one() -> None:
    request = ReplicateOptions((tiny("m1-gpu-for-ml", *TINY["m1-gpu-for-ml"][:2]),), ("cpu",), scale=0.5, budget_s=60.0)
    kept: list[Result] = []
    known_at_build: list[int] = []

    def listen(message: Message, *_: str) -> None:
        if isinstance(message, Phase) and message.name == "build":
            known_at_build.append(len(kept))

    study = Replication(request, machine())
    study.listen = listen
    for event in study.events():
        kept += [event.result] if isinstance(event, Finished) else []
    assert known_at_build == [0, 1]
    assert [result.status for result in kept] == ["ok", "ok"]


def test_a_replay_that_was_stopped_in_the_middle_says_so(workers) -> None:
    (text,) = TINY["m1-chips"][:1]
    publication = tiny("m1-chips", text, steps=2_000)  # seconds: it may be stopped late

    def hold(*held: psutil.Process) -> None:
        """Again and again: no message says when the first step begins. The last worker may still be ending."""
        while held:
            for worker in held:
                with suppress(psutil.NoSuchProcess):
                    worker.suspend()
                    worker.resume()
            held = tuple(filter(psutil.Process.is_running, held))
            time.sleep(0.005)

    def begin(message: Message, *_: str) -> None:
        if isinstance(message, Phase) and message.name == "build":
            threading.Thread(target=hold, args=workers(), daemon=True).start()

    (result,) = replicate(ReplicateOptions((publication,), ("cpu",), budget_s=3600.0), begin).values()
    assert result.status == "ok", result.reason
    assert result.estimate is not None
    assert result.estimate.flags == ("paused",)
    assert "paused" in [caution.kind for caution in result.cautions]
    sheet = published_tables(publication, [result], ["cpu"]).sheets[0]
    assert "stopped in the middle" in sheet.rows[0].own[0].disturbed


def test_rows_without_time_say_how_long_they_would_take() -> None:
    """The first is too long by itself, the second by what the first has shown."""
    cases = [f"mlp/infer:batch={batch}@cpu/float32+as-published" for batch in (4096, 65536)]
    figures = tuple(
        replace(figure, steps=1_000_000) for table in tiny("m1-chips", *cases).tables for figure in table.figures
    )
    publication = tiny("m1-chips", *cases)
    publication = replace(publication, tables=(replace(publication.tables[0], figures=figures),))
    results = replicate(ReplicateOptions((publication,), ("cpu",), budget_s=20.0))
    assert [result.status for result in results.values()] == ["skipped", "skipped"]
    assert all("would take" in (result.reason or "") for result in results.values())
    assert all("--budget" in (result.reason or "") for result in results.values())


def test_a_process_that_is_killed_is_one_result_and_the_others_go_on(workers) -> None:
    killed: list[psutil.Process] = []

    def kill_one(message: Message, *_: str) -> None:
        if isinstance(message, Phase) and not killed:  # on a busy machine the first may have ended by itself
            killed.extend(workers())
            for child in killed:
                os.kill(child.pid, signal.SIGKILL)

    cases = TINY["m1-chips"][:2]
    results = replicate(ReplicateOptions((tiny("m1-chips", *cases),), ("cpu",), scale=0.5, budget_s=120.0), kill_one)
    assert sorted(result.status for result in results.values()) == ["crashed", "ok"]
    assert any("SIGKILL" in (result.reason or "") for result in results.values())


def test_a_whole_program_that_is_killed_leaves_nothing_behind(workers) -> None:
    killed, scripts = threading.Event(), list[psutil.Process]()

    def kill_the_worker() -> None:
        end = time.monotonic() + 60
        while not killed.is_set() and time.monotonic() < end:
            for worker in workers():
                with suppress(psutil.Error):  # it may be gone by now
                    if found := [child for child in worker.children(recursive=True) if is_our_script(child)]:
                        scripts.extend(found)
                        worker.kill()
                        killed.set()
            time.sleep(0.05)

    thread = threading.Thread(target=kill_the_worker)
    thread.start()
    (result,) = replicate(
        ReplicateOptions((tiny("intel-vs-m2", TINY["intel-vs-m2"][1]),), ("cpu",), budget_s=120.0)
    ).values()
    thread.join()
    assert killed.is_set()
    assert result.status == "crashed"
    _, alive = psutil.wait_procs(scripts, timeout=10)
    assert not [each for each in alive if is_our_script(each)]


def is_our_script(process: psutil.Process) -> bool:
    try:
        return "training_script" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_every_shipped_case_has_a_procedure_and_cheap_ones_come_first() -> None:
    names = ("m1-chips", "apple-silicon-bert", "intel-vs-m2", "simple-add", "m1-gpu-for-ml")
    request = ReplicateOptions(tuple(find_publication(name) for name in names), ("cuda:0", "cpu"), scale=0.01)
    replays = plan_tasks(request)
    texts = [each.case.text for each in replays]
    assert len(set(texts)) == len(texts)
    assert {each.publication for each in replays} == set(names)
    assert not any("+per-step" in text and "@cpu" in text for text in texts)
    assert not any(each.case.device != "cpu" for each in replays if each.publication == "intel-vs-m2")


def test_events_report_the_start_before_the_end_of_every_case() -> None:
    request = ReplicateOptions((tiny("m1-gpu-for-ml", *TINY["m1-gpu-for-ml"][:2]),), ("cpu",), scale=0.5, budget_s=60.0)
    events = list(Replication(request, machine()).events())
    order = [(type(event), getattr(event, "case", None) or event.result.case) for event in events]  # type: ignore[union-attr]
    first, second = (case for kind, case in order if kind is Started)
    assert order == [(Started, first), (Finished, first), (Started, second), (Finished, second)]
