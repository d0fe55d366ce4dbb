"""CSV with no cell that a spreadsheet would take for a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from torchmark.report.document import CsvValue
from torchmark.report.text import clean

# Where a spreadsheet would begin a formula: at the start of a cell, or after what it may take for the end of one, as
# it does ; where numbers have a decimal comma. Some take the wide forms of the signs for the same.
_FORMULA = re.compile(r"""(?:^|[;|\t\r\n])(?=[\s"\0]*[=+\-@＝＋－＠])|^(?=[\t\r\n\0])""")


def table(columns: Sequence[str], rows: Iterable[Sequence[CsvValue]]) -> str:
    """Any rows as CSV, with every text guarded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_guarded(cell) for cell in row] for row in rows)
    return text.getvalue()


def _guarded(cell: CsvValue) -> CsvValue:
    """A text with a quote wherever a formula would begin; numbers are themselves."""
    return _FORMULA.sub(r"\g<0>'", clean(cell)) if isinstance(cell, str) else cell
