"""Documents for a terminal: nothing is wider than it, no figure is cut, and only our own colours are obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace
from rich.cells import cell_len, chop_cells, set_cell_size

from torchmark.report.document import (
    Block,
    Cards,
    Cell,
    Code,
    Column,
    Facts,
    Lines,
    Remarks,
    Section,
    Table,
    Title,
    some,
    text_of,
)
from torchmark.report.text import Drawn, clean, shorten

NARROWEST = 40
GAP = 2  # between two columns
_FIRST = 26  # least width of the first column of a table that is split
_CODES = {"strong": "1", "quiet": "2", "good": "32", "mixed": "33", "bad": "31"}

Piece = tuple[str, str]  # a text and its look
Line = list[Piece]


def draw(blocks: Iterable[Block], width: int = 80, color: bool = False) -> Drawn:
    """The blocks, one below the other, with an empty line between two of them."""
    width = max(width, NARROWEST)
    drawn = [lines for block in blocks if (lines := list(_block(block, width)))]
    return Drawn("\n".join("".join(f"{_paint(line, color)}\n" for line in lines) for lines in drawn))


def _paint(line: Line, color: bool) -> str:
    """The line in our colours. Every text passes here, so this is where foreign control characters end."""
    pieces = [(clean(text), look) for text, look in line]
    painted = [f"\x1b[{_CODES[look]}m{text}\x1b[0m" if color and look and text else text for text, look in pieces]
    return "".join(painted).rstrip()


def _block(block: Block, width: int) -> Iterator[Line]:
    match block:
        case Title():
            yield from _wrapped(block.text, width, "strong")
            for text in block.about:
                yield from _wrapped(text, width, "quiet")
        case Lines():
            for line in block.lines:
                yield from _wrapped(text_of(line), width, line.look if isinstance(line, Cell) else "")
        case Section():
            yield from _section(block, width)
        case Table():
            for part in _parts(block, width):
                yield from part
        case Facts():
            left = max((cell_len(clean(name)) for name, _ in block.rows), default=0)
            for name, value in block.rows:
                yield from _beside([(clean(name), "quiet")], left, _wrapped(value, width - left - GAP))
        case Remarks():
            yield from _remarks(block, width)
        case Code():
            yield from ([(line, "")] for line in block.text.rstrip("\n").split("\n"))
        case Cards():
            pass


def _section(section: Section, width: int) -> Iterator[Line]:
    if section.only == "text" or width >= section.below:
        return
    yield from _wrapped(section.title, width, "strong") if section.title else ()
    indent: Line = [("  ", "")] if section.title else []
    for block in section.blocks:
        yield from ([*indent, *line] for line in _block(block, width - 2 * len(indent)))


def _remarks(block: Remarks, width: int) -> Iterator[Line]:
    """The kind in a narrow column, what is to be said next to it, and below that what to do."""
    kinds: dict[str, list[int]] = {}
    for number, remark in enumerate(block.remarks):
        kinds.setdefault(remark.kind if block.brief else str(number), []).append(number)
    left = max((cell_len(clean(remark.kind)) for remark in block.remarks), default=0)
    room = width - left - GAP * bool(left)
    for alike in kinds.values():
        first, local = block.remarks[alike[0]], block.local[alike[0]] if block.local else None
        cases = [case for number in alike for case in block.remarks[number].cases]
        where = some(cases, 1 if block.brief else 6) or "all cases" * block.brief
        body = [*_wrapped(shorten(": ".join(filter(None, (where, first.cause)))), room)]
        for text in [*(local or "").split("\n"), f"→ {first.fix}" * bool(first.fix)]:
            body += _wrapped(shorten(text), room, "quiet") if text else []
        yield from _beside([(clean(first.kind), "mixed")], left, body) if left else body


def _beside(name: Line, width: int, lines: Iterable[Line]) -> Iterator[Line]:
    used = sum(cell_len(text) for text, _ in name)
    for index, line in enumerate(lines):
        yield [*name, (" " * (width - used + GAP), ""), *line] if not index else [(" " * (width + GAP), ""), *line]


def _wrapped(text: str, width: int, look: str = "") -> Iterator[Line]:
    return ([(line, look)] for line in wrap(clean(text), width))


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words; a word that is too long for one is broken inside."""
    lines, line = [], None
    for word in text.split(" "):
        longer = word if line is None else f"{line} {word}"
        if cell_len(longer) <= width:
            line = longer
            continue
        lines += [line] if line else []
        *full, line = chop_cells(word, max(width, 2)) or [""]
        lines += full
    return [*lines, line or ""]


def fold_case(text: str, width: int) -> str:
    """A case on as many lines as it needs, broken where a person would break it."""
    if len(text) <= width:
        return text
    width -= 2  # for the indent of the lines after the first
    lines: list[str] = [""]
    for piece in re.findall(r"[:@+]?[^:@+,]*,?", text):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        while len(lines[-1]) + len(piece) > width:
            room = width - len(lines[-1])
            lines[-1] += piece[:room]
            piece = piece[room:]
            lines.append("")
        lines[-1] += piece
    return "\n  ".join(line for line in lines if line)


