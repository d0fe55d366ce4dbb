"""Hands tasks over as jobs, for the first time or again, and takes them back."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

from torchmark.errors import FleetError
from torchmark.fleet.contract import Engine, Fate, Job, Node
from torchmark.fleet.files import write
from torchmark.fleet.plan import FleetFolder, Order, Task, Terms
from torchmark.local_log import open_log

# What `torchmark run` takes again where it goes on with a run.
_AGAIN = ("--timeout", "--data")


def submit(engine: Engine, folder: FleetFolder, terms: Terms, tasks: Iterable[Task], nodes: Iterable[Node]) -> None:
    """Every task whose nodes take jobs becomes one; the others are told to be unavailable."""
    obstacles = {node.name: node.obstacle for node in nodes}
    submitted = 0
    for task in tasks:
        folder.forget(task)
        reasons = [obstacles.get(name, "the scheduler no longer knows it") for name in task.nodes]
        reason = next((each for each in reasons if each), None)
        if reason:
            folder.keep_fate(task, Fate("unavailable", reason))
            continue
        os.close(open_log(log := folder.file(task, "log")))  # the job appends to it, and only its owner can read it
        job = Job(
            name=task.name,
            script=_write_script(engine, folder, terms, task),
            log=log,
            nodes=task.nodes,
            time_s=terms.time_s,
            options=terms.scheduling,
        )
        try:
            number = engine.submit(job)
        except FleetError as error:
            folder.keep_fate(task, Fate("failed", error.cause))
            if not submitted:  # the others would fare no better
                raise
            continue
        write(folder.file(task, "job"), number.encode())
        submitted += 1


def cancel(engine: Engine, folder: FleetFolder, tasks: Iterable[Task], fate: Fate | None = None) -> None:
    """End the jobs of tasks; where `fate` is given, that is what is told of them from now on."""
    jobs = [(task, job) for task in tasks if (job := folder.job(task))]
    engine.cancel([job for _, job in jobs])
    if fate:
        for task, _ in jobs:
            folder.keep_fate(task, fate)


def _write_script(engine: Engine, folder: FleetFolder, terms: Terms, task: Task) -> Path:
    always = ("--wait", *(engine.team_options if len(task.nodes) > 1 else ()))
    pairs = zip(task.arguments, (*task.arguments[1:], ""), strict=True)
    again = [part for name, value in pairs if name in _AGAIN for part in (name, value)]
    order = Order(
        arguments=(*task.arguments, "--label", task.label, *always),
        resuming=(*_files(task.arguments), *again, *always),
        run_file=str(folder.run_file(task)),
        nodes=len(task.nodes),
    )
    write(folder.file(task, "order"), msgspec.json.encode(order))
    command = shlex.join([terms.python, "-P", "-m", "torchmark.fleet.node", str(folder.file(task, "order"))])
    script = folder.file(task, "sh")
    write(script, "\n".join(["#!/bin/bash", *terms.setup, f"exec {command}", ""]).encode())
    return script


def _files(arguments: Iterable[str]) -> Iterator[str]:
    """Files of models of the user's own, which are named again where a run goes on; they come before any option."""
    for name in takewhile(lambda each: not each.startswith("-"), arguments):
        workload = name.partition("/")[0] if "@" in name else name  # a case, or a file
        if re.search(r"\.(py|json)(:[\w.-]+)?$", workload):
            yield workload
