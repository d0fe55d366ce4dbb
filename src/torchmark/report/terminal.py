"""Documents for a terminal: nothing is wider, no figure is cut, only our own colours are obeyed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace
from rich.cells import cell_len, chop_cells, set_cell_size

from torchmark.analyze.pairing import grouped
from torchmark.report import document as doc
from torchmark.report.text import Drawn, clean, shorten

NARROWEST = 40
GAP = 2  # between two columns
_FIRST = 26  # least width of the first column of a split table
_CODES = {"strong": "1", "quiet": "2", "good": "32", "mixed": "33", "bad": "31"}

Line = list[tuple[str, str]]  # texts, each with its look
Grid = list[tuple[doc.Column, list[doc.Cell]]]  # columns with their cells, cleaned


def draw(blocks: Iterable[doc.Block], width: int = 80, color: bool = False) -> Drawn:
    width = max(width, NARROWEST)

    def paint(line: Line) -> str:
        """Color a line. Every text passes here and loses its control characters."""
        pieces = ((clean(text), look) for text, look in line)
        painted = (f"\x1b[{_CODES[look]}m{text}\x1b[0m" if color and look and text else text for text, look in pieces)
        return "".join(painted).rstrip() + "\n"

    drawn = [lines for block in blocks if (lines := list(_block(block, width)))]
    return Drawn("\n".join("".join(map(paint, lines)) for lines in drawn))


def _block(block: doc.Block, width: int) -> Iterator[Line]:
    match block:
        case doc.Title():
            yield from _block(doc.answer([block.text, *block.about], "strong"), width)
        case doc.Lines():
            for line in map(doc.as_cell, block.lines):
                yield from _wrapped(line.text, width, line.look)
        case doc.Section() if block.only != "text" and width < block.below:
            yield from _wrapped(block.title, width, "strong") if block.title else ()
            indent = 2 * bool(block.title)
            for inner in block.blocks:
                yield from _indented(_block(inner, width - indent), indent)
        case doc.Table():
            yield from _table(block, width)
        case doc.Facts():
            left = max((cell_len(clean(name)) for name, _ in block.rows), default=0)
            for name, value in block.rows:
                yield from _beside((clean(name), "quiet"), left, _wrapped(value, width - left - GAP))
        case doc.Remarks():
            yield from _remarks(block, width)
        case doc.Code():
            yield from ([(line, "")] for line in block.lines)


def _remarks(block: doc.Remarks, width: int) -> Iterator[Line]:
    shown = list(zip_longest(block.remarks, block.local))
    kinds = grouped(shown, lambda each: each[0].kind if block.brief else id(each))
    left = max((cell_len(clean(remark.kind)) for remark in block.remarks), default=0)
    room = width - left - GAP * bool(left)
    for (first, local), *more in kinds.values():
        cases = [*first.cases, *(case for each, _ in more for case in each.cases)]
        where = doc.some(cases, 1 if block.brief else 6) or "all cases" * block.brief
        body = [*_wrapped(shorten(": ".join(filter(None, (where, first.cause)))), room)]
        for text in [*(local or "").split("\n"), f"→ {first.fix}" * bool(first.fix)]:
            body += _wrapped(shorten(text), room, "quiet") if text else []
        yield from _beside((clean(first.kind), "mixed"), left, body) if left else body


def _beside(name: tuple[str, str], width: int, lines: Iterable[Line]) -> Iterator[Line]:
    """The lines with a name before the first of them."""
    for line in lines:
        yield [name, (" " * (width - cell_len(name[0]) + GAP), ""), *line]
        name = ("", "")


def _indented(lines: Iterable[Line], indent: int) -> Iterator[Line]:
    return ([(" " * indent, ""), *line] for line in lines)


def _wrapped(text: str, width: int, look: str = "") -> Iterator[Line]:
    return ([(line, look)] for line in wrap(clean(text), width))


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words, else inside a long one."""
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
    """Lines of a case, broken between its parts."""
    if len(text) <= width:
        return text
    lines, width = [""], width - 2  # for the indent of later lines
    for piece in re.findall(r"[:@+]?[^:@+,]*,?", text):
        if len(lines[-1]) + len(piece) <= width:
            lines[-1] += piece
        else:
            lines += [piece[start : start + width] for start in range(0, len(piece), width)]
    return "\n  ".join(filter(None, lines))


