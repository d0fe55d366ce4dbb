"""What a failure of the workload `faulty` must end as: one status, with words that say how and when."""

from __future__ import annotations

import os
import random
from pathlib import Path

FOLDER = Path(__file__).parent
PHASES = ("start", "import", "build", "first-step", "check", "steps", "job", "teardown")
CAUGHT = {"raise": ("crashed", "ValueError"), "memory": ("oom", "MemoryError"), "unsupported": ("unsupported", "")}
DEATHS = {
    "leave": "exited with code 3",
    "exit": "exited with code 3",
    "abandon": "exited with code 3",
    "abort": "SIGABRT",
    "segfault": "SIGSEGV",
    "kill": "SIGKILL",
    "terminate": "SIGKILL",  # a worker that is asked to end takes its whole group along
}
SILENCES = ("hang", "stop", "deaf")


def possible(device: str) -> list[tuple[str, str]]:
    """Every phase and fault that can be tried on this device."""
    pairs = [(phase, fault) for phase in PHASES for fault in (*CAUGHT, *DEATHS, *SILENCES)]
    pairs = [(phase, fault) for phase, fault in pairs if phase != "start" or fault not in CAUGHT]
    if device == "cpu":
        pairs = [(phase, fault) for phase, fault in pairs if phase not in ("start", "import")]
        pairs.append(("check", "wrong"))
    return pairs


def draw(chance: random.Random, device: str, count: int) -> list[tuple[str, str]]:
    """That many, the rare ones not left to luck: every one comes before any comes twice."""
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        pairs += chance.sample(possible(device), len(possible(device)))
    return pairs[:count]


def case(phase: str, fault: str, number: int, device: str = "fake") -> str:
    """The text of the case that fails so."""
    chosen = {"fault": "" if fault == "none" else fault, "number": number or "", "phase": phase}
    if phase == "steps":
        chosen.pop("phase")  # a default is left out
    params = ",".join(f"{key}={value}" for key, value in chosen.items() if value)
    return f"faulty/infer{':' if params else ''}{params}@{device}/float32"


def expected(phase: str, fault: str) -> tuple[str, tuple[str, ...]]:
    """The one right status, and what its reason must say."""
    if phase == "teardown" or fault == "none":
        return "ok", ()  # the result was there before its process came to a bad end
    named = phase.replace("-", " ")
    if fault == "wrong":
        return "wrong-result", ()
    if fault in CAUGHT:
        status, word = CAUGHT[fault]
        return status, (word, *(() if status == "unsupported" else (f"during {named}",)))
    if fault in SILENCES:
        return "timeout", (f"busy with: {named}",)
    return "crashed", (DEATHS[fault], f"during {named}")


def environment(folder: Path) -> dict[str, str]:
    """Variables with which a run finds the workload, and keeps to itself."""
    paths = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "TORCHMARK_HOME": str(folder / "home"),
        "TORCHMARK_LOCK": str(folder / "lock"),
        "TORCHMARK_FAKE": "stream=iid2,step=0.001",
    }
