"""Records for programs: CSV that no spreadsheet takes for formulas, JSON that moves no terminal."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from torchmark.report.document import Field, value_of
from torchmark.report.text import clean, clean_values, is_plain, printable

# Where a spreadsheet would begin a formula: at the start of a cell, or after what it may take for the end of one, such
# as ; where numbers have a decimal comma. Some also accept the wide forms of the signs.
_FORMULA = re.compile(r"""(?:^|[;|\t\r\n])(?=[\s"\0]*[=+\-@＝＋－＠])|^(?=[\t\r\n\0])""")


def write_csv(columns: Mapping[str, Field], records: Iterable[Any]) -> str:
    """A row for each record; texts that would start a formula are quoted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)

    def written(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return _FORMULA.sub(r"\g<0>'", clean(value)) if isinstance(value, str) else value

    for record in records:
        writer.writerow([written(value_of(record, field)) for field in columns.values()])
    return text.getvalue()


def write_json(value: Any) -> str:
    return msgspec.json.format(write_lines([value]), indent=2) + "\n"


def write_lines(values: Iterable[Any]) -> str:
    cleaned = (each if is_plain(each) else clean_values(msgspec.to_builtins(each), printable) for each in values)
    return "".join(msgspec.json.encode(each).decode() + "\n" for each in cleaned)
