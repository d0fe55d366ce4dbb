"""Four workers learn MNIST together with two dense layers: ten epochs, gradients shared in every step."""

from typing import Any

from torchmark.workloads.image_training import ImageTraining, Recipe


class MnistDdpMlp(ImageTraining):
    """784 → 256 → 10 with ReLU between; cross entropy, SGD with rate 0.01 and momentum 0.5. Each worker has a part of
    the images, and passes over the whole test set after every epoch. With more workers an epoch has fewer steps."""

    name = "mnist-ddp-mlp"
    default_workers = 4
    recipe = Recipe(rate=0.01, momentum=0.5, epochs=10, tests=10)
    products = (28 * 28 * 256, 256 * 10)
    parameters = 203_530

    def network(self, nn: Any) -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 256), nn.ReLU(), nn.Linear(256, 10))
