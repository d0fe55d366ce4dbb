"""With this folder on PYTHONPATH, the built-in work of `limits` and `replicate` fails with private data."""

from leaking import leak

from torchmark.measure.replay import SimpleAdd
from torchmark.workloads import bandwidth, matmul, mnist_cnn

SimpleAdd.play = lambda *_: leak("replicate")
mnist_cnn.MnistCnn.images = lambda *_: leak("script of replicate")
matmul.Matmul.prepare = lambda *_: leak("limits", ValueError)
bandwidth.Bandwidth.prepare = lambda *_: leak("limits, out of memory", MemoryError)
