"""Commands that are killed at random moments: what was announced is kept, and nothing else is left."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from injection.commands import COMMANDS, Command, cases_missing, faults_of, prepare
from injection.tally import Tally, report_progress, together
from injection.trials import Trial, left_behind, trial
from torchmark.store import load

SIGNALS = (*[signal.SIGKILL] * 3, signal.SIGTERM, signal.SIGINT)
ENDS = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
END_S = 60.0  # a command that was asked to end has so much time for it
RESUME_EVERY, MOST_TRIES = 5, 50
REAL = Command(
    "run, cpu",
    ("run", *(f"mlp/infer:batch={size}@cpu/float32" for size in range(1, 7)), "--steps", "5", "--out", "run.jsonl"),
    cases_missing,
)


def kill_many(count: int, seed: int, parallel: int, commands: Sequence[Command] = COMMANDS) -> list[tuple[str, Tally]]:
    """So many over all commands, each within the time that it takes undisturbed among as many neighbours."""
    planned = [(commands[number % len(commands)], number) for number in range(count)]
    with ThreadPoolExecutor(parallel) as pool:
        takes_s = dict(zip(commands, pool.map(_undisturbed_s, commands), strict=True))
        kills = pool.map(lambda plan: kill(plan[0], takes_s[plan[0]], seed, plan[1]), planned)
        tallies = report_progress("kills", kills, count)
    found: dict[str, list[Tally]] = {command.name: [] for command in commands}
    for (command, _), tally in zip(planned, tallies, strict=True):
        found[command.name].append(tally)
    return [(f"killed: {name}", together(several)) for name, several in found.items()]


def kill(command: Command, takes_s: float, seed: int, number: int) -> Tally:
    """Kill it at a random moment; one that had ended by then is tried again."""
    chance = random.Random(f"{seed} {command.name} {number}")
    tallies = [_kill_once(command, takes_s, chance, number)]
    while not tallies[-1].injected and len(tallies) < MOST_TRIES:
        tallies.append(_kill_once(command, takes_s, chance, number))
    return together(tallies)


def _kill_once(command: Command, takes_s: float, chance: random.Random, number: int) -> Tally:
    """Start it, end it at a random moment, and look at what is left; now and then a killed run is resumed."""
    with trial() as place:
        prepare(place, command)
        process = place.start(*command.arguments)
        planned, sent = chance.choice(SIGNALS), None
        try:
            process.wait(chance.uniform(0.01, takes_s))
        except subprocess.TimeoutExpired:
            process.send_signal(sent := planned)
        code, unhandled = _end(process, sent)
        if sent == signal.SIGKILL and code >= 0:
            return Tally()  # it was ending by itself, and the signal came too late
        entered = re.search(r'torchmark/__main__\.py", line \d+, in main', place.heard)
        if sent == signal.SIGINT and "Traceback" in place.heard and not entered:
            return Tally()  # it met the start of Python, before torchmark's first line
        if command.outlives:
            place.run("fleet", "cancel", "../fleet")
        return _judge(place, command, sent, code, unhandled, resumed=number % RESUME_EVERY == 0)


def _end(process: subprocess.Popen[bytes], sent: signal.Signals | None) -> tuple[int, list[str]]:
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(), [f"still there {END_S:g} s after {sent.name if sent else 'its start'}"]
    fine = code == -signal.SIGKILL if sent == signal.SIGKILL else code in ENDS
    return code, [] if fine else [f"exit code {code} after {sent.name if sent else 'nothing'}"]


def _judge(
    place: Trial, command: Command, sent: signal.Signals | None, code: int, unhandled: list[str], resumed: bool
) -> Tally:
    orphans, gone_s = left_behind(place.mark)
    lost, unreadable = faults_of(place, command)
    unhandled = [*unhandled, *unreadable, *place.complaints()]
    left = place.leftovers()
    if resumed and sent == signal.SIGKILL and command.name.startswith("run") and not unhandled and place.out.exists():
        unhandled += _resume(place)
    how = f"{command.name}, {sent.name if sent else 'not killed'}, ended with {code}"
    notes = [f"{how}: {what}" for what in (*lost, *left, *unhandled)]
    notes += [f"{how}: {orphans} processes left"] if orphans else []
    return Tally(int(sent is not None), len(lost), 0, orphans, len(left), len(unhandled), gone_s, notes=tuple(notes))


def _resume(place: Trial) -> list[str]:
    """What keeps a killed run from being completed."""
    code = place.run("run", "--resume", "run.jsonl")
    if not place.out.stat().st_size:  # killed before its first line: refused, with the advice to start anew
        return [] if code == 4 else [f"--resume of an empty file ended with {code}"]
    run = load(place.out)
    missing = len(run.header.cases) - len(run.results)
    failed = [f"{result.status} ({result.reason})" for result in run.results if result.status != "ok"]
    if code == 0 and not missing and not failed:
        return []
    return [f"--resume ended with {code}, {missing} missing, {failed}, {place.heard[-200:]!r}"]


def _undisturbed_s(command: Command) -> float:
    with trial() as place:
        prepare(place, command)
        began = time.monotonic()
        code = place.run(*command.arguments)
        took_s = time.monotonic() - began
        tally = _judge(place, command, None, code, [] if code == 0 else [f"exit code {code}"], resumed=False)
        if not tally.held:
            raise SystemExit(f"{command.name} fails undisturbed: {tally.notes} {place.heard[-500:]}")
    return took_s


def kill_real(count: int, seed: int) -> list[tuple[str, Tally]]:
    """Runs with real work, as many at once as there are cores."""
    return kill_many(count, seed, os.cpu_count() or 1, (REAL,))
