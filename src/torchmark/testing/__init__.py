"""The pytest plug-in with the fixture `torchmark`. pytest imports it at every start: slow imports wait for its use."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchmark.records import Run
    from torchmark.testing.session import Bench, Recorder

_RECORDER: pytest.StashKey[Recorder] = pytest.StashKey()
_BASELINE: pytest.StashKey[Run | None] = pytest.StashKey()
LABEL = "pytest"  # of the run
_OPTIONS = ("label", "out", "against", "fail_if_slower", "allow_inconclusive", "budget")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchmark", "times of steps")
    group.addoption("--torchmark-against", metavar="RUN", help="Fail where a step is slower than in this stored run.")
    slower = "How much slower a step may be, beyond what chance explains; default: 10%%."
    group.addoption("--torchmark-fail-if-slower", metavar="SHARE", type=_share, default=0.1, help=slower)
    unseen = "Pass where so small a difference would not be visible."
    group.addoption("--torchmark-allow-inconclusive", action="store_true", help=unseen)
    group.addoption("--torchmark-budget", metavar="SECONDS", type=float, default=5.0, help="For one step; default: 5.")
    group.addoption("--torchmark-label", metavar="NAME", default=LABEL, help=f"Name of the run; default: {LABEL}.")
    group.addoption("--torchmark-out", metavar="FILE", help="Where to keep the run; default: with the others.")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before any test runs. Workers of pytest-xdist get options that its controller has checked."""
    given = [config.getoption(f"torchmark_{name}") for name in _OPTIONS[:3]]
    if not hasattr(config, "workerinput") and given != [LABEL, None, None]:
        from torchmark.testing.session import check_options

        config.stash[_BASELINE] = check_options(*given)


@pytest.fixture
def torchmark(request: pytest.FixtureRequest) -> Bench:
    """Times any callable as `torchmark run` would: `result = torchmark(step)`."""
    from torchmark.errors import TorchmarkError
    from torchmark.testing.session import Bench, failure

    try:
        return Bench(_recorder(request.config), request.node.nodeid)
    except TorchmarkError as error:  # a worker of pytest-xdist may not find the baseline
        raise failure(str(error)) from None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One run file of all results; those of pytest-xdist's workers go to its controller first."""
    recorder = session.config.stash.get(_RECORDER, None)
    if recorder and recorder.results:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["torchmark"] = recorder.encode()
        elif not recorder.keep():
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if output := (getattr(node, "workeroutput", None) or {}).get("torchmark"):
        _recorder(node.config).decode(output)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    recorder = config.stash.get(_RECORDER, None)
    if recorder and recorder.run:
        terminalreporter.section("torchmark")
        terminalreporter.write_line(recorder.summary())


def _recorder(config: pytest.Config) -> Recorder:
    from torchmark.testing.session import Recorder, load_baseline

    if _RECORDER not in config.stash:
        given = {name: config.getoption(f"torchmark_{name}") for name in _OPTIONS}
        if _BASELINE not in config.stash:
            config.stash[_BASELINE] = load_baseline(given["against"], given["label"])
        config.stash[_RECORDER] = Recorder(config.stash[_BASELINE], **given)
    return config.stash[_RECORDER]


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise ArgumentTypeError(f"{text!r} is not a share between 0 and 1, such as 5% or 0.05")
    return share
