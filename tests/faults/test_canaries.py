"""Names of people, hosts and places, paths, tokens: whatever an error tells, none of it leaves the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HOST, USER, FOLDER, TOKEN = "kestrel-9", "quillfeather", "Oona Quillfeather", "tk-Zq81hVr7Lw30"
CANARIES = [HOST, USER, FOLDER, "Oona", TOKEN, "my models", "10.1.2.3", "fe80::", "00:1a:2b", "example.org", "/tmp/"]


@pytest.fixture
def home(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a person's name, in which everything happens, and a secret in the environment."""
    home = tmp_path / FOLDER
    home.mkdir()
    environment |= {"HOME": str(home), "USER": USER, "LOGNAME": USER, "API_TOKEN": TOKEN, "ONEDNN_MAX_CPU_ISA": TOKEN}
    environment |= {"TORCHMARK_HOME": str(home / "runs"), "TORCHMARK_FAKE": "stream=iid2,step=0.001"}
    monkeypatch.chdir(home)
    return home


@pytest.fixture(scope="module")
def own_name(do_without) -> tuple[str, ...]:
    """The beginning of a command that runs on a machine of another name; without the right to that, on this one."""
    wrap = ("unshare", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",)), "bash", "-ec")
    wrap = (*wrap, f'hostname {HOST}; exec "$@"', "bash")
    allowed = subprocess.run([*wrap, "true"], check=False, capture_output=True).returncode == 0
    if not allowed and os.environ.get("TORCHMARK_NEED_FAULTS"):
        do_without("this system lets nobody have a name of their own")
    return wrap if allowed else ()


def found_in(text: str) -> list[str]:
    return [canary for canary in CANARIES if canary.lower() in text.lower()]


def test_there_are_canaries_to_find(run, home: Path, own_name: tuple[str, ...]) -> None:
    done = run("run", "faulty/infer:fault=tell@fake/float32", "--out", str(home / "run.jsonl"), prefix=own_name)
    assert done.returncode == 3
    log = (home / "run.jsonl.log").read_text()  # local, and never exported
    assert {USER, FOLDER, TOKEN} <= set(found_in(log))
    assert not own_name or HOST in log


@pytest.mark.parametrize(
    "arguments",
    [
        ("faulty/infer:fault=tell@fake/float32",),
        ("faulty/infer:fault=tell,phase=build@fake/float32", "faulty/infer@fake/float32"),
        ("faulty/infer:fault=none@cpu/float32",),
        ("mnist-cnn/train:batch=4@cpu/float32", "--data", "DATA"),
    ],
    ids=["while-timing", "while-building", "settings", "data"],
)
def test_no_byte_of_them_is_in_a_run_file_or_in_what_is_made_of_it(run, home, own_name, arguments) -> None:
    (home / "data").mkdir()
    (home / "data" / "train-images-idx3-ubyte").write_bytes(b"no images")
    arguments = [str(home / "data") if argument == "DATA" else argument for argument in arguments]
    out = home / "run.jsonl"
    run("run", *arguments, "--steps", "3", "--out", str(out), prefix=own_name)
    texts = made_of(out, run, own_name)
    assert [(name, canary) for name, text in texts.items() for canary in found_in(text)] == []


TELL = "faulty/infer:fault=tell@fake/float32"
OTHERS = {
    "ab": f"ab {TELL} --budget 2s --format csv",
    "ab-of-two": "ab null/infer@fake/float32 --budget 1s --format csv",
    "tune": f"tune {TELL} --budget 2s --format csv",
    "fit": "fit mlp/infer@fake/float32 --most 4 --budget 3s --format csv",
    "limits": "limits --tiny --device cpu --dtype float32 --budget 5s --format csv",
    "replicate": "replicate simple-add --scale 0.01 --budget 15s --device cpu --format csv",
    "fleet": f"fleet run {TELL} null --engine local --device fake --steps 3 --rigor quick --folder fleet",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.thorough] * (name in ("replicate", "limits", "ab-of-two", "fleet", "fit"))
        )
        for name in OTHERS
    ],
)
def test_nor_in_what_the_other_commands_keep_and_print(run, home, own_name, name: str) -> None:
    done = run(*OTHERS[name].split(), prefix=own_name)
    if name == "fleet":  # where its folder is, is told to whoever asked for it
        done = run("fleet", "gather", "fleet", "--format", "csv", prefix=own_name)
    texts = {name: done.stdout}
    kept = [*home.glob("runs/*.jsonl"), *home.glob("fleet/*.jsonl")]
    for path in kept:
        texts |= {f"{path.name} {kind}": text for kind, text in made_of(path, run, own_name).items()}
    assert kept or name == "ab", done.stderr  # two sides that fail are no run
    assert texts[name] or name == "tune", done.stderr  # nor is there anything to print where the default fails
    assert [(name, canary) for name, text in texts.items() for canary in found_in(text)] == []


def made_of(out: Path, run, prefix: tuple[str, ...]) -> dict[str, str]:
    """The run file, and all that torchmark makes of it."""
    shared, page = out.with_suffix(".shared.jsonl"), out.with_suffix(".html")
    assert run("export", str(out), "-o", str(shared), prefix=prefix).returncode == 0
    assert run("report", str(out), "-o", str(page), prefix=prefix).returncode == 0
    texts = {path.name: path.read_text(encoding="utf-8") for path in (out, shared, page)}
    texts |= {kind: run("show", str(out), "--format", kind, prefix=prefix).stdout for kind in ("csv", "md", "json")}
    texts["bytes shown"] = run("export", str(out), "--show", prefix=prefix).stdout
    assert all(texts.values())
    assert texts["bytes shown"] == texts[shared.name]
    return texts
