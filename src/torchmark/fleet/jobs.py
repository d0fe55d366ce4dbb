"""Choose nodes and try them out; submit, cancel and observe tasks."""

import os
import re
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from string import ascii_uppercase

import msgspec
from msgspec.structs import replace

from torchmark.errors import FleetError, StoreError, UsageError
from torchmark.fleet.folder import UNDER_WAY, FleetFolder, JobOutcome, Node, Order, Submitted, Task, Terms, write
from torchmark.fleet.local import Local
from torchmark.fleet.slurm import Slurm
from torchmark.local_log import open_log
from torchmark.records import Run
from torchmark.store import load
from torchmark.store.files import temporary

LOOK_S = 0.3
ARRIVAL_S = 15.0  # until a node's file is seen here
_SHARED = "Name a folder that all nodes share: --folder"
Engine = Slurm | Local


class TaskStatus(JobOutcome, frozen=True, kw_only=True):  # only this user may see its `detail`
    task: Task
    run: Run | None = None

    @property
    def private_reason(self) -> str:
        return ": ".join(filter(None, (self.reason, self.detail)))


def choose(nodes: Sequence[Node], count: int | None = None, each_kind: bool = False) -> tuple[Node, ...]:
    """All nodes, a number, or one of each kind; idle ones are preferred."""
    if count is None and not each_kind:
        return tuple(nodes)
    ready = sorted(nodes, key=lambda node: (node.obstacle is not None, not node.idle))
    chosen = list({node.about: node for node in reversed(ready)}.values())
    if not each_kind:
        usable = [node for node in ready if node.obstacle is None]
        if (count or 0) > len(usable):
            raise UsageError(f"there are {len(usable)} nodes that take jobs, not {count}", "Ask for fewer with --nodes")
        chosen = usable[:count]
    return tuple(node for node in nodes if node in chosen)


def one_each(nodes: Sequence[Node], arguments: Sequence[str], label: str | None, named: bool) -> tuple[Task, ...]:
    """The same run on every node, as tasks A1, A2, B1; `named`: nodes are named in labels."""
    kinds, counts, tasks = dict[str, str](), Counter[str](), []
    for node in nodes:
        kind = kinds.setdefault(node.about, _letter(len(kinds)))
        counts[kind] += 1
        name = f"{kind}{counts[kind]}"
        own_label = "-".join(filter(None, (label, node.name if named else name)))
        tasks.append(Task(name, kind, (node.name,), tuple(arguments), own_label, node.about))
    return tuple(tasks)


def together(nodes: Sequence[Node], arguments: Mapping[int, Sequence[str]], label: str | None) -> tuple[Task, ...]:
    """A run for each count of nodes of one kind; smaller teams are part of the larger ones."""
    usable = [node for node in nodes if node.obstacle is None]
    kinds = Counter(node.about for node in usable).most_common(1)  # of one kind: slow nodes make others wait
    team = [node for node in usable if node.about == kinds[0][0]]
    if len(team) < max(arguments):
        cause = f"{max(arguments)} nodes of one kind are needed, and there are {len(team)} that take jobs"
        raise UsageError(cause, "Ask for fewer with --together")
    tasks = []
    for count, typed in arguments.items():
        name = f"{count}-node{'s' if count > 1 else ''}"
        names, own_label = tuple(node.name for node in team[:count]), "-".join(filter(None, (label, name)))
        tasks.append(Task(name, "A", names, tuple(typed), own_label, team[0].about))
    return tuple(tasks)


