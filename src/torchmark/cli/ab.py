"""`torchmark ab`: the same case live in two environments, until it is clear which one is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from torchmark.analyze.gates import gate_live
from torchmark.analyze.live import LiveComparison, LiveSide
from torchmark.cli.beginning import avoid_missing_instructions, hold_machine
from torchmark.cli.gates import allow_option, gate_code
from torchmark.cli.measuring import Ending, measure_until_stopped, new_run, say_saved
from torchmark.cli.output import emit, format_option, say, terminal_width, use_color
from torchmark.cli.progress import PHASES, ProgressLine
from torchmark.cli.run_options import label_option
from torchmark.cli.sides import find_sides
from torchmark.cli.values import Duration, Share
from torchmark.errors import EXIT_FINE, EXIT_NOTHING_MEASURED
from torchmark.measure.messages import Phase
from torchmark.records import RunHeader
from torchmark.report.gates import gate_lines
from torchmark.report.live import render_live, side_line, so_far
from torchmark.report.units import percent
from torchmark.settings import told_of
from torchmark.store import RunWriter, as_shared, check_writable, home, new_header
from torchmark.studies.ab import Plan, Side, Study

EXAMPLES = """\b
Examples:
  torchmark ab mlp --python old-venv --python new-venv   did the upgrade slow me?
  torchmark ab mlp --env-b OMP_NUM_THREADS=1             what a variable does
  torchmark ab mlp --settings one.toml --settings two.toml
  torchmark ab mlp/train@cpu/float32 mlp/train@cpu/float32+compile
  torchmark ab resnet50 --python old --python new --fail-if-slower 5%
