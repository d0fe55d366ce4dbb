"""The inputs of a model in words: how a person types them, how a case writes them, and the tensors that they mean."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import UsageError

if TYPE_CHECKING:
    import torch

HELP = "Write float32[8,3,224,224], int64[8,128]<30522 or input_ids=int64[8,128]<30522"
DTYPES = ("float", "int64", "int32", "int16", "int8", "uint8", "bool")
_LARGEST = {"int64": 2**63 - 1, "int32": 2**31 - 1, "int16": 2**15 - 1, "int8": 2**7 - 1, "uint8": 2**8 - 1, "bool": 2}
_TYPED = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=)?\s*(?P<dtype>[a-z0-9]+)\s*\[(?P<shape>[\d\s,]*)\]"
    r"\s*(?:<\s*(?P<limit>\d{1,19}))?\s*"
)
_WRITTEN = re.compile(
    rf"(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\.)?(?P<dtype>{'|'.join(DTYPES)})"
    r"\.(?P<shape>x|\d{1,19}(?:x\d{1,19})*)(?:\.(?P<limit>\d{1,19}))?"
)


class Tensor(Struct, frozen=True):
    """One input: its kind of numbers, its shape, below what they stay, and the argument that takes it."""

    dtype: str  # `float` is the dtype of the case
    shape: tuple[int, ...]
    limit: int | None = None
    name: str | None = None


def read_tensor(typed: str) -> Tensor:
    """What a person types: `float32[8,3,224,224]`, `input_ids=int64[8,128]<30522`."""
    return _read(typed, _TYPED, ",", HELP)


def parse_tensors(text: str) -> tuple[Tensor, ...]:
    """Read what `write_tensors` writes."""
    return tuple(_read(each, _WRITTEN, "x", "Give it with --input: " + HELP) for each in text.split("..") if text)


def write_tensors(tensors: Sequence[Tensor]) -> str:
    """All inputs of a model in one word, as a case writes it: nothing in it needs quoting in any shell."""
    parts = [(each.name, each.dtype, "x".join(map(str, each.shape)) or "x", each.limit) for each in tensors]
    return "..".join(".".join(str(part) for part in each if part is not None) for each in parts)


def split_batch(tensors: Sequence[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
    """The size that all inputs begin with, and the inputs without it; 0 where they do not begin alike."""
    first = {tensor.shape[:1] for tensor in tensors}
    if len(first) != 1 or first == {()}:
        return 0, tuple(tensors)
    return tensors[0].shape[0], tuple(replace(tensor, shape=tensor.shape[1:]) for tensor in tensors)


def join_batch(batch: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inputs with so many rows each; as they are where there is no batch."""
    return tuple(replace(tensor, shape=(batch, *tensor.shape)) if batch else tensor for tensor in tensors)


def make_tensor(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers on the host: normal ones, or whole ones below the limit, by default 2: any table has two rows."""
    import torch

    if tensor.dtype == "float":
        return torch.randn(tensor.shape, generator=generator)
    return torch.randint(0, tensor.limit or 2, tensor.shape, generator=generator).to(getattr(torch, tensor.dtype))


def _read(text: str, form: re.Pattern[str], separator: str, fix: str) -> Tensor:
    found = form.fullmatch(text)
    if not found:
        raise UsageError(f"'{text}' is not an input", fix)
    sizes = [] if found["shape"].strip() in ("", "x") else found["shape"].split(separator)
    if not all(size.strip().isdigit() for size in sizes):
        raise UsageError(f"'{text}' has a size that is no number", HELP)
    dtype, limit = found["dtype"], int(found["limit"]) if found["limit"] else None
    tensor = Tensor("float" if dtype == "float32" else dtype, tuple(map(int, sizes)), limit, found["name"])
    if dtype in ("float64", "bfloat16", "float16"):
        raise UsageError(f"'{text}': inputs take the dtype of the case", f"Write float32[…] and --dtype {dtype}")
    if tensor.dtype not in DTYPES or tensor.name in DTYPES:
        raise UsageError(f"'{text}' is of no kind that is known", f"Valid: float32, {', '.join(DTYPES[1:])}")
    if 0 in tensor.shape or math.prod(tensor.shape) > 2**40:
        raise UsageError(f"'{text}' has no size that a tensor can have", HELP)
    if tensor.limit is not None and not 1 <= tensor.limit <= _LARGEST.get(tensor.dtype, 0):
        raise UsageError(f"'{text}' cannot stay below {tensor.limit}", "Whole numbers can, from 1 on")
    return tensor
