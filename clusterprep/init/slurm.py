"""What `scontrol --oneliner show nodes` prints, as far as an inventory needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Values may hold anything (Reason, Comment, OS), so the first of each name counts: Slurm prints these before such text.
_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|State|Partitions)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?: \[[^\]]*\])?\s*$")
# States of nodes that are not there, or not to be woken by a look: scontrol(1), node states.
_AWAY = frozenset({"DOWN", "FAIL", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP"})


@dataclass(frozen=True)
class SlurmNode:
    name: str
    address: str
    partitions: tuple[str, ...]
    why_not: str  # to be looked at; empty where it is


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Every node in Slurm's order; a line without a name is passed over."""
    return tuple(node for line in text.splitlines() if (node := _node(line)) is not None)


def _node(line: str) -> SlurmNode | None:
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    if "NodeName" not in fields:
        return None
    state = fields.get("State", "")
    away = _AWAY & {word.strip("*~#!%$@^-") for word in state.split("+")}
    reason = _REASON.search(line)
    why = f"Slurm says {state}{f': {reason[1]}' if reason else ''}" if away else ""
    name = fields["NodeName"]
    partitions = tuple(word for word in fields.get("Partitions", "").split(",") if word and word != "(null)")
    return SlurmNode(name, fields.get("NodeAddr") or name, partitions, why)
