"""Which variables each launch path gets on which nodes, and how it would get the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from clusterprep.facts import under
from clusterprep.facts.env_files import (
    ENROOT_ENV,
    ENV_FILE,
    NCCL_CONF,
    PAM_FILE,
    PODMAN_CONF,
    PROFILE,
    TASK_PROLOG,
    UNITS,
    is_ours,
    written_files,
)
from clusterprep.facts.environment import ENGINES, Paths, Reader
from clusterprep.facts.readable import Readable
from clusterprep.facts.runtime import Setup
from clusterprep.model import Absent, EnvPath, Fleet, Inventory, Node
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.variables.variables import conf_file_has_effect

FACT = "env.paths"
READABLE = "env.readable"
READERS = "env.readers"
SETUP = "rt.setup"
OTHER_PATHS = "env.other_paths"  # cron, and engines of containers
FACTS = (FACT, OTHER_PATHS, READABLE, READERS, SETUP)  # that rows are made of
# How a launch path gets what apply writes.
ADDED = {
    "login shell": "target profile.d",
    "ssh command": f"target ssh ({PAM_FILE}, by sshd's PAM)",
    "cron": f"target ssh ({PAM_FILE}, by cron's PAM)",
    "systemd": "target systemd, and the units of jobs under env_units; "
    f"or target env-file, and EnvironmentFile={ENV_FILE} in the unit",
    "slurm": f"target slurm-task-prolog, and TaskProlog={TASK_PROLOG} in slurm.conf",
    "container": f"target env-file, and --env-file {ENV_FILE}",
    "podman": "target container",
    "enroot": "target container",
    "docker": f"target env-file, and --env-file {ENV_FILE}",
    "runtime": "target profile.d, and see rt.env",
    "nccl": "target nccl.conf",
}
# Of a node where PAM gives a launch path nothing of /etc/environment: the command reads the file.
BY_HAND = f"target env-file, and `set -a; . {ENV_FILE}` before the command"
# Of a login shell that lacks what its file has, or will have once apply has run.
OTHER_SHELL = (
    f"apply; where zsh, fish or csh does not read /etc/profile.d, target ssh ({PAM_FILE}, by PAM)"
)
# The file that the job's user itself has to be able to read. Units are given theirs by root.
_READ_BY_USER = {
    "login shell": PROFILE,
    "ssh command": ENV_FILE,
    "slurm": TASK_PROLOG,
    "container": ENV_FILE,
    "podman": PODMAN_CONF,
    "enroot": ENROOT_ENV,
    "docker": ENV_FILE,
    "runtime": PROFILE,
    "nccl": NCCL_CONF,
}
# The launch paths that get a target as soon as it is written, with the file that they read.
_DIRECT = (
    ("login shell", "profile.d", PROFILE),
    ("login shell", "ssh", PAM_FILE),
    ("runtime", "profile.d", PROFILE),
    ("ssh command", "ssh", PAM_FILE),
    ("cron", "ssh", PAM_FILE),
    ("systemd", "systemd", UNITS),
    ("podman", "container", PODMAN_CONF),
    ("enroot", "container", ENROOT_ENV),
    ("nccl", "nccl.conf", NCCL_CONF),
)
# The launch paths one of which has to be on a node for a target to have a reader there.
_READ_BY = {
    "slurm-task-prolog": (("slurm",), "there is no slurmd"),
    "systemd": (("systemd",), "systemd does not start the services here"),
    "container": (("podman", "enroot"), "there is neither podman nor enroot"),
}

Key = tuple[str, str]  # launch path, target
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
        paths = _every_path(fleet, node)
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


def _every_path(fleet: Fleet, node: Node) -> Paths | Absent:
    """Return the launch paths of jobs, and behind them those that no job is known to take."""
    paths: Paths | Absent = fleet.fact(node.name, FACT)
    others: Paths | Absent = fleet.fact(node.name, OTHER_PATHS)
    if isinstance(paths, Absent) or isinstance(others, Absent):
        return paths
    return {**paths, **others}


def _is_asked(fleet: Fleet) -> bool:
    return any(FACT in fleet.snapshots[node.name].facts for node in fleet.reached)


def _rows(fleet: Fleet, node: Node, paths: Paths, writing: bool) -> list[Row]:
    """Return one row for each launch path of a node that is known."""
    inventory = fleet.inventory
    planned = set(planned_environment(fleet).of(node.name))
    closed = _closed_files(fleet, node)
    unread = _unread(fleet, node)
    names_by_path = _names_by_path(paths)
    if writing:
        _add_planned(names_by_path, planned, _written_to(inventory, closed, unread))
    if "runtime" in names_by_path:
        names_by_path["runtime"] -= _unset_by_runtime(fleet, node)
    if not (writing or closed or _has_our_files(paths, inventory)):
        return [(path, tuple(sorted(names)), "") for path, names in names_by_path.items()]
    rows = []
    for path, lacking in _lacking_by_path(names_by_path, planned).items():
        add = ""
        if path == "systemd" and "systemd" in inventory.env_targets:
            is_new = writing or bool(lacking)
            add = _what_units_need(inventory, unread, is_new)
        elif lacking:
            add = _what_to_add(path, inventory, closed, unread)
        names = tuple(sorted(names_by_path[path]))
        rows.append((path, names, add))
    return rows + _without_reader(paths, inventory)


def _add_planned(
    names_by_path: Mapping[str, set[str]], planned: set[str], written: Iterable[str]
) -> None:
    """Add the names of planned variables to the launch paths that get what apply writes."""
    for path in written:
        if path in names_by_path:
            names_by_path[path] |= _read_by_nccl(planned) if path == "nccl" else planned


def _lacking_by_path(
    names_by_path: Mapping[str, set[str]], planned: set[str]
) -> dict[str, set[str]]:
    """Return the planned variables that each launch path gets neither itself nor by NCCL's files.

    A container does not see NCCL's files of the node.
    """
    by_nccl_files = _read_by_nccl(names_by_path["nccl"])
    lacking = {}
    for path, names in names_by_path.items():
        if path == "nccl":
            lacking[path] = _read_by_nccl(planned) - names
        elif path in ENGINES:
            lacking[path] = planned - names
        else:
            lacking[path] = planned - names - by_nccl_files
    return lacking


def _written_to(
    inventory: Inventory, closed: Mapping[str, str], unread: Mapping[Key, str]
) -> Iterator[str]:
    """Yield the launch paths that get what apply writes as soon as it is written."""
    for path, target, file in _DIRECT:
        is_read = file not in closed and (path, target) not in unread
        if target in inventory.env_targets and is_read:
            yield path


def _without_reader(paths: Paths, inventory: Inventory) -> list[Row]:
    """Return a row for each target that nothing on the node reads."""
    rows: list[Row] = []
    for target, (readers, why) in _READ_BY.items():
        if target in inventory.env_targets and not any(path in paths for path in readers):
            rows.append((readers[0], (), f"{why}, so nothing reads target {target}"))
    return rows


def _what_units_need(inventory: Inventory, unread: Mapping[Key, str], new: bool) -> str:
    """Return what it takes until units have what apply writes; empty if they have it.

    `new` says that systemd has to read drop-ins that it has not read yet.
    """
    words = []
    if new:
        units = ", ".join(inventory.env_units)
        words.append(f"`systemctl daemon-reload` after apply, and {units} started again")
    missing = unread.get(("systemd", "systemd"))
    if missing:
        words.append(missing)
    return "; ".join(words)


def _unread(fleet: Fleet, node: Node) -> dict[Key, str]:
    """Return the launch paths that do not read a target, and why: {(path, target): why}.

    Of systemd these are declared units that do not exist, while others may.
    """
    readers: Mapping[str, Reader] | Absent = fleet.fact(node.name, READERS)
    if isinstance(readers, Absent):
        return {}
    unread = {}
    for path, reader in readers.items():
        if reader.reads is True:
            continue
        target = "systemd" if path == "systemd" else "ssh"
        unread[path, target] = reader.why or "whether it reads the file is not known"
    if ("ssh command", "ssh") in unread:
        unread["login shell", "ssh"] = unread["ssh command", "ssh"]
    return unread


def _unset_by_runtime(fleet: Fleet, node: Node) -> set[str]:
    """Return the names of variables that the job's runtime takes away."""
    setup: Setup | Absent | None = fleet.fact(node.name, SETUP)
    return set() if setup is None or isinstance(setup, Absent) else set(setup.unset)


