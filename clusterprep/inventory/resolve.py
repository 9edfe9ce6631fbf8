"""Precedence: the valid parts of a document become an Inventory of nodes with every setting decided."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.entries import Entries
from clusterprep.inventory.environment import misspelt
from clusterprep.inventory.groups import Groups
from clusterprep.inventory.layers import NCCL_INTERFACE, VARIABLES, Layer, Merged, merge, read_layer
from clusterprep.inventory.silences import Silences
from clusterprep.inventory.verify_settings import read_verify
from clusterprep.model import EnvSetting, Interfaces, Inventory, Node, SshSettings
from clusterprep.model.colocation import neighbours
from clusterprep.model.nodeset import fold
from clusterprep.nccl.variables.dialects import refusal
from clusterprep.runtime.lazy_dataclass import dataclass

_ALONE = frozenset({"name", "address"})  # an entry with these keys only is no layer of its own
_NODE_KEYS = ("transport", "root", "python", "gpus", "nproc_per_node")
_SSH = "ssh."


@dataclass(frozen=True)
class Overrides:
    """What the command line sets for every node, over the whole inventory; None leaves it alone."""

    become: bool | None = None
    nproc_per_node: int | None = None
    master_port: int | None = None


NO_OVERRIDES = Overrides()


class Resolver:
    """Builds the nodes; what nodes have in common is decided once."""

    def __init__(self, document: Document, data: Mapping[str, Any], overrides: Overrides) -> None:
        self.document, self.data, self.overrides = document, data, overrides
        entries = data.get("nodes", [])
        self.entries = Entries(document)
        self.named = self.entries.read(entries)
        complete = self.named.complete and "nodes" in data
        self.names = [name for name, _, _ in self.named.rows]
        self.top = read_layer(document, data, (), "env")
        self.groups = Groups(document, data.get("groups", {}), self.names, complete)
        self.own = {
            number: read_layer(document, entry, ("nodes", number), "node")
            for number, entry in enumerate(entries)
            if entry is not None and not entry.keys() <= _ALONE
        }
        self.silences = Silences(document, self.names, self.groups.members, complete).read(
            data.get("silence", [])
        )
        self.shared: dict[tuple[str, ...], Merged] = {}
        self.decided: dict[tuple[tuple[str, ...], int | None], tuple[dict[str, Any], Merged]] = {}

    def inventory(self) -> Inventory:
        self.groups.contradictions(
            (name, self.own.get(number)) for name, _, number in self.named.rows
        )
        verify = read_verify(self.document, self.data.get("verify", {}))
        targets = tuple(
            t for t in self.data.get("env_targets", Inventory.env_targets) if t is not None
        )
        self.held_by(targets)
        port = self.overrides.master_port or self.data.get("ports", {}).get(
            "master", Inventory.master_port
        )
        nodes = tuple(self.node(index, *row) for index, row in enumerate(self.named.rows))
        # An address says nothing of a local node: those of one machine may all be called 127.0.0.1.
        here = neighbours(nodes)
        others = {node.address for node in nodes if node.transport != "local"} if here else set()
        self.entries.addresses_once({node.address for node in here} - others)
        return Inventory(
            cluster=self.data.get("cluster", Path(self.document.path).stem),
            nodes=nodes,
            groups=self.groups.members,
            master_port=int(port),
            env_targets=targets,
            silences=self.silences,
            verify=verify,
            warnings=self.warnings(),
            path=self.document.path,
        )

    def node(self, index: int, name: str, address: str, entry: int) -> Node:
        groups = self.groups.of(name)
        key = (groups, entry if entry in self.own else None)
        if key not in self.decided:
            self.decided[key] = self.decide(*key)
        fields, merged = self.decided[key]
        env = merged.env
        if key[1] is not None and self.own[entry].env:
            label = f"node {name}"
            env = {
                **env,
                **{key: EnvSetting(value, label) for key, value in self.own[entry].env.items()},
            }
        return Node(name=name, address=address, index=index, env=env, groups=groups, **fields)

    def decide(self, groups: tuple[str, ...], entry: int | None) -> tuple[dict[str, Any], Merged]:
        """The fields that all nodes of these groups and this entry have in common."""
        if groups not in self.shared:
            self.shared[groups] = merge([self.top, *self.groups.layers_of(groups)])
        merged = (
            self.shared[groups] if entry is None else merge([self.own[entry]], self.shared[groups])
        )
        return self.fields(merged), merged

    def fields(self, merged: Merged) -> dict[str, Any]:
        settings = dict(merged.settings)
        if self.overrides.become is not None:
            settings["ssh.become"] = self.overrides.become
        if self.overrides.nproc_per_node is not None:
            settings["nproc_per_node"] = self.overrides.nproc_per_node
        ssh = SshSettings(
            **{key.removeprefix(_SSH): settings[key] for key in settings if key.startswith(_SSH)}
        )
        return {
            **{key: settings[key] for key in _NODE_KEYS if key in settings},
            "ssh": ssh,
            "job_user": settings.get("job_user", ssh.user),
            "interfaces": Interfaces(
                settings.get("interfaces.nccl"), settings.get("interfaces.rdma")
            ),
            "require": merged.require,
        }

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (self.top, *self.groups.layers.values(), *self.own.values())

    def held_by(self, targets: tuple[str, ...]) -> None:
        """Complains about values that not every reader of a target's file would get as they are written here."""
        for layer in self.layers:
            values = [
                ((*layer.place, "env", name), name, value) for name, value in layer.env.items()
            ]
            if (interface := layer.settings.get(NCCL_INTERFACE)) is not None:
                values.append(
                    ((*layer.place, "interfaces", "nccl"), VARIABLES[NCCL_INTERFACE], interface)
                )
            for place, name, value in values:
                for why in filter(None, (refusal(target, name, value) for target in targets)):
                    self.document.complain(place, why)

    def warnings(self) -> tuple[str, ...]:
        names = frozenset(self.names)
        both = [
            name
            for name, members in self.groups.members.items()
            if name in names and members != (name,)
        ]
        shadowed = (
            [f"'{fold(both)}' is a node and a group; on the command line it means the node"]
            if both
            else []
        )
        return (
            *self.document.notices,
            *misspelt(name for layer in self.layers for name in layer.env),
            *shadowed,
        )
