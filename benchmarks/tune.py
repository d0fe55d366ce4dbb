"""Does `torchmark tune` find what there is to gain, in less time than trying everything, and does its snippet deliver?

    python benchmarks/tune.py                        all three workloads, about an hour on two cores
    python benchmarks/tune.py --only mlp             one of them
    python benchmarks/tune.py --only mlp --parts grid,final --folder KEPT    what is missing, next to what is there

Five parts for each workload, every one through the command line or as a bare script without torchmark:

- tune: the search itself, from the settings of a plain script: float32, not compiled.
- keep: the same with --keep dtype, where there is a layout to choose.
- grid: `torchmark run` over {threads 1, 2} × {float32, bfloat16} × {not compiled, compiled} × {layouts}, in three
  processes each, as far as a budget goes that is rather too small for that: the whole grid would take longer still.
- final: the winner against the best of the grid, live (`torchmark ab`).
- bare: a plain script against the same with the settings that are known to be good, and against the same with the
  printed lines pasted into it, in processes that take turns.

Prints each figure next to its goal; the exit code is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

TASKS = {"resnet50": "resnet50/infer", "bert-encode": "bert-encode/infer:batch=4", "mlp": "mlp/infer"}
PARTS = ("tune", "keep", "grid", "final", "bare")
GOOD_SHARE, NEAR, TIME_SHARE, SNIPPET, LAYOUT = 0.9, 0.97, 0.5, 0.1, 1.25
TURN_S, ROUNDS = 1.5, 8
GRID_CASE_S = {"resnet50": 90, "bert-encode": 45, "mlp": 45}  # for each case; compiling alone takes up to 45 s
PROCESSES, LEAST_PAIRS = 3, 4

BUILD = {
    "resnet50": """
from transformers import ResNetConfig, ResNetForImageClassification
model, inputs = ResNetForImageClassification(ResNetConfig(num_labels=1000)), torch.rand(32, 3, 224, 224)
call = lambda: model(pixel_values=inputs).logits
""",
    "bert-encode": """
from transformers import BertConfig, BertModel
model, inputs = BertModel(BertConfig(vocab_size=30522)), torch.full((4, 128), 100)
call = lambda: model(input_ids=inputs).last_hidden_state
""",
    "mlp": """
widths = (1024, 512, 512, 512)
layers = [part for wide, narrow in zip(widths, widths[1:]) for part in (torch.nn.Linear(wide, narrow), torch.nn.Tanh())]
model, inputs = torch.nn.Sequential(*layers, torch.nn.Linear(512, 2)), torch.rand(128, 1024)
call = lambda: model(inputs)
""",
}
GOOD = """
torch.set_num_threads(2)
model = model.to(torch.bfloat16)
inputs = inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
if inputs.ndim == 4:
    model, inputs = (each.to(memory_format=torch.channels_last) for each in (model, inputs))
model = torch.compile(model)
"""
SCRIPT = """
{before}
import statistics, sys, time
import torch
{build}
model.eval()
{pasted}
if "ready" in globals():
    inputs = ready(inputs)
def step():
    with torch.inference_mode():
        return call()
for _ in range(3):
    step()
print("ready", flush=True)
for line in sys.stdin:
    step()
    times, end = [], time.perf_counter() + float(line)
    while time.perf_counter() < end or len(times) < 2:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    print(statistics.median(times), flush=True)
"""


class Bare:
    """A script without torchmark, in a process that times its steps whenever it is asked to."""

    def __init__(self, task: str, pasted: str, environment: dict[str, str]) -> None:
        before, _, after = pasted.rpartition("import torch\n")
        text = SCRIPT.format(before=before, build=BUILD[task], pasted=after)
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.runs = self.process.stdout.readline().strip() == "ready"

    def turn(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{TURN_S}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def torchmark(*arguments: str) -> tuple[Any, float]:
    """What a command printed as JSON, and how long it took."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "torchmark", *arguments, "--format", "json"], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout), time.monotonic() - began


def grid(task: str) -> Iterator[str]:
    layouts = ("", "+layout=channels-last") if task == "resnet50" else ("",)
    for dtype, compiled, threads, layout in product(
        ("float32", "bfloat16"), ("", "+compile"), ("+threads=1", "+threads=2"), layouts
    ):
        # What a processor promises and does not have must not take bfloat16 out of the grid.
        isa = "+isa=avx512-core-bf16" if dtype == "bfloat16" and lacks_amx() else ""
        yield f"{TASKS[task]}@cpu/{dtype}{compiled}{threads}{layout}{isa}"


def lacks_amx() -> bool:
    """Whether bfloat16 ends in SIGILL here, as on virtual machines that promise AMX."""
    if "amx" not in CACHE:
        code = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(64, 64).bfloat16())"
        CACHE["amx"] = subprocess.run([sys.executable, "-c", code], check=False).returncode != 0
    return CACHE["amx"]


CACHE: dict[str, bool] = {}


