"""`torchmark fleet`: runs on many machines through a cluster's own scheduler."""

from __future__ import annotations

import click

from torchmark.cli.lazy import LazyGroup

COMMANDS = {
    "run": ("torchmark.cli.fleet.run", "Measure every node, or let several train together."),
    "status": ("torchmark.cli.fleet.status", "Show how every job stands."),
    "gather": ("torchmark.cli.fleet.gather", "Show all results in one table, and which nodes stand out."),
    "cancel": ("torchmark.cli.fleet.cancel", "End the jobs that wait or run."),
}

_EXAMPLES = """\
Examples:
  torchmark fleet run --folder /shared/fleet              the quick suite on every node
  torchmark fleet run mlp --each-kind --partition gpu     one node of each kind
  torchmark fleet run mnist-ddp-mlp --together 1,2,4      how training scales over nodes
  torchmark fleet status /shared/fleet
  torchmark fleet run --resume /shared/fleet              what is missing, again
  torchmark fleet gather /shared/fleet
"""


@click.group("fleet", cls=LazyGroup, table=COMMANDS, examples=_EXAMPLES, no_args_is_help=True)
def command() -> None:
    """Measure many machines: one `torchmark run` on each node of a Slurm cluster, gathered in one folder."""
