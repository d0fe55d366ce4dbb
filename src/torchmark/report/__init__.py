"""Findings to text: the same run as a table, Markdown, CSV or JSON. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

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


def render_all(runs: Sequence[Run], format: str) -> str:  # noqa: A002
    """Several runs as one text: Markdown with what they say first, or CSV or JSON with all results."""
    from torchmark.analyze.findings import find_all
    from torchmark.report import csv, json, markdown, text

    runs = [text.clean_run(run) for run in runs]
    match format:
        case "md":
            findings = [f"- {markdown.escape(found.text)}\n" for found in find_all(runs)]
            tables = [markdown.render_markdown(run) for run in runs]
            return "\n".join(["".join(findings), *tables] if findings else tables)
        case "csv":
            return csv.render_csv(*runs)
        case "json":
            return json.render_runs(runs)
    raise UnknownName("format", format, ("md", "csv", "json"))
