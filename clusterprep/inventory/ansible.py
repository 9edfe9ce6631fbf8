"""The model of an Ansible inventory: nested groups, hosts, and variables with their precedence."""

from __future__ import annotations

import functools
import itertools
import math
import re
import string
from typing import Any

from msgspec import Struct, field

from clusterprep.model.nodeset import MAX_NODES

ALL, UNGROUPED = "all", "ungrouped"
PRIORITY = "ansible_group_priority"  # a setting of the group itself; hosts do not see it
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_HOST_AND_PORT = re.compile(r"((?:[^\[\]:]|\[[^\[\]]*\])+):([0-9]+)")
_IPV6_AND_PORT = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*)\](?::([0-9]+))?")


class Var(Struct, frozen=True):
    """A value as Ansible would pass it on, and its place. Line 0 is none: no file has it."""

    value: Any
    line: int
    file: str | None = None


class Group(Struct):
    """A group as the file has it; hosts and children in the order written, each once.

    `file_vars` are those of group_vars beside the inventory, `play_vars` of the current folder.
    """

    name: str
    line: int
    file: str | None = None
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    vars: dict[str, Var] = field(default_factory=dict)
    file_vars: dict[str, Var] = field(default_factory=dict)
    play_vars: dict[str, Var] = field(default_factory=dict)

    @property
    def priority(self) -> int:
        """Return the declared priority, else Ansible's default of 1."""
        var = self.vars.get(PRIORITY)
        if var is None or not isinstance(var.value, int):
            return 1
        return var.value


class Host(Struct):
    """A host with the variables of its own lines, and of host_vars, as for groups."""

    name: str
    line: int  # the first that names it
    file: str | None = None
    vars: dict[str, Var] = field(default_factory=dict)
    file_vars: dict[str, Var] = field(default_factory=dict)
    play_vars: dict[str, Var] = field(default_factory=dict)