def _closed_files(fleet: Fleet, node: Node) -> dict[str, str]:
    """Return what to do about each file of a target that the job's user cannot read, by path."""
    readable: Readable | Absent = fleet.fact(node.name, READABLE)
    if isinstance(readable, Absent):
        return {}
    refused = {refusal.path for refusal in readable.refusals}
    closed = {}
    for path in written_files(fleet.inventory):
        place = under(node, path)
        if place in refused:
            closed[path] = f"{place} has to be readable for {readable.user}, see {READABLE}"
    return closed


def _what_to_add(
    path: str, inventory: Inventory, closed: Mapping[str, str], unread: Mapping[Key, str]
) -> str:
    """Return how a launch path gets what it lacks: a file that is closed to it comes first."""
    file = _READ_BY_USER.get(path, "")
    if file in closed:
        return closed[file]
    if path == "login shell" and "profile.d" in inventory.env_targets:
        return OTHER_SHELL
    if (path, "ssh") in unread and path != "login shell":
        return f"{unread[path, 'ssh']}: {BY_HAND}"
    return ADDED[path]


def _read_by_nccl(names: set[str]) -> set[str]:
    return {name for name in names if conf_file_has_effect(name)}


def _names_by_path(paths: Paths) -> dict[str, set[str]]:
    """Return the names of the variables that each launch path gets now."""
    names_by_path = {}
    for path, settings in paths.items():
        if not isinstance(settings, Absent):
            names_by_path[path] = {setting.name for setting in settings}
    return names_by_path


def _has_our_files(paths: Paths, inventory: Inventory) -> bool:
    """Return whether a launch path gets a variable of a file that apply wrote."""
    for settings in paths.values():
        if isinstance(settings, Absent):
            continue
        if any(is_ours(setting.file, inventory) for setting in settings):
            return True
    return False