def equal_threads(nodes: Sequence[Node], workers: Mapping[int, Sequence[int]]) -> int:
    """The threads that every rank of all teams can have: those of the fullest node."""
    fullest = max(count // team for team, counts in workers.items() for count in counts)
    return max(1, min(node.cores for node in nodes) // fullest)


def _letter(number: int) -> str:
    """A to Z, then AA."""
    more, last = divmod(number, len(ascii_uppercase))
    return (_letter(more - 1) if more else "") + ascii_uppercase[last]


def submit(engine: Engine, folder: FleetFolder, terms: Terms, tasks: Iterable[Task], nodes: Iterable[Node]) -> None:
    """Submit tasks whose nodes take jobs; record the others as unavailable."""
    obstacles = {node.name: node.obstacle for node in nodes}
    unknown, submitted = JobOutcome("unavailable", "the scheduler no longer knows it"), False
    for task in tasks:
        folder.forget(task)
        if obstacle := next((each for name in task.nodes if (each := obstacles.get(name, unknown))), None):
            folder.keep_outcome(task, obstacle)
            continue
        os.close(open_log(folder.file(task, "log")))  # the job appends to it, and only its owner can read it
        _write_order(engine, folder, terms, task)
        try:
            number = engine.submit(task, terms, folder.file(task, "sh"))
        except FleetError as error:
            folder.keep_outcome(task, JobOutcome("failed", error.cause, error.detail))
            if not submitted:  # the others would fail the same way
                raise
            continue
        write(folder.file(task, "job"), number.encode())
        submitted = True


def cancel(engine: Engine, folder: FleetFolder, tasks: Iterable[Task], outcome: JobOutcome | None = None) -> None:
    jobs = [(task, job) for task in tasks if (job := folder.job(task))]
    engine.cancel([job for _, job in jobs])
    if outcome:
        for task, _ in jobs:
            folder.keep_outcome(task, outcome)


def _write_order(engine: Engine, folder: FleetFolder, terms: Terms, task: Task) -> None:
    always = ("--wait", *(engine.team_options if len(task.nodes) > 1 else ()))
    # Model files are named again to resume; they come before any option, alone or in a case.
    named = takewhile(lambda each: not each.startswith("-"), task.arguments)
    models = (name.partition("/")[0] if "@" in name else name for name in named)
    again = [name for name in models if re.search(r"\.(py|json)(:[\w.-]+)?$", name)]
    for name, value in pairwise(task.arguments):
        again += [name, value] if name in ("--timeout", "--data") else []
    arguments = (*task.arguments, "--label", task.label, *always)
    order = Order(arguments, (*again, *always), str(folder.run_file(task)), len(task.nodes))
    write(folder.file(task, "order"), msgspec.json.encode(order))
    command = shlex.join([terms.python, "-P", "-m", "torchmark.fleet.node", str(folder.file(task, "order"))])
    write(folder.file(task, "sh"), "\n".join(["#!/bin/bash", *terms.setup, f"exec {command}", ""]).encode())


class Observer:
    """Reads the status of tasks; remembers outcomes and unchanged run files."""

    def __init__(self, folder: FleetFolder, engine: Engine) -> None:
        self._folder, self._engine = folder, engine
        self._runs: dict[Path, tuple[tuple[int, int], Run | None]] = {}

    def look(self, tasks: Sequence[Task]) -> tuple[TaskStatus, ...]:
        kept = {task.name: outcome for task in tasks if (outcome := self._folder.outcome(task))}
        open_jobs = [job for task in tasks if task.name not in kept and (job := self._folder.job(task))]
        renamed: set[str] = set()  # tasks whose earlier run file was renamed
        with suppress(OSError):
            renamed = {path.name.partition(".jsonl.aside-")[0] for path in self._folder.path.glob("*.jsonl.aside-*")}
        reported = self._engine.outcomes(open_jobs) if open_jobs else {}
        return tuple(self._status(task, kept.get(task.name), reported.get(task.name), renamed) for task in tasks)

    def _status(self, task: Task, kept: JobOutcome | None, seen: JobOutcome | None, renamed: set[str]) -> TaskStatus:
        outcome = kept or self._folder.outcome(task) or seen
        if outcome is None and (code := self._folder.end_code(task)) is not None:  # recorded by its node
            outcome = JobOutcome.of_exit(code)
        elif outcome is None:
            forgotten = "the scheduler has forgotten the job, and its node recorded nothing"
            outcome = JobOutcome("lost", forgotten if self._folder.job(task) else "it was never submitted")
        if outcome.state in ("failed", "lost"):
            log = self._folder.content(task, "log", tail=True).decode(errors="replace")
            if errors := re.findall(r"^torchmark: error: (.+)$", log, re.MULTILINE):
                outcome = replace(outcome, detail=errors[-1].strip())
        if kept is None and outcome.state not in UNDER_WAY and self._folder.job(task):
            with suppress(StoreError):  # those who may look may lack the right to write
                self._folder.keep_outcome(task, outcome)
        file = self._folder.run_file(task)
        earlier = f"earlier results are in {file.name}.aside-*" if task.name in renamed else ""
        reason = ", ".join(filter(None, (earlier, outcome.reason)))
        return TaskStatus(outcome.state, reason, outcome.detail, task=task, run=self._run(file))

    def _run(self, path: Path) -> Run | None:
        with suppress(OSError):
            about, known = path.stat(), self._runs.get(path)
            stamp = about.st_size, about.st_mtime_ns
            if known is None or known[0] != stamp:
                self._runs[path] = stamp, None
                with suppress(StoreError):  # its header may be half-written
                    self._runs[path] = stamp, load(path)
            return self._runs[path][1]
        return None


def try_nodes(
    engine: Engine, folder: FleetFolder, terms: Terms, nodes: Sequence[Node], say: Callable[[str], None]
) -> None:
    """Run a small task on a node of each kind: every job would fail if the folder is not shared."""
    chosen = choose(nodes, each_kind=True)
    mark, *answers = (temporary(folder.jobs / f"probe-{secrets.token_hex(4)}") for _ in range(len(chosen) + 1))
    tried: dict[str, tuple[Node, Path]] = {}
    try:
        mark.touch()
        for node, answer in zip(chosen, answers, strict=True):
            job = engine.try_out(_trial_script(terms, str(mark), str(answer)), node.name, terms.scheduling)
            tried[job] = node, answer
        for job, (node, answer) in tried.items():
            if (code := engine.exit_code(job)) is None:
                say(f"trying {node.name}, as one of its kind …")
            while code is None:
                time.sleep(LOOK_S)
                code = engine.exit_code(job)
            _judge(code, node.name, folder.path, terms.python)
            end = time.monotonic() + ARRIVAL_S
            while answer not in folder.jobs.iterdir():  # a folder of the same name need not be the same
                if time.monotonic() > end:
                    raise FleetError(f"what {node.name} writes into {folder.path} does not arrive here", _SHARED)
                time.sleep(LOOK_S)
    finally:
        engine.cancel([Submitted("probe", job, mark) for job in tried])
        for path in (mark, *answers):
            path.unlink(missing_ok=True)


def _trial_script(terms: Terms, *paths: str) -> str:
    """Plain shell, as anything may be missing. `_judge` explains the exit codes."""
    mark, answer, python = map(shlex.quote, (*paths, terms.python))
    setup = "\n".join(f"{line} || exit 95" for line in terms.setup)
    return f"""#!/bin/bash
{setup}
[ -e {mark} ] || exit 91
command -v {python} > /dev/null || exit 93
{python} -P -c 'import torchmark.fleet.node' || exit 94
touch {answer} || exit 92
"""


def _judge(code: int, node: str, folder: Path, python: str) -> None:
    there = "there, or name an interpreter that has it: --python"
    known = {
        91: (f"{node} does not see {folder}", _SHARED),
        92: (f"{node} cannot write into {folder}", "Name a folder that all nodes can write: --folder"),
        93: (f"{node} has no {python}", f"Install torchmark {there}"),
        94: (f"{python} on {node} cannot import torchmark, or has an older one", f"Install this torchmark {there}"),
        95: (f"a line of --setup failed on {node}", "Try it there with `srun`"),
    }
    if code:
        unknown = f"a trial task on {node} failed with exit code {code}", "Try there: srun true"
        raise FleetError(*known.get(code, unknown))
