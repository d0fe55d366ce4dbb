"""The settings that won as lines of Python to paste into a script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchmark.analyze.configurations import USUAL, differing, setting
from torchmark.records import Case

_VARIABLES = {"isa": "ONEDNN_MAX_CPU_ISA", "bind": "OMP_PROC_BIND", "wait": "OMP_WAIT_POLICY"}

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)


def snippet(default: Case, winner: Case) -> str:
    """A piece of a script that has a `model`; `ready` is for each of its inputs. Empty where nothing has to change.

    Its lines are short enough for any terminal: one that is folded is not Python any more. And a case may come from a
    stranger's file: what is no plain word makes no code.
    """
    changes = {name: str(setting(winner, name)) for name in differing(default, winner)}
    if not all(_PLAIN.fullmatch(text) for pair in changes.items() for text in pair):
        return ""
    lines = [*_before_torch(changes), "import torch", "", *_process(changes), *_model(changes, winner)]
    return "\n".join([*lines, *_inputs(changes), *_use(default, winner)]).rstrip() + "\n" if changes else ""


def _before_torch(changes: dict[str, str]) -> Iterator[str]:
    variables = {variable: changes[name] for name, variable in _VARIABLES.items() if changes.get(name, USUAL) != USUAL}
    variables = {variable: value.upper().replace("-", "_") for variable, value in variables.items()}
    if "OMP_PROC_BIND" in variables:
        variables["OMP_PLACES"] = "cores"
    if variables:
        yield "import os"
        yield ""
        yield "# Before torch is imported for the first time."
        yield from (f'os.environ["{name}"] = "{value}"' for name, value in variables.items())


def _process(changes: dict[str, str]) -> Iterator[str]:
    if "threads" in changes:
        yield f"torch.set_num_threads({changes['threads']})"
    if "matmul" in changes:
        how = "highest" if changes["matmul"] == USUAL else changes["matmul"]
        yield f'torch.set_float32_matmul_precision("{how}")'
        yield f"torch.backends.cudnn.allow_tf32 = {how != 'highest'}"


def _model(changes: dict[str, str], winner: Case) -> Iterator[str]:
    if "attention" in changes:
        how = "sdpa" if changes["attention"] == USUAL else changes["attention"]
        yield f'# Build the model with attn_implementation="{how}".'
    if "dtype" in changes:
        if winner.mode == "train":
            yield "# Weights and their updates are in short numbers too: watch the loss."
        yield f"model = model.to(torch.{winner.dtype})"
    if "layout" in changes:
        yield f"model = model.to(memory_format=torch.{_layout(changes)})"
    if "compile" in changes and winner.compile != "off":
        mode = "" if winner.compile == "on" else f', mode="{winner.compile}"'
        yield f"model = torch.compile(model{mode})"
    for name in sorted(winner.params):
        if name in changes:
            yield f"# {name} = {changes[name]}"


def _layout(changes: dict[str, str]) -> str:
    return "contiguous_format" if changes["layout"] == USUAL else changes["layout"].replace("-", "_")


def _inputs(changes: dict[str, str]) -> Iterator[str]:
    steps = []
    if "dtype" in changes:
        steps.append("    if tensor.is_floating_point():")
        steps.append(f"        tensor = tensor.to(torch.{changes['dtype']})")
    if "layout" in changes:
        steps.append("    if tensor.ndim == 4:")
        steps.append(f"        tensor = tensor.contiguous(memory_format=torch.{_layout(changes)})")
    if "transfer" in changes:
        steps.append("    # Pin it once, in the loader.")
        steps.append("    tensor = tensor.pin_memory().to(DEVICE, non_blocking=True)")
    if steps:
        yield from ("", "", "def ready(tensor):", '    """Call it on every input."""', *steps, "    return tensor")


def _use(default: Case, winner: Case) -> Iterator[str]:
    before, after = setting(default, "gradients"), setting(winner, "gradients")
    if winner.mode != "train" and before != after:
        # What is usual differs between workloads, but there are only two ways.
        how = "inference_mode" if after == "inference-mode" or before == "no-grad" else "no_grad"
        yield from ("", "", f"# Around every call of the model: with torch.{how}():")
