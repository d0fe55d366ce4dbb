"""The trainings on images are the published ones: they learn what is there to learn, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy
import pytest

from torchmark.errors import CaseError, WrongResultError
from torchmark.measure.check import check_step
from torchmark.workloads import find_workload
from torchmark.workloads.contract import Setting, Step
from torchmark.workloads.images import load_images

TRAININGS = ["mnist-cnn", "cifar-cnn"]
NAMES = [*TRAININGS, "dataloader"]


def prepare(name: str, setting: Setting | None = None, **params: object) -> Step:
    workload = find_workload(name)
    return workload.prepare(workload.params(**params), setting or Setting(mode=workload.modes[0]))


def prepare_tiny(name: str, setting: Setting | None = None, **params: object) -> Step:
    workload = find_workload(name)
    return workload.prepare(
        msgspec.structs.replace(workload.tiny, **params), setting or Setting(mode=workload.modes[0])
    )


def accuracy_after(step: Step, steps: int) -> float:
    for _ in range(steps):
        step.run()
    assert step.metrics is not None
    return step.metrics()["accuracy"]


def steps_to(step: Step, goal: float, most: int, at_once: int) -> tuple[int, float]:
    """Trains until the test accuracy is reached: no longer than it takes."""
    accuracy = 0.0
    for done in range(at_once, most + 1, at_once):
        accuracy = accuracy_after(step, at_once)
        if accuracy >= goal:
            return done, accuracy
    return most, accuracy


@pytest.mark.parametrize(("name", "parameters"), [("mnist-cnn", 21_840), ("cifar-cnn", 62_006)])
def test_the_networks_are_the_published_ones(name: str, parameters: int) -> None:
    step = prepare_tiny(name)
    assert step.metrics is not None
    assert step.metrics()["parameters"] == parameters


@pytest.mark.parametrize(
    ("name", "steps", "stages"),
    [
        ("mnist-cnn", 9 * 938, {"test batch": 9 * 10, "load batch": 0}),
        ("cifar-cnn", 2 * 12_500, {"test batch": 2500, "load batch": 0}),
        ("dataloader", 782, {}),
    ],
)
def test_the_jobs_are_the_published_ones(name: str, steps: int, stages: dict[str, int]) -> None:
    step = prepare(name, loader_workers=0)
    assert step.job_steps == steps
    assert {stage.name: stage.steps for stage in step.stages} == stages
    assert step.notes == {"data": "stand-in"}


@pytest.mark.parametrize("name", TRAININGS)
def test_every_stage_runs_beyond_the_end_of_an_epoch_and_hurts_nothing(name: str) -> None:
    with_stages, without = prepare_tiny(name, images=12), prepare_tiny(name, images=12)
    tests = next(stage for stage in with_stages.stages if stage.name == "test batch")
    for _ in range(8):
        tests.run()
        seen, expected = with_stages.run(), without.run()
        assert bool((seen == expected).all())  # type: ignore[attr-defined]
    for stage in with_stages.stages:
        for _ in range(8):
            stage.run()


@pytest.mark.parametrize("name", TRAININGS)
def test_how_many_processes_load_changes_nothing_about_what_is_learned(name: str) -> None:
    losses = [
        [float(step.run()) for _ in range(14)]  # type: ignore[arg-type]
        for step in (prepare_tiny(name, images=12, loader_workers=workers) for workers in (0, 2))
    ]
    assert losses[0] == losses[1]


def test_each_epoch_shows_every_image_once_in_another_order() -> None:
    from torchmark.workloads.image_training import Batches, Normalized

    feed = Batches(Normalized(load_images("mnist", count=12)), 5, Setting(mode="train"))
    epochs = [[feed.take()[0] for _ in range(feed.per_epoch)] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [5, 5, 2]
    first, second = ([image.numpy().tobytes() for batch in epoch for image in batch] for epoch in epochs)
    assert first != second
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 12


def test_ranks_share_an_epoch_out_among_them() -> None:
    from torchmark.workloads.image_training import Batches, Normalized

    data = Normalized(load_images("mnist", count=12))
    feeds = [Batches(data, 3, Setting(mode="train", rank=rank, world_size=2)) for rank in range(2)]
    for _ in range(2):
        parts = [[image.numpy().tobytes() for _ in range(2) for image in feed.take()[0]] for feed in feeds]
        assert len(set(parts[0] + parts[1])) == 12


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("which", [0, 3, -1])
def test_a_weight_that_is_one_percent_off_is_caught(name: str, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Setting.place_model

    def place_badly(self: Setting, model: object) -> object:
        placed = place(self, model)  # type: ignore[arg-type]
        list(placed.parameters())[which].data.flatten()[0] *= 1.01
        return placed

    monkeypatch.setattr(Setting, "place_model", place_badly)
    step = prepare_tiny(name)
    step.run()
    with pytest.raises(WrongResultError):
        check_step(step, "float32")


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_are_one_percent_off_are_caught(name: str) -> None:
    step = prepare_tiny(name)
    outputs = step.outputs
    assert outputs is not None
    off = msgspec.structs.replace(step, outputs=lambda: [output * 1.01 for output in outputs()])
    with pytest.raises(WrongResultError):
        check_step(off, "float32")


@pytest.mark.parametrize("name", NAMES)
def test_data_that_is_asked_for_and_not_there_is_never_made_up(name: str, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="no file"):
        prepare_tiny(name, Setting(mode=find_workload(name).modes[0], data=str(tmp_path)))


@pytest.mark.parametrize("end", ["del step", "raise RuntimeError", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_loading_processes_end_with_their_parent(end: str) -> None:
    program = (
        "import os, signal, sys, psutil; from torchmark.workloads import find_workload\n"
        "from torchmark.workloads.contract import Setting\n"
        "found = find_workload('dataloader')\n"
        "step = found.prepare(found.params(images=64, batch=2, loader_workers=2), Setting(mode='infer'))\n"
        "step.run()\n"
        "print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program + end], capture_output=True, text=True, check=False)
    children = [int(child) for child in done.stdout.split()]
    assert len(children) >= 2, done.stderr
    assert _all_end(children, within_s=60)


def _all_end(processes: list[int], within_s: float) -> bool:
    import psutil

    end = time.monotonic() + within_s
    while time.monotonic() < end:
        alive = [each for each in processes if psutil.pid_exists(each) and _runs(psutil.Process, each)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def _runs(find: Callable[[int], object], process: int) -> bool:
    import psutil

    try:
        return find(process).status() != psutil.STATUS_ZOMBIE  # type: ignore[attr-defined,no-any-return]
    except psutil.NoSuchProcess:
        return False


@pytest.mark.thorough
def test_mnist_is_learned_within_the_published_epochs() -> None:
    step = prepare("mnist-cnn")
    steps, accuracy = steps_to(step, 0.97, most=step.job_steps, at_once=300)
    assert accuracy >= 0.97
    assert steps <= step.job_steps


@pytest.mark.thorough
def test_cifar10_is_learned_within_the_published_epochs() -> None:
    step = prepare("cifar-cnn", loader_workers=0)
    steps, accuracy = steps_to(step, 0.60, most=step.job_steps, at_once=500)
    assert accuracy >= 0.60
    assert steps <= step.job_steps


@pytest.mark.thorough
def test_from_shuffled_labels_nothing_is_learned_of_mnist(tmp_path: Path) -> None:
    made = load_images("mnist", count=60_000)
    shuffled = numpy.random.RandomState(0).permutation(made.train_labels.numpy())
    for part, images, labels in (
        ("train", made.train_images, shuffled),
        ("t10k", made.test_images, made.test_labels.numpy()),
    ):
        count = len(images).to_bytes(4, "big")
        header = b"\0\0\x08\3" + count + b"\0\0\0\x1c" * 2
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        written = labels.astype(numpy.uint8).tobytes()
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1" + count + written)
    step = prepare("mnist-cnn", Setting(mode="train", data=str(tmp_path)))
    assert step.notes == {"data": "files"}
    assert step.metrics is not None
    assert step.metrics()["data_is_real"] == 1
    assert accuracy_after(step, 600) <= 0.15


@pytest.mark.thorough
def test_from_shuffled_labels_nothing_is_learned_of_cifar10(tmp_path: Path) -> None:
    made = load_images("cifar10")
    shuffled = numpy.random.RandomState(0).permutation(made.train_labels.numpy())
    for part in range(5):
        rows = slice(part * 10_000, (part + 1) * 10_000)
        _write_records(tmp_path / f"data_batch_{part + 1}.bin", made.train_images[rows].numpy(), shuffled[rows])
    _write_records(tmp_path / "test_batch.bin", made.test_images.numpy(), made.test_labels.numpy())
    step = prepare("cifar-cnn", Setting(mode="train", data=str(tmp_path)), loader_workers=0)
    assert accuracy_after(step, 2000) <= 0.15


def _write_records(path: Path, images: numpy.ndarray, labels: numpy.ndarray) -> None:
    bytes_of = numpy.concatenate([labels.astype(numpy.uint8)[:, None], images.reshape(len(images), -1)], axis=1)
    path.write_bytes(bytes_of.tobytes())


@pytest.mark.parametrize("name", ["mnist-cnn", pytest.param("cifar-cnn", marks=pytest.mark.thorough)])
def test_two_ranks_learn_the_same_weights_and_each_checks_itself(name: str, tmp_path: Path) -> None:
    program = (
        "import sys, torch, torch.distributed as d; rank = int(sys.argv[1]); torch.set_num_threads(1)\n"
        "d.init_process_group('gloo', store=d.FileStore(sys.argv[2], 2), rank=rank, world_size=2)\n"
        "from torchmark.workloads import find_workload; from torchmark.workloads.contract import Setting\n"
        "from torchmark.measure.check import check_step\n"
        "place, networks = Setting.place_model, []\n"
        "Setting.place_model = lambda self, network: networks.append(place(self, network)) or networks[-1]\n"
        f"found = find_workload({name!r}); setting = Setting(mode='train', rank=rank, world_size=2)\n"
        "step = found.prepare(found.params(batch=2, images=12, loader_workers=0), setting)\n"
        "step.run()\n"
        "check_step(step, 'float32')\n"
        "step.run(); step.alone is not None or sys.exit(9)\n"
        "step.run()\n"
        "weights = torch.nn.utils.parameters_to_vector(networks[0].parameters())\n"
        "print(step.metrics()['accuracy'], float(weights.double().sum()))\n"
        "d.destroy_process_group()\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.kill(rank.pid, signal.SIGKILL)
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0] == said[1] != b""
