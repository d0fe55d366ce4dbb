"""The suites: what `run` measures when no workload is named. A new workload adds its line where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.case import AXES
from torchmark.devices import ACCELERATOR
from torchmark.errors import UnknownName
from torchmark.measure.cases import Sweep, expand, list_parameters
from torchmark.records import Case
from torchmark.workloads import find_workload

Only = Literal["", "cpu", "accelerators"]


class Part(Struct, frozen=True):
    cases: tuple[Case, ...]
    only: Only = ""


def _line(workload: str, only: Only = "", **settings: object) -> tuple[Only, Sweep]:
    """A sweep on all or some devices. Names that are no axis are parameters; values are as typed, with commas."""
    typed = {name: [str(value)] for name, value in settings.items()}
    axes = {axis.name: typed.pop(axis.name) for axis in AXES if axis.name in typed}
    return only, Sweep([workload], {"device": [ACCELERATOR], **axes}, typed)


# In the order of value, as a run may be short of time or stopped early: one case for each area, then those with
# published partners at the published sizes, then what people run today.
_QUICK = (
    _line("mlp", mode="infer", outputs=512),
    _line("resnet50", mode="infer"),
    _line("bert-encode", batch=4),
    _line("llm-decode"),
    _line("tensor-add", variant="as-run"),
    _line("mnist-cnn"),
    _line("bert-encode"),
    _line("bert-classify", mode="infer", batch=16),
    _line("llm-prefill"),
    _line("matmul", dtype="float32,bfloat16"),
    _line("mlp", "accelerators", mode="infer", outputs=512, transfer="per-step"),
    _line("resnet50", "accelerators", mode="infer", transfer="per-step"),
    _line("cifar-cnn"),
    _line("mnist-ddp-sigmoid", "cpu", workers=2),
    _line("mnist-ddp-mlp", "cpu", workers=4),
    _line("bert-classify", mode="train", batch=16),
    _line("stable-diffusion"),
)
_STANDARD = (
    *_QUICK,
    _line("null"),
    _line("launch"),
    _line("mlp", mode="infer,train"),
    _line("mlp", mode="infer", outputs=512, transfer="per-step"),
    _line("tensor-add", variant="resident"),
    _line("bandwidth", kind="update", sizes="all"),
    _line("copy", "accelerators", direction="to-device,to-host", pinned="on,off"),
    _line("bert-classify", mode="train,infer", batch=4),
    _line("venv-ppo"),
    _line("stable-diffusion", size=256, decode="off"),
    _line("mlp", mode="infer,train", dtype="float32,bfloat16", compile="off,on"),
    _line("tensor-add", variant="as-written"),
    _line("matmul", size="512,4096", dtype="float32,bfloat16"),
    _line("resnet50", mode="infer,train", dtype="float32,bfloat16"),
    _line("resnet50", mode="infer", compile="on"),
    _line("bert-encode", batch="1,4", sequence="128,512"),
    _line("bert-encode", batch=4, dtype="float32,bfloat16", compile="off,on"),
    _line("bert-classify", mode="train,infer", batch="16", dtype="float32,bfloat16"),
    _line("mnist-ddp-mlp", "cpu", workers="1,2,4"),
    _line("venv-ppo", checks="on,off"),
    _line("lstm", mode="infer,train"),
    _line("llm-prefill", size="125m,350m", dtype="float32,bfloat16"),
    _line("llm-decode", size="125m,350m", dtype="float32,bfloat16"),
    _line("vit-train", batch="4,8"),
    _line("dataloader", "cpu"),
    _line("dataloader", "cpu", loader_workers="0,2,4"),
)
_FULL = (
    *_STANDARD,
    _line("mlp", mode="infer,train", batch="1..4096x4", dtype="float32,bfloat16", compile="off,on"),
    _line("mlp", mode="infer,train", batch="1..4096x4", transfer="per-step"),
    _line("tensor-add", size="768..12288x2", variant="resident,as-run,as-written"),
    _line("matmul", size="256..8192x2", dtype="float32,bfloat16"),
    _line("matmul", size="256..1024x2", dtype="float64,float16"),
    _line("resnet50", mode="infer,train", batch="1..128x2", transfer="resident,per-step"),
    _line("bert-classify", mode="train,infer", size="base,large", batch="16,64,256", sequence="128,512"),
    _line("stable-diffusion", dtype="bfloat16"),
    _line("llm-prefill", size="1b", prompt="128,512", dtype="float32,bfloat16"),
    _line("llm-decode", size="1b", context="128,1024", dtype="float32,bfloat16"),
    _line("vit-train", batch="4..32x2", dtype="float32,bfloat16"),
    _line("mnist-ddp-sigmoid", "cpu", workers="1,2,4"),
    _line("dataloader", "cpu", dataset="mnist,cifar10", batch="4,64,256", loader_workers="0..4"),
)
SUITES: Mapping[str, tuple[tuple[Only, Sweep], ...]] = {"quick": _QUICK, "standard": _STANDARD, "full": _FULL}


def expand_suite(name: str, tiny: bool = False) -> tuple[Part, ...]:
    """The cases of each line. Tiny keeps the choices that set no size: variants, dtypes, modes."""
    if name not in SUITES:
        raise UnknownName("suite", name, SUITES)

    def shrunk(sweep: Sweep) -> Sweep:
        declared = [parameter for name in sweep.workloads for parameter in list_parameters(find_workload(name))]
        chosen = {each.name for each in declared if each.choices} - {"size", "model"}
        return replace(sweep, tiny=True, params={name: sweep.params[name] for name in sweep.params if name in chosen})

    return tuple(Part(expand(shrunk(sweep) if tiny else sweep), only) for only, sweep in SUITES[name])


def place(parts: Sequence[Part], devices: Iterable[str]) -> tuple[Case, ...]:
    """All cases on these devices, one device after the other; a case that names its device stays there."""
    cases: dict[str, Case] = {}
    for device in devices:
        for part in parts:
            if part.only and (part.only == "cpu") != (device == "cpu"):
                continue
            placed = (replace(case, device=device) if case.device == ACCELERATOR else case for case in part.cases)
            cases.update((case.text, case) for case in placed)
    return tuple(cases.values())
