"""What a person types for `--input` is read as meant, written into cases without loss, and refused in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.errors import UsageError
from torchmark.records import Case, parse_case
from torchmark.workloads.own.models import (
    DTYPES,
    Tensor,
    join_batch,
    parse_tensors,
    read_tensor,
    split_batch,
    write_tensors,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name not in DTYPES)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    limit = None if dtype == "float" else draw(st.none() | st.integers(1, {"bool": 2, "int8": 127}.get(dtype, 255)))
    shape = tuple(draw(st.lists(st.integers(1, 300), max_size=4)))
    return Tensor(dtype, shape, limit, draw(st.none() | NAMES))


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_a_case_carries_every_input_and_gives_it_back(several: list[Tensor]) -> None:
    text = write_tensors(several)
    case = Case("my_model.py:Net", "train", {"input": text})
    assert parse_case(case.text) == case
    assert parse_tensors(text) == tuple(several)


@given(tensors())
def test_what_is_typed_is_what_is_meant(tensor: Tensor) -> None:
    name = f"{tensor.name}=" if tensor.name else ""
    limit = f"<{tensor.limit}" if tensor.limit is not None else ""
    dtype = "float32" if tensor.dtype == "float" else tensor.dtype
    sizes = ", ".join(map(str, tensor.shape))
    assert read_tensor(f" {name}{dtype}[{sizes}] {limit}") == tensor


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_the_batch_comes_off_and_goes_on_again(several: list[Tensor]) -> None:
    batch, rest = split_batch(several)
    assert join_batch(batch, rest) == tuple(several)
    assert bool(batch) == (
        len({tensor.shape[:1] or None for tensor in several} - {None}) == 1 and all(t.shape for t in several)
    )


@given(st.text(max_size=30) | st.from_regex(r"[a-z0-9]{1,8}\[[0-9, x-]{0,9}\](<[0-9]{0,21})?", fullmatch=True))
def test_anything_else_is_refused_with_a_fix(typed: str) -> None:
    for read in (read_tensor, parse_tensors):
        refusals = list[UsageError]()
        try:
            read(typed)
        except UsageError as error:
            refusals.append(error)
        assert all(refusal.fix for refusal in refusals)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("float32", "is not an input"),
        ("float32[8,,3]", "a size that is no number"),
        ("float32[0,3]", "no size that a tensor can have"),
        ("float32[8,3]<5", "cannot stay below 5"),
        ("int8[8]<300", "cannot stay below 300"),
        ("int64[8]<0", "cannot stay below 0"),
        ("complex64[8]", "of no kind that is known"),
        ("bfloat16[8]", "Write float32[…] and --dtype bfloat16"),
        ("float32[1099511627777]", "no size that a tensor can have"),
    ],
)
def test_mistakes_are_distinguished(typed: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_tensor(typed)
    assert words in str(caught.value)


def test_numbers_are_as_many_and_as_large_as_asked_for() -> None:
    import torch

    from torchmark.workloads.own.models import make_tensor

    ids = make_tensor(Tensor("int64", (50, 40), 7), torch.Generator().manual_seed(0))
    assert ids.shape == (50, 40)
    assert set(ids.flatten().tolist()) == set(range(7))
    assert set(make_tensor(Tensor("bool", (50,)), torch.Generator()).tolist()) == {False, True}
    assert make_tensor(Tensor("float", ()), torch.Generator()).dtype == torch.float32
