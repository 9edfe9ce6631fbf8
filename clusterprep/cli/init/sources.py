"""Collect hosts from the command line, ssh_config, Slurm or an inventory of Ansible."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.errors import InputError, NotKnown
from clusterprep.inventory.load import load_ansible
from clusterprep.model import Node, SshSettings
from clusterprep.model.nodeset import expand, fold
from clusterprep.remote.transports.host_patterns import matches
from clusterprep.remote.transports.slurm_nodes import parse_nodes
from clusterprep.remote.transports.ssh_config import SshConfig

SCONTROL = ("scontrol", "--oneliner", "show", "nodes")
SLURM_LIMIT = 30.0  # seconds; a controller that is down lets its clients wait

# Fields of LoginOptions that are settings of SSH; the others belong to the node.
_SSH_FIELDS = (
    "user",
    "port",
    "identity_file",
    "config",
    "known_hosts",
    "connect_timeout",
    "become",
)


class Source(Struct, frozen=True):
    """The nodes as they were named, before a look at them.

    `passed_over` holds the nodes that need no look, with the reason.
    """

    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)


class LoginOptions(Struct, frozen=True):
    """Login options of the command line for all nodes; None leaves what the source says."""

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    config: str | None = None
    known_hosts: str | None = None
    connect_timeout: float | None = None
    become: bool | None = None
    python: str | None = None
    job_user: str | None = None

    def over(self, source: Source) -> Source:
        """Return the source with these options on all its nodes."""
        return replace(source, nodes=tuple(self._apply(node) for node in source.nodes))

    def _apply(self, node: Node) -> Node:
        changed: dict[str, Any] = {}
        for name in _SSH_FIELDS:
            value = getattr(self, name)
            if value is not None:
                changed[name] = value
        ssh = replace(node.ssh, **changed)
        python = self.python or node.python
        # The user that logs in is the default, so it is not declared, and follows --user.
        declared = None if node.job_user == node.ssh.user else node.job_user
        job_user = self.job_user or declared or ssh.user
        return replace(node, ssh=ssh, python=python, job_user=job_user)


# ---------------------------------------------------------------- hosts on the command line


def from_hosts(arguments: Sequence[str]) -> Source:
    """Return the hosts of NAME, a range of names, or NAME=ADDRESS with ranges on both sides."""
    hosts: list[tuple[str, str]] = []
    for argument in arguments:
        hosts.extend(_expand_argument(argument))
    _refuse_repeated([name for name, _ in hosts])
    nodes: list[Node] = []
    for index, (name, address) in enumerate(hosts):
        nodes.append(Node(name, address, index))
    return Source(tuple(nodes))


def _refuse_repeated(names: Sequence[str]) -> None:
    counts = Counter(names)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise InputError.of(f"'{fold(repeated)}' is there twice", key="HOST")


def _expand_argument(argument: str) -> list[tuple[str, str]]:
    """Return (name, address) of each host that an argument names."""
    names_text, _, addresses_text = argument.partition("=")
    try:
        names = expand(names_text)
        addresses = expand(addresses_text) if addresses_text else names
    except ValueError as error:
        raise InputError.of(str(error), key="HOST", hint="a user is given with --user") from None
    if len(names) != len(addresses):
        message = f"{len(names)} names and {len(addresses)} addresses in '{argument}'"
        raise InputError.of(message, key="HOST")
    return list(zip(names, addresses, strict=True))


# ---------------------------------------------------------------- hosts of other tools


def from_ssh_config(pattern: str, path: str) -> Source:
    """Return the hosts of `Host` lines in ssh_config that the pattern fits."""
    patterns = pattern.split(",")
    ssh = SshSettings(config=path)
    nodes: list[Node] = []
    for name in SshConfig.from_path(path).names():
        if matches(name, patterns):
            node = Node(name, name, len(nodes), ssh=ssh)
            nodes.append(node)
    if not nodes:
        message = f"no Host line of {path} names a host that fits '{pattern}'"
        raise InputError.of(message, key="--from-ssh-config")
    return Source(tuple(nodes))


def from_slurm() -> Source:
    """Return the nodes that `scontrol show nodes` lists here; partitions become groups."""
    command = " ".join(SCONTROL)
    try:
        done = subprocess.run(
            SCONTROL, capture_output=True, text=True, timeout=SLURM_LIMIT, check=False
        )
    except FileNotFoundError:
        raise InputError.of(
            "there is no scontrol on this machine; "
            "run this where Slurm's commands are, or name the hosts",
            key="--from-slurm",
        ) from None
    except subprocess.TimeoutExpired:
        raise NotKnown(
            f"`{command}` gave no answer in {SLURM_LIMIT:g} s; is slurmctld up?"
        ) from None
    if done.returncode:
        stderr = done.stderr.strip()
        raise NotKnown(f"`{command}` failed: {stderr[:500]}")
    return slurm_source(done.stdout)


def slurm_source(text: str) -> Source:
    """Return the nodes in the output of `scontrol show nodes`. Pure."""
    slurm_nodes = parse_nodes(text)
    if not slurm_nodes:
        raise InputError.of("Slurm has no nodes", key="--from-slurm")
    nodes: list[Node] = []
    groups: dict[str, tuple[str, ...]] = {}
    passed_over: dict[str, str] = {}
    for index, slurm_node in enumerate(slurm_nodes):
        name = slurm_node.name
        nodes.append(Node(name, slurm_node.address, index))
        for partition in slurm_node.partitions:
            groups[partition] = (*groups.get(partition, ()), name)
        if slurm_node.why_not:
            passed_over[name] = slurm_node.why_not
    return Source(tuple(nodes), groups, passed_over)


def from_ansible(path: str) -> Source:
    """Return the hosts and groups of an Ansible inventory, INI or YAML."""
    inventory = load_ansible(path)
    return Source(inventory.nodes, inventory.groups)
