"""What a person sees while cases are measured: rows that stay, and below them one line that changes."""

from __future__ import annotations

import io

from torchmark.cli.execution import ProgressLine
from torchmark.measure.messages import Phase
from torchmark.measure.session import Finished, Started
from torchmark.records import parse_case
from torchmark.studies.study import Announcement


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


CASE = parse_case("mlp/infer@cpu/float32")


def test_on_a_terminal_a_finished_case_leaves_one_row_above_the_bar(make_result) -> None:
    screen = Terminal()
    progress = ProgressLine([CASE.text], screen, 100.0)
    progress.seen(str, Started(CASE, 0))
    progress.seen(str, Finished(make_result(CASE.text, 2e-3), 0))
    progress.seen(str, Started(CASE, 1))
    progress.seen(str, Finished(make_result(CASE.text, 2e-3), 1))
    progress.clear()
    rows = [line.rpartition("\033[K")[2] for line in screen.getvalue().split("\n")[:-1]]
    assert len(rows) == 1
    assert rows[0].split()[:3] == [CASE.text, "2.00", "ms"]
    assert "░ 1:40 left  [1/1] process 2 mlp/infer@cpu/float32 · starting" in screen.getvalue()


def test_elsewhere_every_process_leaves_a_plain_line(make_result) -> None:
    pipe = io.StringIO()
    progress = ProgressLine([CASE.text], pipe)
    progress.seen(str, Started(CASE, 0))
    progress.seen(str, Finished(make_result(CASE.text, status="oom", estimate=None), 0))
    progress.scroll("only for those who watch")
    assert pipe.getvalue() == "[1/1] mlp/infer@cpu/float32: oom\n"


def test_what_processes_say_is_shown_and_not_obeyed() -> None:
    reason = "failed\x1b]52;c;ZXZpbA==\x07\r\x9b2J\u202e"
    for stream in (io.StringIO(), Terminal()):
        progress = ProgressLine((), stream)
        progress.note(reason)
        progress.seen(lambda _: reason, Announcement())
        progress.seen(str, Started(CASE, 0))
        progress.heard(Phase(reason))
        progress.scroll(reason)
        shown = stream.getvalue().replace("\r\033[K", "")
        assert "failed" in shown
        assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(shown)
