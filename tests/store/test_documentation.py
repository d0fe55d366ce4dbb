"""The example in the documentation of the run file is a run file, and means what the text next to it says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from torchmark.records import SCHEMA_VERSION
from torchmark.store import load
from torchmark.store.lines import Line
from torchmark.store.reader import Account, examine

DOCUMENT = Path(__file__).parents[2] / "docs" / "run-file.md"


def test_the_example_is_read_as_described(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (example,) = re.findall(r"```jsonl\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "example.jsonl"
    path.write_text(example)
    run = load(path)
    assert f'"schema":{SCHEMA_VERSION}' in example
    assert [result.status for result in run.results] == ["ok", "interrupted"]
    assert run.results[0].estimate.center_s == 0.00252
    assert run.process_spread == 0.041
    accounts = [part for _, part in examine(path) if isinstance(part, Account)]
    assert [account.result.case.text for account in accounts] == ["mlp/infer@cpu/float32"] * 2
    assert [set(account.samples) for account in accounts] == [{0}, {1}]


def test_every_kind_of_line_is_described() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    tags = {member.__struct_config__.tag for member in Line.__args__}
    assert {kind for kind in tags if f"| `{kind}` |" in text} == tags
    fields = {field.name for member in Line.__args__ for field in msgspec.structs.fields(member)}
    assert {field for field in fields if f"`{field}`" in text} == fields
