"""Does anything that names a person, a host or a place get into what is shared? Canaries, planted and searched for.

    python benchmarks/canaries.py                     some minutes; as root also with another account and host name
    python benchmarks/canaries.py --only run,fit      parts of it

Each canary is a text that occurs nowhere else: values of environment variables, account, real name, host, addresses,
paths, folders of model files, git remotes, tokens, names in the user's code. Model files, workers, data loaders, ranks
and scripts fail with all of them in their messages. Real commands then measure, and everything that they make to be
shared is searched for every canary: also in URL, JSON and base64 form. The exit code is 1 if one is found, or if one
is missing in the local logs, where it has to be, or an output is empty.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

INJECTION = Path(__file__).parent / "injection"
COMMAND = [sys.executable, "-m", "torchmark"]
_SECRETS = (
    "MYSQL_PWD", "PGPASSWORD", "GITHUB_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "NAME", "FULLNAME",
    "EMAIL", "COMPANY", "PROJECT", "CUSTOMER", "SLACK_HOOK", "DB_USER", "JOB", "TEAM", "SITE", "RACK", "HTTP_AUTH",
    "VAULT", "OMP_PLACES", "KMP_AFFINITY", "ONEDNN_MAX_CPU_ISA", "PYTORCH_CUDA_ALLOC_CONF", "MALLOC_CONF", "SSH_CLIENT",
)  # fmt: skip
# How each kind looks; {} is a word of its own, {:…} something made from the number of the canary.
_FORMS = {
    "environment": [f"{name}={form}" for name in _SECRETS for form in ("{}", "{}7", "{}:{}")],
    "host": ["{}", "{}.de", "{}.co.uk", "{}.local", "node-{}", "db.{}.bigbank.internal", "{}:29500", "https://{}.io/x"],
    "mail": ["{}@example.org", "jane.{}@bigbank.de", "mailto:{}@x", "{} <a@b.c>"],
    "path": [
        "clients/{}-merger.pt", "./{}/model.pt", "../{}", "{}.pt", "data/{}/", "/home/{}/x.bin", "/srv/{}", "~/{}/a",
        "C:\\Users\\{}\\model.pt", "\\\\server\\{}\\x", "file:///mnt/{}", "s3://{}/weights",
        "'/Users/Jane Doe/{} b.bin'", "hdfs://x/{}", "/dev/disk/by-label/{}", "{}/", "a b/{} c/d",
        "/proc/{}", "/nfs/{}/home", "D:/{}/x",
    ],
    "git": [
        "{}/repo", "org/{}", "git@github.com:{}/secret.git", "https://github.com/x/{}.git", "feature/{}", "{}-branch",
        "ssh://git@host/{}.git", "Signed-off-by: {}", "refs/heads/{}", "{}@{}",
    ],
    "token": [
        "ghp_{}", "hf_{}", "{}", "Bearer {}", "Authorization: Basic {}", "password={}", "token: {}", "sk-{}",
        "xox-{}-a", "-----BEGIN {} KEY-----", "{}==", "api_key='{}'", "{}{}", "{}-{}-{}", "pin {}", "secret {}!",
    ],
    "sentence": ["customer {} refused", "Merger with {}", "no such table: {}", "KeyError: '{}'", "user {} on console"],
    "real name": ["{} Quill", "Zoë {}", "Dr. {}", "{}, room 7"],
}  # fmt: skip
_ADDRESSES = {
    "address": [
        "10.{0}.{1}.{2}",
        "192.168.{1}.{2}",
        "fe80::{3:x}:{4:x}",
        "2001:db8:{3:x}:{4:x}::1",
        "{0}.{1}.{2}.7:8443",
    ],
    "MAC": ["02:{5}:{6}:{7}:{8}:01", "02-{5}-{6}-{7}-{8}-01", "02{5}.{6}{7}.{8}01", "02{5}{6}{7}{8}01"],
}


class Canary(NamedTuple):
    """A text that must stay here: how it was planted, and what of it is searched for."""

    kind: str
    planted: str
    sought: str


class Aviary:
    """All canaries, and where each was put."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.all: list[Canary] = []
        for kind, forms in _FORMS.items():
            for form in forms:
                word = self._word()
                self.add(kind, form.replace("{}", word), word)
        for kind, forms in _ADDRESSES.items():
            for form in forms * 4:
                text = form.format(*self._numbers())
                self.add(kind, text, text)

    def add(self, kind: str, planted: str, sought: str) -> None:
        self.all.append(Canary(kind, planted, sought))

    def name(self, kind: str, capital: bool = False) -> str:
        """A new one that can be the name of a file, a folder, an account or a class."""
        word = self._word()
        self.add(kind, word, word)
        return word.capitalize() if capital else word

    def _word(self) -> str:
        """Letters only, such as `wexuqi`: no such word is in torchmark or in English."""
        word = "".join(self._chance.choice("bdfgkpqvwxz") + self._chance.choice("aeiou") for _ in range(3))
        return self._word() if any(word in each.sought for each in self.all) else word

    def _numbers(self) -> list[int | str]:
        numbers = [self._chance.randrange(100, 250) for _ in range(3)]
        return [
            *numbers,
            *(self._chance.randrange(4096, 65536) for _ in range(2)),
            *(f"{self._chance.randrange(160, 256):02x}" for _ in range(4)),
        ]

    def environment(self) -> dict[str, str]:
        planted = [each.planted.partition("=") for each in self.all if each.kind == "environment"]
        return {f"{name}{('', '_2', '_OLD')[number % 3]}": value for number, (name, _, value) in enumerate(planted)}

    def found_in(self, content: bytes) -> list[Canary]:
        """Those that a shared output has in it, in any form that is easily read back."""
        text, raw = content.decode(errors="replace").lower(), content.decode("latin-1")
        return [
            each
            for each in self.all
            if any(form in text for form in _forms(each)) or any(form in raw for form in _encoded(each))
        ]


