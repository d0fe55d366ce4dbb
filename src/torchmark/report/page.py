"""The shell of every HTML page: one self-contained file, a policy that allows nothing but its own style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

GENERATOR = "torchmark"  # how a page that was written by torchmark is told from any other file


class Section(Struct, frozen=True):
    """A part of a page under a heading of its own, listed in the page's menu."""

    anchor: str  # its address in the page: lower-case letters and dashes, chosen by us and never by a file
    title: str
    body: Markup  # from a template of ours: what came from a file is escaped in it
    lead: str = ""  # what to know before reading it, in a sentence or two


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    version: str,
    kicker: str = "",
    facts: Sequence[str] = (),
    footer: Sequence[str] = (),
) -> str:
    """A whole page. `kicker` is a small line above the title, `facts` a row below it."""
    style, script = _asset("page.css"), _asset("page.js")
    return fill(
        "page.html.jinja",
        title=title,
        sections=sections,
        kicker=kicker,
        facts=facts,
        footer=footer,
        style=style,
        script=script,
        policy=_policy(style, script),
        patterned=any("url(#series-" in section.body for section in sections),
        generator=f"{GENERATOR} {version}",
    )


def fill(template: str, **values: Any) -> Markup:
    """A template of ours with values of anybody: whatever is not Markup is escaped."""
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

    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
