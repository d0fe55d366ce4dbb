"""The command line: commands are imported when they are called; errors become a line and an exit code."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from torchmark import __version__
from torchmark.errors import EXIT_BUG, EXIT_FINE, EXIT_USAGE, TorchmarkError, UnknownName

Table = Mapping[str, tuple[str, str]]  # command -> module:name of its function, and its summary

COMMANDS: Table = {
    "run": ("run:run", "Measure how fast this machine is at PyTorch."),
    "compare": ("show:compare", "Compare runs and published figures, case by case."),
    "ab": ("ab:ab", "Compare one case live in two environments."),
    "tune": ("studies:tune", "Find the fastest settings for a workload on this machine."),
    "fit": ("studies:fit", "Find the largest batch that fits, and the most efficient one."),
    "replicate": ("studies:replicate", "Replay published benchmarks here, as their authors did."),
    "limits": ("studies:limits", "Measure the peak performance of this machine."),
    "devices": ("devices:devices", "Show the devices here, and whether they are set up well."),
    "new": ("list:new", "Write a starter file for a model of your own."),
    "list": ("list:list_command", "List the workloads and their parameters, or the publications."),
    "runs": ("show:runs", "List the stored runs."),
    "show": ("show:show", "Show a stored run, or one of its cases in full."),
    "check": ("check:check", "Check run files for damage and inconsistencies."),
    "export": ("show:export", "Write a run to a file that can be shared."),
    "report": ("report:report", "Make a page of runs, a score card, or a leaderboard."),
    "fleet": (":fleet_group", "Measure all nodes of a cluster at once."),
}

FLEET_COMMANDS: Table = {
    "run": ("fleet:fleet_run", "Measure every node, or let several train together."),
    "status": ("fleet:status", "Show the state of every job."),
    "gather": ("fleet:gather", "Show all results in one table, and which nodes stand out."),
    "cancel": ("fleet:cancel", "End the jobs that wait or run."),
}


def split_help(text: str) -> tuple[str, str]:
    """A docstring as what click shows before the options, and the examples after them."""
    about, mark, examples = cleandoc(text).partition("\n\nExample")
    return about, f"\b{mark[1:]}{examples}" if mark else ""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def __init__(self, *arguments: Any, table: Table, help: str, **options: Any) -> None:  # noqa: A002
        about, examples = split_help(help)
        super().__init__(*arguments, help=about, epilog=examples, **options)
        self.table = table

    def list_commands(self, _: click.Context) -> list[str]:
        return [*self.table]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in self.table:
            raise UnknownName("command", cmd_name, self.table)
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}".rstrip(".")), name)
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="torchmark")
def torchmark() -> None:
    """How fast is this machine at PyTorch, and can the figure be believed?

    Every result shows its uncertainty and what disturbed it. `torchmark COMMAND --help` has the details.

    Examples:
      torchmark run mlp --budget 30s       one workload, half a minute
      torchmark run mlp -p batch=64,256 --dtype float32,bfloat16
      torchmark devices                    what is here, and problems with it
      torchmark show last                  the latest run again
      torchmark compare last~1 last        before against after
      torchmark report last -o report.html one page to share
    """


@click.group("fleet", cls=LazyGroup, table=FLEET_COMMANDS)
def fleet_group() -> None:
    """Measure many machines: one `torchmark run` on each node of a Slurm cluster, gathered in one folder.

    Examples:
      torchmark fleet run --folder /shared/fleet              the quick suite on every node
      torchmark fleet run mnist-ddp-mlp --together 1,2,4      how training scales over nodes
      torchmark fleet status /shared/fleet
      torchmark fleet run --resume /shared/fleet              what is missing, again
      torchmark fleet gather /shared/fleet
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; every error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show ± gets a question mark instead of a crash
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    warnings.showwarning = lambda message, category, *_, **__: _say(f"{category.__name__}: {message}")
    try:
        # Click's `main` knows neither our exit codes nor our one-line errors.
        # Not list(): the submodule of that name hides the built-in once it is imported.
        with torchmark.make_context("torchmark", [*(sys.argv[1:] if arguments is None else arguments)]) as context:
            answer = torchmark.invoke(context)
        sys.stdout.flush()
        code = answer if isinstance(answer, int) else EXIT_FINE
    except click.exceptions.Exit as finished:
        code = finished.exit_code
    except BrokenPipeError:
        code = EXIT_FINE  # the reader had enough, as `| head` does
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        code = EXIT_USAGE
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):  # Python 3.11 wraps one that meets a new class
            raise error.__cause__ from None
        message, code = _explain(error)
        if os.environ.get("TORCHMARK_DEBUG"):
            _say("".join(traceback.format_exception(error)))
        _say(f"torchmark: error: {' '.join(message.split())}")
    try:
        sys.stdout.flush()
    except OSError:  # Python flushes stdout once more at its end; a broken one would complain then
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case TorchmarkError():
            return str(error), error.exit_code
        case click.ClickException():
            message = error.format_message().rstrip(".")
            path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "torchmark"
            return f"{message}{'' if message.endswith('?') else '.'} See `{path} --help`", EXIT_USAGE
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", 130
        case UnicodeEncodeError():  # of an argument or a file
            return f"'{error.object[:80]}' is not valid UTF-8. Write it in UTF-8", EXIT_USAGE
    hint = "This is a bug in torchmark: set TORCHMARK_DEBUG=1 to see where, and please report it"
    return f"{type(error).__name__}: {error}. {hint}", EXIT_BUG


def _say(text: str) -> None:
    from torchmark.cli.output import say

    say(text)
