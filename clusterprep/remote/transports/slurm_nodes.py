"""Parse `scontrol --oneliner show nodes`, as far as inventories and job steps need it. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

# Free text (Reason, Comment, OS) may look like a field. Slurm prints these fields before such text,
# so the first of each name counts.
_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|NodeHostName|Port|State|Partitions)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?: \[[^\]]*\])?\s*$")
# States of nodes that are down, or that a check must not power up: scontrol(1), node states.
_AWAY = frozenset(
    {"DOWN", "FAIL", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP"}
)
# States of nodes that start no new job, though running jobs continue.
_CLOSED = frozenset({"DRAIN", "DRAINED", "DRAINING", "RESERVED", "MAINT", "MAINTENANCE", "REBOOT"})


class SlurmNode(Struct, frozen=True):
    name: str
    address: str
    partitions: tuple[str, ...]
    host: str = ""
    port: int | None = None  # of slurmd, if it differs from the port of the other nodes
    state: str = ""  # as Slurm writes it: IDLE+DRAIN, DOWN*+CLOUD
    reason: str = ""  # the administrator's text for it

    @property
    def states(self) -> frozenset[str]:
        """The parts of `state` without flags: DOWN and CLOUD for DOWN*+CLOUD."""
        return frozenset(part.strip("*~#!%$@^-") for part in self.state.split("+"))

    @property
    def why_not(self) -> str:
        """Why an inventory leaves the node out, "" if it does not."""
        return self._description if self.states & _AWAY else ""

    def why_no_step(self, in_allocation: bool) -> str:
        """Return why no step can be started on the node, "" if one can."""
        states = self.states
        is_silent = "*" in self.state or "NOT_RESPONDING" in states
        is_closed = not in_allocation and bool(states & _CLOSED)
        is_away = bool(states & (_AWAY | {"UNKNOWN"}))
        if is_silent or is_closed or is_away:
            return self._description
        return ""

    @property
    def _description(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"Slurm says {self.state}{reason}"


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Parse every node, in Slurm's order. Lines without a name are skipped."""
    nodes = []
    for line in text.splitlines():
        node = _parse_node(line)
        if node is not None:
            nodes.append(node)
    return tuple(nodes)


def _parse_node(line: str) -> SlurmNode | None:
    """Return the node of a line, None if the line has no NodeName."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    if "NodeName" not in fields:
        return None
    name = fields["NodeName"]
    reason = _REASON.search(line)
    return SlurmNode(
        name=name,
        address=fields.get("NodeAddr") or name,
        partitions=_partitions(fields.get("Partitions", "")),
        host=fields.get("NodeHostName") or name,
        port=_port(fields.get("Port", "")),
        state=fields.get("State", ""),
        reason=reason[1] if reason else "",
    )


def _partitions(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name and name != "(null)")


def _port(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 6 else None


def matching(nodes: tuple[SlurmNode, ...], name: str, address: str) -> SlurmNode | None:
    """Return the node that an inventory's name stands for, else the one of its address.

    Both are compared with Slurm's name, host name and address, in this order. What matches several
    nodes matches none.
    """
    for wanted in dict.fromkeys((name, address)):
        for attribute in ("name", "host", "address"):
            matches = [node for node in nodes if getattr(node, attribute) == wanted]
            if len(matches) == 1:
                return matches[0]
    return None
