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
FEW = 2  # integers stay below this without a given limit: any table has two rows
MOST_ELEMENTS = 2**40
_LARGEST = {"int64": 2**63 - 1, "int32": 2**31 - 1, "int16": 2**15 - 1, "int8": 2**7 - 1, "uint8": 2**8 - 1, "bool": 2}

_TYPED = re.compile(
    r"(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=)?\s*(?P<dtype>[a-z0-9]+)\s*\[(?P<shape>[\d\s,]*)\]"
    r"\s*(?:<\s*(?P<limit>\d{1,19}))?"
)


class Tensor(Struct, frozen=True):
    """One input: its kind of numbers, its shape, below what they stay, and the argument that takes it."""

    dtype: str  # `float` is whatever the case computes in
    shape: tuple[int, ...]
    limit: int | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """As a case writes it: nothing in it needs quoting in any shell."""
        shape = "x".join(map(str, self.shape)) or "x"
        return ".".join(str(part) for part in (self.name, self.dtype, shape, self.limit) if part is not None)


def read_tensor(typed: str) -> Tensor:
    """What a person types: `float32[8,3,224,224]`, `input_ids=int64[8,128]<30522`."""
    found = _TYPED.fullmatch(typed.strip())
    if not found:
        raise UsageError(f"'{typed}' is not an input", HELP)
    sizes = [size.strip() for size in found["shape"].split(",")] if found["shape"].strip() else []
    if not all(size.isdigit() for size in sizes):
        raise UsageError(f"'{typed}' has a size that is no number", HELP)
    dtype = "float" if found["dtype"] == "float32" else found["dtype"]
    limit = int(found["limit"]) if found["limit"] else None
    return _checked(Tensor(dtype, tuple(map(int, sizes)), limit, found["name"]), typed)


def parse_tensors(text: str) -> tuple[Tensor, ...]:
    """Read what `write_tensors` writes."""
    return tuple(_parse(part) for part in text.split("..")) if text else ()


def write_tensors(tensors: Sequence[Tensor]) -> str:
    """All inputs of a model in one word."""
    return "..".join(tensor.text for tensor in tensors)


def split_batch(tensors: Sequence[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
    """The size that all inputs begin with, and the inputs without it; 0 where they do not begin alike."""
    first = {tensor.shape[:1] for tensor in tensors}
    if len(first) != 1 or first == {()}:
        return 0, tuple(tensors)
    ((batch,),) = first
    return batch, tuple(replace(tensor, shape=tensor.shape[1:]) for tensor in tensors)


def join_batch(batch: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inputs with so many rows each; as they are where there is no batch."""
    return tuple(replace(tensor, shape=(batch, *tensor.shape)) if batch else tensor for tensor in tensors)


def make_tensor(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers on the host: normal ones, or whole ones below the limit."""
    import torch

    if tensor.dtype == "float":
        return torch.randn(tensor.shape, generator=generator)
    values = torch.randint(0, tensor.limit or FEW, tensor.shape, generator=generator)
    return values.to(getattr(torch, tensor.dtype))


def _parse(text: str) -> Tensor:
    parts = text.split(".")
    name = parts.pop(0) if parts[0] not in DTYPES else None
    if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"'{text}' is not an input", "Give it with --input: " + HELP)
    sizes = [] if parts[1:2] == ["x"] else "".join(parts[1:2]).split("x")
    limits = parts[2:]
    if not 2 <= len(parts) <= 3 or not all(re.fullmatch(r"\d{1,19}", number) for number in (*sizes, *limits)):
        raise UsageError(f"'{text}' is not an input", "Give it with --input: " + HELP)
    return _checked(Tensor(parts[0], tuple(map(int, sizes)), int(limits[0]) if limits else None, name), text)


def _checked(tensor: Tensor, text: str) -> Tensor:
    if tensor.dtype in ("float64", "bfloat16", "float16"):
        raise UsageError(f"'{text}': inputs take the dtype of the case", f"Write float32[…] and --dtype {tensor.dtype}")
    if tensor.dtype not in DTYPES or tensor.name in DTYPES:
        raise UsageError(f"'{text}' is of no kind that is known", f"Valid: float32, {', '.join(DTYPES[1:])}")
    if 0 in tensor.shape or math.prod(tensor.shape) > MOST_ELEMENTS:
        raise UsageError(f"'{text}' has no size that a tensor can have", HELP)
    if tensor.limit is not None and not 1 <= tensor.limit <= _LARGEST.get(tensor.dtype, 0):
        raise UsageError(f"'{text}' cannot stay below {tensor.limit}", "Whole numbers can, from 1 on")
    return tensor
