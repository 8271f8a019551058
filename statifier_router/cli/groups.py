"""Groups of commands."""

from __future__ import annotations

import click


class DefaultGroup(click.Group):
    """A group that lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the first command before options that no command precedes."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args.insert(0, next(iter(self.commands)))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In their own order."""
        return list(self.commands)