def _forms(canary: Canary) -> set[str]:
    text = canary.sought.lower()
    return {text, quote(text, safe="").lower(), json.dumps(text)[1:-1]}


def _encoded(canary: Canary) -> list[str]:
    """Base64 for every position of the text in it, without what depends on its neighbours."""
    coded = [base64.b64encode(b"\0" * shift + canary.sought.encode()).decode().rstrip("=") for shift in range(3)]
    return [text[(0, 2, 3)[shift] : -1] for shift, text in enumerate(coded)]


class Site:
    """Folders, files and an environment full of canaries, and commands that run there."""

    def __init__(self, root: Path, aviary: Aviary) -> None:
        self.aviary, self.shared = aviary, dict[str, bytes]()
        self.local: list[bytes] = []
        self._login, self._host = aviary.name("account"), f"{aviary.name('host')}.{aviary.name('host')}.de"
        self._person = f"{aviary.name('real name', True)} {aviary.name('real name', True)},{aviary.name('real name')}"
        self.here = root / aviary.name("folder") / aviary.name("folder")
        self.home, self.data, self.fleet = (self.here / aviary.name("folder") for _ in range(3))
        self.tests = self.here / aviary.name("folder")
        self.secret, self.variable = aviary.name("environment"), f"{aviary.name('environment').upper()}_TOKEN"
        self._granularity = f"granularity={aviary.name('environment')}"
        for folder in (self.home, self.data, self.tests):
            folder.mkdir(parents=True)
        self.out = root / "out"
        self.out.mkdir()
        self._plant_files()
        self._prefix = self._private_namespace(root)
        (root / "all.json").write_text(json.dumps([each.planted for each in aviary.all]))
        self.environment = {
            **os.environ, **aviary.environment(), "HOME": str(self.here), "USER": self._login, "LOGNAME": self._login,
            "KMP_AFFINITY": self._granularity,
            "TORCHMARK_HOME": str(self.home), "TORCHMARK_LOCK": str(root / "lock"),
            "TORCHMARK_FAKE": "stream=iid2,step=0.001", "TORCHMARK_CANARIES": str(root / "all.json"), "COLUMNS": "120",
        }  # fmt: skip

    def _plant_files(self) -> None:
        names = {
            "HELPER": self.aviary.name("code"),
            "CLASS": self.aviary.name("code", True),
            "PARAMETER": self.aviary.name("code"),
        }
        for file in ("canary_model.py", "canary_workload.py"):
            text = (INJECTION / file).read_text()
            for name, canary in names.items():
                text = text.replace(name, canary)
            (self.here / file).write_text(text)
        (self.here / f"{names['HELPER']}.py").write_text(
            "from leaking import leak\n\ndef fail():\n    leak('helper')\n"
        )
        (self.here / "broken.py").write_text(f"from leaking import leak\nleak('import')\ndef build(): {names['CLASS']}")
        (self.data / "train-images-idx3-ubyte.gz").write_bytes(b"no images")
        (self.tests / "test_speed.py").write_text(
            "from leaking import leak\n"
            "def test_fast(torchmark): torchmark(lambda: None, 'fake')\n"
            "def test_bad(torchmark): torchmark(lambda: leak('test'), 'fake')\n"
            "def test_file(torchmark): torchmark.check('canary_model.py', fault='build')\n"
        )
        for setting in ("remote.origin.url", "user.name", "user.email", "branch.main.description"):
            command = ["git", "-C", str(self.here), "config", "--file", str(self.here / ".git/config"), setting]
            (self.here / ".git").mkdir(exist_ok=True)
            subprocess.run([*command, f"git@{self.aviary.name('git')}.co.uk:{self.aviary.name('git')}/x"], check=True)

    def _private_namespace(self, root: Path) -> list[str]:
        """Another host name, account and hosts file for what runs here; nothing outside sees them."""
        passwd = f"{self._login}:x:{os.getuid()}:0:{self._person}:{self.here}:/bin/sh\n"
        (root / "passwd").write_text(passwd + Path("/etc/passwd").read_text())
        (root / "hosts").write_text(f"127.0.0.1 localhost {self._host}\n::1 localhost\n")
        mounts = "".join(f"mount --bind {root}/{name} /etc/{name}; " for name in ("passwd", "hosts"))
        script = f'{mounts}hostname {self._host}; exec "$@"'
        prefix = ["unshare", "--mount", "--uts", "bash", "-ec", script, "bash"]
        allowed = os.getuid() == 0 and subprocess.run([*prefix, "true"], check=False).returncode == 0
        if not allowed:
            print("No right to another host name and account: they are only in messages", file=sys.stderr)
        return prefix if allowed else []

    def torchmark(self, *arguments: str, broken: bool = False) -> subprocess.CompletedProcess[bytes]:
        """One command to its end. What it says on stderr is for the terminal, and so are its tables."""
        return self.run(*COMMAND, *arguments, broken=broken)

    def run(self, *command: str, broken: bool = False, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:  # noqa: A002
        paths = os.pathsep.join(map(str, ([INJECTION / "breaking"] if broken else []) + [INJECTION]))
        done = subprocess.run(
            [*self._prefix, *command],
            env=self.environment | {"PYTHONPATH": paths},
            input=input,
            cwd=self.here,
            capture_output=True,
            check=False,
        )
        self.local.append(done.stderr)
        if b"Traceback" in done.stderr or done.returncode == 70:
            sys.exit(f"{command} ended as a bug: {done.stderr.decode()[-2000:]}")
        return done

    def share(self, name: str, *arguments: str, broken: bool = False) -> None:
        """A command whose output is made to be passed on."""
        self.shared[name] = self.torchmark(*arguments, broken=broken).stdout

    def render(self, commands: dict[str, list[str]]) -> dict[str, bytes]:
        """What commands that measure nothing print or write, all of them in one process."""
        files = {name: self.out / name.replace(" ", "-") for name in commands}
        listed = [(str(files[name]) + ".stdout" * ("-o" in command), command) for name, command in commands.items()]
        self.run(sys.executable, str(INJECTION / "several.py"), input=json.dumps(listed).encode())
        return {name: file.read_bytes() for name, file in files.items()}


BUILD = "build,class,chained,note,file,module,helper,group,ours,wrong,exit,half,operator,memory,talk"
CASE = "canary_model.py/infer:fault={}@cpu/float32"
STEPS = "--device cpu --steps 3 --rigor quick"
COMMANDS = {
    "brief": f"run canary_model.py -p fault=class,helper,ours,half,first,talk {STEPS}",
    "run": f"run canary_model.py -p fault={BUILD},first,steps,loader,none {STEPS}",
    "train": f"run canary_model.py --mode train -p fault=first,none {STEPS}",
    "ranks": f"run canary_model.py --mode train -p fault=rank,build --workers 2 {STEPS}",
    "import": f"run broken.py {STEPS}",
    "workload": f"run canary_workload.py {STEPS}",
    "data": f"run mnist-cnn -p batch=4 --data DATA {STEPS}",
    "ab-fails": f"ab {CASE.format('steps')} --budget 20s",
    "ab": "ab null/infer@fake/float32 --env-a VARIABLE=1 --env-b MYSQL_PWD=SECRET --env-b ARCHITECTURE=SECRET "
    "--env-b 'PLUGIN=SECRET 1' --budget 2s",
    "tune": f"tune {CASE.format('dtype')} --budget 20s",
    "tune-fails": f"tune {CASE.format('build')} --budget 20s",
    "fit": f"fit {CASE.format('large')} --most 16 --budget 15s",
    "limits": "limits --tiny --device cpu --dtype float32 --budget 5s",
    "replicate": "replicate simple-add --scale 0.01 --device cpu --budget 20s",
    "script": "replicate intel-vs-m2 --scale 0.001 --device cpu --budget 20s",
}
REPORTS, FORMATS = ("html", "svg", "png", "md", "csv", "json"), ("md", "csv", "json", "jsonl")
BROKEN = ("limits", "replicate", "script")  # built-in work, made to fail
PRINTING = ("ab-fails", "ab", "fit", "replicate")  # what they print is no report of a stored run


def measure(site: Site, only: Sequence[str]) -> None:
    """Every command that measures. Failures are what it is about, so no exit code is looked at."""
    for name, text in COMMANDS.items():
        if name in only or not only:
            for word, value in (("DATA", str(site.data)), ("SECRET", site.secret), ("VARIABLE", site.variable)):
                text = text.replace(word, value)
            command = shlex.split(text)
            site.local.append(site.torchmark(*command, broken=name in BROKEN).stdout)
            for format in ("md", "csv", "json") if name in PRINTING else ():  # noqa: A001
                site.share(f"{name} {format}", *command, "--format", format, broken=name in BROKEN)
    if "fleet" in only or not only:
        _measure_fleet(site)
    if "pytest" in only or not only:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(site.tests)]
        site.local.append(site.run(*command, "--torchmark-budget", "0.2").stdout)


