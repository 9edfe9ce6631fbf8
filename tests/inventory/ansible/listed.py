"""One of our readings in the shape of `ansible-inventory --list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterprep.inventory.ansible import ALL, AnsibleInventory
from clusterprep.inventory.ansible_ini import read_ini
from clusterprep.inventory.ansible_yaml import read_yaml
from clusterprep.inventory.yaml_tree import compose


def read(path: Path) -> AnsibleInventory:
    """Read a file like our loader; a complaint is an error here."""

    def complain(line: int, message: str) -> None:
        raise AssertionError(f"{path.name}:{line}: {message}")

    text = path.read_text(encoding="utf-8")
    tree = None if path.suffix == ".ini" else compose(text)
    inventory = read_ini(text, complain) if tree is None else read_yaml(tree, complain)
    inventory.settle()
    return inventory


def listed(inventory: AnsibleInventory) -> dict[str, Any]:
    """Return hosts with variables, groups with their own hosts and children; no empty ones."""
    hosts = {
        name: {key: var.value for key, var in inventory.variables(name).items()}
        for name in inventory.hosts
    }
    groups = {
        name: {
            **({"hosts": list(group.hosts)} if group.hosts and name != ALL else {}),
            **({"children": sorted(group.children)} if group.children else {}),
        }
        for name, group in inventory.groups.items()
    }
    return {
        "hosts": {k: v for k, v in hosts.items() if v},
        "groups": {k: v for k, v in groups.items() if v},
    }


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """Return Ansible's own answer like this. Its `all` always has `ungrouped` as a child."""
    groups = {
        name: {key: sorted(value) if key == "children" else value for key, value in group.items()}
        for name, group in answer.items()
        if name != "_meta"
    }
    return {"hosts": answer["_meta"]["hostvars"], "groups": groups}
