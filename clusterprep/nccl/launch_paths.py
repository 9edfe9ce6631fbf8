"""Which launch path gets which variables on which nodes, and what to add where it lacks some. Pure."""

from __future__ import annotations

from clusterprep.facts.environment import Paths
from clusterprep.facts.rdma import ENV_FILES
from clusterprep.model import Absent, EnvPath, Fleet, Node
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.variables.variables import nccl_reads

FACT = "env.paths"
ENV_FILE, PROLOG = ENV_FILES["env-file"], ENV_FILES["slurm-task-prolog"]
# What reads which file. No target reaches `ssh host command` on Debian, so the command has to take it in.
ADDED = {
    "login shell": "target profile.d",
    "ssh command": f"target env-file, and `set -a; . {ENV_FILE}` before the command",
    "systemd": f"target env-file, and EnvironmentFile={ENV_FILE} in the unit",
    "slurm": f"target slurm-task-prolog, and TaskProlog={PROLOG} in slurm.conf",
    "container": f"target env-file, and --env-file {ENV_FILE}",
    "nccl": "target nccl.conf",
}


def launch_paths(fleet: Fleet, *, writing: bool) -> tuple[EnvPath, ...] | None:
    """One row for equal nodes of a path; `writing`: with what apply is about to write. None where nobody asked.

    A path lacks a value that neither its own files nor NCCL's bring. Before anything was written that is no news, so
    what to add is said where something of ours is there, or will be.
    """
    if not any(FACT in fleet.snapshots[node.name].facts for node in fleet.reached):
        return None
    rows: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for node in fleet.reached:
        paths = fleet.fact(node.name, FACT)
        for key in () if isinstance(paths, Absent) else _rows(fleet, node, paths, writing):
            rows.setdefault(key, []).append(node.name)
    order = list(ADDED)
    ordered = sorted(rows.items(), key=lambda row: order.index(row[0][0]))
    return tuple(
        EnvPath(path, reaches, tuple(nodes), add) for (path, reaches, add), nodes in ordered
    )


def _rows(
    fleet: Fleet, node: Node, paths: Paths, writing: bool
) -> list[tuple[str, tuple[str, ...], str]]:
    plan = set(planned_environment(fleet).of(node.name))
    seen = {
        path: {setting.name for setting in settings}
        for path, settings in paths.items()
        if not isinstance(settings, Absent)
    }
    files = [
        s.file for settings in paths.values() if not isinstance(settings, Absent) for s in settings
    ]
    if writing:
        for path, target in (("login shell", "profile.d"), ("nccl", "nccl.conf")):
            if path in seen and target in fleet.inventory.env_targets:
                seen[path] |= {name for name in plan if path != "nccl" or nccl_reads(name)}
    told = writing or any(file in ENV_FILES.values() for file in files)
    everywhere = {name for name in seen["nccl"] if nccl_reads(name)}
    rows = []
    for path, names in seen.items():
        wanted = {name for name in plan if nccl_reads(name)} if path == "nccl" else plan
        lacks = wanted - names - everywhere
        rows.append((path, tuple(sorted(names)), ADDED[path] if told and lacks else ""))
    return rows
