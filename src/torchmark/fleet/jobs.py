"""The jobs of a fleet: nodes are tried out, tasks submitted and cancelled, and their status observed."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchmark.errors import FleetError, StoreError
from torchmark.fleet.engine import UNDER_WAY, Engine, Job, JobOutcome, Node, State, Submitted, outcome_of
from torchmark.fleet.folder import FleetFolder, Order, Task, Terms, read, temporary, write
from torchmark.local_log import open_log
from torchmark.records import Run
from torchmark.store import load

LOOK_S = 0.3
ARRIVAL_S = 15.0  # until a file that a node has written is seen here
_TAIL_BYTES = 4096
_RESUMABLE = ("--timeout", "--data")  # options that `torchmark run` takes again when it resumes a run
_NOT_SHARED, _NOT_WRITABLE, _NO_PYTHON, _NO_TORCHMARK, _SETUP_FAILED = 91, 92, 93, 94, 95


class TaskStatus(Struct, frozen=True):
    """One task: its state with the reason, and what has been measured so far. Only this user may see `detail`."""

    task: Task
    state: State
    reason: str = ""
    detail: str = ""
    run: Run | None = None

    @property
    def private_reason(self) -> str:
        return ": ".join(filter(None, (self.reason, self.detail)))

    @property
    def planned(self) -> int | None:
        """Cases to measure; None until the node knows."""
        return len(self.run.header.cases) if self.run else None

    @property
    def measured(self) -> int:
        """Cases that have a result, even a failure."""
        return sum(result.status != "interrupted" for result in self.run.results) if self.run else 0


def submit(engine: Engine, folder: FleetFolder, terms: Terms, tasks: Iterable[Task], nodes: Iterable[Node]) -> None:
    """Submit every task whose nodes take jobs; the others are recorded as unavailable."""
    obstacles = {node.name: node.obstacle for node in nodes}
    unknown = JobOutcome("unavailable", "the scheduler no longer knows it")
    submitted = False
    for task in tasks:
        folder.forget(task)
        obstacle = next((each for name in task.nodes if (each := obstacles.get(name, unknown))), None)
        if obstacle:
            folder.keep_outcome(task, obstacle)
            continue
        os.close(open_log(log := folder.file(task, "log")))  # the job appends to it, and only its owner can read it
        script = _write_script(engine, folder, terms, task)
        try:
            number = engine.submit(Job(task.name, script, log, task.nodes, terms.time_s, terms.scheduling))
        except FleetError as error:
            folder.keep_outcome(task, JobOutcome("failed", error.cause, error.detail))
            if not submitted:  # the others would fail the same way
                raise
            continue
        write(folder.file(task, "job"), number.encode())
        submitted = True


def cancel(engine: Engine, folder: FleetFolder, tasks: Iterable[Task], outcome: JobOutcome | None = None) -> None:
    """End the jobs of tasks, and record `outcome` as theirs if it is given."""
    jobs = [(task, job) for task in tasks if (job := folder.job(task))]
    engine.cancel([job for _, job in jobs])
    if outcome:
        for task, _ in jobs:
            folder.keep_outcome(task, outcome)


def _write_script(engine: Engine, folder: FleetFolder, terms: Terms, task: Task) -> Path:
    always = ("--wait", *(engine.team_options if len(task.nodes) > 1 else ()))
    pairs = zip(task.arguments, (*task.arguments[1:], ""), strict=True)
    again = [part for name, value in pairs if name in _RESUMABLE for part in (name, value)]
    order = Order(
        arguments=(*task.arguments, "--label", task.label, *always),
        resuming=(*_model_files(task.arguments), *again, *always),
        run_file=str(folder.run_file(task)),
        nodes=len(task.nodes),
    )
    write(folder.file(task, "order"), msgspec.json.encode(order))
    command = shlex.join([terms.python, "-P", "-m", "torchmark.fleet.node", str(folder.file(task, "order"))])
    script = folder.file(task, "sh")
    write(script, "\n".join(["#!/bin/bash", *terms.setup, f"exec {command}", ""]).encode())
    return script


def _model_files(arguments: Iterable[str]) -> Iterator[str]:
    """The user's model files, which are named again to resume a run; they come before any option."""
    for name in takewhile(lambda each: not each.startswith("-"), arguments):
        workload = name.partition("/")[0] if "@" in name else name  # a case, or a file
        if re.search(r"\.(py|json)(:[\w.-]+)?$", workload):
            yield workload


