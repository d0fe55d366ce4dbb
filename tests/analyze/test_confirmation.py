"""What won a search is measured anew, and keeps only those settings that show their worth again."""

from __future__ import annotations

import math

import pytest

from torchmark.analyze.search import Settled, leads, settle
from torchmark.records import Case, parse_case

DEFAULT = parse_case("resnet50/infer@cpu/float32")
CORE = parse_case("resnet50/infer@cpu/float32+compile")
WINNER = parse_case("resnet50/infer@cpu/float32+compile+threads=1")
SHORT = parse_case("resnet50/infer@cpu/bfloat16+compile")


def bout(core: float, winner: float, case: Case = WINNER) -> list[dict[str, float]]:
    """Two rounds; times as fast as the default, and the machine has another pace in each."""
    own = {DEFAULT.text: 0.0, CORE.text: -math.log(core), case.text: -math.log(winner)}
    return [{text: value + pace for text, value in own.items()} for pace in (0.0, 0.3)]


def test_settings_that_show_their_worth_again_are_kept() -> None:
    settled = settle(DEFAULT, CORE, WINNER, [bout(2.0, 2.2), bout(2.0, 2.24), bout(1.98, 2.2)])
    assert (settled.leader, settled.rival) == (WINNER, CORE)
    assert settled.gain is not None
    assert settled.gain.low < 2.21 < settled.gain.high
    assert settled.behind == pytest.approx(math.log(1.11), abs=0.01)


@pytest.mark.parametrize("gains", [(2.2, 1.9, 2.1), (1.8, 1.9, 1.8), (2.01, 2.01, 2.01)])
def test_settings_that_do_not_are_left_out(gains: tuple[float, ...]) -> None:
    settled = settle(DEFAULT, CORE, WINNER, [bout(2.0, gain) for gain in gains])
    assert (settled.leader, settled.rival) == (CORE, WINNER)
    assert settled.gain is not None
    assert settled.gain.center == pytest.approx(2.0)


def test_what_is_confirmed_is_not_given_up_for_what_is_not() -> None:
    bouts = [bout(math.exp(core), math.exp(winner)) for core, winner in ((0.10, 0.08), (0.0, 0.085), (0.07, 0.078))]
    settled = settle(DEFAULT, CORE, WINNER, bouts)
    assert (settled.leader, settled.is_confirmed) == (WINNER, True)


def test_shorter_numbers_have_to_be_surer() -> None:
    gains = (2.05, 2.3, 2.2)
    assert settle(DEFAULT, CORE, WINNER, [bout(2.0, gain) for gain in gains]).leader == WINNER
    assert settle(DEFAULT, CORE, SHORT, [bout(2.0, gain, SHORT) for gain in gains]).leader == CORE


def test_where_nothing_is_doubted_or_too_little_was_seen_the_winner_stays() -> None:
    assert settle(DEFAULT, WINNER, WINNER, [bout(2.0, 1.0)] * 3).leader == WINNER
    assert settle(DEFAULT, DEFAULT, WINNER, [bout(2.0, 1.0)] * 3).leader == WINNER
    once = settle(DEFAULT, CORE, WINNER, [bout(2.0, 1.0)])
    assert (once.leader, once.gain, len(once.pairs)) == (WINNER, None, 1)
    assert settle(DEFAULT, CORE, WINNER, []).pairs == ()


def test_what_was_measured_anew_stands_where_that_puts_it() -> None:
    """Also a core that the search itself has never tried."""
    logs = ((-math.log(2.0),) * 2,) * 3
    settled = Settled(DEFAULT, CORE, logs, WINNER, 0.1)
    placed = settled.placed({DEFAULT.text: 5.0, WINNER.text: 1.0})
    assert placed == {
        CORE.text: pytest.approx(0.9),
        WINNER.text: pytest.approx(1.0),
        DEFAULT.text: pytest.approx(0.9 + math.log(2.0)),
    }
    assert Settled(DEFAULT, CORE).placed({DEFAULT.text: 5.0}) == {DEFAULT.text: 5.0}


def test_rounds_in_which_one_of_them_is_missing_tell_nothing() -> None:
    rounds = bout(2.0, 2.2)
    del rounds[0][CORE.text]
    assert leads([rounds, [{WINNER.text: 0.0}]], WINNER, CORE) == ((pytest.approx(-math.log(1.1)),),)
