"""Tell what a watch saw: on stdout, a line for each change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterprep.cli.options import seconds
from clusterprep.cli.output import print_line, say
from clusterprep.errors import InputError
from clusterprep.model.units import format_duration, pluralize

if TYPE_CHECKING:
    from clusterprep.cli.commands.watch import Look
    from clusterprep.model import Inventory

SHORTEST, LONGEST = 1.0, 86400.0  # seconds from one look to the next


def interval(text: str) -> float:
    """Return the seconds of --every. Raises InputError for none, and for one that is no use."""
    every = seconds(text, "--every") or 0.0
    if not SHORTEST <= every <= LONGEST:
        raise InputError.of(f"'{text}' is not between 1s and 24h", key="--every")
    return every


class Telling:
    """Where the changes of each look go."""

    def __init__(
        self, params: Mapping[str, Any], inventory: Inventory, every: float, checks: int
    ) -> None:
        self._fmt = params["fmt"]
        self._cluster = inventory.cluster
        self._every = every
        self._has_begun = False
        self._was_slow = False
        nodes = pluralize(len(inventory.nodes), "node")
        rhythm = format_duration(every)
        say(
            f"clusterprep: watching {nodes} every {rhythm} with {pluralize(checks, 'check')}; "
            "only changes are told, Ctrl-C ends it"
        )

    def tell(self, look: Look) -> None:
        """Tell what one look brought."""
        from clusterprep.reports import watch_lines

        if self._fmt == "jsonl":
            for row in watch_lines.json_rows(look.changes, look.at, self._cluster):
                print_line(row)
        else:
            for line in watch_lines.console_lines(look.changes, look.at.astimezone()):
                print_line(line)
        self._say_once(look)

    def _say_once(self, look: Look) -> None:
        """Say on stderr that the first look is done, and that looks take longer than they may."""
        if not self._has_begun:
            self._has_begun = True
            number, total = len(look.fleet.reached), len(look.fleet.inventory.nodes)
            took = format_duration(round(look.seconds, 1))
            say(f"clusterprep: {number} of {total} nodes reached, the first look took {took}")
        is_slow = look.seconds > self._every
        if is_slow and not self._was_slow:
            took = format_duration(round(look.seconds, 1))
            say(f"clusterprep: a look takes {took}, which is longer than --every")
        self._was_slow = is_slow
