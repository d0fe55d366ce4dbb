"""Nothing that is measured ever asks for anything beyond this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchmark.store import load

MODEL = """
import huggingface_hub.constants
import torch


def build(batch: int = 2):
    if not huggingface_hub.constants.HF_HUB_OFFLINE:  # read from the environment while it is imported
        raise RuntimeError("this could ask the network")
    return torch.nn.Linear(2, 2), torch.zeros(batch, 2)
"""
CASES = [
    "null/infer@cpu/float32",
    "bert-encode/infer:sequence=8,size=tiny@cpu/float32",
]
# An address that leads to another machine: any of the two families that is not the machine itself.
OUTSIDE = re.compile(r'sin_addr=inet_addr\("(?!127\.|0\.0\.0\.0)|inet_pton\(AF_INET6, "(?!::1"|::"|::ffff:127\.)')


def test_an_address_beyond_this_machine_would_be_noticed() -> None:
    inside = [
        'connect(3, {sa_family=AF_UNIX, sun_path="/run/nscd/socket"}, 110) = 0',
        'connect(3, {sa_family=AF_INET, sin_port=htons(29500), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
        'connect(3, {sa_family=AF_INET6, sin6_port=htons(1), inet_pton(AF_INET6, "::1", &sin6_addr)}, 28) = 0',
    ]
    outside = [
        'connect(3, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.1.2.3")}, 16) = 0',
        'connect(3, {sa_family=AF_INET6, sin6_port=htons(1), inet_pton(AF_INET6, "2001:db8::1", &sin6_addr)}, 28) = 0',
    ]
    assert [line for line in (*inside, *outside) if OUTSIDE.search(line)] == outside


@pytest.mark.usefixtures("strace")
def test_no_call_leads_beyond_this_machine(run, tmp_path: Path) -> None:
    """Every process of a run, of which one case uses a library that can fetch models. Ranks are left out: torch asks
    the resolver for the name of 127.0.0.1 when they meet."""
    out, log = tmp_path / "run.jsonl", tmp_path / "calls"
    calls = "trace=connect,sendto,sendmsg,sendmmsg"
    prefix = ("strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", calls)
    done = run("run", *CASES, "--steps", "3", "--rigor", "quick", "--out", str(out), prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert [result.status for result in load(out).results] == ["ok"] * len(CASES)
    calls_made = log.read_text().splitlines()
    assert any("AF_UNIX" in line for line in calls_made)  # how a run talks to the server that forks its workers
    assert [line for line in calls_made if OUTSIDE.search(line)] == []


@pytest.mark.thorough
def test_libraries_are_asked_to_stay_offline_before_they_are_imported(run, environment, tmp_path: Path) -> None:
    environment.pop("HF_HUB_OFFLINE", None)
    (tmp_path / "my_model.py").write_text(MODEL)
    out = tmp_path / "run.jsonl"
    command = ("run", "my_model.py", "--device", "cpu", "--steps", "3", "--rigor", "quick", "--out", str(out))
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    environment["HF_HUB_OFFLINE"] = "0"  # users may let their own file fetch something
    shown = run(*command[:-1], str(tmp_path / "other.jsonl"), cwd=tmp_path).stdout
    assert "this could ask the network" in " ".join(shown.split())