def measure_bare(task: str, snippet: str) -> dict[str, float]:
    """Gains over the plain script, of the good settings and of the pasted lines: medians of rounds."""
    rescue = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"} if lacks_amx() else {}
    scripts = {"plain": Bare(task, "", {}), "good": Bare(task, GOOD, rescue), "pasted": Bare(task, snippet, {})}
    rounds = []
    for _ in range(ROUNDS):
        order = random.sample(sorted(scripts), len(scripts))
        taken = {name: scripts[name].turn() for name in order if scripts[name].runs}
        rounds.append({name: math.log(taken["plain"] / seconds) for name, seconds in taken.items()})
    for script in scripts.values():
        script.end()
    return {name: math.exp(median(each[name] for each in rounds)) for name in rounds[0] if name != "plain"}


def run_part(part: str, task: str, folder: Path) -> dict[str, Any]:
    case = f"{TASKS[task]}@cpu/float32"
    if part in ("tune", "keep"):
        options = ("--keep", "dtype") if part == "keep" else ()
        found, seconds = torchmark("tune", case, *options, "--out", str(folder / f"{task}-{part}-run.jsonl"))
        return {**found["tuned"], "seconds": seconds}
    if part == "grid":
        cases = list(grid(task))
        place, budget = str(folder / f"{task}-grid-run.jsonl"), f"{GRID_CASE_S[task] * len(cases)}s"
        found, seconds = torchmark("run", *cases, "--budget", budget, "--out", place)
        good = [result for result in found["results"] if result["status"] == "ok"]
        best = min(good, key=lambda result: result["estimate"]["center_s"])
        texts = dict(zip(found["run"]["cases"], found["results"], strict=True))
        (text,) = (text for text, result in texts.items() if result is best)
        whole = sum(len(result["processes"]) >= PROCESSES for result in good)
        return {"best": text, "seconds": seconds, "whole": whole, "missing": len(cases) - len(good), "of": len(cases)}
    tuned = read(folder, task, "tune")
    if part == "bare":
        return dict(measure_bare(task, tuned["snippet"]))
    found, _ = torchmark("ab", read(folder, task, "grid")["best"], tuned["winner"], "--budget", "5m")
    return {name: found[name] for name in ("ratio", "low", "high", "verdict", "ratios")}


def read(folder: Path, task: str, part: str) -> Any:
    return json.loads((folder / f"{task}-{part}.json").read_text())


def judge(folder: Path, task: str) -> Iterator[tuple[bool, str]]:
    tune, every, final, bare = (read(folder, task, part) for part in ("tune", "grid", "final", "bare"))
    gain = tune["gain"] or 1.0
    share = gain / max(bare["good"], 1.0)
    found = f"{gain:.2f}x ({tune['low'] or 1:.2f} to {tune['high'] or 1:.2f}) by {tune['winner']}"
    yield share >= GOOD_SHARE, f"gain {found}; the good settings give a bare script {bare['good']:.2f}x: {share:.0%}"
    fastest = 1 / (final["low"] or final["ratio"])
    reach = f"{1 / final['ratio']:.3f} (up to {fastest:.3f})"
    pairs = len(final["ratios"])  # an interval of two or three reaches anything
    figure = f"{reach} in {pairs} pairs (goal: reaches {NEAR} in {LEAST_PAIRS} or more)"
    yield fastest >= NEAR and pairs >= LEAST_PAIRS, f"speed against the best of the grid, {every['best']}: {figure}"
    spent = tune["seconds"] / every["seconds"]
    extent = f"{every['whole']} of {every['of']} cases in three processes, {every['missing']} in none"
    taken = f"{tune['seconds']:.0f} s where the grid takes {every['seconds']:.0f} s ({extent})"
    yield spent <= TIME_SHARE, f"{taken}: {spent:.0%}"
    off = bare["pasted"] / gain - 1
    yield abs(off) <= SNIPPET, f"the pasted snippet gives a bare script {bare['pasted']:.2f}x: {off:+.1%}"
    if (folder / f"{task}-keep.json").exists():
        keep = read(folder, task, "keep")
        held = (keep["gain"] or 1.0) >= LAYOUT and "channels-last" in keep["winner"] and "/float32" in keep["winner"]
        yield held, f"with --keep dtype {keep['gain'] or 1:.2f}x by {keep['winner']} (goal: {LAYOUT}x by channels-last)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(TASKS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path, help="where the outcome of each part is kept")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="torchmark-tune-"))
    folder.mkdir(parents=True, exist_ok=True)
    held = True
    for task in [options.only] if options.only else TASKS:
        for part in options.parts.split(","):
            if part != "keep" or task == "resnet50":
                (folder / f"{task}-{part}.json").write_text(json.dumps(run_part(part, task, folder)))
        if all((folder / f"{task}-{part}.json").exists() for part in PARTS if part != "keep"):
            for good, text in judge(folder, task):
                held = held and good
                print(f"{'ok  ' if good else 'FAIL'} {task}: {text}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
