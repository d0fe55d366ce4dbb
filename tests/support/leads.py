"""The lead cases of all areas on a small machine: seconds per step, and the work of a step."""

from __future__ import annotations

from torchmark.records import Work

LEADS = {
    "resnet50/infer@cpu/float32": (2.1, Work(32, "image")),
    "bert-encode/infer:batch=4@cpu/float32": (0.43, Work(4, "sample")),
    "llm-decode/infer@cpu/float32": (0.031, Work(1, "token")),
    "tensor-add/infer:variant=as-run@cpu/float32": (0.0215, Work(1, "iteration")),
    "mlp/infer:outputs=512@cpu/float32": (1.9e-3, Work(128, "sample")),
    "mnist-cnn/train@cpu/float32": (6e-3, Work(64, "image")),
}
