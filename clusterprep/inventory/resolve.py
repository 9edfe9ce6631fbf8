"""Resolve an inventory: from the valid parts of a document to nodes with every setting decided.

A node's own settings win over those of its groups, and these over the top level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterprep.inventory.document import Document
from clusterprep.inventory.entries import Entries
from clusterprep.inventory.environment import misspelt
from clusterprep.inventory.groups import Groups
from clusterprep.inventory.layers import NCCL_INTERFACE, VARIABLES, Layer, Merged, merge, read_layer
from clusterprep.inventory.runtime import PYTHON_INSIDE
from clusterprep.inventory.silences import Silences
from clusterprep.inventory.verify_settings import read_verify
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import (
    ENV_TARGETS,
    MASTER_PORT,
    EnvSetting,
    Interfaces,
    Inventory,
    Node,
    SshSettings,
)
from clusterprep.model.colocation import neighbours
from clusterprep.model.nodeset import fold
from clusterprep.nccl.variables.dialects import refusal

_IDENTITY = frozenset({"name", "address"})  # an entry with these keys only is no layer of its own
_NODE_KEYS = (
    "transport",
    "root",
    "python",
    "gpus",
    "nproc_per_node",
    "flight_recorder",
    "endpoints",
    "shared",
    "runtime",
)
_SSH = "ssh."


class Overrides(Struct, frozen=True):
    """Settings of the command line for every node, over the whole inventory.

    None leaves a setting alone.
    """

    become: bool | None = None
    nproc_per_node: int | None = None
    master_port: int | None = None
    known_hosts: str | None = None
    host_keys: str | None = None


NO_OVERRIDES = Overrides()


class Resolver:
    """Builds the nodes; settings that several nodes share are decided once."""

    def __init__(self, document: Document, data: Mapping[str, Any], overrides: Overrides) -> None:
        self.document = document
        self.data = data
        self.overrides = overrides
        entries = data.get("nodes", [])
        self.entries = Entries(document)
        named = self.entries.read(entries)
        is_complete = named.complete and "nodes" in data
        self.rows = named.rows
        self.names = [name for name, _, _ in named.rows]
        self.top = read_layer(document, data, (), "env")
        declared_groups = data.get("groups", {})
        self.groups = Groups(document, declared_groups, self.names, is_complete)
        self.own_layers = self._read_own_layers(entries)  # by the number of the entry
        silences = Silences(document, self.names, self.groups.members, is_complete)
        declared_silences = data.get("silence", [])
        self.silences = silences.read(declared_silences)
        # Caches, by the groups of a node, and by these and its entry.
        self.merged_groups: dict[tuple[str, ...], Merged] = {}
        self.decided: dict[tuple[tuple[str, ...], int | None], tuple[dict[str, Any], Merged]] = {}

    def _read_own_layers(self, entries: Sequence[Any]) -> dict[int, Layer]:
        layers: dict[int, Layer] = {}
        for number, entry in enumerate(entries):
            if entry is not None and not entry.keys() <= _IDENTITY:
                layers[number] = read_layer(self.document, entry, ("nodes", number), "node")
        return layers

    def inventory(self) -> Inventory:
        """Return the inventory; what is wrong with it is complained about to the document."""
        own_layers = ((name, self.own_layers.get(entry)) for name, _, entry in self.rows)
        self.groups.complain_of_conflicts(own_layers)
        verify = read_verify(self.document, self.data.get("verify", {}))
        declared_targets = self.data.get("env_targets", ENV_TARGETS)
        targets = tuple(target for target in declared_targets if target is not None)
        declared_units = self.data.get("env_units", ())
        units = tuple(unit for unit in declared_units if unit is not None)
        self._complain_of_units(targets, units)
        self._complain_of_unreadable(targets)
        nodes: list[Node] = []
        for index, (name, address, entry) in enumerate(self.rows):
            nodes.append(self._node(index, name, address, entry))
        self.entries.complain_of_repeated_addresses(_shared_addresses(nodes))
        return Inventory(
            cluster=self.data.get("cluster", Path(self.document.path).stem),
            nodes=tuple(nodes),
            groups=self.groups.members,
            master_port=self._master_port(),
            env_targets=targets,
            env_units=units,
            silences=self.silences,
            verify=verify,
            warnings=self._warnings(),
            path=self.document.path,
        )

    def _master_port(self) -> int:
        if self.overrides.master_port:
            return self.overrides.master_port
        ports = self.data.get("ports", {})
        return int(ports.get("master", MASTER_PORT))

    def _node(self, index: int, name: str, address: str, entry: int) -> Node:
        groups = self.groups.of(name)
        own = self.own_layers.get(entry)
        key = (groups, None if own is None else entry)
        if key not in self.decided:
            self.decided[key] = self._decide(groups, own)
        arguments, merged = self.decided[key]
        env = merged.env
        if own is not None and own.env:
            env = _with_own_env(env, own, name)
        return Node(
            name=name,
            address=address,
            index=index,
            env=env,
            groups=groups,
            **arguments,
        )

    def _decide(self, groups: tuple[str, ...], own: Layer | None) -> tuple[dict[str, Any], Merged]:
        """Return what all nodes of these groups and this entry have in common.

        That are arguments of Node, and the merged settings that they come from.
        """
        if groups not in self.merged_groups:
            layers = [self.top, *self.groups.layers_of(groups)]
            self.merged_groups[groups] = merge(layers)
        merged = self.merged_groups[groups]
        if own is not None:
            merged = merge([own], merged)
        return self._node_arguments(merged), merged

    def _node_arguments(self, merged: Merged) -> dict[str, Any]:
        """Return the arguments of Node that follow from the settings, by name."""
        settings = dict(merged.settings)
        if self.overrides.become is not None:
            settings["ssh.become"] = self.overrides.become
        for key in ("known_hosts", "host_keys"):
            value = getattr(self.overrides, key)
            if value is not None:
                settings[f"ssh.{key}"] = value
        if self.overrides.nproc_per_node is not None:
            settings["nproc_per_node"] = self.overrides.nproc_per_node
        arguments: dict[str, Any] = {}
        ssh_settings: dict[str, Any] = {}
        for key, value in settings.items():
            if key in _NODE_KEYS:
                arguments[key] = value
            elif key.startswith(_SSH):
                ssh_settings[key.removeprefix(_SSH)] = value
        ssh = SshSettings(**ssh_settings)
        if "runtime" in settings:
            arguments.setdefault("python", PYTHON_INSIDE)
        arguments["ssh"] = ssh
        arguments["job_user"] = settings.get("job_user", ssh.user)
        nccl = settings.get("interfaces.nccl")
        rdma = settings.get("interfaces.rdma")
        arguments["interfaces"] = Interfaces(nccl, rdma)
        arguments["require"] = merged.require
        return arguments

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers of the inventory: the top level, the groups, and the entries of nodes."""
        return (self.top, *self.groups.layers.values(), *self.own_layers.values())

    def _complain_of_units(self, targets: tuple[str, ...], units: tuple[str, ...]) -> None:
        """Complain of the target systemd without units, and of units without it."""
        if "systemd" in targets and not units:
            place = ("env_targets", targets.index("systemd"))
            message = "systemd needs env_units: the units of jobs, such as [my-job@.service]"
            self.document.complain(place, message)
        if units and "systemd" not in targets:
            message = "units get the environment only where systemd is among env_targets"
            self.document.complain(("env_units",), message)

    def _complain_of_unreadable(self, targets: tuple[str, ...]) -> None:
        """Complain of values that readers of a target's file would not get as they are written."""
        for layer in self.layers:
            for name, value in layer.env.items():
                place = (*layer.place, "env", name)
                self._check_targets(place, name, value, targets)
            interface = layer.settings.get(NCCL_INTERFACE)
            if interface is not None:
                place = (*layer.place, "interfaces", "nccl")
                self._check_targets(place, VARIABLES[NCCL_INTERFACE], interface, targets)

    def _check_targets(self, place: Place, name: str, value: str, targets: Sequence[str]) -> None:
        """Complain for each target whose readers would not get this value of a variable."""
        for target in targets:
            reason = refusal(target, name, value)
            if reason:
                self.document.complain(place, reason)

    def _warnings(self) -> tuple[str, ...]:
        """Return what is no mistake and that the user has to know."""
        variables: list[str] = []
        for layer in self.layers:
            variables.extend(layer.env)
        warnings = [*self.document.notices, *misspelt(variables)]
        ambiguous = self._ambiguous_names()
        if ambiguous:
            warnings.append(
                f"'{fold(ambiguous)}' is a node and a group; on the command line it means the node"
            )
        return tuple(warnings)

    def _ambiguous_names(self) -> list[str]:
        """Return the names of groups that are names of nodes too.

        A group that holds this node alone means the same, and is left out.
        """
        node_names = frozenset(self.names)
        ambiguous: list[str] = []
        for name, members in self.groups.members.items():
            if name in node_names and members != (name,):
                ambiguous.append(name)
        return ambiguous


def _with_own_env(env: Mapping[str, EnvSetting], own: Layer, node: str) -> Mapping[str, EnvSetting]:
    """Return the environment with the name of the node as the layer of its own variables.

    An entry with a range has one layer for many nodes.
    """
    label = f"node {node}"
    labelled = dict(env)
    for variable, value in own.env.items():
        labelled[variable] = EnvSetting(value, label)
    return labelled


def _shared_addresses(nodes: Sequence[Node]) -> set[str]:
    """Return the addresses that nodes may share: those of local nodes of this machine only.

    An address says nothing of a local node: several on one machine may all be called 127.0.0.1.
    """
    local = neighbours(nodes)
    shared = {node.address for node in local}
    if shared:
        for node in nodes:
            if node.transport != "local":
                shared.discard(node.address)
    return shared