"""


@click.command(epilog=EXAMPLES)
@click.argument("cases", nargs=-1, metavar="CASE [CASE]")
@click.option("--python", "pythons", multiple=True, metavar="PATH", help="Interpreter or environment of A, then of B.")
@click.option(
    "--settings",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with the settings of A, then of B.",
)
@click.option("--env-a", multiple=True, metavar="NAME=VALUE", help="Set this for A; can be given again.")
@click.option("--env-b", multiple=True, metavar="NAME=VALUE", help="Set this for B; can be given again.")
@click.option("--device", metavar="NAME", help="Where to run a CASE that does not say; default: A's first device.")
@click.option("--budget", "budget_s", type=Duration(), default="5m", show_default=True, help="Time for all, at most.")
@click.option("--target", type=Share(), help="Go on until the ratio is this precise; default: until it is clear.")
@click.option("--fail-if-slower", "limit", type=Share(), help="Exit with 1 where B is slower by more, or fails.")
@allow_option
@click.option("--timeout", "timeout_s", type=Duration(), default="10m", show_default=True, help="For one answer.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="For weights and order.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False), help="Folder with the real MNIST and CIFAR-10 files."
)
@label_option(default="ab", show_default=True, help="Both sides are kept as runs: LABEL-a and LABEL-b.")
@click.option("--dry-run", is_flag=True, help="Show the two sides; measure nothing.")
@click.option("--wait", is_flag=True, help="Wait until no other run is active on this machine.")
@click.option("--share", is_flag=True, help="Run even if another run is active.")
@format_option
def command(**options: Any) -> int:
    """Compare one case live in two environments.

    Two interpreters (two versions of torch), two sets of settings, or two ways to run the same work. Pairs of fresh
    processes take turns in random order until it is clear whether B is faster or slower than A, or the same. The
    other environment needs torch, numpy, scipy, msgspec and psutil, but not torchmark itself.
    """
    lock = nullcontext() if options["dry_run"] else hold_machine(options["wait"], options["share"])
    with lock:
        a, b = find_sides(options)
        if options["dry_run"]:
            emit("\n".join(side_line(side.name, side.case, side.python, side.environment) for side in (a, b)))
            return EXIT_FINE
        check_writable(home() / "ab.jsonl")
        avoid_missing_instructions([side.case.device for side in (a, b)])
        names = ("budget_s", "timeout_s", "target", "limit", "seed", "data")
        plan = Plan(a, b, **{name: options[name] for name in names})
        with ExitStack() as files:
            sides = _Sides(plan, options["label"], files)
            study, ending = _measure(plan, sides)
            found = study.outcome()
            sides.conclude(found, ending)
            return ending.report(lambda: _conclude(found, ending, sides, options))


class _Sides:
    """Each side as a run of its own, so that everything that reads runs can read it; A first, so that B is the last."""

    def __init__(self, plan: Plan, label: str, files: ExitStack) -> None:
        self._plan, self._label, self._files = plan, label, files
        self._writers: dict[str, RunWriter] = {}

    def add_pair(self, study: Study) -> None:
        """Put the pair that has just ended on the disk, and what is known with it."""
        for side, live in self._of(study.outcome()):
            writer = self._writers.get(side.name) or self._create(side, live)
            *earlier, newest = study.processes[side.name]
            writer.measured(len(earlier), newest, live.result)

    @property
    def writers(self) -> list[RunWriter]:
        return [*self._writers.values()]

    def conclude(self, found: LiveComparison, ending: Ending) -> None:
        for side, live in self._of(found):
            if writer := self._writers.get(side.name):
                with ending:
                    writer.finished(live.result)  # a later process may have failed
                    writer.concluded(found.conclusion(side.name))
                    writer.seal()

    def _of(self, found: LiveComparison) -> Iterator[tuple[Side, LiveSide]]:
        return zip(self._plan.sides, (found.a, found.b), strict=True)

    def _create(self, side: Side, live: LiveSide) -> RunWriter:
        header = _header(self._plan, live, f"{self._label}-{side.name.lower()}")
        writer = self._writers[side.name] = self._files.enter_context(new_run(header))
        return writer


def _measure(plan: Plan, sides: _Sides) -> tuple[Study, Ending]:
    """Pair after pair."""
    progress = ProgressLine()
    study = Study(plan, lambda name, phase: progress.note(_news(study, name, phase)))

    def measure() -> None:
        for count in study.pairs():
            sides.add_pair(study)
            progress.mark(f"pair {count}: {so_far(study.interval)}")

    return study, measure_until_stopped(measure, progress, plan.budget_s)


def _news(study: Study, name: str, phase: Phase) -> str:
    known = f" · {so_far(study.interval)}" if study.count else ""
    return f"pair {study.count + 1}{known} · {name}: {PHASES.get(phase.name, phase.name)}"


def _conclude(found: LiveComparison, ending: Ending, sides: _Sides, options: dict[str, Any]) -> int:
    shown = found if options["format"] == "table" else replace(found, a=_shared(found.a), b=_shared(found.b))
    emit(render_live(shown, options["format"], terminal_width(), use_color()))
    if options["format"] == "table":
        say_saved(*sides.writers)
    return ending.code or _exit_code(found, options["limit"], options["allow"])


def _shared(side: LiveSide) -> LiveSide:
    """Other formats than the table are made to be passed on. No paths, no messages of other programs, and of the
    environment only values of a known form."""
    environment = {name: str(told_of(name, value)) for name, value in side.environment.items()}
    return replace(side, result=as_shared(side.result), python="", environment=environment, last_words=())


def _exit_code(found: LiveComparison, limit: float | None, allow: bool) -> int:
    """Without ratios there is nothing to judge, unless it is B that failed."""
    failed = found.b.result.status not in ("ok", "interrupted")
    if limit is not None and (failed or (found.ratios and not found.failed)):
        gate = gate_live(found, limit)
        complaint = "B failed" if failed else f"B is slower than A by more than {percent(limit)}"
        for line in gate_lines(gate, [complaint]):
            say(f"torchmark: {line}")
        return gate_code(gate.word, allow)
    return EXIT_NOTHING_MEASURED if found.failed or not found.ratios else EXIT_FINE


def _header(plan: Plan, live: LiveSide, label: str) -> RunHeader:
    assert live.machine is not None
    cases = " ".join(dict.fromkeys(side.case.text for side in plan.sides))
    return new_header(
        f"torchmark ab {cases} --seed {plan.seed}",  # never a path, nor anything of the environment
        live.machine,
        (live.result.case.text,),
        label=label,
        budget_s=plan.budget_s,
        seed=plan.seed,
    )
