"""Findings to text: the same run as a table, Markdown, CSV or JSON. Nothing here prints."""

from __future__ import annotations

from torchmark.errors import UnknownName
from torchmark.records import Run

FORMATS = ("table", "md", "csv", "json", "jsonl")


def render(run: Run, format: str = "table", width: int = 80, color: bool = False) -> str:  # noqa: A002
    """The run in one of FORMATS; strings that came from a file are made safe first."""
    from torchmark.report import csv, json, markdown, terminal, text

    run = text.clean_run(run)
    match format:
        case "table":
            return terminal.render_table(run, width, color)
        case "md":
            return markdown.render_markdown(run)
        case "csv":
            return csv.render_csv(run)
        case "json":
            return json.render_json(run)
        case "jsonl":
            return json.render_jsonl(run)
    raise UnknownName("format", format, FORMATS)
