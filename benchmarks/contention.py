"""Is a busy neighbour seen? The mlp case alone, next to a busy process, and next to one that starts halfway.

    python benchmarks/contention.py

Only the workers' verdicts count. Alone it may say `contended` too, but only with other CPU use or steal as evidence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BUSY = "while True: pass"
OPTIONS = ("--rigor", "quick", "--budget", "8s", "--target", "0.1%", "--format", "json")


def measure(threads: int | None) -> dict[str, object]:
    """The one result of a run of mlp."""
    options = ["--threads", str(threads)] if threads else []
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "torchmark", "run", "mlp", "--device", "cpu", *options, *OPTIONS],
            env={**os.environ, "TORCHMARK_HOME": folder, "TORCHMARK_LOCK": str(Path(folder) / "lock")},
            capture_output=True,
            text=True,
            check=True,
        )
    result: dict[str, object] = json.loads(done.stdout)["results"][0]
    return result


def with_neighbour(after_s: float, threads: int | None) -> dict[str, object]:
    """The same with a process that does nothing but use a core, from this moment on."""
    process: list[subprocess.Popen[bytes]] = []
    timer = threading.Timer(after_s, lambda: process.append(subprocess.Popen([sys.executable, "-c", BUSY])))
    timer.start()
    if not after_s:
        time.sleep(0.5)
    try:
        return measure(threads)
    finally:
        timer.cancel()
        for one in process:
            one.kill()
            one.wait()


def main() -> int:
    held = True
    for threads in (None, 1):
        quiet = measure(threads)
        # Looking at the machine and importing torch take about 5 s before the steps begin.
        rows = {
            "alone": quiet,
            "busy from the start": with_neighbour(0.0, threads),
            "from halfway": with_neighbour(9.0, threads),
        }
        for name, result in rows.items():
            estimate = result["estimate"]
            assert isinstance(estimate, dict)
            contention = estimate["contention"]
            seen = contention["other_cpu_share"] > 0.02 or contention["steal_share"] > 0.02
            right = (
                (estimate["verdict"] == "contended") if name != "alone" else estimate["verdict"] != "contended" or seen
            )
            held = held and right
            print(
                f"{'ok  ' if right else 'FAIL'} threads {threads or 'default'}, {name}: "
                f"{estimate['center_s'] * 1e3:.2f} ms, "
                f"{estimate['verdict']} ({'; '.join(estimate['evidence']) or 'nothing seen'})"
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
