"""The suites: what `run` measures when no workload is named. A new workload adds its line where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UnknownName
from torchmark.measure.cases import Sweep, expand
from torchmark.measure.parameters import list_parameters, split_values
from torchmark.records import Case
from torchmark.workloads import find_workload

_SIZES = ("size", "model")  # choices that set how large the work is


class Line(Struct, frozen=True):
    """A sweep, on every device or only where it makes sense."""

    sweep: Sweep
    only: Literal["", "cpu", "accelerators"] = ""


def _line(workload: str, only: Literal["", "cpu", "accelerators"] = "", **axes: object) -> Line:
    """Parameters are the names that are no axis of a sweep; every value is text as typed, with its commas."""
    known = {name: [str(axes.pop(name))] for name in Sweep.__struct_fields__ if name in axes}
    return Line(Sweep([workload], params={name: [str(value)] for name, value in axes.items()}, **known), only)  # type: ignore[arg-type]  # all are lists of text


# In the order of value, as a run may be short of time or stopped early: the case that leads each area, then what has
# published partners at the published sizes, then what people run today.
_QUICK = (
    _line("mlp", modes="infer", outputs=512),
    _line("resnet50", modes="infer"),
    _line("bert-encode", batch=4),
    _line("llm-decode"),
    _line("tensor-add", variant="as-run"),
    _line("mnist-cnn"),
    _line("bert-encode"),
    _line("bert-classify", modes="infer", batch=16),
    _line("llm-prefill"),
    _line("matmul", dtypes="float32,bfloat16"),
    _line("mlp", "accelerators", modes="infer", outputs=512, transfer="per-step"),
    _line("resnet50", "accelerators", modes="infer", transfer="per-step"),
    _line("cifar-cnn"),
    _line("mnist-ddp-sigmoid", "cpu", workers=2),
    _line("mnist-ddp-mlp", "cpu", workers=4),
    _line("bert-classify", modes="train", batch=16),
    _line("stable-diffusion"),
)
_STANDARD = (
    *_QUICK,
    _line("null"),
    _line("launch"),
    _line("mlp", modes="infer,train"),
    _line("mlp", modes="infer", outputs=512, transfer="per-step"),
    _line("tensor-add", variant="resident"),
    _line("bandwidth", kind="update", sizes="all"),
    _line("copy", "accelerators", direction="to-device,to-host", pinned="on,off"),
    _line("bert-classify", modes="train,infer", batch=4),
    _line("venv-ppo"),
    _line("stable-diffusion", size=256, decode="off"),
    _line("mlp", modes="infer,train", dtypes="float32,bfloat16", compile="off,on"),
    _line("tensor-add", variant="as-written"),
    _line("matmul", size="512,4096", dtypes="float32,bfloat16"),
    _line("resnet50", modes="infer,train", dtypes="float32,bfloat16"),
    _line("resnet50", modes="infer", compile="on"),
    _line("bert-encode", batch="1,4", sequence="128,512"),
    _line("bert-encode", batch=4, dtypes="float32,bfloat16", compile="off,on"),
    _line("bert-classify", modes="train,infer", batch="16", dtypes="float32,bfloat16"),
    _line("mnist-ddp-mlp", "cpu", workers="1,2,4"),
    _line("venv-ppo", checks="on,off"),
    _line("lstm", modes="infer,train"),
    _line("llm-prefill", size="125m,350m", dtypes="float32,bfloat16"),
    _line("llm-decode", size="125m,350m", dtypes="float32,bfloat16"),
    _line("vit-train", batch="4,8"),
    _line("dataloader", "cpu"),
    _line("dataloader", "cpu", loader_workers="0,2,4"),
)
_FULL = (
    *_STANDARD,
    _line("mlp", modes="infer,train", batch="1..4096x4", dtypes="float32,bfloat16", compile="off,on"),
    _line("mlp", modes="infer,train", batch="1..4096x4", transfer="per-step"),
    _line("tensor-add", size="768..12288x2", variant="resident,as-run,as-written"),
    _line("matmul", size="256..8192x2", dtypes="float32,bfloat16"),
    _line("matmul", size="256..1024x2", dtypes="float64,float16"),
    _line("resnet50", modes="infer,train", batch="1..128x2", transfer="resident,per-step"),
    _line("bert-classify", modes="train,infer", size="base,large", batch="16,64,256", sequence="128,512"),
    _line("stable-diffusion", dtypes="bfloat16"),
    _line("llm-prefill", size="1b", prompt="128,512", dtypes="float32,bfloat16"),
    _line("llm-decode", size="1b", context="128,1024", dtypes="float32,bfloat16"),
    _line("vit-train", batch="4..32x2", dtypes="float32,bfloat16"),
    _line("mnist-ddp-sigmoid", "cpu", workers="1,2,4"),
    _line("dataloader", "cpu", dataset="mnist,cifar10", batch="4,64,256", loader_workers="0..4"),
)
SUITES: Mapping[str, tuple[Line, ...]] = {"quick": _QUICK, "standard": _STANDARD, "full": _FULL}


def suite(name: str, devices: Sequence[str] = ("cpu",), *, tiny: bool = False) -> tuple[Case, ...]:
    """The cases of a suite, one device after the other. Tiny keeps what sets no size: variants, dtypes, modes."""
    if name not in SUITES:
        raise UnknownName("suite", name, SUITES)
    cases: dict[str, Case] = {}
    for device in split_values(devices):
        for line in SUITES[name]:
            if line.only and (line.only == "cpu") != (device == "cpu"):
                continue
            params = _sizeless(line.sweep) if tiny else line.sweep.params
            found = expand(replace(line.sweep, devices=[device], tiny=tiny, params=params))
            cases.update((case.text, case) for case in found)
    return tuple(cases.values())


def _sizeless(sweep: Sweep) -> dict[str, Sequence[str]]:
    chosen = {
        parameter.name
        for name in sweep.workloads
        for parameter in list_parameters(find_workload(name))
        if parameter.choices and parameter.name not in _SIZES
    }
    return {name: values for name, values in sweep.params.items() if name in chosen}
