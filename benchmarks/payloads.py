"""Does foreign text reach a terminal that the terminal would obey? Payloads in every place, through a pty.

    python benchmarks/payloads.py                     all payloads, some minutes
    python benchmarks/payloads.py --payloads 5 --seed 3

Escape sequences, C0 and C1 controls, bidi and zero-width characters, undecodable bytes stand in run files, file and
folder names, model files, the lock, fleet folders, the environment and arguments. Every command that prints any of
these is called in this process, with stdout and stderr on a pseudo-terminal. Only our own colours and the controls of
the progress line may come out of it. The exit code is 1 if anything else does, or if a command ends as a bug.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from injection.sequences import payloads
from injection.terminal import AFTER, BEFORE, Terminal, obeyed
from specimen import HostileFiles, written
from torchmark import cli
from torchmark.cli.execution import ProgressLine
from torchmark.cli.fleet import OpenFleet, follow
from torchmark.errors import EXIT_BUG
from torchmark.fleet.folder import FleetFolder
from torchmark.measure.messages import Phase
from torchmark.measure.session import Finished, Started
from torchmark.records import parse_case
from torchmark.report import FORMATS
from torchmark.store import load, machine_lock
from torchmark.studies.study import Announcement

CASE, QUICK = "null/infer@fake/float32", ("--budget", "1s", "--rigor", "quick")
FAKE = {"TORCHMARK_FAKE": "stream=iid2,step=0.001"}


class Call(NamedTuple):
    """Something that prints, under the name that it is counted by."""

    name: str
    act: Callable[[], object]


def command(*arguments: object, name: str = "", **environment: str) -> Call:
    def act() -> int:
        with mock.patch.dict(os.environ, environment):
            return cli.main([str(each) for each in arguments])

    return Call(name or str(arguments[0]), act)


class Places:
    """A folder in which everything that can be has the payload in it, and the calls that print it."""

    def __init__(self, folder: Path, files: HostileFiles, payload: str) -> None:
        self._root, self._files = folder, files
        self._text = BEFORE + payload + AFTER
        self._content = self._text.encode("utf-8", "replace").decode()  # JSON with half a character is not read at all
        self._name = _file_name(self._text)
        self._folder = folder / f"folder {self._name}"
        self._folder.mkdir()
        self._file = self._write("run", files.hostile(self._content))

    def calls(self, measured: bool) -> Iterator[Call]:
        yield from self._stored()
        yield from self._damaged()
        yield from self._boards()
        yield from self._models()
        yield from self._arguments()
        yield from self._surroundings()
        yield from self._fleet()
        yield from self._progress()
        if measured:
            yield from self._measured()

    def _write(self, stem: str, content: bytes) -> Path:
        path = self._folder / f"{stem} {self._name}.jsonl"
        path.write_bytes(content)
        return path

    def _stored(self) -> Iterator[Call]:
        run, other = self._file, self._write("other", self._file.read_bytes())
        for form in FORMATS:
            yield command("show", run, "--format", form)
            yield command("compare", run, other, "--format", form)
            yield command("check", run, other, "--format", form)
        yield command("show", run, "--details", "--samples", "--price-per-hour", 1)
        yield command("show", run, "--case", self._text)
        for form in ("md", "csv", "json"):
            yield command("report", run, other, "--format", form)
        yield command("export", run, "--show", name="export --show")
        yield command("export", run, "-o", self._folder / f"export {self._name}")
        yield command("export", run, "-o", self._file)
        yield command("run", "--resume", run, name="run --resume")
        yield command("show", self._write("mild", self._files.hostile(self._content, cases=False)))
        for number, study in enumerate(self._files.studies(self._content)):
            yield command("show", self._write(f"study{number}", study))

    def _damaged(self) -> Iterator[Call]:
        whole = self._file.read_bytes()
        contents = (*self._files.refused(self._text), whole[:900], whole.replace(b"{", b"", 9))
        for number, content in enumerate(contents):
            damaged = self._write(f"damaged{number}", content)
            for verb in ("show", "check", "compare", "report"):
                yield command(verb, damaged, *([self._file, "--format", "md"] if verb in ("compare", "report") else []))
            yield command("export", damaged, "--show", name="export --show")
            yield command("run", "--resume", damaged, name="run --resume")
        yield command("report", self._folder / "none.jsonl", self._file, "--format", "md", TORCHMARK_DEBUG="1")
        for form in FORMATS:
            yield command("runs", "--format", form, TORCHMARK_HOME=str(self._folder))

    def _boards(self) -> Iterator[Call]:
        (board := self._folder / f"board {self._name}").mkdir()
        sound = board / f"sound {self._name}.jsonl"
        sound.write_bytes(self._files.sound(self._content))
        for folder, form in itertools.product((board, self._folder), ("md", "csv", "json")):
            yield command("report", "--leaderboard", folder, "--format", form, name="report --leaderboard")
        yield command("run", "--resume", sound, name="run --resume")
        yield command("check", sound)
        (empty := self._folder / f"empty {self._name}").mkdir()
        yield command("report", "--leaderboard", empty, name="report --leaderboard")
        yield command("check", self._folder)
        yield command("check", empty)

    def _models(self) -> Iterator[Call]:
        text = self._text.encode("unicode_escape", "surrogatepass").decode().replace('"', '\\"')
        model = f'"Module {text}."\n\nimport torch\n\n\ndef build(width=3, kind="{text}"):\n'
        model += f'    "Docstring {text}."\n    return torch.nn.Linear(width, 3), torch.ones(2, width)\n'
        wrong = f"def build({self._text}\n".encode("utf-8", "surrogatepass").decode(errors="replace")
        for stem, content in (("model", model), ("failing", f'{model}raise ValueError("{text}")\n'), ("wrong", wrong)):
            for path in (self._folder / f"{stem}{self._name}.py", self._root / f"{stem}_{len(text)}.py"):
                path.write_text(content, encoding="utf-8")
                yield command("list", path, name="list FILE")
                yield command("list", path, "--format", "json", name="list FILE")
        model_file = self._folder / f"model{self._name}.py"
        yield command("run", model_file, "--device", "cpu", "--dry-run", name="run --dry-run")

    def _arguments(self) -> Iterator[Call]:
        text = self._text.replace("\0", "")
        for verb in cli.COMMANDS.keys() - {"runs", "devices", "limits", "fleet"}:
            yield command(verb, text)
        yield command(text, name="unknown command")
        yield command("show", f"--{text}")
        yield command("show", self._file, "--format", text)
        yield command("run", "mlp", "--dry-run", "-p", f"{text}=1", name="run --dry-run")
        yield command("run", "mlp", "--dry-run", "-p", f"batch={text}", name="run --dry-run")
        yield command("run", CASE, "--dry-run", "--label", text, name="run --dry-run")
        yield command("run", f"mlp:{text}=1@cpu/float32", "--dry-run", name="run --dry-run")
        yield command("devices", "--device", text)
        yield command("limits", "--device", text, "--dry-run")
        yield command("fleet", "status", text, name="fleet status")
        for more in ((text,), ("mlp", "--label", text)):
            yield command("fleet", "run", *more, "--engine", "local", "--dry-run", name="fleet run --dry-run")

    def _surroundings(self) -> Iterator[Call]:
        lock = self._root / "lock"
        lock.write_text(json.dumps({"pid": 7, "since": self._content}))
        yield Call("lock", lambda: _held(lock, lambda: cli.main(["run", CASE])))
        yield Call("lock --wait", lambda: _held(lock, _wait, 0.05))
        yield command("run", CASE, name="lock", TORCHMARK_LOCK=str(self._folder / "none" / "lock"))
        yield command("runs", TORCHMARK_HOME=str(self._root / self._name))

    def _fleet(self) -> Iterator[Call]:
        folder, text = self._folder / "fleet", self._content.replace("\0", "")  # a plan with NUL is refused as a whole
        jobs = folder / "jobs"
        jobs.mkdir(parents=True)
        tasks = [self._task(name) for name in ("A1", "A2", "A3")]
        terms = {"engine": "local", "partition": text, "python": text, "setup": [text]}
        plan = {"created": text, "terms": terms, "tasks": tasks, "version": 1}
        (jobs / "plan.json").write_text(json.dumps(plan))
        shutil.copy(self._file, folder / "A1.jsonl")
        (jobs / "A1.fate").write_text(json.dumps({"state": "done", "reason": text}))
        (jobs / "A2.fate").write_text(json.dumps({"state": "failed", "reason": text}))
        (jobs / "A3.log").write_bytes(f"torchmark: error: {self._text}\n".encode("utf-8", "surrogatepass"))
        for more in ((), ("--names",), ("--format", "json")):
            yield command("fleet", "status", folder, *more, name="fleet status")
        for form in FORMATS:
            yield command("fleet", "gather", folder, "--names", "--format", form, name="fleet gather")
        yield command("fleet", "run", "--resume", folder, "--dry-run", name="fleet run --dry-run")
        place = FleetFolder(folder)
        opened = OpenFleet(place, place.load())
        yield Call("fleet board", lambda: follow(opened))
        yield from self._damaged_fleet(folder)

    def _damaged_fleet(self, folder: Path) -> Iterator[Call]:
        plan = json.dumps({"created": "now", "terms": {"engine": self._text}, "tasks": [], "version": 1})
        for content in (plan, plan.replace('"version": 1', f'"version": {json.dumps(self._text)}'), plan[:40]):
            (folder / "jobs" / "plan.json").write_text(content)
            yield command("fleet", "status", folder, name="fleet status")
            yield command("fleet", "gather", folder, name="fleet gather")
            yield command("fleet", "run", "--resume", folder, "--dry-run", name="fleet run --dry-run")

    def _task(self, name: str) -> dict[str, Any]:
        text = self._content.replace("\0", "")
        return {"name": name, "kind": text, "nodes": [text], "arguments": [text], "label": text, "about": text}

    def _progress(self) -> Iterator[Call]:
        """What processes and searches report while they work, on the line that changes."""

        def act() -> None:
            line, case = ProgressLine([self._text]), parse_case("mlp/infer@cpu/float32")
            line.note(self._text)
            line.seen(lambda _: f"best so far: {self._text}", Announcement())
            line.seen(str, Started(case, 0))
            line.heard(Phase(self._text))
            for result in load(self._file).results:
                line.seen(str, Finished(result, 0))
            line.scroll(self._text)
            line.clear()

        yield Call("progress", act)

    def _measured(self) -> Iterator[Call]:
        """A run that is really measured, then resumed with a hostile id and label, then shown as complete."""
        path = self._folder / f"measured {self._name}.jsonl"
        yield command("run", CASE, *QUICK, "--out", path, name="run, measured", **FAKE)
        header = json.loads(path.read_bytes().splitlines()[0])
        header["header"] |= {"id": self._content, "label": self._content}
        path.write_bytes(written([header]))
        for _ in range(2):
            yield command("run", "--resume", path, name="run --resume, measured", **FAKE)
        if _is_encodable(self._text):
            yield command("devices", name="devices", OMP_NUM_THREADS=self._text.replace("\0", ""))


def _file_name(text: str) -> str:
    """The text as part of a file name, as far as one can hold it."""
    name = text.replace("/", ":").replace("\0", "")[:60]
    return name if _is_encodable(name) else "plain"


def _is_encodable(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        return bool(os.fsencode(text))
    return False


def _held(lock: Path, act: Callable[[], object], seconds: float = 60.0) -> object:
    """While the lock is held, for so long at most."""
    with lock.open() as file, mock.patch.dict(os.environ, {"TORCHMARK_LOCK": str(lock)}):
        fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(seconds, fcntl.flock, (file, fcntl.LOCK_UN))
        release.start()
        answer = act()
        release.cancel()
        return answer


def _wait() -> None:
    with machine_lock(wait=True):
        pass


class Tally:
    """What came of all calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.showing: Counter[str] = Counter()  # calls whose output has the place of a payload in it
        self.obeyed: Counter[str] = Counter()
        self.bugs: Counter[str] = Counter()
        self.notes: list[str] = []

    @property
    def held(self) -> bool:
        return not (self.obeyed or self.bugs)

    def add(self, name: str, payload: str, answer: object, text: str) -> None:
        self.calls[name] += 1
        self.showing[name] += BEFORE in text
        if found := obeyed(text, payload):
            self.obeyed[name] += 1
            self.notes.append(f"{name}: {found[:5]!a} of {payload!a} in {text[:300]!a}")
        if answer == EXIT_BUG:
            self.bugs[name] += 1
            self.notes.append(f"{name}: a bug with {payload!a}: {text[-300:]!a}")


