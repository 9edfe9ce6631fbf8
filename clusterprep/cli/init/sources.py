"""Where the hosts come from: words of the command line, ssh_config, Slurm, or an inventory of Ansible's."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from clusterprep.errors import InputError, NotKnown
from clusterprep.inventory.load import load_ansible
from clusterprep.model import Node, SshSettings
from clusterprep.model.nodeset import expand, fold
from clusterprep.remote.transports.host_patterns import matches
from clusterprep.remote.transports.slurm_nodes import parse_nodes
from clusterprep.remote.transports.ssh_config import SshConfig
from clusterprep.runtime.lazy_dataclass import dataclass

SCONTROL = ("scontrol", "--oneliner", "show", "nodes")
SLURM_LIMIT = 30.0  # seconds; a controller that is down lets its clients wait


@dataclass(frozen=True)
class Source:
    """Nodes as they were named, before anybody looked; `passed_over` are those that nobody need look at, and why."""

    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LoginOptions:
    """What the command line says of all nodes; None leaves what the source, ssh_config or OpenSSH says."""

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
        return replace(source, nodes=tuple(self._node(node) for node in source.nodes))

    def _node(self, node: Node) -> Node:
        words = (
            "user",
            "port",
            "identity_file",
            "config",
            "known_hosts",
            "connect_timeout",
            "become",
        )
        given = {word: value for word in words if (value := getattr(self, word)) is not None}
        ssh = replace(node.ssh, **given)
        declared = (
            None if node.job_user == node.ssh.user else node.job_user
        )  # who logs in is the default
        return replace(
            node,
            ssh=ssh,
            python=self.python or node.python,
            job_user=self.job_user or declared or ssh.user,
        )


def from_hosts(words: Sequence[str]) -> Source:
    """NAME, a range of them, or NAME=ADDRESS with ranges on both sides."""
    rows = [row for word in words for row in _rows(word)]
    twice = [name for name, times in Counter(name for name, _ in rows).items() if times > 1]
    if twice:
        raise InputError.of(f"'{fold(twice)}' is there twice", key="HOST")
    return Source(tuple(Node(name, address, index) for index, (name, address) in enumerate(rows)))


def from_ssh_config(pattern: str, path: str) -> Source:
    """The hosts of ssh_config that a pattern fits, as `Host` lines name them, without those that hold for many."""
    names = [
        name for name in SshConfig.from_path(path).names() if matches(name, pattern.split(","))
    ]
    if not names:
        raise InputError.of(
            f"no Host line of {path} names a host that fits '{pattern}'", key="--from-ssh-config"
        )
    ssh = SshSettings(config=path)
    return Source(tuple(Node(name, name, index, ssh=ssh) for index, name in enumerate(names)))


def from_slurm() -> Source:
    """What `scontrol show nodes` says here; partitions become groups."""
    try:
        done = subprocess.run(
            SCONTROL, capture_output=True, text=True, timeout=SLURM_LIMIT, check=False
        )
    except FileNotFoundError:
        message = "there is no scontrol on this machine; run this where Slurm's commands are, or name the hosts"
        raise InputError.of(message, key="--from-slurm") from None
    except subprocess.TimeoutExpired:
        raise NotKnown(
            f"`{' '.join(SCONTROL)}` gave no answer in {SLURM_LIMIT:g} s; is slurmctld up?"
        ) from None
    if done.returncode:
        raise NotKnown(f"`{' '.join(SCONTROL)}` failed: {done.stderr.strip()[:500]}")
    return slurm_source(done.stdout)


def slurm_source(text: str) -> Source:
    """The same of its output. Pure."""
    found = parse_nodes(text)
    if not found:
        raise InputError.of("Slurm has no nodes", key="--from-slurm")
    nodes = tuple(Node(node.name, node.address, index) for index, node in enumerate(found))
    groups: dict[str, tuple[str, ...]] = {}
    for node in found:
        for partition in node.partitions:
            groups[partition] = (*groups.get(partition, ()), node.name)
    return Source(nodes, groups, {node.name: node.why_not for node in found if node.why_not})


def from_ansible(path: str) -> Source:
    """An inventory of Ansible's, in either of its formats."""
    inventory = load_ansible(path)
    return Source(inventory.nodes, inventory.groups)


def _rows(word: str) -> list[tuple[str, str]]:
    names_text, _, addresses_text = word.partition("=")
    try:
        names = expand(names_text)
        addresses = expand(addresses_text) if addresses_text else names
    except ValueError as error:
        raise InputError.of(str(error), key="HOST", hint="a user is given with --user") from None
    if len(names) != len(addresses):
        raise InputError.of(
            f"{len(names)} names and {len(addresses)} addresses in '{word}'", key="HOST"
        )
    return list(zip(names, addresses, strict=True))
