"""Reports: builders turn a run, a study or a comparison into a document, and `render` writes it in any format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchmark.errors import UnknownName

if TYPE_CHECKING:
    from torchmark.analyze.efficiency import Prices
    from torchmark.analyze.headline import Headline
    from torchmark.records import Run
    from torchmark.report.document import Document

FORMATS = ("table", "md", "csv", "json", "jsonl")  # of every command that prints results


def render(
    subject: Document | Run,
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
    prices: Prices | None = None,
    headline: Headline | None = None,
) -> str:
    """A document, or a run with its costs and headline, in one of FORMATS or as `html`; cleans texts of files."""
    from torchmark.records import Run
    from torchmark.report import data, html, markdown, terminal
    from torchmark.report.document import without_empty

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
            return data.write_csv(records.columns, records.rows())
        case "json" if records.json:
            return data.write_json(records.json())
        case "jsonl" if records.lines:
            return data.write_lines(records.lines())
        case "html":
            return html.write(without_empty(subject.blocks()), subject.version)
    raise UnknownName("format", format, FORMATS)
