"""Trains a small classifier on a set of images: the job, its test passes, what it has come to, and its check."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from torchmark.records import Work
from torchmark.workloads.contract import Setting, Stage, Step, Tensors, Workload
from torchmark.workloads.fingerprint import fingerprints
from torchmark.workloads.images import Images
from torchmark.workloads.images.loading import Batches, Normalized, batches
from torchmark.workloads.reference import plain_kernels

if TYPE_CHECKING:
    import torch

_CHECKED_IMAGES = 2
_PASS = 1000  # images that are classified at once where the accuracy is asked for
_LABEL_BYTES = 8
_LONG = ("float32", "float64")
_LAST_LAYER = 2  # its weights and its biases


def cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The usual loss of a classifier."""
    import torch

    return torch.nn.functional.cross_entropy(scores, labels)


class Recipe(Struct, frozen=True):
    """How a network is trained, as published."""

    network: Callable[[], torch.nn.Module]
    mean: float  # what images are normalised with
    deviation: float
    learning_rate: float
    momentum: float
    epochs: int
    tests: int  # passes over the test set in the whole job; 0: whatever it learns, it does not classify
    test_batch: int
    roundings: int  # on the way through the network and back
    reads_loss: bool = False  # in every step, on the host
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy  # of scores and labels


class ImageTraining(Workload):
    """A workload that trains a network on images: its file says which network, which images, and how."""

    modes = ("train",)
    distributed = True
    products: ClassVar[tuple[int, ...]]  # multiplications of each layer for one image
    parameters: ClassVar[int]
    pixels: ClassVar[int]  # numbers in an image

    @abstractmethod
    def recipe(self, params: Any) -> Recipe:
        """The network and its training."""

    @abstractmethod
    def images(self, params: Any, setting: Setting) -> Images:
        """What it is trained on."""

    def work(self, params: Any, setting: Setting) -> Work:
        """Each layer is gone through once forward and twice back, but nobody asks for the gradient of an image. Bytes:
        the batch is read; weights and what momentum keeps of their gradients are read and written. On every rank."""
        bytes_once = (4 * self.parameters + params.batch * self.pixels) * setting.item_bytes
        return setting.of_all_ranks(
            Work(
                items=params.batch,
                unit="image",
                flops=2 * params.batch * (3 * sum(self.products) - self.products[0]),
                bytes=bytes_once + params.batch * _LABEL_BYTES,
            )
        )

    def prepare(self, params: Any, setting: Setting) -> Step:
        recipe, images = self.recipe(params), self.images(params, setting)
        classifier = Classifier(recipe, images, params.batch, params.loader_workers, setting)
        return _job(classifier, self.work(params, setting))


