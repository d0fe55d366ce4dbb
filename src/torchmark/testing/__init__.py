"""The pytest plug-in: a fixture `torchmark` that times steps, keeps the results as a run, and fails on a regression.

pytest imports this file whenever it starts, so that nothing slow is imported here; the rest waits for its first use.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchmark.testing.bench import Bench
    from torchmark.testing.recorder import Recorder

_RECORDER = pytest.StashKey["Recorder"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchmark", "times of steps")
    group.addoption("--torchmark-against", metavar="RUN", help="Fail where a step is slower than in this stored run.")
    group.addoption(
        "--torchmark-fail-if-slower",
        metavar="SHARE",
        type=_share,
        default=0.1,
        help="How much slower a step may be, beyond what chance explains; default: 10%%.",
    )
    group.addoption(
        "--torchmark-allow-inconclusive",
        action="store_true",
        help="Pass where so small a difference would not be visible.",
    )
    group.addoption("--torchmark-budget", metavar="SECONDS", type=float, default=5.0, help="For one step; default: 5.")
    group.addoption("--torchmark-label", metavar="NAME", default="pytest", help="Name of the run; default: pytest.")
    group.addoption("--torchmark-out", metavar="FILE", help="Where to keep the run; default: with the others.")


def pytest_configure(config: pytest.Config) -> None:
    """A baseline that is not there is a mistake in the command, not in every test."""
    against = config.getoption("--torchmark-against")
    if against and not hasattr(config, "workerinput"):
        from torchmark.errors import TorchmarkError
        from torchmark.testing.baseline import find_baseline

        try:
            find_baseline(against, config.getoption("--torchmark-label"))
        except TorchmarkError as error:
            raise pytest.UsageError(f"--torchmark-against: {error}") from None


@pytest.fixture
def torchmark(request: pytest.FixtureRequest) -> Bench:
    """Times any callable as `torchmark run` would: `result = torchmark(step)`."""
    from torchmark.testing.bench import Bench

    return Bench(_recorder(request.config), request.node.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One run file of all results; those of pytest-xdist's workers go to its controller first."""
    recorder = session.config.stash.get(_RECORDER, None)
    if recorder is None or not recorder.results:
        return
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["torchmark"] = recorder.encode()
    else:
        recorder.keep()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = (getattr(node, "workeroutput", None) or {}).get("torchmark")
    if told:
        _recorder(node.config).decode(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    recorder = config.stash.get(_RECORDER, None)
    if recorder is not None and recorder.run is not None:
        terminalreporter.section("torchmark")
        terminalreporter.write_line(recorder.summary())


def _recorder(config: pytest.Config) -> Recorder:
    from torchmark.testing.recorder import Recorder

    if _RECORDER not in config.stash:
        option = config.getoption
        config.stash[_RECORDER] = Recorder(
            against=option("--torchmark-against"),
            limit=option("--torchmark-fail-if-slower"),
            allow=option("--torchmark-allow-inconclusive"),
            budget_s=option("--torchmark-budget"),
            label=option("--torchmark-label"),
            out=option("--torchmark-out"),
        )
    return config.stash[_RECORDER]


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise ArgumentTypeError(f"'{text}' is not a share between 0 and 1, such as 5% or 0.05")
    return share
