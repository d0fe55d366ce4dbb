"""A case is written in one way, and read back as the very same case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.case import parse_value
from torchmark.errors import UsageError
from torchmark.records import CASE_OPTIONS, Case, parse_case

words = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
values = st.one_of(
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    words.filter(lambda word: not _reads_otherwise(word)),
)
cases = st.builds(
    Case,
    workload=words,
    mode=st.sampled_from(["infer", "train", "in-place"]),
    params=st.dictionaries(words, values, max_size=4),
    device=st.from_regex(r"[a-z]{2,5}(:[0-9])?", fullmatch=True),
    dtype=st.from_regex(r"[a-z]{2,8}[0-9]{0,2}", fullmatch=True),
    compile=st.sampled_from(["off", "on", "max-autotune", "reduce-overhead"]),
    transfer=st.sampled_from(["resident", "per-step", "pinned"]),
    threads=st.none() | st.integers(0, 999_999_999),
    workers=st.integers(0, 999_999_999),
    options=st.dictionaries(
        st.sampled_from(CASE_OPTIONS), st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True), max_size=4
    ),
    protocol=st.sampled_from(["steady", "as-published"]),
)


def _reads_otherwise(word: str) -> bool:
    """A word that a person would take for a number or a switch cannot be a word value."""
    try:
        return not isinstance(parse_value(word), str)
    except UsageError:
        return True


@given(cases)
def test_every_case_survives_being_written(case: Case) -> None:
    again = parse_case(case.text)
    assert again == case
    assert again.text == case.text
    assert {key: type(value) for key, value in again.params.items()} == {
        key: type(value) for key, value in case.params.items()
    }


@given(cases)
def test_a_case_needs_no_quoting_in_a_shell(case: Case) -> None:
    assert not set(case.text) & set(" \t\n'\"\\$`!*?[](){}<>|&;#~^%")


@given(st.text(max_size=60))
def test_any_other_text_is_refused_with_one_kind_of_error(text: str) -> None:
    try:
        case = parse_case(text)
    except UsageError:
        return
    assert parse_case(case.text) == case


@pytest.mark.parametrize(
    "text",
    [
        "mlp",
        "mlp/infer",
        "mlp/infer@cpu",
        "mlp/infer:@cpu/float32",
        "mlp/infer:batch@cpu/float32",
        "mlp/infer:batch=1=2@cpu/float32",
        "mlp/infer:batch=1,batch=2@cpu/float32",
        "mlp/infer:batch=1e999@cpu/float32",
        "mlp/infer:batch=" + "9" * 5000 + "@cpu/float32+threads=x",
        "mlp/infer@cpu/float32+threads",
        "mlp/infer@cpu/float32+threads=1+threads=2",
        "mlp/infer@cpu/float32+threads=" + "9" * 5000,
        "mlp/infer@cpu/float32+compile=",
        "mlp/infer@cpu/float32+per-step=2",
        "mlp/infer@cpu/float32+per-step+pinned",
        "mlp/infer@cpu/float32+layout",
        "mlp/infer@cpu/float32+layout=",
        "mlp/infer@cpu/float32+layout=one+layout=two",
        "mlp/infer@cpu/float32+as-published=1",
        "mlp/infer@cpu/float32+as-published+as-published",
        "mlp/infer@cpu/float32+fast",
        "mlp/infer@cuda:\u0663/float32",
        "mlp/infer@cpu/float32\n",
    ],
)
def test_what_looks_like_a_case_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_case(text)
