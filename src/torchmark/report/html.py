"""Documents as a page: one self-contained file, with a policy that allows nothing but its own style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from torchmark.records import Remark
from torchmark.report import document as doc
from torchmark.report.text import clean, shorten

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

GENERATOR = "torchmark"  # how a page that was written by torchmark is recognised
_FOOTER = "Made by torchmark {}. This page is self-contained: it loads nothing and sends nothing."
_MANY_CARDS = 24  # from which a section has a filter
_MOST_FINDINGS = 9  # before a click
_TOO_WIDE = 150  # columns that a terminal shows only from here on are left out


def write(document: doc.Document) -> str:
    """The whole page. Its first block is the title."""
    head, *blocks = document.blocks()
    if not isinstance(head, doc.Title):
        head, blocks = doc.Title(GENERATOR), [head, *blocks]
    sections = _sections(blocks)
    style, script = _asset("page.css"), _asset("page.js")
    content = fill("blocks.html.jinja", sections=sections)
    return fill(
        "page.html.jinja",
        head=head,
        content=content,
        menu=[section for section in sections if section.title],
        footer=_FOOTER.format(document.version),
        style=style,
        script=script,
        policy=_policy(style, script),
        patterned="url(#series-" in content,
        generator=f"{GENERATOR} {document.version}",
    )


def _sections(blocks: Iterable[doc.Block]) -> list[doc.Section]:
    """Every block in a section with an address of its own."""
    sections: list[doc.Section] = []
    for block in blocks:
        if isinstance(block, doc.Section):
            sections.append(block)
        elif sections and not sections[-1].title:
            sections[-1] = replace(sections[-1], blocks=[*sections[-1].blocks, block])
        else:
            sections.append(doc.Section("", [block]))
    return [replace(each, anchor=each.anchor or f"section-{number}") for number, each in enumerate(sections, 1)]


def fill(template: str, **values: Any) -> Markup:
    """A template of ours with values of anybody: whatever is not Markup is cleaned and escaped."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))


def is_own_page(beginning: bytes) -> bool:
    """Whether a file that begins like this is a page or a card of ours."""
    marks = (f'<meta name="generator" content="{GENERATOR} ', f"<metadata>{GENERATOR} ")
    return any(mark.encode() in beginning for mark in marks)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, sent or framed; only this very style and this very script may act."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("torchmark.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    helpers = (cells, columns, chips_of, classes, code_of, noted, sentence, doc.text_of)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    environment.globals |= {"many_cards": _MANY_CARDS, "most_findings": _MOST_FINDINGS}
    return environment


def _finalized(value: Any) -> Any:
    """Texts are cleaned; what is markup already was made of cleaned texts."""
    return clean(value) if type(value) is str else value


def columns(table: doc.Table) -> list[doc.Column]:
    """The columns that a page has room for."""
    return [column for column in table.columns if column.wide < _TOO_WIDE]


def cells(table: doc.Table) -> list[list[dict[str, Any]]]:
    """The cells of a table as its template needs them."""
    notes = table.notes or [""] * len(table.rows)
    kept = [index for index, column in enumerate(table.columns) if column.wide < _TOO_WIDE]
    return [
        [_cell(row[index], note if index == 0 else "") for index in kept]
        for row, note in zip(table.rows, notes, strict=True)
    ]


def _cell(given: str | doc.Cell, note: str) -> dict[str, Any]:
    """A judgement has its cause below it."""
    cell = doc.Cell(given) if isinstance(given, str) else given
    text, _, cause = cell.text.partition(": ") if cell.chip else (cell.text, "", "")
    chip = cell.chip and bool(text)
    shown = {"text": text or "-" if cell.chip else text, "look": cell.look, "sort": cell.sort, "chip": chip}
    return shown | {
        "note": note or cause or cell.note,
        "bar": cell.bar,
        "meaning": doc.word(text).meaning if chip else "",
    }


def chips_of(block: doc.Lines) -> list[doc.Cell]:
    """Judgements that stand in one line."""
    return [line for line in block.lines if isinstance(line, doc.Cell) and line.chip]


def classes(column: doc.Column) -> Markup:
    """The classes of a column's cells."""
    from markupsafe import Markup

    names = [
        name
        for name, given in (("number", column.is_number), ("minor", column.minor), ("wraps", column.wraps))
        if given
    ]
    return Markup(f' class="{" ".join(names)}"' if names else "")


def code_of(block: doc.Code) -> Markup:
    """Code keeps its lines."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(clean(line)) for line in block.text.rstrip("\n").split("\n"))


def noted(block: doc.Remarks) -> Sequence[tuple[Remark, str, str]]:
    """Remarks of a kind, each with what it is about and its look."""
    found = []
    for remark, where in zip_longest(block.remarks, block.where):
        if remark.kind:
            many = f"{len(remark.cases)} cases" if remark.cases else ""
            about = where if where is not None else remark.cases[0] if len(remark.cases) == 1 else many
            found.append((remark, about, doc.WORDS.get(remark.kind, doc.Word("mixed", 3)).look))
    return found


def sentence(remark: Remark) -> str:
    """A remark in one sentence."""
    return shorten(": ".join(filter(None, (", ".join(remark.cases), remark.cause))))
