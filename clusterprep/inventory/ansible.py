"""Ansible's inventories as values: groups in groups, variables by layer, and which of them a host gets."""

from __future__ import annotations

import functools
import itertools
import math
import re
import string
from dataclasses import dataclass, field
from typing import Any

from clusterprep.model.nodeset import MAX_NODES

ALL, UNGROUPED = "all", "ungrouped"
PRIORITY = "ansible_group_priority"  # a setting of the group itself; hosts do not see it
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_PLACE = re.compile(r"((?:[^\[\]:]|\[[^\[\]]*\])+):([0-9]+)")
_SIX = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*)\](?::([0-9]+))?")


@dataclass(frozen=True)
class Var:
    """A value as Ansible would hand it on, and the line that it stands in."""

    value: Any
    line: int


@dataclass
class Group:
    """What the file says of a group; hosts and children in the order written, each once."""

    name: str
    line: int
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    vars: dict[str, Var] = field(default_factory=dict)

    @property
    def priority(self) -> int:
        said = self.vars.get(PRIORITY)
        return said.value if said is not None and isinstance(said.value, int) else 1


@dataclass
class Host:
    name: str
    line: int
    vars: dict[str, Var] = field(default_factory=dict)


class AnsibleInventory:
    """Groups and hosts, filled by the readers of the two formats, and then asked."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.hosts: dict[str, Host] = {}
        for name in (ALL, UNGROUPED):
            self.group(name, 1)

    def group(self, name: str, line: int) -> Group:
        return self.groups.setdefault(name, Group(name, line))

    def add(self, group: Group, pattern: str, line: int, variables: dict[str, Var]) -> None:
        """The hosts of a pattern in a group, with variables. ValueError says what is wrong with the pattern."""
        names, port = expand(pattern)
        if len(self.hosts) + len(names) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} hosts")
        for name in names:
            host = self.hosts.setdefault(name, Host(name, line))
            if port is not None:
                host.vars["ansible_port"] = Var(port, line)
            host.vars.update(variables)
            group.hosts[name] = None

    def settle(self) -> None:
        """What Ansible adds: every group is below `all`, and a host that is in no other group is ungrouped."""
        below = {child for group in self.groups.values() for child in group.children}
        for name in self.groups:
            if name not in below and name != ALL:
                self.groups[ALL].children[name] = None
        grouped = {
            host
            for group in self.groups.values()
            if group.name not in (ALL, UNGROUPED)
            for host in group.hosts
        }
        free = self.groups[UNGROUPED].hosts
        self.groups[UNGROUPED].hosts = {
            name: None
            for name in (*free, *(host for host in self.hosts if host not in free))
            if name not in grouped
        }

    def circle(self) -> str | None:
        """A group that is somewhere below itself."""
        done: set[str] = set()
        for start in self.groups:
            if self._meets_itself(start, (), done):
                return start
        return None

    def _meets_itself(self, name: str, above: tuple[str, ...], done: set[str]) -> bool:
        if name in above:
            return True
        if name in done:
            return False
        found = any(
            self._meets_itself(child, (*above, name), done) for child in self.groups[name].children
        )
        done.add(name)
        return found

    def members(self, name: str) -> list[str]:
        """Hosts of a group and of all below it, in the order of the file."""
        inside: set[str] = set()
        todo, done = [name], {name}
        while todo:
            group = self.groups[todo.pop()]
            inside.update(group.hosts)
            todo += [child for child in group.children if child not in done]
            done.update(group.children)
        return [host for host in self.hosts if host in inside]

    @functools.cached_property
    def depths(self) -> dict[str, int]:
        """The longest way from `all` to each group."""
        found = dict.fromkeys(self.groups, 0)
        for _ in self.groups:
            deeper = {
                child: found[group.name] + 1
                for group in sorted(self.groups.values(), key=lambda g: found[g.name])
                for child in group.children
                if found[child] <= found[group.name]
            }
            if not deeper:
                break
            for name, depth in deeper.items():
                found[name] = max(found[name], depth)
        return found

    @functools.cached_property
    def groups_of(self) -> dict[str, list[Group]]:
        """The groups of every host, those that win last: deep over high, then by priority, then by name."""
        found: dict[str, list[Group]] = {host: [] for host in self.hosts}
        rank = sorted(self.groups.values(), key=lambda g: (self.depths[g.name], g.priority, g.name))
        for group in rank:
            for host in self.members(group.name) if group.name != ALL else self.hosts:
                found[host].append(group)
        return found

    def variables(self, host: str) -> dict[str, Var]:
        """All that a host gets."""
        layers = [*(group.vars for group in self.groups_of[host]), self.hosts[host].vars]
        merged = {name: var for layer in layers for name, var in layer.items()}
        merged.pop(PRIORITY, None)
        return merged


# ---------------------------------------------------------------- host patterns


def expand(pattern: str) -> tuple[list[str], int | None]:
    """Names of a pattern such as gpu[01:16] or rack-[a:c], and the port behind it. Raises ValueError."""
    six, place = _SIX.fullmatch(pattern), _PLACE.fullmatch(pattern)
    if six:
        return [six[1]], int(six[2]) if six[2] else None
    text, port = (place[1], int(place[2])) if place else (pattern, None)
    parts = _RANGE.split(text)
    if any("[" in literal or "]" in literal for literal in parts[0::2]):
        raise ValueError(f"a bracket is not closed, or nested, in '{pattern}'")
    choices = [[part] if place % 2 == 0 else _choices(part) for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MAX_NODES:
        raise ValueError(f"'{pattern}' stands for more than {MAX_NODES:,} hosts")
    return ["".join(words) for words in itertools.product(*choices)], port


def _choices(bracket: str) -> list[str]:
    """01:16, a:c, or either with a step behind it. As in Ansible both ends belong to the range."""
    bounds = bracket.split(":")
    if len(bounds) not in (2, 3) or not bounds[1]:
        raise ValueError(
            f"'[{bracket}]' is not a range such as [01:16] or [a:c]; ClusterShell's [01-16] is not Ansible's"
        )
    first, last, step = bounds[0] or "0", bounds[1], bounds[2] if len(bounds) == 3 else "1"
    if not (step.isdecimal() and int(step)):
        raise ValueError(f"the step of '[{bracket}]' is not a number")
    letters = string.ascii_letters
    if first in letters and last in letters and len(first) == len(last) == 1:
        found = list(letters[letters.index(first) : letters.index(last) + 1 : int(step)])
    elif first.isdecimal() and last.isdecimal() and len(last) < 18:
        found = _numbers(first, last, int(step), bracket)
    else:
        raise ValueError(
            f"'[{bracket}]' does not go from number to number, or from letter to letter"
        )
    if not found:
        raise ValueError(f"the range '[{bracket}]' runs backwards")
    return found


def _numbers(first: str, last: str, step: int, bracket: str) -> list[str]:
    padded = first.startswith("0") and len(first) > 1
    if padded and len(first) != len(last):
        raise ValueError(f"the ends of a zero-padded range have to be equally long: '[{bracket}]'")
    if (int(last) - int(first)) // step >= MAX_NODES:
        raise ValueError(f"'[{bracket}]' stands for more than {MAX_NODES:,} hosts")
    return [
        str(n).zfill(len(first) if padded else 0) for n in range(int(first), int(last) + 1, step)
    ]
