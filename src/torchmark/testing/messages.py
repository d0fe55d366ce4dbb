"""The only ways by which the plug-in shows text: all of it may hold foreign text, and is cleaned here."""

from __future__ import annotations

import pytest

from torchmark.report.text import clean, printable


def usage_error(option: str, error: Exception) -> pytest.UsageError:
    """A mistake in the command, on one line."""
    return pytest.UsageError(clean(f"{option}: {error}"))


def failure(text: str) -> BaseException:
    """What fails a test, without showing where in torchmark it was raised."""
    return pytest.fail.Exception(printable(text), pytrace=False)


def show(reporter: pytest.TerminalReporter, text: str) -> None:
    reporter.section("torchmark")
    reporter.write_line(printable(text))
