"""The entry of the command line: a table of the commands, and where errors become one line and an exit code.

Only click is imported here. A command's module is imported when the command is called, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from torchmark import __version__
from torchmark.errors import EXIT_BUG, EXIT_FINE, EXIT_USAGE, TorchmarkError, UnknownName

EXIT_INTERRUPTED = 130

Table = Mapping[str, tuple[str, str]]  # command -> where it is defined (module:name), and its summary

COMMANDS: Table = {
    "run": ("torchmark.cli.run:run", "Measure how fast this machine is at PyTorch."),
    "compare": ("torchmark.cli.compare:compare", "Compare runs and published figures, case by case."),
    "ab": ("torchmark.cli.ab:ab", "Compare one case live in two environments."),
    "tune": ("torchmark.cli.tune:tune", "Find the fastest settings for a workload on this machine."),
    "fit": ("torchmark.cli.fit:fit", "Find the largest batch that fits, and the most efficient one."),
    "replicate": ("torchmark.cli.replicate:replicate", "Replay published benchmarks here, as their authors did."),
    "limits": ("torchmark.cli.limits:limits", "Measure the peak performance of this machine."),
    "devices": ("torchmark.cli.devices:devices", "Show the devices here, and whether they are set up well."),
    "new": ("torchmark.cli.new:new", "Write a starter file for a model of your own."),
    "list": ("torchmark.cli.list:list_command", "List the workloads and their parameters, or the publications."),
    "runs": ("torchmark.cli.show:runs", "List the stored runs."),
    "show": ("torchmark.cli.show:show", "Show a stored run, or one of its cases in full."),
    "check": ("torchmark.cli.check:check", "Check run files for damage and inconsistencies."),
    "export": ("torchmark.cli.show:export", "Write a run to a file that can be shared."),
    "report": ("torchmark.cli.report:report", "Make a page of runs, a score card, or a leaderboard."),
    "fleet": ("torchmark.cli.fleet:group", "Measure all nodes of a cluster at once."),
}

_EXAMPLES = """\
Examples:
  torchmark run                        the quick suite on every device
  torchmark run mlp --budget 30s       one workload, half a minute
  torchmark run mlp -p batch=64,256 --dtype float32,bfloat16
  torchmark run my_model.py            a model of your own
  torchmark devices                    what is here, and problems with it
  torchmark limits                     its peak performance
  torchmark show last                  the latest run again
  torchmark show last --format json    for other programs
  torchmark compare last~1 last        before against after
  torchmark report last -o report.html one page to share
  torchmark export last --show         what a shared run file contains
  torchmark fleet run                  every node of this cluster
"""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called; its help comes from the table alone."""

    def __init__(self, *arguments: Any, table: Table, examples: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table, self._examples = table, examples

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*self.table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.table:
            return None
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.table:
            raise UnknownName("command", args[0], self.table)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write("\n" + self._examples)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=_EXAMPLES,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="torchmark")
def torchmark() -> None:
    """How fast is this machine at PyTorch, and can the figure be believed?

    Every result shows its uncertainty and what disturbed it. `torchmark COMMAND --help` has the details.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; whatever goes wrong becomes one line on stderr."""
    _forgive_encodings()
    warnings.showwarning = _show_warning
    # Not list(): the submodule of that name takes the place of the built-in once it is imported.
    code = _guarded([*(sys.argv[1:] if arguments is None else arguments)])
    try:
        sys.stdout.flush()
    except OSError:
        _silence_output()
    return code


def _guarded(arguments: list[str]) -> int:
    try:
        return _invoke(arguments)
    except TorchmarkError as error:
        return _fail(str(error), error.exit_code, error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        return _fail(_usage(error), EXIT_USAGE, error)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail("interrupted", EXIT_INTERRUPTED, error)
    except BrokenPipeError:
        return EXIT_FINE  # the reader had enough, as `| head` does
    except UnicodeEncodeError as error:  # bytes of an argument or a file that are no text
        return _fail(f"'{error.object[:80]}' is not valid UTF-8. Write it in UTF-8", EXIT_USAGE, error)
    except Exception as error:
        hint = "This is a bug in torchmark: set TORCHMARK_DEBUG=1 to see where, and please report it"
        return _fail(f"{type(error).__name__}: {error}. {hint}", EXIT_BUG, error)


def _invoke(arguments: list[str]) -> int:
    """Click's own `main` without its error handling, which knows neither our exit codes nor our one line."""
    try:
        with torchmark.make_context("torchmark", arguments) as context:
            answer = torchmark.invoke(context)
    except click.exceptions.Exit as finished:
        answer = finished.exit_code
    sys.stdout.flush()
    return answer if isinstance(answer, int) else EXIT_FINE


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "torchmark"
    return f"{message}{'' if message.endswith('?') else '.'} See `{path} --help`"


def _fail(message: str, code: int, error: BaseException) -> int:
    from torchmark.cli.output import say

    if os.environ.get("TORCHMARK_DEBUG"):
        import traceback

        say("".join(traceback.format_exception(error)))
    say(f"torchmark: error: {' '.join(message.split())}")
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Libraries quote the environment and files in their warnings: print those like everything else."""
    from torchmark.cli.output import say

    say(f"{category.__name__}: {message}")


def _forgive_encodings() -> None:
    """A terminal that cannot show ± gets a question mark instead of a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")


def _silence_output() -> None:
    """Python flushes stdout once more at its end; a broken one would complain then."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
