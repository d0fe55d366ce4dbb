"""A report as data, independent of formats: builders make it, renderers draw it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from torchmark.records import Remark

Look = Literal["good", "mixed", "bad", "quiet", "strong"]
Field = str | Callable[[Any], Any]  # the path of an attribute, or a function of the record


class Word(Struct, frozen=True):  # a judgement
    look: Look
    rank: int
    meaning: str = ""
    mark: str = ""  # where there is no room for the word


# Every grade, answer, status and state; any other word is the status of a failure.
WORDS: Mapping[str, Word] = {
    "good": Word("good", 0, "±5% or less on a quiet machine"),
    "fair": Word("mixed", 1, "±15% or less, or other programs took up to 10% of the processor"),
    "poor": Word("bad", 2, "± is above 15% or unknown, or other programs took over 10% of the processor"),
    "as-published": Word("quiet", 4, "printed in a publication, without an interval"),
    "faster": Word("good", 0, "the whole interval is above 1×", "▲"),
    "slower": Word("bad", 4, "the whole interval is below 1×", "▼"),
    "same": Word("quiet", 1, "a relevant difference is ruled out", "="),
    "similar": Word("quiet", 2, "no difference beyond the assumed uncertainty", "≈"),
    "unsure": Word("mixed", 3, "the interval is too wide for an answer", "?"),
    "done": Word("good", 0),
    "running": Word("strong", 1),
    "waiting": Word("quiet", 2),
    "oom": Word("bad", 3, "out of device memory"),
    "host-oom": Word("bad", 3, "out of memory"),
    "timeout": Word("bad", 3, "took longer than --timeout"),
    "crashed": Word("bad", 3, "its process ended unexpectedly"),
    "unsupported": Word("bad", 3, "not available on this device"),
    "wrong-result": Word("bad", 3, "the numbers differ from the reference"),
    "interrupted": Word("bad", 3, "stopped before it was measured"),
    "skipped": Word("bad", 3, "did not fit into the budget"),
    "file": Word("quiet", 5),
    "": Word("quiet", 4),
}
# For pictures, which have no style sheet.
COLORS = {"good": "#1a6f3c", "mixed": "#8a5a00", "bad": "#b3261e", "quiet": "#5a616b"}


def word(text: str, look: Look = "bad") -> Word:
    """The entry of a word, also with a cause (`fair: noisy`); `look` is for unknown words."""
    return WORDS.get(text.partition(":")[0], Word(look, 3))


class Cell(Struct, frozen=True):
    text: str
    look: str = ""  # a key of COLORS, or `strong`
    sort: float | str | None = None  # a page sorts by it instead of the text
    note: str = ""  # smaller, below the text on a page
    chip: bool = False  # a page shows it as a coloured label
    bar: tuple[float, float, float] | None = None  # low, value and high, in percent of the longest bar


class Column(Struct, frozen=True):  # a heading, and how its column fits in little room
    title: str
    # text: broken between words; name: never broken; figure: right-aligned and never broken; value: right-aligned
    # text; case: broken where the parts of a case begin; cut: ends in … where it is too long
    kind: Literal["text", "name", "figure", "value", "case", "cut"] = "text"
    drop: int = 0  # the highest is left out first; 0: never
    wide: int = 0  # the least width of a terminal that shows it
    least: int = 16  # width of a case and of what may be cut
    most: int = 1000
    repeats: Literal["", "blank", "heading"] = ""  # how a terminal shows repeated cells
    minor: bool = False  # left out of a page on a narrow screen
    wraps: bool = False  # on a page, a long unit may wrap
    about: str = ""  # what the figure is
    of: Field = ""  # what it shows of a record
    written: Callable[[Any], str] | None = None  # formats the value
    key: Field = ""  # a page sorts by it instead of the value
    note: Field = ""  # smaller, below the value
    shown: bool = True  # whether `table` has it at all

    @property
    def is_number(self) -> bool:
        return self.kind in ("figure", "value")

    def cell(self, record: Any) -> Any:
        value, key = value_of(record, self.of), value_of(record, self.key or self.of)
        if not self.written and not self.key:
            return value
        sort = float(f"{key:.6g}") if isinstance(key, int | float) and math.isfinite(key) else None
        note = value_of(record, self.note) if self.note else ""
        return Cell(self.written(value) if self.written else value, sort=sort, note=note)


class Table(Struct, frozen=True):
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    notes: Sequence[str] = ()  # one for each row, or none
    note_title: str = "note"
    footnotes: Sequence[tuple[str, str]] = ()  # marks in the cells, and what they mean
    headings: bool = True
    rule: bool = True
    split: bool = False  # into blocks of columns, each with the first
    caption: str = ""  # makes a table of a page sortable and filtered


class Lines(Struct, frozen=True):
    lines: Sequence[str | Cell]  # sentences that belong together


class Title(Struct, frozen=True):
    text: str
    about: Sequence[str] = ()
    kicker: str = ""  # a small line above it, on a page


class Facts(Struct, frozen=True):
    rows: Sequence[tuple[str, str]]


class Remarks(Struct, frozen=True):
    remarks: Sequence[Remark]
    brief: bool = False  # a terminal shows the first of each kind, with all cases
    where: Sequence[str] = ()  # what a page says instead of the cases of each
    local: Sequence[str | None] = ()  # what only the terminal shows of each


class Code(Struct, frozen=True):  # text to paste: never broken
    text: str
    language: str = ""

    @property
    def lines(self) -> list[str]:
        return self.text.rstrip("\n").split("\n")


class Card(Struct, frozen=True):  # a chart, a large figure, or facts
    title: str
    drawing: str = ""  # markup of our own making
    figure: str = ""  # number, space, unit
    margin: str = ""
    note: str = ""
    grade: Cell | None = None
    facts: Sequence[tuple[str, str]] = ()
    command: str = ""


class Cards(Struct, frozen=True):
    cards: Sequence[Card]  # for a page
    legend: Sequence[tuple[str, str]] = ()  # name and fill of each series


class Section(Struct, frozen=True):
    title: str  # may be empty
    blocks: Sequence["Block"]
    lead: str = ""
    anchor: str = ""  # its address in a page: never chosen by a file
    folded: Literal["", "open", "closed"] = ""  # on a page, whether it can be closed
    only: Literal["", "terminal", "text"] = ""  # text: everywhere but in a terminal
    below: int = 100_000  # width of a terminal that leaves it out


Block = Title | Lines | Table | Facts | Remarks | Code | Cards | Section


class Records(Struct, frozen=True):  # what programs read
    columns: Mapping[str, Field] | None = None  # of CSV
    rows: Callable[[], Iterable[Any]] = tuple
    json: Callable[[], Any] | None = None
    lines: Callable[[], Iterable[Any]] | None = None  # of JSONL


class Document(Struct, frozen=True):  # its parts are built when a format needs them
    blocks: Callable[[], Iterable[Block]]
    records: Records = Records()
    version: str = ""  # of torchmark, on a page


def value_of(record: Any, field: Field) -> Any:
    """The field of a record; None where an attribute on the way is None or missing."""
    if not isinstance(field, str):
        return field(record)
    for name in field.split("."):
        if isinstance(record, tuple):
            record = record[int(name)]
        else:
            record = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
    return record


def fields(text: str) -> dict[str, Field]:
    """Columns by name, written `name=path` where the path differs."""
    return {name: path or name for name, _, path in (word.partition("=") for word in text.split())}


def table(columns: Sequence[Column], records: Iterable[Any], **more: Any) -> Table:
    columns = [column for column in columns if column.shown]
    return Table(columns, [[column.cell(record) for column in columns] for record in records], **more)


def as_cell(text: str | Cell) -> Cell:
    return Cell(text) if isinstance(text, str) else text


def quiet(*texts: str) -> Lines:
    return Lines([Cell(text, "quiet") for text in texts])


def answer(texts: Sequence[str], look: str) -> Lines:
    """The answer of a study in its colour, then its basis."""
    return Lines([Cell(texts[0], look), *quiet(*texts[1:]).lines])


def remarks(title: str, found: Iterable[str | Remark], **more: Any) -> Section:
    return Section(title, [Remarks([Remark("", each) if isinstance(each, str) else each for each in found], **more)])


def judged(text: str, note: str = "") -> Cell:
    found = word(text)
    return Cell(text, found.look, sort=found.rank, note=note, chip=True)


def some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def without_empty(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks that show something, so that builders need not ask."""
    for block in blocks:
        match block:
            case Section():
                kept = replace(block, blocks=[*without_empty(block.blocks)])
                yield from [kept] if kept.blocks or kept.lead else []
            case Lines():
                lines = [line for line in block.lines if as_cell(line).text]
                yield from [Lines(lines)] if lines else []
            case Title():
                yield replace(block, about=[text for text in block.about if text])
            case Table(rows=shown) | Facts(rows=shown) | Remarks(remarks=shown) | Cards(cards=shown) | Code(text=shown):
                yield from [block] if shown else []