def _measure_fleet(site: Site) -> None:
    given = ("--engine", "local", "--device", "cpu", "--steps", "3", "--rigor", "quick", "--folder", str(site.fleet))
    site.torchmark("fleet", "run", CASE.format("build"), CASE.format("none"), *given)
    for format in ("table", "md", "csv", "json", "jsonl"):  # noqa: A001
        site.share(f"fleet gather {format}", "fleet", "gather", str(site.fleet), "--format", format)


def share(site: Site, reports: Sequence[str] = REPORTS, formats: Sequence[str] = FORMATS) -> None:
    """All that is made of run files to be passed on, and what is shown of them on this terminal."""
    runs = sorted([*site.home.glob("*.jsonl"), *site.fleet.glob("*.jsonl")])
    commands, tables = dict[str, list[str]](), dict[str, list[str]]()
    for number, run in enumerate(runs):
        site.shared[f"run file {number}"] = run.read_bytes()
        commands[f"export {number}"] = ["export", str(run), "-o", str(site.out / f"export-{number}")]
        commands[f"export shown {number}"] = ["export", str(run), "--show"]
        for each in reports:
            name = f"report-{number}.{each}"
            commands[name] = ["report", str(run), "-o", str(site.out / name)]
        commands |= {f"show {number} {each}": ["show", str(run), "--format", each] for each in formats}
        tables |= {f"table {number}": ["show", str(run)], f"details {number}": ["show", str(run), "--details"]}
    both = [str(runs[0]), str(runs[-1])]
    commands |= {f"compare {each}": ["compare", *both, "--format", each] for each in formats}
    for each in set(reports) - {"svg", "png"}:
        commands[f"board.{each}"] = ["report", "--leaderboard", str(site.home), "-o", str(site.out / f"board.{each}")]
    site.shared |= site.render(commands)
    site.local += site.render(tables).values()
    site.local += [log.read_bytes() for log in [*site.here.rglob("*.log")]]


