"""The machines that the lab's hosts are made into, and the faults of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults import (
    environment,
    gpu,
    hardware,
    hgx,
    host,
    limits,
    network,
    rdma,
    reach,
    roce,
    runtime,
    session,
    software,
    storage,
    users,
)  # fmt: skip
from tests.faults.row import Stage
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

# What the machine below all hosts cannot give: limits can be lowered there, not raised.
LIMITS = {"memlock": "8MiB", "lim.nofile": "20000", "lim.nproc": "1000"}
DAY = 86400


def own_kernel(host: Host) -> Iterator[Fault]:
    """Show the host its own load, kernel log and boot time in place of the machine's."""
    yield faults.file_over(host, "/proc/loadavg", limits.LOAD)
    yield faults.file_over(host, limits.KMSG, limits.QUIET)
    yield faults.file_over(host, "/proc/uptime", f"{DAY}.00 {2 * DAY}.00\n")


def site(host: Host) -> Iterator[Fault]:
    """Set up the host as a site does: highest limits, shared memory and mounts declared."""
    yield faults.written(
        host, "/etc/security/limits.d/10-site.conf", "* - nofile 20000\nroot - nofile 20000\n"
    )
    yield faults.resized(host, "/dev/shm", "9g")
    yield faults.tmpfs(host, storage.DATA, storage.OPTIONS)
    yield faults.export(host, storage.SHARED, "right")
    yield faults.services(host)


def cpu_nodes(lab: Lab) -> Iterator[Fault]:
    """Hosts without GPUs."""
    for one in lab.hosts:
        yield from own_kernel(one)
        yield from site(one)


def _declared(lab: Lab) -> dict[str, Any]:
    return {
        "require": {**LIMITS, "fs.mount": f"{storage.DATA}:rw", "svc.required": "sshd, chronyd"},
        "shared": [storage.SHARED],
        "endpoints": [f"tcp://{lab.hosts[0].address}:22"],
    }


def _impatient(lab: Lab) -> dict[str, Any]:
    return {
        "ssh": {**lab.inventory_content()["ssh"], "connect_timeout": 5},
        "require": {**LIMITS, "shm": "1GiB"},
    }


def _runtime(lab: Lab) -> dict[str, Any]:
    return {**runtime.inventory(lab), "require": LIMITS}


def _roce(lab: Lab) -> dict[str, Any]:
    return {**roce.inventory(lab), "require": LIMITS}


def with_users(lab: Lab) -> Iterator[Fault]:
    """Hosts on which root cannot log in.

    One user logs in and may become root, and jobs are another's.
    """
    for one in lab.hosts:
        yield faults.add_user(one, users.LOGIN, "nopasswd")
        yield faults.add_user(one, users.TRAINER, uid=users.UID)


def gpu_nodes(lab: Lab) -> Iterator[Fault]:
    """Servers with GPUs and RDMA."""
    for one in lab.hosts:
        yield from own_kernel(one)
        yield from site(one)
        yield from hgx.hgx(one)


def _gpus(lab: Lab) -> dict[str, Any]:
    return {**hgx.inventory(lab), "require": LIMITS}


def jumbo(lab: Lab) -> Iterator[Fault]:
    """Hosts that send large packets."""
    for one in lab.hosts:
        yield faults.mtu(one, 9000)


def two_networks(lab: Lab) -> Iterator[Fault]:
    """Hosts with a network for NCCL of its own."""
    yield faults.second_veth(lab.hosts, interface=network.SECOND)
    for one in lab.hosts:
        yield faults.sys_tree(
            one, {}, {f"/sys/class/net/{network.SECOND}/device": "/sys/devices/system"}
        )


def _second(lab: Lab) -> dict[str, Any]:
    return {"interfaces": {"nccl": network.SECOND}, "require": LIMITS}


def _become(lab: Lab) -> dict[str, Any]:
    ssh = {**lab.inventory_content()["ssh"], "user": users.LOGIN, "become": True}
    return {"ssh": ssh, "job_user": users.TRAINER, "require": LIMITS}


def ordinary(lab: Lab) -> Iterator[Fault]:
    """Servers that a user without rights logs in to."""
    for one in lab.hosts:
        yield faults.add_user(one, users.LOGIN)


def _without_rights(lab: Lab) -> dict[str, Any]:
    return {**_gpus(lab), "ssh": {**lab.inventory_content()["ssh"], "user": users.LOGIN}}


# The GPU servers of the lab have the processors of the machine below.
FEW_CPUS = {
    ("lim.cpus", "fail"): "a session has the CPUs of the machine below, not the 224 laid over"
}
# What only root may know.
ROOT_ONLY = {
    ("net.firewall", "unknown"): "packet filters are shown to root alone",
    ("ssh.sudo", "unknown"): "it says that something was denied",
}
CPU_ROWS = (*network.ROWS, *host.ROWS, *limits.ROWS, *session.ROWS, *storage.ROWS, *hardware.ROWS)
ALL = (
    Stage("cpu", CPU_ROWS, cpu_nodes, inventory=_declared),
    Stage("environment", environment.ROWS, cpu_nodes, inventory=_declared),
    Stage(
        "nccl",
        environment.NCCL_ROWS,
        cpu_nodes,
        environment.with_nccl,
        _declared,
        missing=environment.missing_nccl,
    ),
    Stage("runtime", runtime.ROWS, cpu_nodes, runtime.in_environments, _runtime),
    Stage("reach", reach.ROWS, cpu_nodes, inventory=_impatient, width=4),
    Stage("jumbo", network.JUMBO_ROWS, cpu_nodes, jumbo, _impatient),
    Stage("two-networks", network.SECOND_ROWS, cpu_nodes, two_networks, _second),
    Stage("roce", roce.ROWS, cpu_nodes, roce.rails, _roce),
    # n1, where ranks meet, stays well: some of these faults keep us out of a host.
    Stage("users", users.ROWS, cpu_nodes, with_users, _become, width=7),
    Stage(
        "hgx",
        (*gpu.ROWS, *rdma.ROWS, *software.ROWS, *environment.GPU_ROWS, *hardware.HGX_ROWS),
        gpu_nodes,
        inventory=_gpus,
        known=FEW_CPUS,
    ),
    Stage(
        "ordinary",
        users.ORDINARY_ROWS,
        gpu_nodes,
        ordinary,
        _without_rights,
        {**ROOT_ONLY, **FEW_CPUS},
    ),
)
