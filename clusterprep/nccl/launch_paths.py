"""Which variables each launch path gets on which nodes, and how it would get the others. Pure."""

from __future__ import annotations

from clusterprep.facts.environment import Paths
from clusterprep.facts.rdma import ENV_FILES
from clusterprep.model import Absent, EnvPath, Fleet, Node
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.variables.variables import nccl_reads

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
    if not any(FACT in fleet.snapshots[node.name].facts for node in fleet.reached):
        return None
    nodes_by_row: dict[Row, list[str]] = {}
    for node in fleet.reached:
        paths = fleet.fact(node.name, FACT)
        if isinstance(paths, Absent):
            continue
        for row in _rows(fleet, node, paths, writing):
            nodes_by_row.setdefault(row, []).append(node.name)
    order = list(ADDED)
    rows = sorted(nodes_by_row, key=lambda row: order.index(row[0]))
    return tuple(EnvPath(row[0], row[1], tuple(nodes_by_row[row]), row[2]) for row in rows)


def _rows(fleet: Fleet, node: Node, paths: Paths, writing: bool) -> list[Row]:
    planned = set(planned_environment(fleet).of(node.name))
    read_by_nccl = {name for name in planned if nccl_reads(name)}
    names_by_path: dict[str, set[str]] = {}
    is_ours = writing
    for path, settings in paths.items():
        if isinstance(settings, Absent):
            continue
        names_by_path[path] = {setting.name for setting in settings}
        is_ours = is_ours or any(setting.file in ENV_FILES.values() for setting in settings)
    if writing:
        for path, target in _DIRECT:
            if path in names_by_path and target in fleet.inventory.env_targets:
                names_by_path[path] |= read_by_nccl if path == "nccl" else planned
    everywhere = {name for name in names_by_path["nccl"] if nccl_reads(name)}
    rows = []
    for path, names in names_by_path.items():
        wanted = read_by_nccl if path == "nccl" else planned
        lacking = wanted - names - everywhere
        add = ADDED[path] if is_ours and lacking else ""
        rows.append((path, tuple(sorted(names)), add))
    return rows
