"""Draws docs/picture.svg: the run recorded in docs/example-run.jsonl, as a terminal of 80 columns shows it.

python docs/make_picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from torchmark import load
from torchmark.report import render

FOLDER = Path(__file__).parent
COLUMNS = 80


def draw() -> str:
    """The picture. It depends on nothing but the recorded run and the code that prints it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, _environ={})
    console.print(Text("$ torchmark run", style="bold"), highlight=False)
    console.print(Text.from_ansi(render(load(FOLDER / "example-run.jsonl"), "table", COLUMNS, color=True)))
    drawing = console.export_svg(title="torchmark run", theme=MONOKAI, unique_id="torchmark")
    # The picture must not fetch anything from anywhere: readers without a network see it too.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL).replace("Fira Code,", "") + "\n"


if __name__ == "__main__":
    (FOLDER / "picture.svg").write_text(draw(), encoding="utf-8")
