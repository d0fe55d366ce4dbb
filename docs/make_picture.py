"""Draws docs/picture.svg and the output in README.md from the run that is recorded in docs/example-run.jsonl.

python docs/make_picture.py            again, after a change to what a run prints
python docs/make_picture.py RUN.jsonl  records another run first, without its samples
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from torchmark import load
from torchmark.cli.output import headline_of
from torchmark.report import render

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
EXAMPLE = FOLDER / "example-run.jsonl"
COLUMNS = 80


def record(path: Path) -> None:
    """Keep what a table shows: the header, what each case gave in the end, the spread; sealed as any run is."""
    lines = path.read_text(encoding="utf-8").splitlines()
    kept: dict[str, str] = {}
    for line in lines:
        content = json.loads(line)
        if content["kind"] not in ("samples", "started", "checksum"):
            case = content["result"]["case"] if content["kind"] == "finished" else None
            kept[f"{content['kind']} {json.dumps(case, sort_keys=True)}"] = line
    text = "\n".join(kept.values()) + "\n"
    seal = {"kind": "checksum", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    EXAMPLE.write_text(text + json.dumps(seal, separators=(",", ":")) + "\n", encoding="utf-8")


def output(color: bool = False) -> str:
    """What the run printed."""
    run = load(EXAMPLE)
    return render(run, "table", COLUMNS, color, headline=headline_of(run, "last"))


def draw() -> str:
    """The picture. It depends on nothing but the recorded run and the code that prints it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, _environ={})
    console.print(Text("$ torchmark run", style="bold"), highlight=False)
    console.print(Text.from_ansi(output(color=True).rstrip("\n")))
    drawing = console.export_svg(title="torchmark run", theme=MONOKAI, unique_id="torchmark")
    # Readers without a network see it too, and no server learns who reads it.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL).replace("Fira Code,", "") + "\n"


def paste() -> str:
    """The README with the same run as text."""
    pasted = f"```\n$ torchmark run\n{output()}```"
    return re.sub(
        r"```\n\$ torchmark run\n.*?```", lambda _: pasted, README.read_text(encoding="utf-8"), flags=re.DOTALL
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        record(Path(sys.argv[1]))
    (FOLDER / "picture.svg").write_text(draw(), encoding="utf-8")
    README.write_text(paste(), encoding="utf-8")