class Observer:
    """Reads the status of tasks repeatedly; unchanged run files are not read again, and outcomes are remembered."""

    def __init__(self, folder: FleetFolder, engine: Engine | None) -> None:
        self._folder, self._engine = folder, engine
        self._runs: dict[Path, tuple[tuple[int, int], Run | None]] = {}

    def look(self, tasks: Sequence[Task]) -> tuple[TaskStatus, ...]:
        """The present status of all tasks."""
        kept = {task.name: outcome for task in tasks if (outcome := self._folder.outcome(task))}
        open_jobs = [job for task in tasks if task.name not in kept and (job := self._folder.job(task))]
        renamed = self._folder.kept_aside()
        reported = self._engine.outcomes(open_jobs) if self._engine and open_jobs else {}
        return tuple(
            self._status(task, kept.get(task.name), reported.get(task.name), task.name in renamed) for task in tasks
        )

    def _status(self, task: Task, kept: JobOutcome | None, reported: JobOutcome | None, renamed: bool) -> TaskStatus:
        outcome = kept or self._folder.outcome(task) or reported or self._without_engine(task)
        if outcome.state in ("failed", "lost") and (error := self._last_error(task)):
            outcome = replace(outcome, detail=error)
        if kept is None and outcome.state not in UNDER_WAY and self._folder.job(task):
            with contextlib.suppress(StoreError):  # users who may look need not be allowed to write
                self._folder.keep_outcome(task, outcome)
        file = self._folder.run_file(task)
        reasons = [f"earlier results are in {file.name}.aside-*"] if renamed else []
        reasons += [outcome.reason] if outcome.reason else []
        return TaskStatus(task, outcome.state, ", ".join(reasons), outcome.detail, self._run(file))

    def _without_engine(self, task: Task) -> JobOutcome:
        """The scheduler does not know it, or was not asked: its node may have recorded how it ended."""
        code = self._folder.end_code(task)
        if code is not None:
            return outcome_of(code)
        if self._folder.job(task) is None:
            return JobOutcome("lost", "it was never submitted")
        return JobOutcome("lost", "the scheduler has forgotten the job, and its node recorded nothing")

    def _last_error(self, task: Task) -> str:
        """The last error that the job printed."""
        text = ""
        with contextlib.suppress(StoreError):
            text = (read(self._folder.file(task, "log"), _TAIL_BYTES, tail=True) or b"").decode(errors="replace")
        errors = re.findall(r"^torchmark: error: (.+)$", text, re.MULTILINE)
        return errors[-1].strip() if errors else ""

    def _run(self, path: Path) -> Run | None:
        try:
            about = path.stat()
        except OSError:
            return None
        stamp = about.st_size, about.st_mtime_ns
        if path not in self._runs or self._runs[path][0] != stamp:
            run = None
            with contextlib.suppress(StoreError):  # its header may be half-written at this very moment
                run = load(path)
            self._runs[path] = stamp, run
        return self._runs[path][1]


def try_nodes(
    engine: Engine, folder: FleetFolder, terms: Terms, nodes: Iterable[Node], say: Callable[[str], None]
) -> None:
    """Run one small task on one node of each kind, all at the same time, to find out what would make every job fail: a
    folder that is not shared, or no torchmark there. The first node that cannot take part is an error."""
    kinds: dict[str, Node] = {}
    for node in sorted(nodes, key=lambda node: not node.idle):
        kinds.setdefault(node.about, node)
    name = f"probe-{secrets.token_hex(4)}"
    mark, *answers = (temporary(folder.jobs / f"{name}.{number}") for number in range(len(kinds) + 1))
    tried: dict[str, tuple[Node, Path]] = {}
    try:
        mark.touch()
        for node, answer in zip(kinds.values(), answers, strict=True):
            job = engine.try_out(trial_script(terms, str(mark), str(answer)), node.name, terms.scheduling)
            tried[job] = node, answer
        for job, (node, answer) in tried.items():
            _judge(_wait(engine, job, node, say), node, folder, terms)
            _await_answer(folder, answer.name, node)
    finally:
        engine.cancel([Submitted("probe", job, mark) for job in tried])
        for path in (mark, *answers):
            path.unlink(missing_ok=True)


def trial_script(terms: Terms, mark: str, answer: str) -> str:
    """In plain shell, because what it looks for may be missing."""
    python = shlex.quote(terms.python)
    setup = "\n".join(f"{line} || exit {_SETUP_FAILED}" for line in terms.setup)
    return f"""#!/bin/bash
{setup}
[ -e {shlex.quote(mark)} ] || exit {_NOT_SHARED}
command -v {python} > /dev/null || exit {_NO_PYTHON}
{python} -P -c 'import torchmark.fleet.node' || exit {_NO_TORCHMARK}
touch {shlex.quote(answer)} || exit {_NOT_WRITABLE}
"""


def _wait(engine: Engine, job: str, node: Node, say: Callable[[str], None]) -> int:
    said = False
    while (code := engine.exit_code(job)) is None:
        if not said:
            say(f"trying {node.name}, as one of its kind …")
            said = True
        time.sleep(LOOK_S)
    return code


def _judge(code: int, node: Node, folder: FleetFolder, terms: Terms) -> None:
    name = node.name
    known = {
        _NOT_SHARED: (f"{name} does not see {folder.path}", "Name a folder that all nodes share: --folder"),
        _NOT_WRITABLE: (f"{name} cannot write into {folder.path}", "Name a folder that all nodes can write: --folder"),
        _NO_PYTHON: (
            f"{name} has no {terms.python}",
            "Install torchmark where all nodes see it, or name the interpreter that they have: --python",
        ),
        _NO_TORCHMARK: (
            f"{terms.python} on {name} cannot import torchmark, or has an older one",
            "Install this torchmark there, or name the interpreter that has it: --python",
        ),
        _SETUP_FAILED: (f"a line of --setup failed on {name}", "Try it there with `srun`"),
    }
    if code in known:
        raise FleetError(*known[code])
    if code:
        raise FleetError(f"a trial task on {name} failed with exit code {code}", "Try there: srun true")


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