def report(site: Site) -> int:
    """The table, and the exit code."""
    found = [(name, each) for name, content in site.shared.items() for each in site.aviary.found_in(content)]
    known = {each for content in site.local for each in site.aviary.found_in(content)}
    empty = [name for name, content in site.shared.items() if not content]
    print(f"{'kind':<14}{'planted':>9}{'in local logs':>15}{'in shared output':>18}")
    for kind, count in Counter(each.kind for each in site.aviary.all).items():
        leaked = {each for _, each in found if each.kind == kind}
        print(f"{kind:<14}{count:>9}{sum(each.kind == kind for each in known):>15}{len(leaked):>18}")
    size = sum(map(len, site.shared.values()))
    leaked = {each for _, each in found}
    print(f"\n{len(site.aviary.all)} canaries, {len(leaked)} found in {len(site.shared)} outputs of {size:,} bytes")
    for name, each in found:
        print(f"found: {each.kind} '{each.planted}' in {name}")
    missing = [each for each in site.aviary.all if each not in known]
    for each in missing:
        print(f"never there to be found: {each.kind} '{each.planted}'")
    for name in empty:
        print(f"empty: {name}")
    return 1 if found or missing or empty else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Commands to run, such as run,fit.")
    parser.add_argument("--keep", action="store_true", help="Keep the folder.")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="torchmark-"))
    try:
        site = Site(root, Aviary(options.seed))
        measure(site, [name for name in options.only.split(",") if name])
        share(site)
        return report(site)
    finally:
        if options.keep:
            print(root)
        else:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