def _parts(table: Table, width: int) -> Iterator[Iterator[Line]]:
    """The table as a whole, or blocks of as many columns as fit."""
    columns = [replace(column, title=clean(column.title)) for column in table.columns]
    rows = [[_cleaned(cell) for cell in row] for row in table.rows]
    kept = [index for index in _kept(columns, rows, width) if columns[index].repeats != "heading"]
    if not table.split:
        yield _laid_out(table, columns, rows, kept, width)
        return
    widths = {index: _longest([columns[index].title, *(row[index].text for row in rows)]) for index in kept}
    first = min(widths[0], max(_FIRST, width - sum(widths.values()) + widths[0] - GAP * (len(widths) - 1)))
    columns[0] = Column(columns[0].title, columns[0].kind, least=first, most=first)
    rest = kept[1:]
    while rest:
        count = 1
        while count < len(rest) and first + sum(widths[index] + GAP for index in rest[: count + 1]) <= width:
            count += 1
        below: list[Line] = [[]] if len(rest) < len(kept) - 1 else []  # an empty line between two blocks
        yield iter([*below, *_laid_out(table, columns, rows, [0, *rest[:count]], width)])
        rest = rest[count:]


def _laid_out(
    table: Table, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], kept: Sequence[int], width: int
) -> Iterator[Line]:
    heading = next((index for index, column in enumerate(columns) if column.repeats == "heading"), None)
    shown = [columns[index] for index in kept]
    indent: Line = [("  ", "")] if heading is not None else []
    widths = _widths(shown, [[row[index].text for index in kept] for row in rows], width - 2 * len(indent))
    if table.headings:
        titles = [Cell(column.title, "quiet") for column in shown]
        yield from ([*indent, *line] for line in _row(titles, shown, widths))
        if table.rule:
            yield [*indent, ("─" * (sum(widths) + GAP * (len(widths) - 1)), "quiet")]
    before: Sequence[Cell] | None = None
    seen = " ".join(row[index].text for row in rows for index in kept)
    for number, row in enumerate(rows):
        if heading is not None and (before is None or before[heading].text != row[heading].text):
            yield from ([(line, "strong")] for line in fold_case(row[heading].text, width).split("\n"))
        cells = [
            Cell("") if before and column.repeats == "blank" and before[index].text == row[index].text else row[index]
            for index, column in zip(kept, shown, strict=True)
        ]
        yield from ([*indent, *line] for line in _row(cells, shown, widths))
        if table.notes and table.notes[number]:
            yield from ([("    ", ""), *line] for line in _wrapped(table.notes[number], width - 4, "quiet"))
        before = row
    for mark, text in table.footnotes:
        yield from _wrapped(f"{mark} {text}", width, "quiet") if mark in seen else ()


def _cleaned(cell: str | Cell) -> Cell:
    return Cell(clean(cell)) if isinstance(cell, str) else Cell(clean(cell.text), cell.look)


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[int]:
    """The columns that fit; those with the highest `drop` go first."""
    kept = [index for index, column in enumerate(columns) if width >= column.wide]
    while sum(_least(columns[index], [row[index].text for row in rows]) + GAP for index in kept) - GAP > width:
        candidate = max(kept, key=lambda index: columns[index].drop)
        if not columns[candidate].drop:
            break
        kept.remove(candidate)
    return kept


def _least(column: Column, texts: Sequence[str]) -> int:
    longest = min(_longest((column.title, *texts)), column.most)
    if column.kind in ("case", "cut"):
        return min(longest, column.least)
    if column.kind in ("figure", "name"):
        return longest
    return min(_longest([word for text in (column.title, *texts) for word in text.split()]), column.most)


def _longest(texts: Iterable[str]) -> int:
    return max((len(text) if text.isascii() else cell_len(text) for text in texts), default=0)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The least widths, and what is left for the cells that would be broken, from the left; then for headings."""
    texts = [[row[index] for row in rows] for index in range(len(columns))]
    widths = [_least(column, cells) for column, cells in zip(columns, texts, strict=True)]
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    for titles in (False, True):
        for index, column in enumerate(columns):
            wanted = min(_longest([*texts[index], *([column.title] if titles else [])]), column.most)
            more = max(min(wanted - widths[index], spare), 0)
            widths[index] += more
            spare -= more
    return widths


def _row(cells: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int]) -> Iterator[Line]:
    broken = [_broken(cell.text, column, width) for cell, column, width in zip(cells, columns, widths, strict=True)]
    for texts in zip_longest(*broken, fillvalue=""):
        line: Line = []
        for text, cell, column, width in zip(texts, cells, columns, widths, strict=True):
            pad = " " * max(width - (len(text) if text.isascii() else cell_len(text)), 0)
            line += [(" " * GAP, "")] if line else []
            line += [(pad, ""), (text, cell.look)] if column.is_number else [(text, cell.look), (pad, "")]
        while line and not line[-1][0].strip():
            line.pop()
        yield line


def _broken(text: str, column: Column, width: int) -> list[str]:
    if len(text) <= width and text.isascii():
        return [text]
    if column.kind == "cut":
        return [text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"]
    is_case = column.kind in ("case", "value") and " " not in text
    return fold_case(text, width).split("\n") if is_case else wrap(text, width)
