"""The files of --write-lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from clusterprep.cli.commands.stages import Survey
from clusterprep.jobs.launch.text import hostfile_row
from clusterprep.jobs.verify.schedule import ranks_per_node
from clusterprep.jobs.verify.stage import gpus_in_use
from clusterprep.model import NodeLists
from clusterprep.model.nodeset import fold


def texts(surveyed: Survey, lists: NodeLists) -> Mapping[str, str]:
    """Return the content of each list by the name of its file.

    The hostfile has the chosen nodes, without --pick all that pass. It comes last, so that a
    program which finds it finds the others too.
    """
    others = [*lists.failing, *lists.unknown]
    return {
        "passing.txt": _lines(lists.passing),
        "failing.txt": _lines(lists.failing),
        "unknown.txt": _lines(lists.unknown),
        "exclude.txt": f"{fold(others)}\n" if others else "",
        "hostfile": _hostfile(surveyed, lists),
    }


def _lines(names: tuple[str, ...]) -> str:
    return "".join(f"{name}\n" for name in names)


def _hostfile(surveyed: Survey, lists: NodeLists) -> str:
    fleet = surveyed.fleet
    chosen = frozenset(lists.passing if lists.picked is None else lists.picked)
    nodes = [node for node in fleet.reached if node.name in chosen]
    rows = []
    for node, slots in zip(nodes, ranks_per_node(nodes, gpus_in_use(fleet)), strict=True):
        rows.extend(hostfile_row(node, slots))
    if not rows:
        rows.append("# no node")
    return "".join(f"{row}\n" for row in rows)
