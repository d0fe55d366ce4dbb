"""`torchmark …` in the process of the test, which costs no start of Python and shares the fork server of other tests.

Only workers are processes of their own, as in a real run. Tests of signals, of standard streams and of how the command
itself starts and ends need the real one.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess

from torchmark import cli


def run_torchmark(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> CompletedProcess[str]:
    """Run a command to its end, with these variables added to the environment, in this folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with (
        _variables(environment or {}),
        contextlib.chdir(folder or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = cli.main(arguments)
    return CompletedProcess(arguments, code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