class Classifier:
    """The network on its device, with everything that a step of its training needs."""

    def __init__(self, recipe: Recipe, images: Images, batch: int, loader_workers: int, setting: Setting) -> None:
        import torch

        self.recipe, self.images, self.batch, self.setting = recipe, images, batch, setting
        network = self.make_network()
        made = fingerprints(network)
        self.network = setting.place_model(network)
        self.fingerprints = tuple(zip(fingerprints(self.network), made, strict=True))  # before a step changes them
        self.shared = setting.parallel(self.network)
        self.forward = setting.compiled(self.shared)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
        self.train = self._load(images.train_images, images.train_labels, batch, loader_workers, shuffle=True)
        self.test = self._load(images.test_images, images.test_labels, recipe.test_batch, loader_workers, shuffle=False)
        self.last_loss: torch.Tensor | None = None
        self.running_loss = 0.0

    def _load(self, images: torch.Tensor, labels: torch.Tensor, batch: int, workers: int, *, shuffle: bool) -> Batches:
        data = Normalized(images, labels, self.recipe.mean, self.recipe.deviation)
        return batches(data, batch, self.setting, workers=workers, shuffle=shuffle)

    def make_network(self) -> torch.nn.Module:
        """On the host, rounded to the dtype; the same for the same seed."""
        with self.setting.seeded():
            network = self.recipe.network()
        return network.to(self.setting.torch_dtype)

    def run(self) -> torch.Tensor:
        """One step: the next batch from the loader, forward, backward, move the weights."""
        images, labels = self.train.take()
        loss = self.learn(self.setting.place(images), self.setting.place(labels))
        self.last_loss = loss
        if self.recipe.reads_loss:
            self.running_loss += float(loss)
        return self.setting.drain(loss)

    def learn(self, images: torch.Tensor, labels: torch.Tensor, weight: float | None = None) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.recipe.loss(self.forward(images), labels)
        (loss if weight is None else weight * loss).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def try_batch(self) -> torch.Tensor:
        """One batch of a test pass: loss and right answers, read on the host as published."""
        import torch

        images, labels = (self.setting.place(tensor) for tensor in self.test.take())
        with torch.no_grad():
            scores = self.forward(images)
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
            return torch.stack([loss, (scores.argmax(1) == labels).sum()]).cpu()

    def accuracy(self) -> float:
        """Share of the test set that is classified rightly, by the weights as they are now."""
        import torch

        right = 0
        data = Normalized(self.images.test_images, self.images.test_labels, self.recipe.mean, self.recipe.deviation)
        with torch.no_grad():
            for start in range(0, len(data), _PASS):
                images, labels = data.several(slice(start, start + _PASS))
                right += int((self.network(self.setting.place(images)).argmax(1).cpu() == labels).sum())
        return right / len(data)

    def metrics(self) -> dict[str, float]:
        found = {} if self.last_loss is None else {"loss": float(self.last_loss)}
        if self.recipe.tests:
            found["accuracy"] = self.accuracy()
        return found | {
            "data_is_real": float(self.images.is_real),
            "parameters": float(sum(weight.numel() for weight in self.network.parameters())),
        }

    def few(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One or two images. Repeated up to the whole batch they have the same mean loss and gradients as alone."""
        count = min(_CHECKED_IMAGES if self.batch % _CHECKED_IMAGES == 0 else 1, len(self.images.train_images))
        data = Normalized(self.images.train_images, self.images.train_labels, self.recipe.mean, self.recipe.deviation)
        images, labels = data.several(slice(0, count))
        return images.to(self.setting.torch_dtype), labels

    def learn_once(self) -> Tensors:
        """Loss, gradients and new weights of the timed step, taken from the first weights; later ones are put back."""
        weights = list(self.network.parameters())
        kept = [weight.detach().clone() for weight in weights], dict(self.optimizer.state)
        self.optimizer.state.clear()
        _load_weights(weights, list(self.setting.place_model(self.make_network()).parameters()))
        images, labels = self.few()
        times = self.batch // len(images)
        batch = self.setting.place(images.repeat(times, 1, 1, 1)), self.setting.place(labels.repeat(times))
        loss = self.learn(*batch, weight=self.setting.checked_weight)
        gradients = self._comparable([weight.grad.clone() for weight in weights if weight.grad is not None])
        moved = [weight.detach().clone() for weight in weights]
        _load_weights(weights, kept[0])
        self.optimizer.state.clear()
        self.optimizer.state.update(kept[1])
        return [loss, *gradients, *moved]

    def learn_once_exactly(self) -> Tensors:
        """The same in float64 on the CPU; the first step of an optimiser with momentum is a plain one."""
        import torch

        network = self.make_network().double()
        images, labels = self.few()
        weights = list(network.parameters())
        with plain_kernels():
            loss = self.recipe.loss(network(images.double()), labels)
            gradients = torch.autograd.grad(loss, weights)
        rate = self.recipe.learning_rate
        moved = [weight - rate * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return [loss, *self._comparable(gradients), *moved]

    def _comparable(self, gradients: Tensors) -> Tensors:
        """All of them, or of short numbers the last layer's: where two numbers in a pool or a number and zero are as
        good as equal, rounding decides which way an earlier layer's gradient goes, and both ways are right."""
        return gradients if self.setting.dtype in _LONG else gradients[-_LAST_LAYER:]


def _job(classifier: Classifier, work: Work) -> Step:
    """The whole training, one step of it at a time."""
    recipe, setting = classifier.recipe, classifier.setting
    tests = [Stage("test batch", recipe.tests * classifier.test.per_epoch, classifier.try_batch)] * bool(recipe.tests)
    return Step(
        run=classifier.run,
        work=work,
        outputs=classifier.learn_once,
        reference=classifier.learn_once_exactly,
        copies=lambda: classifier.fingerprints,
        roundings=recipe.roundings,
        job_steps=recipe.epochs * classifier.train.per_epoch,
        stages=(*tests, Stage("load batch", 0, classifier.train.take)),
        epochs=recipe.epochs,
        alone=setting.alone(classifier.shared, classifier.run),
        metrics=classifier.metrics,
        notes={"data": classifier.images.source},
    )


def _load_weights(weights: list[Any], values: Tensors) -> None:
    import torch

    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)
