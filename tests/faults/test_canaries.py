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
def own_name() -> tuple[str, ...]:
    """The beginning of a command that runs on a machine of another name; without the right to that, on this one."""
    wrap = ("unshare", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",)), "bash", "-ec")
    wrap = (*wrap, f'hostname {HOST}; exec "$@"', "bash")
    allowed = subprocess.run([*wrap, "true"], check=False, capture_output=True).returncode == 0
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
    out, shared, page = home / "run.jsonl", home / "shared.jsonl", home / "page.html"
    run("run", *arguments, "--steps", "3", "--out", str(out), prefix=own_name)
    assert run("export", str(out), "-o", str(shared), prefix=own_name).returncode == 0
    assert run("report", str(out), "-o", str(page), prefix=own_name).returncode == 0
    texts = {path.name: path.read_text(encoding="utf-8") for path in (out, shared, page)}
    texts |= {kind: run("show", str(out), "--format", kind, prefix=own_name).stdout for kind in ("csv", "md", "json")}
    texts["bytes shown"] = run("export", str(out), "--show", prefix=own_name).stdout
    assert all(texts.values())
    assert [(name, canary) for name, text in texts.items() for canary in found_in(text)] == []
    assert texts["bytes shown"] == texts["shared.jsonl"]
