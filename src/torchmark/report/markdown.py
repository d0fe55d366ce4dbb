"""Documents as Markdown, for an issue or a chat."""

import re
from collections.abc import Iterable, Iterator

from torchmark.report import document as doc
from torchmark.report.text import clean

WIDEST = 120  # columns that only wider terminals show are left out


def write(blocks: Iterable[doc.Block]) -> str:
    return "\n\n".join(part for block in blocks for part in _parts(block)) + "\n"


def escape(text: str) -> str:
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~])", r"\\\1", text)


def code(text: str) -> str:
    """As code, whose cell no backquote or bar can end."""
    return "`" + clean(text).replace("`", "'").replace("|", "/") + "`"


def _parts(block: doc.Block) -> Iterator[str]:
    match block:
        case doc.Title():
            yield "  \n".join([f"**{escape(block.text)}**", *map(escape, block.about)])
        case doc.Lines():
            marked = ((escape(line.text), line.look in ("", "quiet")) for line in map(doc.as_cell, block.lines))
            yield "  \n".join(text if plain else f"**{text}**" for text, plain in marked)
        case doc.Section(only="" | "text"):
            yield from [f"### {escape(block.title)}"] if block.title else []
            yield from ([escape(block.lead)] if block.lead else [])
            yield from (part for inner in block.blocks for part in _parts(inner))
        case doc.Table():
            kept = [(index, column) for index, column in enumerate(block.columns) if column.wide <= WIDEST]
            titles = [escape(column.title) for _, column in kept]
            rule = ["---:" if column.is_number else "---" for _, column in kept]
            rows = [
                [(code if column.kind == "case" else escape)(doc.as_cell(row[index]).text) for index, column in kept]
                for row in block.rows
            ]
            if any(block.notes):
                titles, rule = [*titles, escape(block.note_title)], [*rule, "---"]
                rows = [[*row, escape(note)] for row, note in zip(rows, block.notes, strict=True)]
            yield "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))
            notes = [escape(f"{mark} {text}") for mark, text in block.footnotes]
            yield from ["  \n".join(notes)] if notes else []
        case doc.Facts():
            yield "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in block.rows)
        case doc.Remarks():
            lines = []
            for remark in block.remarks:
                kind = f"**{escape(remark.kind)}**" if remark.kind else ""
                cases = ", ".join(map(code, remark.cases)) or "all cases" * block.brief
                start = f"{kind} ({cases})" if kind and cases else kind or cases
                fix = f" → {escape(remark.fix)}" if remark.fix else ""
                lines.append("- " + ": ".join(filter(None, (start, escape(remark.cause)))) + fix)
            yield "\n".join(lines)
        case doc.Code():
            text = "\n".join(map(clean, block.lines)).replace("```", "")
            yield f"```{block.language}\n{text}\n```"
