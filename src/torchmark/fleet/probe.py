"""Finds out with one small task what would make every job fail: a folder that is not shared, no torchmark there."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from torchmark.errors import FleetError
from torchmark.fleet.contract import Engine, Node, Submitted
from torchmark.fleet.files import temporary
from torchmark.fleet.plan import FleetFolder, Terms

LOOK_S = 0.3
ARRIVAL_S = 15.0  # until a file that a node has written is seen here
_NOT_SHARED, _NOT_WRITABLE, _NO_PYTHON, _NO_TORCHMARK, _SETUP_FAILED = 91, 92, 93, 94, 95

Say = Callable[[str], None]


def probe(engine: Engine, folder: FleetFolder, terms: Terms, nodes: Iterable[Node], say: Say) -> None:
    """One task on one node of each kind, all at the same time; the first that cannot take part is an error."""
    kinds: dict[str, Node] = {}
    for node in sorted(nodes, key=lambda node: not node.idle):
        kinds.setdefault(node.about, node)
    name = f"probe-{secrets.token_hex(4)}"
    mark, *answers = (temporary(folder.jobs / f"{name}.{number}") for number in range(len(kinds) + 1))
    tried: dict[str, tuple[Node, Path]] = {}
    try:
        mark.touch()
        for node, answer in zip(kinds.values(), answers, strict=True):
            job = engine.try_out(script(terms, str(mark), str(answer)), node.name, terms.scheduling)
            tried[job] = node, answer
        for job, (node, answer) in tried.items():
            code = _wait(engine, job, node, say)
            _judge(code, node, folder, terms)
            _await_answer(folder, answer.name, node)
    finally:
        engine.cancel([Submitted("probe", job, mark) for job in tried])
        for path in (mark, *answers):
            path.unlink(missing_ok=True)


def script(terms: Terms, mark: str, answer: str) -> str:
    """In plain shell: what it looks for may not be there."""
    python = shlex.quote(terms.python)
    setup = "\n".join(f"{line} || exit {_SETUP_FAILED}" for line in terms.setup)
    return f"""#!/bin/bash
{setup}
[ -e {shlex.quote(mark)} ] || exit {_NOT_SHARED}
command -v {python} > /dev/null || exit {_NO_PYTHON}
{python} -P -c 'import torchmark.fleet.node' || exit {_NO_TORCHMARK}
touch {shlex.quote(answer)} || exit {_NOT_WRITABLE}
"""


def _wait(engine: Engine, job: str, node: Node, say: Say) -> int:
    said = False
    while (code := engine.exit_code(job)) is None:
        if not said:
            say(f"trying {node.name}, as one of its kind …")
            said = True
        time.sleep(LOOK_S)
    return code


def _judge(code: int, node: Node, folder: FleetFolder, terms: Terms) -> None:
    who = node.name
    known = {
        _NOT_SHARED: (f"{who} does not see {folder.path}", "Name a folder that all nodes share: --folder"),
        _NOT_WRITABLE: (f"{who} cannot write into {folder.path}", "Name a folder that all nodes can write: --folder"),
        _NO_PYTHON: (
            f"{who} has no {terms.python}",
            "Install torchmark where all nodes see it, or name the interpreter that they have: --python",
        ),
        _NO_TORCHMARK: (
            f"{terms.python} on {who} cannot import torchmark, or has an older one",
            "Install this torchmark there, or name the interpreter that has it: --python",
        ),
        _SETUP_FAILED: (f"a line of --setup failed on {who}", "Try it there with `srun`"),
    }
    if code in known:
        raise FleetError(*known[code])
    if code:
        raise FleetError(f"a trial task on {who} failed with exit code {code}", "Try there: srun true")


def _await_answer(folder: FleetFolder, name: str, node: Node) -> None:
    """A folder of the same name may be there without being the same."""
    end = time.monotonic() + ARRIVAL_S
    while name not in {path.name for path in folder.jobs.iterdir()}:
        if time.monotonic() > end:
            raise FleetError(
                f"what {node.name} writes into {folder.path} does not arrive here",
                "Name a folder that all nodes share: --folder",
            )
        time.sleep(LOOK_S)
