"""Jobs on Slurm: `sinfo` lists nodes, `sbatch` takes jobs, `squeue` and `scontrol` report their state."""

import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torchmark.errors import FleetError, UnknownName, UsageError
from torchmark.fleet.folder import JobOutcome, Node, State, Submitted, Task, Terms

PATIENCE_S = 60.0  # for an answer of Slurm
PROBE_MINUTES = 5
_NODE_FIELDS = "%N|%R|%T|%c|%m|%G|%X|%Y|%Z|%f|%E"
_UNUSABLE = re.compile(r"(drain|down|fail|maint|unk|inval|power_down|reboot)")
_NUMBER = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")  # anything else could be an option of Slurm's commands
_PING = "See what `scontrol ping` says"
_NOT_LAUNCHED = "0:53"  # no signal has this number: the node could not open the job's log
_STATES: dict[str, tuple[State, str]] = {
    "COMPLETED": ("done", ""),
    "CANCELLED": ("cancelled", ""),
    "PREEMPTED": ("cancelled", "another job took its place"),
    "REVOKED": ("cancelled", ""),
    "TIMEOUT": ("time-limit", ""),
    "DEADLINE": ("time-limit", "its deadline passed"),
    "NODE_FAIL": ("node-failed", "the node went down"),
    "BOOT_FAIL": ("node-failed", "the node did not start"),
    "OUT_OF_MEMORY": ("killed", "it took more memory than it may have"),
}


class Slurm:
    """The cluster that this machine's Slurm commands talk to."""

    team_options: tuple[str, ...] = ()  # more options of `torchmark run` for nodes that work together

    def nodes(
        self, _: int | None, partition: str | None, constraint: str | None = None, nodelist: str | None = None
    ) -> tuple[Node, ...]:
        """All nodes that match, also those that take no jobs; at least one."""
        listed = _ask("sinfo", "--noheader", "--Node", "--all", f"--format={_NODE_FIELDS}")
        found = [line.split("|", 10) for line in listed.splitlines() if line.count("|") >= 10]
        partitions = dict.fromkeys(fields[1] for fields in found)
        if partition is not None and partition not in partitions:
            raise UnknownName("partition", partition, partitions)
        if not partition:  # the default has a star; without one, use all
            listed = _ask("sinfo", "--noheader", "--format=%P")
            partition = next((name.rstrip("*") for name in listed.split() if name.endswith("*")), None)
        nodes = {fields[0]: read_node(fields) for fields in found if partition in (None, fields[1])}
        if nodelist is not None:
            names = _ask("scontrol", "show", "hostnames", nodelist).split()  # in the order of node[3,0-2]
            for name in sorted(set(names) - nodes.keys()):
                raise UnknownName("node", name, nodes)
            nodes = {name: nodes[name] for name in names}
        return with_features(constraint, nodes.values()) if constraint is not None else tuple(nodes.values())

    def submit(self, task: Task, terms: Terms, script: Path) -> str:
        """Submit an exclusive job for the nodes of a task; returns Slurm's number for it."""
        count, inside = len(task.nodes), ["bash", str(script)]
        if count > 1:  # a task on each node, which may use all of its cores
            sizes = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpu-bind=none")
            inside = ["srun", *sizes, *inside]
        log = str(script.with_suffix(".log")).replace("%", "%%")  # Slurm replaces % and a letter by names
        options = [
            *("--exclusive", "--mem=0", "--no-requeue", f"--nodes={count}", "--ntasks-per-node=1"),
            *(f"--nodelist={','.join(task.nodes)}", f"--job-name={_name(task.name)}"),
            *(f"--output={log}", "--open-mode=append"),
            *([f"--time={math.ceil(terms.time_s / 60)}"] if terms.time_s else []),
        ]
        return _batch([*options, *terms.scheduling], f"#!/bin/bash\nexec {shlex.join(inside)}\n")

    def outcomes(self, jobs: Sequence[Submitted]) -> dict[str, JobOutcome]:
        """States of jobs by task, without those that Slurm does not know."""
        queued = _queued(job.number for job in jobs)
        found = {}
        for job in jobs:
            name, _, outcome = queued.get(job.number, ("", "", None))
            found[job.task] = outcome if name == _name(job.task) else _ended(job)  # it may be another user's
        return {task: outcome for task, outcome in found.items() if outcome}

    def cancel(self, jobs: Sequence[Submitted]) -> None:
        """End jobs that are this user's and of these tasks; some may have ended already."""
        queued, own = _queued(job.number for job in jobs), str(os.getuid())
        numbers = [job.number for job in jobs if queued.get(job.number, ())[:2] == (_name(job.task), own)]
        if numbers:
            _run("scancel", *numbers)

    def try_out(self, script: str, node: str, options: tuple[str, ...]) -> str:
        """Start a small task on a node; `exit_code` returns how it ends."""
        usual = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", f"--time={PROBE_MINUTES}", "--no-requeue"]
        return _batch([*usual, f"--job-name={_name('probe')}", "--output=/dev/null", "--chdir=/", *options], script)

    def exit_code(self, job: str) -> int | None:
        """Of a script that is tried out; None while it runs."""
        if job in _queued([job]):
            return None
        fields = _show(job)
        return _exit_code(fields) or (0 if fields.get("JobState") == "COMPLETED" else 1)


