"""A group of commands that are known by name, and imported only when they are called: `--help` answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from torchmark.errors import UnknownName

Table = Mapping[str, tuple[str, str]]  # name -> module that holds it as `command`, and what it does


class LazyGroup(click.Group):
    """Its help comes from the table alone."""

    def __init__(self, *arguments: Any, table: Table, examples: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table, self._examples = table, examples

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*self.table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.table:
            return None
        command: click.Command = import_module(self.table[cmd_name][0]).command
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