class AnsibleInventory:
    """Groups and hosts. The readers of the two formats fill it; it answers when all is read."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.hosts: dict[str, Host] = {}
        for name in (ALL, UNGROUPED):
            self.group(name, 1)

    def group(self, name: str, line: int, file: str | None = None) -> Group:
        """Return a group; it is created, with this place, if it is new."""
        return self.groups.setdefault(name, Group(name, line, file))

    def add(
        self,
        group: Group,
        pattern: str,
        line: int,
        variables: dict[str, Var],
        file: str | None = None,
    ) -> None:
        """Add the hosts of a pattern to a group. Raises ValueError if the pattern is wrong."""
        names, port = expand(pattern)
        if len(self.hosts) + len(names) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} hosts")
        for name in names:
            host = self.hosts.setdefault(name, Host(name, line, file))
            if port is not None:
                host.vars["ansible_port"] = Var(port, line, file)
            host.vars.update(variables)
            group.hosts[name] = None

    def settle(self) -> None:
        """Add the memberships that Ansible adds.

        Every group is below `all`, and a host that is in no other group is in `ungrouped`.
        """
        has_parent: set[str] = set()
        grouped: set[str] = set()
        for group in self.groups.values():
            has_parent.update(group.children)
            if group.name not in (ALL, UNGROUPED):
                grouped.update(group.hosts)
        top = self.groups[ALL]
        for name in self.groups:
            if name not in has_parent and name != ALL:
                top.children[name] = None
        ungrouped = self.groups[UNGROUPED]
        candidates = {
            **ungrouped.hosts,
            **dict.fromkeys(self.hosts),
        }
        for name in grouped:
            candidates.pop(name, None)
        ungrouped.hosts = candidates

    def circle(self) -> str | None:
        """Return a group that is below itself, or None."""
        checked: set[str] = set()
        for name in self.groups:
            if self._leads_to_itself(name, (), checked):
                return name
        return None

    def _leads_to_itself(self, name: str, ancestors: tuple[str, ...], checked: set[str]) -> bool:
        """Return whether a group is below itself or leads to one that is.

        `ancestors` are the groups on the way to it; those in `checked` are known not to.
        """
        if name in ancestors:
            return True
        if name in checked:
            return False
        path = (*ancestors, name)
        children = self.groups[name].children
        has_circle = any(self._leads_to_itself(child, path, checked) for child in children)
        checked.add(name)
        return has_circle

    def members(self, name: str) -> list[str]:
        """Return the hosts of a group and of all groups below it, in the order of the file."""
        members: set[str] = set()
        to_visit = [name]
        visited = {name}
        while to_visit:
            group = self.groups[to_visit.pop()]
            members.update(group.hosts)
            for child in group.children:
                if child not in visited:
                    visited.add(child)
                    to_visit.append(child)
        return [host for host in self.hosts if host in members]

    @functools.cached_property
    def depths(self) -> dict[str, int]:
        """The length of the longest path from `all` to each group."""
        depths = dict.fromkeys(self.groups, 0)
        # No path is longer than the number of groups.
        for _ in self.groups:
            has_changed = False
            for group in self.groups.values():
                depth = depths[group.name] + 1
                for child in group.children:
                    if depths[child] < depth:
                        depths[child] = depth
                        has_changed = True
            if not has_changed:
                break
        return depths

    @functools.cached_property
    def groups_of(self) -> dict[str, list[Group]]:
        """The groups of every host, in growing precedence: by depth, then priority, then name."""
        groups_of: dict[str, list[Group]] = {host: [] for host in self.hosts}
        for group in sorted(self.groups.values(), key=self._precedence):
            members = list(self.hosts) if group.name == ALL else self.members(group.name)
            for host in members:
                groups_of[host].append(group)
        return groups_of

    def _precedence(self, group: Group) -> tuple[int, int, str]:
        return (self.depths[group.name], group.priority, group.name)

    def variables(self, host: str) -> dict[str, Var]:
        """Return all variables of a host, in the order of VARIABLE_PRECEDENCE in Ansible.

        Files win over what the inventory itself says of groups, even group_vars/all; the host's
        own variables win over those of its groups.
        """
        top, *others = self.groups_of[host]
        own = self.hosts[host]
        variables: dict[str, Var] = {}
        for group in (top, *others):
            variables.update(group.vars)
        variables.update(top.file_vars)
        variables.update(top.play_vars)
        for group in others:
            variables.update(group.file_vars)
        for group in others:
            variables.update(group.play_vars)
        for layer in (own.vars, own.file_vars, own.play_vars):
            variables.update(layer)
        variables.pop(PRIORITY, None)
        return variables


# ---------------------------------------------------------------- host patterns


def expand(pattern: str) -> tuple[list[str], int | None]:
    """Return the names of a pattern such as gpu[01:16] or rack-[a:c], and the port behind it.

    Raises ValueError if the pattern is wrong.
    """
    ipv6 = _IPV6_AND_PORT.fullmatch(pattern)
    if ipv6:
        ipv6_port = int(ipv6[2]) if ipv6[2] else None
        return [ipv6[1]], ipv6_port
    text = pattern
    port = None
    with_port = _HOST_AND_PORT.fullmatch(pattern)
    if with_port:
        text = with_port[1]
        port = int(with_port[2])
    choices = _split(text, pattern)
    if math.prod(map(len, choices)) > MAX_NODES:
        raise ValueError(f"'{pattern}' stands for more than {MAX_NODES:,} hosts")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    return names, port


def _split(text: str, pattern: str) -> list[list[str]]:
    """Return the possible texts of each part: of a literal itself, of a bracket its range.

    Raises ValueError that names `pattern` for a lone bracket.
    """
    parts = _RANGE.split(text)  # literal, range, literal, range, …, literal
    for literal in parts[0::2]:
        if "[" in literal or "]" in literal:
            raise ValueError(f"a bracket is not closed, or nested, in '{pattern}'")
    choices: list[list[str]] = []
    for number, part in enumerate(parts):
        is_literal = number % 2 == 0
        if is_literal:
            choices.append([part])
        else:
            choices.append(_choices(part))
    return choices


def _choices(bracket: str) -> list[str]:
    """Return the texts of a range: 01:16 or a:c, and maybe a step behind it.

    As in Ansible both ends belong to the range. Raises ValueError if it is no range.
    """
    bounds = bracket.split(":")
    if len(bounds) not in (2, 3) or not bounds[1]:
        raise ValueError(
            f"'[{bracket}]' is not a range such as [01:16] or [a:c]; "
            "ClusterShell's [01-16] is not Ansible's"
        )
    first = bounds[0] or "0"
    last = bounds[1]
    step = _step(bounds[2] if len(bounds) == 3 else "1", bracket)
    if _is_letter(first) and _is_letter(last):
        start = string.ascii_letters.index(first)
        end = string.ascii_letters.index(last)
        choices = list(string.ascii_letters[start : end + 1 : step])
    elif first.isdecimal() and last.isdecimal() and len(last) < 18:
        choices = _numbers(first, last, step, bracket)
    else:
        raise ValueError(
            f"'[{bracket}]' does not go from number to number, or from letter to letter"
        )
    if not choices:
        raise ValueError(f"the range '[{bracket}]' runs backwards")
    return choices


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text in string.ascii_letters


def _step(text: str, bracket: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"the step of '[{bracket}]' is not a number")
    return int(text)


def _numbers(first: str, last: str, step: int, bracket: str) -> list[str]:
    """Return the numbers of a range as texts, with leading zeros if `first` has them.

    Raises ValueError that names `bracket` for ends of different lengths, and for too many numbers.
    """
    is_padded = first.startswith("0") and len(first) > 1
    if is_padded and len(first) != len(last):
        raise ValueError(f"the ends of a zero-padded range have to be equally long: '[{bracket}]'")
    start = int(first)
    end = int(last)
    count = (end - start) // step + 1
    if count > MAX_NODES:
        raise ValueError(f"'[{bracket}]' stands for more than {MAX_NODES:,} hosts")
    numbers = map(str, range(start, end + 1, step))
    if not is_padded:
        return list(numbers)
    return [number.zfill(len(first)) for number in numbers]
