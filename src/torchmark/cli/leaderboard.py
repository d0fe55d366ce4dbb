"""The leaderboard of a folder of run files, for `torchmark report --leaderboard`."""

from __future__ import annotations

import sys
from pathlib import Path

from torchmark import __version__
from torchmark.cli.output import say
from torchmark.errors import StoreError, UsageError

MANY = 500  # files that take more than a moment to read


def leaderboard_text(folder: Path, format: str, top: int) -> str:  # noqa: A002
    """The boards of all run files in the folder, with their `top` places."""
    from torchmark.analyze.entries import Entry
    from torchmark.analyze.leaderboard import Tally, order_boards, rank_boards
    from torchmark.report.leaderboard import Source, render_leaderboard
    from torchmark.store.index import ask_folder

    tally = Tally()
    boards, found = ask_folder(
        folder, Entry, lambda entries: order_boards(rank_boards(entries, top, tally)), _show_progress, _why_unsound
    )
    if not found.files:
        raise UsageError(
            f"there are no run files in {folder}", "Name a folder with the .jsonl files of `torchmark run`"
        )
    if not boards:
        why = found.problems[0] if found.problems else "No case in them was measured"
        raise StoreError(f"there is nothing to rank in the {found.files:,} run files of {folder}", why)
    source = Source(found.files, found.extracts, found.problems)
    return render_leaderboard(boards, source, format, __version__, tally.overall(top))


def _why_unsound(path: Path) -> str:
    """Why `torchmark check` rejects a file; empty if it does not. Raw samples, most of its bytes, are left out."""
    from torchmark.cli.soundness import FileCheck

    flaws = FileCheck(path.name, path, samples=False).run().flaws
    if not flaws:
        return ""
    line = f"line {flaws[0].line}, " if flaws[0].line else ""
    more = f" (and {len(flaws) - 1} more)" if len(flaws) > 1 else ""
    return f"it fails the check: {line}{': '.join(filter(None, (flaws[0].place, flaws[0].text)))}{more}"


def _show_progress(done: int, total: int) -> None:
    if total < MANY:
        return
    text = f"reading run files: {done:,} of {total:,}"
    if sys.stderr.isatty():
        print(f"\r\033[K{text if done < total else ''}", end="", file=sys.stderr, flush=True)
    elif done == 0:
        say(f"reading {total:,} run files")