def measured_file() -> bytes:
    """What a real run leaves behind: it is complete, and passes the check."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "torchmark", "run", CASE, *QUICK, "--out", f"{folder}/run.jsonl"]
        subprocess.run(command, env=os.environ | _surroundings(folder) | FAKE, check=True, capture_output=True)
        return Path(f"{folder}/run.jsonl").read_bytes()


def try_out(chosen: Sequence[str], measured_every: int = 0) -> Tally:
    """Every call with each of the payloads."""
    tally, files, here = Tally(), HostileFiles(measured_file()), Path.cwd()
    with Terminal() as terminal:
        for number, payload in enumerate(chosen):
            with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, _surroundings(folder)):
                os.chdir(folder)
                measured = bool(measured_every) and number % measured_every == 0
                try:
                    for call in Places(Path(folder), files, payload).calls(measured):
                        tally.add(call.name, payload, *terminal.capture(lambda act=call.act: _guarded(act)))
                finally:
                    os.chdir(here)
    return tally


def _surroundings(folder: str) -> dict[str, str]:
    terminal = {"TERM": "xterm", "COLUMNS": "200", "NO_COLOR": ""}
    return {"TORCHMARK_HOME": f"{folder}/home", "TORCHMARK_LOCK": f"{folder}/free", **terminal}


def _guarded(act: Callable[[], object]) -> object:
    """An error that gets through is a bug, too."""
    try:
        return act()
    except Exception:
        print(ascii(traceback.format_exc()))
        return EXIT_BUG


def main() -> int:
    known = payloads()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payloads", type=int, default=len(known), help=f"how many of the {len(known)}")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    options = parser.parse_args()
    chosen = random.Random(options.seed).sample(known, min(options.payloads, len(known)))
    tally = try_out(chosen, measured_every=20)
    print("  ".join([f"{'command':24}", *(f"{head:>7}" for head in ("calls", "shown", "obeyed", "bugs"))]))
    for name, calls in sorted(tally.calls.items()):
        counts = (calls, tally.showing[name], tally.obeyed[name], tally.bugs[name])
        print("  ".join([f"{name:24}", *(f"{count:7,}" for count in counts)]))
    for note in tally.notes[:20]:
        print(f"FAIL  {note}")
    verdict = "all held" if tally.held else "NOT all held"
    print(f"{len(chosen)} payloads, {sum(tally.calls.values()):,} calls: {verdict}")
    return 0 if tally.held else 1


if __name__ == "__main__":
    sys.exit(main())
