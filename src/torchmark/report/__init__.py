"""Reports: builders make a document of a run, study or comparison; `render` writes it in any format."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from torchmark.analyze.efficiency import Prices
from torchmark.analyze.headline import Headline
from torchmark.errors import UnknownName
from torchmark.records import Run
from torchmark.report.document import Document, Field, value_of, without_empty
from torchmark.report.text import clean, clean_values, is_plain, printable

FORMATS = ("table", "md", "csv", "json", "jsonl")  # of every command that prints results
# Where a spreadsheet may begin a formula: at the start of a cell, or after what may end one, such as ; where numbers
# have a decimal comma. Some also accept the wide forms of the signs.
_FORMULA = re.compile(r"""(?:^|[;|\t\r\n])(?=[\s"\0]*[=+\-@＝＋－＠])|^(?=[\t\r\n\0])""")


def render(
    subject: Document | Run,
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
    prices: Prices | None = None,
    headline: Headline | None = None,
) -> str:
    """A document, or a run with costs and headline, in one of FORMATS or as `html`; texts of files are cleaned."""
    from torchmark.report import html, markdown, terminal

    if isinstance(subject, Run):
        from torchmark.report.run import run_document

        subject = run_document(subject, prices, headline)
    records = subject.records
    match format:
        case "table":
            return terminal.draw(without_empty(subject.blocks()), width, color)
        case "md":
            return markdown.write(without_empty(subject.blocks()))
        case "csv" if records.columns:
            return write_csv(records.columns, records.rows())
        case "json" if records.json:
            return write_json(records.json())
        case "jsonl" if records.lines:
            return write_lines(records.lines())
        case "html":
            return html.write(without_empty(subject.blocks()), subject.version)
    raise UnknownName("format", format, FORMATS)


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
