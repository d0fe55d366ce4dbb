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
# Nothing may be loaded, sent or framed; only this very script and style may act.
_POLICY = "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_TOO_WIDE = 150  # columns that a terminal shows only from here on are left out


def write(blocks: Iterable[doc.Block], version: str) -> str:
    """The whole page. A first block that is no title comes below one, and every block is in a section."""
    head, *rest = blocks
    if not isinstance(head, doc.Title):
        head, rest = doc.Title(GENERATOR), [head, *rest]
    sections: list[doc.Section] = []
    for block in rest:
        if isinstance(block, doc.Section):
            sections.append(block)
        elif sections and not sections[-1].title:
            sections[-1] = replace(sections[-1], blocks=[*sections[-1].blocks, block])
        else:
            sections.append(doc.Section("", [block]))
    sections = [replace(each, anchor=each.anchor or f"section-{number}") for number, each in enumerate(sections, 1)]
    style, script = _asset("page.css"), _asset("page.js")
    content = fill("blocks.html.jinja", sections=sections)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    return fill(
        "page.html.jinja",
        head=head,
        content=content,
        menu=[section for section in sections if section.title],
        footer=f"Made by torchmark {version}. This page is self-contained: it loads nothing and sends nothing.",
        style=style,
        script=script,
        policy=_POLICY.format(*digests),
        patterned="url(#series-" in content,
        generator=f"{GENERATOR} {version}",
    )


def fill(template: str, **values: Any) -> Markup:
    """A template with values: everything but Markup is cleaned and escaped."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))


def is_own_page(beginning: bytes) -> bool:
    """Whether a file that begins like this is a page or a card of ours."""
    marks = (f'<meta name="generator" content="{GENERATOR} ', f"<metadata>{GENERATOR} ")
    return any(mark.encode() in beginning for mark in marks)


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
        # Texts are cleaned; what is markup already was made of cleaned texts.
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    helpers = (cells, code_of, noted, sentence, doc.text_of)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    # A section has a filter from so many cards on, and shows so many findings before a click.
    environment.globals |= {"many_cards": 24, "most_findings": 9, "too_wide": _TOO_WIDE}
    return environment


def cells(table: doc.Table) -> list[list[dict[str, Any]]]:
    """The cells of a table as its template needs them: a note is in the first one, a judgement's cause below it."""
    rows = []
    for row, note in zip_longest(table.rows, table.notes, fillvalue=""):
        shown = []
        for column, given in zip(table.columns, row, strict=True):
            cell = doc.Cell(given) if isinstance(given, str) else given
            text, _, cause = cell.text.partition(": ") if cell.chip else (cell.text, "", "")
            chip = cell.chip and bool(text)
            look = {"text": text or "-" * cell.chip, "look": cell.look, "sort": cell.sort, "bar": cell.bar}
            more = {"chip": chip, "note": note or cause or cell.note, "meaning": doc.word(text).meaning if chip else ""}
            shown += [look | more] if column.wide < _TOO_WIDE else []
            note = ""
        rows.append(shown)
    return rows


def code_of(block: doc.Code) -> Markup:
    """Code keeps its lines."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(clean(line)) for line in block.text.rstrip("\n").split("\n"))


def noted(block: doc.Remarks) -> Sequence[tuple[Remark, str, str]]:
    """Remarks of a kind, each with what it is about and its look."""
    found = []
    for remark, where in zip_longest(block.remarks, block.where):
        many = f"{len(remark.cases)} cases" if remark.cases else ""
        about = where if where is not None else remark.cases[0] if len(remark.cases) == 1 else many
        found.append((remark, about, doc.WORDS.get(remark.kind, doc.Word("mixed", 3)).look))
    return [each for each in found if each[0].kind]


def sentence(remark: Remark) -> str:
    """A remark in one sentence."""
    return shorten(": ".join(filter(None, (", ".join(remark.cases), remark.cause))))
