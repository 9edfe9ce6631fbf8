"""The files that apply writes the environment to, by the names of `env_targets`.

Resources write them and facts look at them, so the table is here.
"""

from __future__ import annotations

from clusterprep.model import Inventory

PROFILE = "/etc/profile.d/clusterprep-nccl.sh"
NCCL_CONF = "/etc/nccl.conf"
ENV_FILE = "/etc/clusterprep/nccl.env"
TASK_PROLOG = "/etc/clusterprep/task_prolog.sh"
PAM_FILE = "/etc/environment"
# podman takes the last list that sets `env`, and the names of files decide which is last.
PODMAN_CONF = "/etc/containers/containers.conf.d/zz-clusterprep.conf"
ENROOT_ENV = "/etc/enroot/environ.d/zz-clusterprep.env"
# Behind override.conf, which `systemctl edit` makes: the last setting of a name counts.
DROP_IN = "zz-clusterprep.conf"
UNITS = "/etc/systemd/system"

FILES = {
    "profile.d": (PROFILE,),
    "nccl.conf": (NCCL_CONF,),
    "env-file": (ENV_FILE,),
    "slurm-task-prolog": (TASK_PROLOG,),
    "ssh": (PAM_FILE,),
    "container": (PODMAN_CONF, ENROOT_ENV),
}
TARGETS = (*FILES, "systemd")
# Targets whose files the job's user itself has to be able to read. The others are read by root.
READ_BY_USER = ("profile.d", "nccl.conf", "env-file", "slurm-task-prolog", "container")


def files_of(target: str, inventory: Inventory) -> tuple[str, ...]:
    """Return the paths that a target owns: of "systemd" one drop-in for each of `env_units`."""
    if target != "systemd":
        return FILES[target]
    return tuple(f"{UNITS}/{unit}.d/{DROP_IN}" for unit in inventory.env_units)


def written_files(inventory: Inventory) -> dict[str, str]:
    """Return the path of each file that apply writes with the target that owns it."""
    targets = {}
    for target in inventory.env_targets:
        for path in files_of(target, inventory):
            targets[path] = target
    return targets


def is_ours(path: str | None, inventory: Inventory) -> bool:
    """Return whether apply decides what a file gives to its readers.

    Of /etc/environment it does so only where it is a target: our block then stands last.
    """
    if path is None:
        return False
    if path == PAM_FILE:
        return "ssh" in inventory.env_targets
    if path.startswith(f"{UNITS}/"):
        return path.endswith(f".d/{DROP_IN}")
    return any(path in files for files in FILES.values())