def read_node(fields: Sequence[str]) -> Node:
    name, _, state, cores, memory, gpus, sockets, per_socket, threads, features, reason = fields
    gpus, features = (text.removeprefix("(null)") for text in (gpus, features))
    usable = not _UNUSABLE.search(state.lower()) and not state.endswith("*")
    problem = f"{state.rstrip('*~#!%$@^+-')}{' and does not answer' if state.endswith('*') else ''}"
    obstacle = None if usable else JobOutcome("unavailable", problem, re.sub(r"^\s*([nN]one)?\s*$", "", reason))
    hardware = f"{sockets}×{per_socket}×{threads} cores", f"{round(int(memory.rstrip('+')) / 1024)} GiB"
    about = ", ".join(filter(None, (*hardware, re.sub(r"\([^()]*\)", "", gpus), features)))
    listed, idle = tuple(filter(None, features.split(","))), state in ("idle", "planned")
    return Node(name, about, int(cores.rstrip("+")), listed, idle, obstacle)


def with_features(constraint: str, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Nodes with these features, which Slurm would only check at submission."""
    if not re.fullmatch(r"[\w.:/+-]+([&|,][\w.:/+-]+)*", constraint):
        raise UsageError(f"'{constraint}' is no constraint that a fleet takes", "Write features joined by & and |")
    nodes, wanted = tuple(nodes), [set(re.split("[&,]", part)) for part in constraint.split("|")]
    known = {feature for node in nodes for feature in node.features}
    for feature in set().union(*wanted) - known:
        raise UnknownName("feature", feature, known)
    found = tuple(node for node in nodes if any(each <= set(node.features) for each in wanted))
    if not found:
        raise UsageError(f"no node has {constraint}", f"Features here: {', '.join(sorted(known))}")
    return found


def _name(task: str) -> str:
    return f"torchmark-{task}"


def _queued(jobs: Iterable[str]) -> dict[str, tuple[str, str, JobOutcome]]:
    """Name, user and state of jobs that wait or run. Slurm fails if it knows none of the jobs."""
    numbers = sorted(filter(_NUMBER.fullmatch, set(jobs)))
    if not numbers:
        return {}
    fields = "--format=%i|%T|%U|%r|%j"
    listed = _ask("squeue", "--noheader", f"--jobs={','.join(numbers)}", fields, accept="Invalid job id")
    found = {}
    for line in listed.splitlines():
        number, state, user, reason, name = line.split("|", 4)
        waits = state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
        why, _, nodes = reason.partition(", ") if waits and reason != "None" else ("", "", "")
        found[number] = name, user, JobOutcome("waiting" if waits else "running", why, nodes)
    return found


def _ended(job: Submitted) -> JobOutcome | None:
    """None if Slurm has forgotten it, which happens after some minutes."""
    fields = _show(job.number)
    said = fields.get("JobState", "") if fields.get("JobName") == _name(job.task) else ""
    if said in _STATES:
        return JobOutcome(*_STATES[said])
    if said != "FAILED":
        return JobOutcome("running", said.lower()) if said else None  # suspended or being staged: `squeue` omits these
    if fields.get("ExitCode") == _NOT_LAUNCHED:
        return JobOutcome("failed", "the node could not start it; does it see the folder?")
    return JobOutcome.of_exit(_exit_code(fields))


def _exit_code(fields: Mapping[str, str]) -> int:
    """One number, as of shells: Slurm reports exit code and signal separately."""
    code, _, signal = fields.get("ExitCode", "1:0").partition(":")
    return 128 + int(signal) if int(signal or 0) else int(code)


def _show(job: str) -> dict[str, str]:
    if not _NUMBER.fullmatch(job):
        return {}
    done = _run("scontrol", "--oneliner", "show", "job", job)
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", done.stdout)) if done.returncode == 0 else {}


def _batch(options: Sequence[str], script: str) -> str:
    done = _run("sbatch", "--parsable", *options, script=script)
    if done.returncode:
        raise FleetError("Slurm refused a job", "Change what it names, or ask your administrator", _last(done.stderr))
    return done.stdout.strip().partition(";")[0]


def _ask(*command: str, accept: str = "") -> str:
    """What a command prints; it may fail only with the message in `accept`."""
    done = _run(*command)
    if done.returncode and not (accept and accept in done.stderr):
        raise FleetError(f"{command[0]} failed: {_last(done.stderr)}", _PING)
    return done.stdout


def _run(*command: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        fix = "Log in where jobs are submitted, load Slurm's module, or try it on this machine with --engine local"
        raise FleetError(f"there is no Slurm here: {command[0]} was not found", fix)
    try:
        return subprocess.run(command, input=script, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FleetError(f"{command[0]} gave no answer for {PATIENCE_S:.0f} s", _PING) from error


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^\w+: (error: |fatal: )?", "", lines[-1]).rstrip(".") if lines else "it did not say why"
