"""Documents as Markdown, for an issue or a chat: it renders the same wherever tables are understood."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchmark.records import Remark
from torchmark.report import document as doc
from torchmark.report.text import clean

WIDEST = 120  # columns that a terminal shows from here on are left out


def write(blocks: Iterable[doc.Block]) -> str:
    """All blocks, with an empty line between two of them."""
    return "\n\n".join(part for block in blocks for part in _parts(block)) + "\n"


def escape(text: str) -> str:
    """The text as itself, whatever Markdown or HTML it holds."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~])", r"\\\1", text)


def code(text: str) -> str:
    """The text as code; a backquote or a bar in it cannot end the cell."""
    return "`" + clean(text).replace("`", "'").replace("|", "/") + "`"


def _parts(block: doc.Block) -> Iterator[str]:
    match block:
        case doc.Title():
            yield "  \n".join([f"**{escape(block.text)}**", *map(escape, block.about)])
        case doc.Lines():
            yield "  \n".join(map(_line, block.lines))
        case doc.Section(only="" | "text"):
            yield from [f"### {escape(block.title)}"] if block.title else []
            yield from ([escape(block.lead)] if block.lead else [])
            yield from (part for inner in block.blocks for part in _parts(inner))
        case doc.Table():
            yield _table(block)
            notes = [escape(f"{mark} {text}") for mark, text in block.footnotes]
            yield from ["  \n".join(notes)] if notes else []
        case doc.Facts():
            yield "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in block.rows)
        case doc.Remarks():
            yield "\n".join(_remark(remark, "all cases" * block.brief) for remark in block.remarks)
        case doc.Code():
            text = "\n".join(map(clean, block.text.rstrip("\n").split("\n")))
            yield f"```{block.language}\n{text.replace('```', '')}\n```"


def _line(line: str | doc.Cell) -> str:
    text = escape(doc.text_of(line))
    return f"**{text}**" if isinstance(line, doc.Cell) and line.look not in ("", "quiet") else text


def _remark(remark: Remark, everywhere: str) -> str:
    kind = f"**{escape(remark.kind)}**" if remark.kind else ""
    cases = ", ".join(map(code, remark.cases)) or everywhere
    start = f"{kind} ({cases})" if kind and cases else kind or cases
    fix = f" → {escape(remark.fix)}" if remark.fix else ""
    return "- " + ": ".join(filter(None, (start, escape(remark.cause)))) + fix


def _table(table: doc.Table) -> str:
    kept = [(index, column) for index, column in enumerate(table.columns) if column.wide <= WIDEST]
    titles = [escape(column.title) for _, column in kept]
    rows = [
        [(code if column.kind == "case" else escape)(doc.text_of(row[index])) for index, column in kept]
        for row in table.rows
    ]
    rule = ["---:" if column.is_number else "---" for _, column in kept]
    if any(table.notes):
        titles, rule = [*titles, escape(table.note_title)], [*rule, "---"]
        rows = [[*row, escape(note)] for row, note in zip(rows, table.notes, strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))
