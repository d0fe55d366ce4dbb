"""Names of cases in rows: what the heading says of all of them is not said again, and nothing is lost by that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmark.records import Result, Run, RunHeader, parse_case
from torchmark.report.names import names_of, title


def results(*texts: str) -> list[Result]:
    return [Result(parse_case(text), "ok") for text in texts]


@pytest.mark.parametrize(
    ("texts", "heading", "names"),
    [
        (["mlp/infer:batch=8@cpu/float32"], ("on cpu/float32", ""), ["mlp/infer:batch=8"]),
        (
            ["mlp/infer:batch=8,width=64@cpu/float32", "mlp/train:batch=16,width=64@cpu/float32+compile"],
            ("on cpu/float32", "All with width=64"),
            ["mlp/infer:batch=8", "mlp/train:batch=16+compile"],
        ),
        (
            ["mlp/infer:batch=8@cpu/float32", "lstm/infer:batch=8@cpu/float32"],
            ("on cpu/float32", ""),
            ["mlp/infer:batch=8", "lstm/infer:batch=8"],
        ),
        (
            ["mlp/infer:batch=8@cpu/float32", "mlp/infer:batch=8@cpu/bfloat16"],
            ("", "All with batch=8"),
            ["mlp/infer@cpu/float32", "mlp/infer@cpu/bfloat16"],
        ),
        (
            ["mlp/infer@cpu/float32", "mlp/infer:batch=8@cpu/float32", "mlp/infer@cpu/bfloat16"],
            ("on cpu/float32 unless said otherwise", ""),
            ["mlp/infer", "mlp/infer:batch=8", "mlp/infer@cpu/bfloat16"],
        ),
        (
            ["mlp/infer@cpu/float32+threads=1+as-published"],
            ("on cpu/float32 as published", ""),
            ["mlp/infer+threads=1"],
        ),
    ],
)
def test_what_all_have_in_common_stands_in_the_heading(
    make_header: Callable[..., RunHeader], texts: list[str], heading: tuple[str, str], names: list[str]
) -> None:
    given_results = results(*texts)
    shown = names_of(given_results)
    where = title(Run(make_header(), tuple(given_results))).partition(" UTC · ")[2]
    assert (where, shown.note) == heading
    assert [shown.of(result) for result in given_results] == names


cases = st.builds(
    "{}/{}{}@{}/{}{}".format,
    st.sampled_from(["mlp", "lstm"]),
    st.sampled_from(["infer", "train"]),
    st.sampled_from(
        ["", ":batch=8", ":batch=16", ":batch=8,width=64", ":width=64", ":width=1", ":width=on", ":width=1.0"]
    ),
    st.sampled_from(["cpu", "cuda:0"]),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from(["", "+compile", "+threads=2", "+as-published", "+threads=2+as-published"]),
)


@given(st.lists(cases, unique=True, min_size=1, max_size=8))
def test_no_two_cases_of_a_table_have_the_same_name(texts: list[str]) -> None:
    given_results = results(*texts)
    shown = names_of(given_results)
    assert len({shown.of(result) for result in given_results}) == len(texts)
