"""The argument INVENTORY: a file, `-` for standard input, by default ./inventory.yaml."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterprep.cli.output import say

if TYPE_CHECKING:
    from clusterprep.model import Inventory

DEFAULT = "inventory.yaml"  # what `init` writes
OPTIONS = ("become", "nproc_per_node", "master_port", "known_hosts", "host_keys")


class InventoryCommand(click.Command):
    """A command whose first word is INVENTORY, which may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with ./inventory.yaml in front if they lack an inventory.

        A line that is still being typed, which a shell wants completed, is taken as it is.
        """
        if not ctx.resilient_parsing and self._lacks_inventory(ctx, args):
            args = [_default_inventory(ctx), *args]
        return super().parse_args(ctx, args)

    def _lacks_inventory(self, ctx: click.Context, args: Sequence[str]) -> bool:
        """Return True if all words that the command needs are there but one.

        Words behind `--` are for the nodes. Wrong options are left for the parser to tell.
        """
        separator = args.index("--") if "--" in args else len(args)
        try:
            given, _, _ = self.make_parser(ctx).parse_args(list(args[:separator]))
        except click.UsageError:
            return False
        help_option = self.get_help_option(ctx)
        if "local" in given or (help_option is not None and help_option.name in given):
            return False
        are_given = []
        for argument in self.params:
            if isinstance(argument, click.Argument) and argument.nargs == 1:
                # What stands for a missing word depends on the release of click.
                are_given.append(isinstance(given.get(argument.name or ""), str))
        return not are_given[-1] and all(are_given[:-1])


def _default_inventory(ctx: click.Context) -> str:
    """Return the inventory in this folder, and say so. Raises UsageError.

    One that another user could have put there is not taken: an inventory may be a program.
    """
    from clusterprep.inventory.site.trust import Distrusted, trusted_file

    here = Path(DEFAULT)
    other = " or --local" if "local" in {option.name for option in ctx.command.params} else ""
    give = f"give an INVENTORY{other}"
    if not here.is_file():
        message = f"{give}: there is no ./{DEFAULT} here; clusterprep init HOST… writes one"
        raise click.UsageError(message, ctx)
    try:
        trusted_file(here)
    except (Distrusted, OSError) as error:
        raise click.UsageError(f"{give}: ./{DEFAULT} is not taken: {error}", ctx) from None
    say(f"clusterprep: with ./{DEFAULT}")
    return DEFAULT


def load_given(params: Mapping[str, Any]) -> Inventory:
    """Return the inventory that the options of click name. Raises InputError."""
    from clusterprep.inventory.load import (
        MAX_BYTES,
        STDIN,
        Overrides,
        load_inventory,
        parse_inventory,
    )

    overrides = Overrides(**{name: params.get(name) for name in OPTIONS})
    if params["inventory"] == STDIN:
        return parse_inventory(sys.stdin.buffer.read(MAX_BYTES + 1), overrides)
    return load_inventory(params["inventory"], overrides)
