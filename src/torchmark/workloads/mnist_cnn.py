"""A small convolutional network learns MNIST: nine epochs with a test after each, through a real data loader."""

from typing import Any

from torchmark.workloads.image_training import ImageTraining, Recipe


class MnistCnn(ImageTraining):
    """Two convolutions with pooling and two dense layers; cross entropy, SGD with rate 0.01 and momentum 0.5. The
    loader normalises one image at a time. Without --data the images are synthetic, with as much to learn."""

    name = "mnist-cnn"
    recipe = Recipe(rate=0.01, momentum=0.5, epochs=9, tests=9)
    products = (24 * 24 * 10 * 25, 8 * 8 * 20 * 250, 320 * 50, 50 * 10)
    parameters = 21_840

    def network(self, nn: Any) -> Any:
        first = nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()
        second = nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()
        dense = nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10), nn.LogSoftmax(1)
        return nn.Sequential(*first, *second, *dense)
