"""Documents as a self-contained page, with a policy that allows only its own style and script."""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from msgspec.structs import replace

from torchmark.records import Remark
from torchmark.report import document as doc
from torchmark.report.text import clean, shorten

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = "torchmark"  # marks our own pages and cards
# Nothing may be loaded, sent or framed; only our own script and style may act.
_POLICY = "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_TOO_WIDE = 150  # columns that only wider terminals show are left out


def write(blocks: Iterable[doc.Block], version: str) -> str:
    head, *rest = blocks
    if not isinstance(head, doc.Title):
        head, rest = doc.Title(GENERATOR), [head, *rest]
    sections: list[Any] = []
    for is_section, group in groupby(rest, lambda block: isinstance(block, doc.Section)):
        alike = list(group)
        sections += alike if is_section else [doc.Section("", alike)]
    sections = [replace(each, anchor=each.anchor or f"section-{number}") for number, each in enumerate(sections, 1)]
    style, script = _asset("page.css"), _asset("page.js")
    content = fill("blocks.html.jinja", sections=sections)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    return fill(
        "page.html.jinja",
        head=head,
        content=content,
        menu=[section for section in sections if section.title],
        footer=f"Made by torchmark {version}. This self-contained page loads nothing and sends nothing.",
        style=style,
        script=script,
        policy=_POLICY.format(*digests),
        patterned="url(#series-" in content,
        generator=f"{GENERATOR} {version}",
    )


def fill(template: str, **values: Any) -> Markup:
    """Fill a template; all values but Markup are cleaned and escaped."""
    return Markup(_environment().get_template(template).render(values))


def is_own_page(beginning: bytes) -> bool:
    """Whether a file with this beginning is a page or card of ours."""
    marks = (f'<meta name="generator" content="{GENERATOR} ', f"<metadata>{GENERATOR} ")
    return any(mark.encode() in beginning for mark in marks)


def _asset(name: str) -> str:
    return (resources.files("torchmark.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup was made of cleaned texts already.
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    helpers = (cells, code_of, noted, sentence, doc.as_cell, doc.word)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    # Cards from which a section has a filter; findings before a click.
    environment.globals |= {"many_cards": 24, "most_findings": 9, "too_wide": _TOO_WIDE}
    return environment


def cells(table: doc.Table) -> list[list[doc.Cell]]:
    """The cells with the row's note in the first, and a judgement's cause as its note."""

    def shown(cell: doc.Cell, note: str) -> doc.Cell:
        if not cell.chip:
            return replace(cell, note=note or cell.note)
        text, _, cause = cell.text.partition(": ")
        return replace(cell, text=text or "-", chip=bool(text), note=note or cause or cell.note)

    kept = [index for index, column in enumerate(table.columns) if column.wide < _TOO_WIDE]
    rows = zip_longest(table.rows, table.notes, fillvalue="")
    return [[shown(doc.as_cell(row[index]), "" if index else note) for index in kept] for row, note in rows]


def code_of(block: doc.Code) -> Markup:
    return Markup("\n").join(map(clean, block.lines))


def noted(block: doc.Remarks) -> Iterator[tuple[Remark, str, str]]:
    """Those of a kind, with place and look."""
    for remark, where in zip_longest(block.remarks, block.where):
        cases = f"{len(remark.cases)} cases" if len(remark.cases) > 1 else "".join(remark.cases)
        if remark.kind:
            yield remark, cases if where is None else where, doc.word(remark.kind, "mixed").look


def sentence(remark: Remark) -> str:
    return shorten(": ".join(filter(None, (", ".join(remark.cases), remark.cause))))
