"""What the leaderboard shows: who is first, how sure that is, what was left out, and nothing that a file sneaks in."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import asdict, replace

from torchmark.analyze.machines import Board, Entry, rank_boards
from torchmark.errors import UnknownName
from torchmark.report import render
from torchmark.report.machines import BOARDS_SHOWN, PROBLEMS_SHOWN, Source, leaderboard_document

SOURCE = Source(3, 27, ("bad.jsonl is not a run file",))
HOSTILE = "</code></details><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\"'`|=cmd"


@pytest.fixture
def entries(full_run) -> list[Entry]:
    """One run on three machines: the second as fast as the first, the third with a GPU and less time."""
    first = [*Entry.of_run(replace(full_run, process_spread=1e-4), "one.jsonl")]

    def quarter(entry: Entry) -> dict[str, float]:
        return {name: value / 4 for name in ("center_s", "low_s", "high_s") if (value := getattr(entry, name))}

    second = [replace(entry, cpu="EPYC", model="EPYC", file="two.jsonl", run="two") for entry in first]
    third = [
        replace(entry, device="cuda", model="H100", setting="+compile", file="three.jsonl", **quarter(entry))
        for entry in first
    ]
    return [entry for same in zip(first, second, third, strict=True) for entry in same]


def boards_of(entries: list[Entry]) -> tuple[Board, ...]:
    return rank_boards(entries, 20)[0]


def show(entries: list[Entry], format: str, source: Source = SOURCE) -> str:  # noqa: A002
    return render(leaderboard_document(boards_of(entries), source, "0.1.0"), format)


class Reader(HTMLParser):
    """A page as a browser would take it: its tags, and its text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not self.tags or self.tags[-1][0] not in ("style", "script"):
            self.text += f"{data} "


def test_a_board_shows_ranks_ties_rates_and_failures(entries: list[Entry]) -> None:
    text = show(entries, "md")
    board = text.split("### mlp/infer float32 version 1\n")[1].split("###")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in board.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["1", "2=", "2="]
    assert rows[0][1] == "H100 (Intel Xeon Platinum 8370C, 2 cores, 16 GiB) +compile"
    assert rows[0][2:6] == ["202k sample/s", "±0.4%", "633 µs", "good"]
    failed = text.split("### tensor-add")[1]
    assert failed.count("| - |") >= 3
    assert "oom: tried to allocate 37.3 GB with 14.1 GB free" in failed
    assert "bad.jsonl is not a run file" in text


def test_a_page_holds_all_of_it_and_nothing_from_elsewhere(entries: list[Entry]) -> None:
    page = show(entries, "html")
    read = Reader(page)
    for words in ("202k sample/s", "2=", "H100", "+compile", "poor", "tried to allocate", "3 run files"):
        assert words in read.text
    assert [tag for tag, _ in read.tags].count("details") == len(boards_of(entries))
    names = {name for _, attributes in read.tags for name in attributes}
    assert not [name for name in names if name in ("src", "style") or name.startswith("on")]
    assert "bad.jsonl is not a run file" in read.text


def test_csv_and_json_have_every_place_under_the_names_of_the_records(entries: list[Entry]) -> None:
    rows = list(csv.DictReader(io.StringIO(show(entries, "csv"))))
    whole = json.loads(show(entries, "json"))
    places = [place for board in whole["boards"] for place in (*board["places"], *board["disturbed"], *board["failed"])]
    assert len(rows) == len(places) == 15
    assert set(asdict(entries[0])) <= set(places[0])
    for row, place in zip(rows, places, strict=True):
        assert row["case"] == place["case"]
        assert row["rank"] == ("" if place["rank"] is None else str(place["rank"]))
        assert row["rate"] == ("" if place["rate"] is None else repr(place["rate"]))
    assert whole["source"] == asdict(SOURCE) | {"problems": list(SOURCE.problems)}


@pytest.mark.parametrize("format", ["html", "md", "csv", "json"])
def test_hostile_strings_in_every_field_stay_strings(entries: list[Entry], format: str) -> None:  # noqa: A002
    free = {name: value for name, value in asdict(entries[0]).items() if name not in ("status", "verdict")}
    texts = [name for name, value in free.items() if isinstance(value, str)]
    assert len(texts) > 10
    hostile = [replace(entry, **dict.fromkeys((*texts, "label", "reason"), HOSTILE)) for entry in entries[-3:]]
    hostile += [replace(entry, status="oom", cpu=f"{HOSTILE}2") for entry in hostile]
    text = show(hostile, format, Source(1, 1, (HOSTILE,)))
    assert "\u202e" not in text
    if format == "html":
        read = Reader(text)
        plain = Reader(show(entries[-3:], "html"))
        assert {tag for tag, _ in read.tags} <= {tag for tag, _ in plain.tags} | {"code", "small"}
        assert [tag for tag, _ in read.tags].count("script") == 1
        assert read.text.count("<script>alert(1)</script>") > 5
    elif format == "md":
        assert "<script>" not in re.sub(r"`[^`]*`", "", text)
    elif format == "csv":
        assert not [cell for row in csv.reader(io.StringIO(text)) for cell in row if cell.startswith(("=", "+", "@"))]


def test_a_page_of_very_many_boards_stays_small_and_says_what_it_leaves_out(entries: list[Entry]) -> None:
    one = entries[0]
    many = []
    for board in range(BOARDS_SHOWN + 30):
        task = f"some-workload/train:batch={board},sequence=128"
        many += [replace(one, task=task, cpu=f"A processor with a long name {n}", center_s=1.0 + n) for n in range(40)]
    problems = tuple(f"file-{number}.jsonl is not a run file" for number in range(1000))
    page = show(many, "html", Source(4000, len(many), problems))
    assert len(page.encode()) < 1.5e6
    text = Reader(page).text
    assert f"the {BOARDS_SHOWN} boards with the most places of {BOARDS_SHOWN + 30}" in text
    assert "Not shown: 20 slower places." in text
    assert f"and {1000 - PROBLEMS_SHOWN} more" in text
    assert len(json.loads(show(many, "json"))["boards"]) == BOARDS_SHOWN + 30


def test_a_published_figure_has_no_margin(entries: list[Entry]) -> None:
    published = replace(entries[3], verdict="as-published", procedure="+as-published", low_s=entries[3].center_s)
    row = next(line for line in show([published], "md").splitlines() if line.startswith("| 1"))
    assert row.split("|")[4].strip() == "-"


def test_an_unknown_format_is_an_error(entries: list[Entry]) -> None:
    with pytest.raises(UnknownName, match="format"):
        show(entries, "pdf")


def test_the_overall_table_comes_first_and_says_what_it_rests_on(entries: list[Entry]) -> None:
    boards, overall = rank_boards(entries, 20)
    assert overall
    document = leaderboard_document(boards, SOURCE, "0.1.0", overall)
    texts = {form: render(document, form) for form in ("md", "html", "json")}
    first = texts["md"].split("### ")[1]
    assert first.startswith("Overall")
    assert f"over the {len(overall.tasks)} cases that at least half of all machines did" in first
    assert first.index("H100") < first.index("EPYC")
    assert texts["html"].index('id="overall"') < texts["html"].index('id="boards"')
    assert json.loads(texts["json"])["overall"]["standings"][0]["model"] == "H100"
