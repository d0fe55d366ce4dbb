"""Two workers train a network with one output on MNIST together: ten epochs, gradients shared in every step."""

from typing import Any

from torchmark.workloads.image_training import ImageTraining, Recipe

_LEAST = 1e-12  # the smallest probability whose logarithm is taken


class MnistDdpSigmoid(ImageTraining):
    """784 → 512 → 10 → 1 with ReLU between and a sigmoid at the end; SGD with rate 0.001. The loss is binary cross
    entropy of digits, not probabilities: the network cannot learn them; only its cost and loss are of interest."""

    name = "mnist-ddp-sigmoid"
    default_workers = 2
    recipe = Recipe(rate=0.001, momentum=0.0, epochs=10, tests=0)
    products = (28 * 28 * 512, 512 * 10, 10)
    parameters = 407_061

    def network(self, nn: Any) -> Any:
        hidden = nn.Flatten(), nn.Linear(28 * 28, 512), nn.ReLU(), nn.Linear(512, 10), nn.ReLU()
        return nn.Sequential(*hidden, nn.Linear(10, 1), nn.Sigmoid())

    @staticmethod
    def loss(scores: Any, labels: Any) -> Any:
        """torch's own refuses labels that are no probabilities. Terms nearly cancel: it needs at least float32."""
        probabilities = scores.float() if scores.element_size() < 4 else scores
        target = labels.to(probabilities.dtype).unsqueeze(1)
        yes, no = probabilities.clamp_min(_LEAST).log(), (1 - probabilities).clamp_min(_LEAST).log()
        return -(target * yes + (1 - target) * no).mean()
