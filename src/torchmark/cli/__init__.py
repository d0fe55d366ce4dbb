"""The command line's entry: a table of the commands, and the one place where errors become a line and an exit code.

Only click is imported here. Each command's module is imported when it is called, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import click

from torchmark import __version__
from torchmark.cli.lazy import LazyGroup
from torchmark.errors import EXIT_BUG, EXIT_FINE, EXIT_USAGE, TorchmarkError

EXIT_INTERRUPTED = 130

# Name -> module that holds it as `command`, and what it does. A new command is a new file and a line here.
COMMANDS = {
    "run": ("torchmark.cli.run", "Measure how fast this machine is at PyTorch."),
    "compare": ("torchmark.cli.compare", "Compare runs and published figures, case by case."),
    "ab": ("torchmark.cli.ab", "Compare one case live in two environments."),
    "tune": ("torchmark.cli.tune", "Find the fastest settings for a workload on this machine."),
    "fit": ("torchmark.cli.fit", "Find the largest batch that fits, and the most efficient one."),
    "replicate": ("torchmark.cli.replicate", "Replay published benchmarks here, as their authors did."),
    "limits": ("torchmark.cli.limits", "Find the best that this machine can do."),
    "devices": ("torchmark.cli.devices", "Show what is here, and whether it is set up well."),
    "new": ("torchmark.cli.new", "Write a file to start from, for a model of your own."),
    "list": ("torchmark.cli.list", "List the workloads and their parameters, or the publications."),
    "runs": ("torchmark.cli.runs", "List the runs that are stored here."),
    "show": ("torchmark.cli.show", "Show a stored run, or one of its cases in full."),
    "check": ("torchmark.cli.check", "Check whether run files are sound."),
    "export": ("torchmark.cli.export", "Write a run into a file that can be sent around."),
    "report": ("torchmark.cli.report", "Make one page of runs, a score card, or a leaderboard."),
    "fleet": ("torchmark.cli.fleet", "Measure all nodes of a cluster at once."),
}

_EXAMPLES = """\
Examples:
  torchmark run                        the quick suite on every device
  torchmark run mlp --budget 30s       one workload, half a minute
  torchmark run mlp -p batch=64,256 --dtype float32,bfloat16
  torchmark run my_model.py            a model of your own
  torchmark devices                    what is here, and what slows it down
  torchmark limits                     the most that it can do
  torchmark show last                  the latest run again
  torchmark show last --format json    for other programs
  torchmark compare last~1 last        before against after
  torchmark report last -o report.html one page to send around
  torchmark export last --show         what a run file would tell others
  torchmark fleet run                  every node of this cluster
"""


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

    Every result says how sure it is, and what disturbed it. `torchmark COMMAND --help` tells more.
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
