"""Findings to text: the same run as a table, Markdown, CSV or JSON. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

from torchmark.analyze.headline import Headline
from torchmark.analyze.money import Prices
from torchmark.errors import UnknownName
from torchmark.records import Run

FORMATS = ("table", "md", "csv", "json", "jsonl")


def render(
    run: Run,
    format: str = "table",  # noqa: A002
    width: int = 80,
    color: bool = False,
    prices: Prices | None = None,
    headline: Headline | None = None,
) -> str:
    """The run in one of FORMATS, with costs where prices are named; strings from a file are made safe first."""
    from torchmark.report import conclusions, csv, json, markdown, terminal, text

    run, headline = text.clean_run(run), headline and text.clean_record(headline)
    study = conclusions.render_study(run, format, width, color) if prices is None else None
    if study is not None:
        return study
    match format:
        case "table":
            return terminal.render_table(run, width, color, prices, headline)
        case "md":
            return markdown.render_markdown(run, prices, headline)
        case "csv":
            return csv.render_csv(run, prices=prices)
        case "json":
            return json.render_json(run, {"headline": headline} if headline else None, prices)
        case "jsonl":
            return json.render_jsonl(run, prices)
    raise UnknownName("format", format, FORMATS)


def render_all(
    runs: Sequence[Run],
    format: str,  # noqa: A002
    prices: Prices | None = None,
    headlines: Sequence[Headline | None] = (),
) -> str:
    """Several runs as one text: Markdown with what they say first, or CSV or JSON with all results."""
    from torchmark.analyze.findings import find_all
    from torchmark.report import csv, json, markdown, text

    runs = [text.clean_run(run) for run in runs]
    headlines = [found and text.clean_record(found) for found in headlines or [None] * len(runs)]
    match format:
        case "md":
            findings = [f"- {markdown.escape(found.text)}\n" for found in find_all(runs)]
            tables = [markdown.render_markdown(run, prices, found) for run, found in zip(runs, headlines, strict=True)]
            return "\n".join(["".join(findings), *tables] if findings else tables)
        case "csv":
            return csv.render_csv(*runs, prices=prices)
        case "json":
            return json.render_runs(runs, prices, headlines=headlines)
    raise UnknownName("format", format, ("md", "csv", "json"))