def _table(table: doc.Table, width: int) -> Iterator[Line]:
    """The table without columns that do not fit, or in blocks of those that do."""
    rows = [[doc.Cell(clean(cell.text), cell.look) for cell in map(doc.as_cell, row)] for row in table.rows]
    grid: Grid = [
        (replace(column, title=clean(column.title)), [row[index] for row in rows])
        for index, column in enumerate(table.columns)
        if width >= column.wide
    ]
    while sum(_least(*each) + GAP for each in grid) - GAP > width and any(column.drop for column, _ in grid):
        grid.remove(max(grid, key=lambda each: each[0].drop))
    if not table.split:
        yield from _laid_out(table, grid, width)
        return
    widths = [_longest([column.title, *(cell.text for cell in cells)]) for column, cells in grid]
    first = min(widths[0], max(_FIRST, width - sum(widths[1:]) - GAP * (len(widths) - 1)))
    head = (replace(grid[0][0], least=first, most=first), grid[0][1])
    start = 1
    while start < len(grid):
        end = start + 1
        while end < len(grid) and first + sum(each + GAP for each in widths[start : end + 1]) <= width:
            end += 1
        yield from [[]] if start > 1 else []
        yield from _laid_out(table, [head, *grid[start:end]], width)
        start = end


def _laid_out(table: doc.Table, grid: Grid, width: int) -> Iterator[Line]:
    heading = next((cells for column, cells in grid if column.repeats == "heading"), None)
    grid = [each for each in grid if each[0].repeats != "heading"]
    columns, indent = [column for column, _ in grid], 2 if heading else 0
    # The spare room goes to cells that would be broken, from the left, then to headings.
    widths = [_least(*each) for each in grid]
    spare = width - indent - sum(widths) - GAP * (len(widths) - 1)
    for titles in (False, True):
        for index, (column, cells) in enumerate(grid):
            wanted = _longest([*(cell.text for cell in cells), *([column.title] if titles else [])])
            more = max(min(min(wanted, column.most) - widths[index], spare), 0)
            widths[index], spare = widths[index] + more, spare - more
    if table.headings:
        yield from _indented(_row([doc.Cell(column.title, "quiet") for column in columns], columns, widths), indent)
        rule = "─" * (sum(widths) + GAP * (len(widths) - 1))
        yield from _indented([[(rule, "quiet")]] if table.rule else [], indent)
    for number in range(len(table.rows)):
        if heading and (not number or heading[number - 1].text != heading[number].text):
            yield from ([(line, "strong")] for line in fold_case(heading[number].text, width).split("\n"))
        alike = [number and column.repeats and cells[number - 1].text == cells[number].text for column, cells in grid]
        row = [doc.Cell("") if repeats else cells[number] for repeats, (_, cells) in zip(alike, grid, strict=True)]
        yield from _indented(_row(row, columns, widths), indent)
        if table.notes and table.notes[number]:
            yield from _indented(_wrapped(table.notes[number], width - 4, "quiet"), 4)
    seen = " ".join(cell.text for _, cells in grid for cell in cells)
    for mark, text in table.footnotes:
        yield from _wrapped(f"{mark} {text}", width, "quiet") if mark in seen else ()


def _least(column: doc.Column, cells: Sequence[doc.Cell]) -> int:
    texts = [column.title, *(cell.text for cell in cells)]
    if column.kind in ("text", "value"):
        texts = [word for text in texts for word in text.split()]
    longest = min(_longest(texts), column.most)
    return min(longest, column.least) if column.kind in ("case", "cut") else longest


def _longest(texts: Iterable[str]) -> int:
    return max((len(text) if text.isascii() else cell_len(text) for text in texts), default=0)


def _row(cells: Sequence[doc.Cell], columns: Sequence[doc.Column], widths: Sequence[int]) -> Iterator[Line]:
    def broken(text: str, column: doc.Column, width: int) -> list[str]:
        if len(text) <= width and text.isascii():
            return [text]
        if column.kind == "cut":
            return [text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"]
        is_case = column.kind in ("case", "value") and " " not in text
        return fold_case(text, width).split("\n") if is_case else wrap(text, width)

    lines = [broken(cell.text, column, width) for cell, column, width in zip(cells, columns, widths, strict=True)]
    for texts in zip_longest(*lines, fillvalue=""):
        line: Line = []
        for text, cell, column, width in zip(texts, cells, columns, widths, strict=True):
            pad = " " * max(width - _longest([text]), 0)
            line += [(" " * GAP, "")] if line else []
            line += [(pad, ""), (text, cell.look)] if column.is_number else [(text, cell.look), (pad, "")]
        yield line
