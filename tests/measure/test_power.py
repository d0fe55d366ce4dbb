"""Power is a counter's where there is one, else a short look during untimed steps, and never a guess."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from torchmark.devices import open_device
from torchmark.devices.fake import Fake, Script
from torchmark.measure import timing
from torchmark.measure.timing import complete_power
from torchmark.records import Metered


class Watts:
    """A device that reports nothing but its power, which rises with every question."""

    def __init__(self) -> None:
        self._told: Iterator[int] = iter(range(100, 10_000))
        self.asked = 0

    def watts(self) -> float | None:
        self.asked += 1
        return float(next(self._told))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLING_S", 0.1)
    monkeypatch.setattr(timing, "SETTLING_S", 0.05)
    monkeypatch.setattr(timing, "PAUSE_S", 0.005)


def pretend(monkeypatch: pytest.MonkeyPatch, energy: str) -> None:
    monkeypatch.setattr(timing, "provenance", lambda _device: {"energy": energy})
    monkeypatch.setattr(timing, "open_vitals", lambda _device: {"energy": Watts()})


@pytest.mark.usefixtures("brief")
def test_a_device_that_reports_watts_alone_is_watched_during_untimed_steps(monkeypatch, make_estimate) -> None:
    pretend(monkeypatch, "estimated from the power")
    meter, ran = Watts(), list[float]()
    monkeypatch.setattr(timing, "open_vitals", lambda _device: {"energy": meter})

    def step() -> None:
        """It lasts until the meter was asked often: the asking thread may be late."""
        enough = meter.asked + 30
        while meter.asked < enough:
            time.sleep(0.001)
        ran.append(1.0)

    found, sources = complete_power(make_estimate(), open_device("cpu"), step)
    assert ran
    assert found.metered.mean_w is not None
    assert found.metered.peak_w is not None
    assert 100 <= found.metered.mean_w < found.metered.peak_w
    assert sources["energy"].startswith("estimated")


def test_where_nothing_may_be_run_the_power_stays_unknown(monkeypatch, make_estimate) -> None:
    pretend(monkeypatch, "estimated from the power")
    found, sources = complete_power(make_estimate(), open_device("cpu"))
    assert (found.metered.mean_w, sources["energy"]) == (
        None,
        "unavailable because its power was not sampled during untimed steps",
    )


def test_what_a_counter_said_is_kept(monkeypatch, make_estimate) -> None:
    pretend(monkeypatch, "measured by a test")
    known = make_estimate(metered=Metered(mean_w=42.0))
    assert complete_power(known, open_device("cpu"), lambda: 1 / 0) == (known, {"energy": "measured by a test"})


def test_steps_that_were_too_short_for_the_counter_say_so(monkeypatch, make_estimate) -> None:
    pretend(monkeypatch, "measured by a test")
    _, sources = complete_power(make_estimate(), open_device("cpu"), lambda: None)
    assert sources["energy"] == "unavailable because the counter moves too slowly for less than 0.5 s of steps"


def test_one_device_of_several_is_not_taken_for_all(monkeypatch, make_estimate) -> None:
    pretend(monkeypatch, "measured by a test")
    found, sources = complete_power(
        make_estimate(metered=Metered(mean_w=42.0)), open_device("cpu"), lambda: None, False
    )
    assert found.metered.mean_w is None
    assert sources["energy"].startswith("unavailable because several devices")


def test_a_made_up_device_has_no_meters_of_this_machine(make_estimate) -> None:
    assert complete_power(make_estimate(), Fake("fake", Script()), lambda: None)[1] == {}
