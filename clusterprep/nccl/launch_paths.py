"""Which variables each launch path gets on which nodes, and how it would get the others. Pure."""

from __future__ import annotations

from clusterprep.facts.environment import Paths
from clusterprep.facts.rdma import ENV_FILES
from clusterprep.model import Absent, EnvPath, Fleet, Node
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.variables.variables import conf_file_has_effect

FACT = "env.paths"
ENV_FILE, PROLOG = ENV_FILES["env-file"], ENV_FILES["slurm-task-prolog"]
# How a launch path gets what apply writes. No target reaches `ssh host command` on Debian, so the
# command has to read the file.
ADDED = {
    "login shell": "target profile.d",
    "ssh command": f"target env-file, and `set -a; . {ENV_FILE}` before the command",
    "systemd": f"target env-file, and EnvironmentFile={ENV_FILE} in the unit",
    "slurm": f"target slurm-task-prolog, and TaskProlog={PROLOG} in slurm.conf",
    "container": f"target env-file, and --env-file {ENV_FILE}",
    "nccl": "target nccl.conf",
}
# The launch paths that get a target as soon as it is written.
_DIRECT = (("login shell", "profile.d"), ("nccl", "nccl.conf"))

Row = tuple[str, tuple[str, ...], str]  # launch path, names of variables, what to add


def launch_paths(fleet: Fleet, *, writing: bool) -> tuple[EnvPath, ...] | None:
    """Return one row per launch path and group of equal nodes; None if no node was asked.

    `writing` counts what apply is about to write as present. A path lacks a variable that neither
    its own files nor NCCL's own files set. What to add is said only if a file of ours is there or
    will be: before the first apply it would be no news.
    """
    if not _is_asked(fleet):
        return None
    nodes_by_row: dict[Row, list[str]] = {}
    for node in fleet.reached:
        paths = fleet.fact(node.name, FACT)
        if isinstance(paths, Absent):
            continue
        for row in _rows(fleet, node, paths, writing):
            nodes_by_row.setdefault(row, []).append(node.name)
    order = list(ADDED)
    rows = []
    for path, names, add in sorted(nodes_by_row, key=lambda row: order.index(row[0])):
        nodes = nodes_by_row[path, names, add]
        rows.append(EnvPath(path, names, tuple(nodes), add))
    return tuple(rows)


def _is_asked(fleet: Fleet) -> bool:
    return any(FACT in fleet.snapshots[node.name].facts for node in fleet.reached)


def _rows(fleet: Fleet, node: Node, paths: Paths, writing: bool) -> list[Row]:
    """Return one row for each launch path of a node that is known."""
    planned = set(planned_environment(fleet).of(node.name))
    wanted_by_nccl = _read_by_nccl(planned)
    names_by_path = _names_by_path(paths)
    if writing:
        for path, target in _DIRECT:
            if path in names_by_path and target in fleet.inventory.env_targets:
                names_by_path[path] |= wanted_by_nccl if path == "nccl" else planned
    has_our_files = writing or _has_our_files(paths)
    everywhere = _read_by_nccl(names_by_path["nccl"])
    rows = []
    for path, names in names_by_path.items():
        wanted = wanted_by_nccl if path == "nccl" else planned
        lacking = wanted - names - everywhere
        add = ""
        if has_our_files and lacking:
            add = ADDED[path]
        rows.append((path, tuple(sorted(names)), add))
    return rows


def _read_by_nccl(names: set[str]) -> set[str]:
    return {name for name in names if conf_file_has_effect(name)}


def _names_by_path(paths: Paths) -> dict[str, set[str]]:
    """Return the names of the variables that each launch path gets now."""
    names_by_path = {}
    for path, settings in paths.items():
        if not isinstance(settings, Absent):
            names_by_path[path] = {setting.name for setting in settings}
    return names_by_path


def _has_our_files(paths: Paths) -> bool:
    """Return whether a launch path gets a variable of a file that apply wrote."""
    ours = set(ENV_FILES.values())
    for settings in paths.values():
        if isinstance(settings, Absent):
            continue
        if any(setting.file in ours for setting in settings):
            return True
    return False
