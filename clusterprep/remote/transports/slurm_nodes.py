"""What `scontrol --oneliner show nodes` prints, as far as an inventory or a job step needs it. Pure."""

from __future__ import annotations

import re

from clusterprep.runtime.lazy_dataclass import dataclass

# Values may hold anything (Reason, Comment, OS), so the first of each name counts: Slurm prints these before such text.
_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|NodeHostName|Port|State|Partitions)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?: \[[^\]]*\])?\s*$")
# States of nodes that are not there, or not to be woken by a look: scontrol(1), node states.
_AWAY = frozenset(
    {"DOWN", "FAIL", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP"}
)
# Of nodes that take no new job, though those which have them go on.
_CLOSED = frozenset({"DRAIN", "DRAINED", "DRAINING", "RESERVED", "MAINT", "MAINTENANCE", "REBOOT"})


@dataclass(frozen=True)
class SlurmNode:
    name: str
    address: str
    partitions: tuple[str, ...]
    host: str = ""
    port: int | None = None  # of slurmd, where it is not that of all nodes
    state: str = ""  # as Slurm writes it: IDLE+DRAIN, DOWN*+CLOUD
    reason: str = ""  # what somebody gave for it

    @property
    def words(self) -> frozenset[str]:
        return frozenset(word.strip("*~#!%$@^-") for word in self.state.split("+"))

    @property
    def why_not(self) -> str:
        """Why it is not to be looked at; empty where it is."""
        return self._said if self.words & _AWAY else ""

    def why_no_step(self, in_allocation: bool) -> str:
        """Why no step can be started on it; empty where one can."""
        silent = "*" in self.state or "NOT_RESPONDING" in self.words
        closed = not in_allocation and bool(self.words & _CLOSED)
        return self._said if silent or closed or self.words & (_AWAY | {"UNKNOWN"}) else ""

    @property
    def _said(self) -> str:
        return f"Slurm says {self.state}{f': {self.reason}' if self.reason else ''}"


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Every node in Slurm's order; a line without a name is passed over."""
    return tuple(node for line in text.splitlines() if (node := _node(line)) is not None)


def _node(line: str) -> SlurmNode | None:
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    if "NodeName" not in fields:
        return None
    name, reason, port = fields["NodeName"], _REASON.search(line), fields.get("Port", "")
    return SlurmNode(
        name,
        fields.get("NodeAddr") or name,
        tuple(
            word for word in fields.get("Partitions", "").split(",") if word and word != "(null)"
        ),
        fields.get("NodeHostName") or name,
        int(port) if port.isdecimal() and len(port) < 6 else None,
        fields.get("State", ""),
        reason[1] if reason else "",
    )


def matching(nodes: tuple[SlurmNode, ...], name: str, address: str) -> SlurmNode | None:
    """The node that an inventory's name stands for, else its address: as Slurm's name, host name or address."""
    for wanted in dict.fromkeys((name, address)):
        for part in ("name", "host", "address"):
            found = [node for node in nodes if getattr(node, part) == wanted]
            if len(found) == 1:
                return found[0]
    return None
