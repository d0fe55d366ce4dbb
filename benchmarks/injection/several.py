"""Runs torchmark commands in one process: stdin lists, for each, the file for its stdout and its arguments."""

import contextlib
import json
import sys
from pathlib import Path

from torchmark import cli

for out, arguments in json.load(sys.stdin):
    with Path(out).open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        cli.main(arguments)
