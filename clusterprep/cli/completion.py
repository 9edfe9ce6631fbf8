"""What a shell offers when Tab is pressed: files, nodes, checks, topics, playbooks and runs.

click asks these functions for the values of an argument or an option. They answer nothing rather
than with an error, which would stand in the middle of the line that is being typed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from clusterprep.errors import ClusterprepError

if TYPE_CHECKING:
    from click import Context, Parameter
    from click.shell_completion import CompletionItem

    from clusterprep.model import Inventory

    Complete = Callable[[Context, Parameter, str], list[CompletionItem]]

OFFERED_RUNS = 20  # the newest
ITSELF = "inventory.yaml"  # what commands take that are given no inventory
AREA = "."  # `time.` takes all checks of the area


def files(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return that the shell is to offer files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def folders(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return that the shell is to offer folders."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


def checks(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return the areas and names of checks that the last word of `CHECK,…` begins."""
    from clusterprep.survey import registry

    names = registry.checks()
    areas = {name.split(AREA)[0] + AREA for name in names}
    return _of_list(typed, [*sorted(areas), *sorted(names)])


def nodes(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return the groups and nodes of the inventory that the last word of a node set begins."""
    inventory = _inventory(ctx)
    if inventory is None or typed.count("[") != typed.count("]"):
        return []
    return _of_list(typed, [*inventory.groups, *(node.name for node in inventory.nodes)])


def topics(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return what `explain` has pages for."""
    from clusterprep.cli.commands.explain import all_names

    lines = [line for line in all_names().splitlines() if line.startswith("  ")]
    return _items(typed, (line.split()[0] for line in lines))


def playbooks(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return the shipped playbooks; files once what is typed begins none of them."""
    from clusterprep.changes.playbook.reading import shipped_playbooks

    return _items(typed, sorted(shipped_playbooks())) or files(ctx, param, typed)


def formats(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return the formats of reports."""
    from clusterprep.reports import SUFFIXES

    return _items(typed, SUFFIXES)


def runs(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return `last` and the newest runs of the history."""
    from clusterprep.history import state_folder
    from clusterprep.history.database import Unusable
    from clusterprep.history.runs import Runs

    with contextlib.suppress(Unusable):
        recorded = Runs(state_folder()).all(most=OFFERED_RUNS)
        return _items(typed, ["last", *(run.run for run in recorded)])
    return []


def files_or_runs(ctx: Context, param: Parameter, typed: str) -> list[CompletionItem]:
    """Return the runs that what is typed begins; files if it begins none, or nothing is typed."""
    matching = runs(ctx, param, typed) if typed else []
    return matching or files(ctx, param, typed)


def _inventory(ctx: Context) -> Inventory | None:
    """Return the inventory of the line, None if it cannot be read.

    Programs that list nodes for Ansible are not run: that may take minutes.
    """
    from clusterprep.inventory.ansible_signs import is_dynamic
    from clusterprep.inventory.load import load_inventory

    # Without a value for the option that is being typed click gives up before the arguments.
    given = ctx.params.get("inventory") or next(iter(ctx.args), ITSELF)
    path = Path(str(given))
    try:
        if path.is_dir() or is_dynamic(path):
            return None
        return load_inventory(path)
    except (ClusterprepError, OSError):
        return None


def _of_list(typed: str, names: Iterable[str]) -> list[CompletionItem]:
    """Return the names that the part behind the last comma begins, each behind what is before."""
    before, comma, last = typed.rpartition(",")
    return _items(typed, (f"{before}{comma}{name}" for name in names if name.startswith(last)))


def _items(typed: str, values: Iterable[str]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(value) for value in values if value.startswith(typed)]
