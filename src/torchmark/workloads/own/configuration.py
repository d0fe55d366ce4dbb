"""A model from a configuration file of the model library, built with random weights: nothing is ever downloaded."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, defstruct

from torchmark.errors import UnsupportedError, UsageError
from torchmark.workloads.contract import ATTENTION, GRADIENTS, LAYOUT, Setting
from torchmark.workloads.model import COUNTING, Model, ModelWorkload
from torchmark.workloads.own.files import OwnFile
from torchmark.workloads.own.shapes import Tensor, make_tensor

Task = Literal[
    "features",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "masked-lm",
    "causal-lm",
    "seq2seq-lm",
    "image-classification",
]
TASKS: tuple[str, ...] = get_args(Task)
_CLASSES = {
    "features": "AutoModel",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
}
# What files call the same, at the end of the name of the model that they were saved from.
_ENDINGS = {
    "LMHeadModel": "causal-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForCausalLM": "causal-lm",
    "ForMaskedLM": "masked-lm",
}
_LEFT_OUT = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")  # no part of the work
_IMAGE = 224
_COUNT = Annotated[int, Meta(ge=1, le=1_048_576)]


class ConfiguredModel(ModelWorkload):
    """Random weights, random inputs, in training random labels, and the model's own loss where it has one."""

    imports = (COUNTING, "transformers")
    rows_are_independent = False  # unknown
    config: dict[str, Any]

    @classmethod
    def summary(cls) -> str:
        return f"{cls.config['model_type']} from a configuration file, with random weights."

    def check(self, params: Any) -> None:
        most = _positions(self.config)
        if hasattr(params, "sequence") and most and params.sequence > most:
            raise UsageError(f"{self.name} has no more than {most} positions", f"Give it: -p sequence={most}")

    def build(self, params: Any, setting: Setting) -> Model:
        model = self._build(params.task, setting.options.get("attention"))
        expected = "pixel_values" if hasattr(params, "image") else "input_ids"
        if model.main_input_name != expected:
            raise UnsupportedError(
                f"a {self.config['model_type']} takes {model.main_input_name}, which nobody here can make up",
                "Write a function that returns the model and an example input: `torchmark new` shows how",
            )
        generator = setting.generator()
        tensors = _tensors(params, model.config, setting.mode == "train")
        inputs = {each.name: make_tensor(each, generator) for each in tensors}
        attention = str(getattr(model.config, "_attn_implementation", None) or "none")
        return Model(model, inputs, notes={"architecture": type(model).__name__, "attention": attention})

    def _build(self, task: str, attention: str | None) -> Any:
        import transformers

        kind = self.config["model_type"]
        if kind not in transformers.CONFIG_MAPPING:
            raise UnsupportedError(
                f"transformers {transformers.__version__} does not know this model type", "Install a later one", kind
            )
        fields = {name: value for name, value in self.config.items() if name not in _LEFT_OUT}
        config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
        if task == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # decoders look for the end of a text by it
        name = _CLASSES.get(task) or "AutoModelFor" + "".join(map(str.title, task.split("-")))
        try:
            chosen = {"attn_implementation": attention} if attention else {}
            return getattr(transformers, name).from_config(config, trust_remote_code=False, **chosen)
        except ValueError as error:
            if "Unrecognized configuration" not in str(error):
                raise
            raise UnsupportedError(f"a {kind} has no head for {task}", "Choose another with --task") from error


def configured_from(file: OwnFile) -> ConfiguredModel:
    """The workload that such a file describes. What it is for is told by the file, or else by --task."""
    config = _read(file)
    images = "image_size" in config or "num_channels" in config
    pixels = config.get("image_size")
    size: tuple[str, Any, Any] = ("sequence", _COUNT, min(128, _positions(config) or 128))
    if images:
        size = ("image", _COUNT, pixels if isinstance(pixels, int) else _IMAGE)
    params = defstruct("Params", [("task", Task, _usual_task(config)), ("batch", _COUNT, 8), size], frozen=True)
    tiny = params(batch=2) if images else params(batch=2, sequence=8)
    about = {
        "__doc__": ConfiguredModel.__doc__,
        "name": file.name,
        "params": params,
        "tiny": tiny,
        "version": file.version,
        "config": config,
        "options": (*((LAYOUT,) if images else ()), ATTENTION, GRADIENTS),
    }
    made: ConfiguredModel = type("OwnConfiguration", (ConfiguredModel,), about)()
    return made


def _read(file: OwnFile) -> dict[str, Any]:
    try:
        config = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.name} is not JSON: {error}", "Name a config.json of a model") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{file.name} describes no model: it has no model_type", "Name a config.json of transformers")
    return config


def _positions(config: dict[str, Any]) -> int | None:
    """How long a text may be at most, where the model says so."""
    found = config.get("max_position_embeddings") or config.get("n_positions")
    return found if isinstance(found, int) and found > 0 else None


def _usual_task(config: dict[str, Any]) -> str:
    saved = config.get("architectures")
    name = saved[0] if isinstance(saved, list) and saved and isinstance(saved[0], str) else ""
    found = [task for ending, task in _ENDINGS.items() if name.endswith(ending)]
    words = re.sub(r"(?<!^)(?=[A-Z])", "-", name.rpartition("For")[2]).lower()
    return next(iter(found), words if words in TASKS else "features")


def _tensors(params: Any, config: Any, training: bool) -> list[Tensor]:
    """What goes into the model, and in training what is to come out."""
    rows: tuple[int, ...] = (params.batch,)
    if hasattr(params, "image"):
        pixels = (*rows, getattr(config, "num_channels", 3), params.image, params.image)
        given = [Tensor("float", pixels, name="pixel_values")]
        labelled = training and params.task == "image-classification"
        return [*given, *([Tensor("int64", rows, config.num_labels, "labels")] if labelled else [])]
    words = (*rows, params.sequence)
    given = [Tensor("int64", words, config.vocab_size, "input_ids")]
    labels = {
        "sequence-classification": [("labels", rows, config.num_labels)],
        "token-classification": [("labels", words, config.num_labels)],
        "question-answering": [(name, rows, params.sequence) for name in ("start_positions", "end_positions")],
        **{task: [("labels", words, config.vocab_size)] for task in ("masked-lm", "causal-lm", "seq2seq-lm")},
    }.get(params.task, [])
    if getattr(config, "is_encoder_decoder", False) and not (training and params.task == "seq2seq-lm"):
        given.append(Tensor("int64", words, config.vocab_size, "decoder_input_ids"))
    return given + [Tensor("int64", shape, limit, name) for name, shape, limit in labels if training]
