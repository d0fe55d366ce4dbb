"""A small convolutional network learns CIFAR-10 four images at a time, and reads its loss after every step."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from torchmark.workloads.image_training import ImageTraining, Recipe


class Params(Struct, frozen=True):
    batch: Annotated[int, Meta(ge=1, le=50_000)] = 4
    images: Annotated[int, Meta(ge=1, le=50_000)] = 50_000  # in an epoch
    loader_workers: Annotated[int, Meta(ge=0, le=64)] = 2  # processes; 0: none


class CifarCnn(ImageTraining):
    """Two convolutions with pooling and three dense layers; cross entropy, SGD with rate 0.001 and momentum 0.9. Two
    epochs, then one test pass in batches of the same size. The loss is copied to the host in every step, which waits
    for the device there, as in the published script. Without --data the images are synthetic, with as much to learn."""

    name = "cifar-cnn"
    tiny = Params(batch=2, images=10, loader_workers=0)
    recipe = Recipe(rate=0.001, momentum=0.9, epochs=2, tests=1, dataset="cifar10", test_batch=0, reads_loss=True)
    products = (28 * 28 * 6 * 75, 10 * 10 * 16 * 150, 400 * 120, 120 * 84, 84 * 10)
    parameters = 62_006

    def network(self, nn: Any) -> Any:
        first = nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        dense = nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        return nn.Sequential(*first, *second, *dense)
