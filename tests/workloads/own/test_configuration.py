"""A configuration file of the model library becomes a workload, offline, for its own task or another."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchmark import workloads
from torchmark.errors import UnsupportedError, UsageError
from torchmark.measure.cases import expand, full_params, read_params
from torchmark.measure.check import check_step
from torchmark.studies.fit import size_range
from torchmark.workloads.contract import Setting, Step

BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 16,
    "torch_dtype": "bfloat16",
    "auto_map": {"AutoModel": "stranger--code"},
}
GPT = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 100, "n_positions": 16}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 100,
      "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 32, "patch_size": 16,
       "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}  # fmt: skip


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something wants to go to the net")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], str]:
    def writer(config: object) -> str:
        workloads.forget()
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return str(path)

    return writer


def prepare(name: str, mode: str, **params: Any) -> Step:
    workload = workloads.find_workload(name)
    return workload.prepare(read_params(workload, params, start=workload.tiny), Setting(mode=mode))


@pytest.mark.parametrize(
    ("config", "task", "architecture"),
    [
        (BERT, None, "BertForMaskedLM"),
        (BERT, "sequence-classification", "BertForSequenceClassification"),
        (BERT, "question-answering", "BertForQuestionAnswering"),
        (BERT, "features", "BertModel"),
        (GPT, "causal-lm", "GPT2LMHeadModel"),
        (GPT, "sequence-classification", "GPT2ForSequenceClassification"),
        (T5, "seq2seq-lm", "T5ForConditionalGeneration"),
        (VIT, None, "ViTForImageClassification"),
    ],
)
def test_the_architecture_is_built_with_random_weights_and_runs(
    write: Callable[[object], str], config: dict[str, Any], task: str | None, architecture: str
) -> None:
    name = write(config)
    for mode in ("infer", "train"):
        step = prepare(name, mode, **({"task": task} if task else {}))
        step.run()
        assert step.notes["architecture"] == architecture
        assert step.work.items == 2
        assert (step.work.flops is None) == (architecture == "GPT2ForSequenceClassification")  # it looks for the end
        assert check_step(step, "float32") is not None


def test_the_kind_of_attention_can_be_chosen(write: Callable[[object], str]) -> None:
    for config, ways in ((BERT, ("attention", "gradients")), (VIT, ("layout", "attention", "gradients"))):
        workload = workloads.find_workload(write(config))
        assert tuple(way.name for way in workload.options) == ways
        for kind in ("sdpa", "eager"):
            assert (
                workload.prepare(workload.tiny, Setting(mode="infer", options={"attention": kind})).notes["attention"]
                == kind
            )


def test_what_it_is_for_stands_in_the_case(write: Callable[[object], str]) -> None:
    name = write(BERT)
    (case,) = expand([name], params={"task": ["token-classification"], "sequence": ["12"]})
    assert case.text == "config.json/infer:sequence=12,task=token-classification@cpu/float32"
    with pytest.raises(UsageError, match="no more than 16 positions"):
        expand([name], params={"sequence": ["17"]})
    (usual,) = expand([name])
    assert usual.text == "config.json/infer@cpu/float32"  # as many as it has, and no more are ever tried
    assert (full_params(usual).sequence, size_range(usual, "sequence")) == (16, (1, 16))
    assert workloads.find_workload(write(VIT)).params().image == 32


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json is not JSON"),
        ([], "it has no model_type"),
        ({"_class_name": "UNet2DModel"}, "it has no model_type"),
    ],
)
def test_other_files_are_refused(write: Callable[[object], str], config: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        workloads.find_workload(write(config))
    with pytest.raises(UsageError, match="has no part 'build'"):
        workloads.find_workload(write(BERT) + ":build")


def test_what_cannot_be_built_says_why(write: Callable[[object], str]) -> None:
    with pytest.raises(UnsupportedError, match="does not know this model type: no-such-model"):
        prepare(write({"model_type": "no-such-model"}), "infer")
    with pytest.raises(UnsupportedError, match="has no head for image-classification"):
        prepare(write(BERT), "infer", task="image-classification")
