"""Fleets of any size for tests and benchmarks.

Recorded machines under names of their own, with faults on some.

A node answers what one of the recorded machines answered, as the bytes that a link would bring:
under its own name, address and serial numbers, with its own temperatures, loads and counters. What
is the same on all machines of a kind is the same here. Faults are those that the checks carry as
their proof, each planted on a node of its own, so that it is known what must be found, and where.
"""

from __future__ import annotations

import base64
import functools
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from clusterprep.checks import Check
from clusterprep.cli.commands.selftest import unpacked, with_past
from clusterprep.facts.clock import Offset
from clusterprep.history.certificate import with_certified
from clusterprep.model import Absent, Finding, Fleet, Inventory, Json, Node, NodeSnapshot, Read
from clusterprep.remedies import shell_line
from clusterprep.remote.transports.frames import parsed
from clusterprep.remote.transports.replay import read_key
from clusterprep.survey import registry
from clusterprep.survey.queries import Queries

KIND = "hgx-h100-ib"
# addresses in each 10.0.x.0: those of the recorded machines' servers, in 10.0.254.0, stay free
BLOCK = 250
LARGEST = 60_000

Change = Callable[[re.Match[str], int], str]


def inventory_text(nodes: int) -> str:
    """An inventory as a user would write it: ranges of names and of addresses."""
    if not 2 <= nodes <= LARGEST:
        raise ValueError(f"from 2 to {LARGEST} nodes, not {nodes}")
    whole, rest = divmod(nodes, BLOCK)
    entries = (
        [(f"node[00001-{whole * BLOCK:05}]", f"10.0.[0-{whole - 1}].[1-{BLOCK}]")] if whole else []
    )
    if rest:
        entries.append((f"node[{whole * BLOCK + 1:05}-{nodes:05}]", f"10.0.{whole}.[1-{rest}]"))
    return _head() + "".join(f"- name: {name}\n  address: {address}\n" for name, address in entries)


def listed_text(nodes: int) -> str:
    """The same with an entry for each node, as a program would write it."""
    rows = (
        f"- name: {name_of(number)}\n  address: {address_of(number)}\n" for number in range(nodes)
    )
    return _head() + "".join(rows)


def name_of(number: int) -> str:
    return f"node{number + 1:05}"


def address_of(number: int) -> str:
    return f"10.0.{number // BLOCK}.{number % BLOCK + 1}"


def _head() -> str:
    text = (
        resources.files("clusterprep")
        .joinpath(f"data/fleets/{KIND}.yaml")
        .read_text(encoding="utf-8")
    )
    return text[: text.index("nodes:\n") + len("nodes:\n")]


# ---------------------------------------------------------------- what a node answers

# What tells machines apart wherever it stands in an answer, of the node whose number is 4 in the
# recording.
_OWN: tuple[tuple[str, Change], ...] = (
    (r"\bn4\b", lambda found, number: name_of(number)),
    (r"\b10\.0\.0\.4\b", lambda found, number: address_of(number)),
    (r"(?<!\d)0{31}4(?!\d)", lambda found, number: f"{number + 1:032x}"),
    (r"0a000004", lambda found, number: f"0a00{number // BLOCK:02x}{number % BLOCK + 1:02x}"),
    (r"GPU-00000004", lambda found, number: f"GPU-{number + 1:08x}"),
    (r"(02:00:00|94:6d:ae:5a):(?:00:)?04:", lambda found, number: _mac(found[1], number)),
    (r"3c40\b", lambda found, number: f"{0x3C40 + number:04x}"),
    (r"3d40\b", lambda found, number: f"{0x3D40 + number:04x}"),
    (
        r"(9c63:c0)03(:00f.:)04",
        lambda found, number: f"{found[1]}{number >> 8:02x}{found[2]}{number & 255:02x}",
    ),
    (
        r"(9e63:c0ff:fe)(..):04",
        lambda found, number: f"{found[1]}{number >> 8:02x}:{number & 255:02x}",
    ),
)
# What moves from look to look: (kind of read or its first words, what is about to be replaced, by
# how much).
_MOVING: tuple[tuple[str, str, int], ...] = (
    ('["file", "/proc/meminfo"', r"(?<=MemFree:        )\d+|(?<=MemAvailable:   )\d+", 16),
    ('["file", "/proc/loadavg"', r"(?<=/)\d+|\d+(?=\\n)", 1),
    ('["file", "/proc/uptime"', r"\d+(?=\.)", 60),
    ('["kernel_log"', r'(?<="now": )\d+', 60),
    ('["kernel_journal"', r'(?<="now": )\d+|(?<="up": )\d+|(?<="from": )\d+', 60),
    ('["command", "chronyc"', r"(?<=,)\d{10}(?=\.)", 1),
    ('["nvml"', r'(?<="temperature": )\d+|(?<="memory_temperature": )\d+', 0),
    ('["interrupts"', r'(?<=": )1\d\d\b', 1),
    ('["probe"', r'(?<="free": )\d+|(?<="used": )\d+', 4096),
)


def _mac(vendor: str, number: int) -> str:
    return (
        f"{vendor}:{number >> 8:02x}:{number & 255:02x}:"
        if vendor == "02:00:00"
        else f"94:6d:{number >> 8:02x}:5a:{number & 255:02x}:"
    )


@dataclass(frozen=True)
class Template:
    """The JSON of one answer: fixed text, and between it what a node fills in by its number."""

    texts: tuple[str, ...]
    holes: tuple[Callable[[int], str], ...]

    def of(self, number: int) -> str:
        filled = (
            part
            for text, hole in zip(self.texts, self.holes, strict=False)
            for part in (text, hole(number))
        )
        return "".join((*filled, self.texts[-1]))


def template(key: str, answer: Json) -> Template:
    patterns: list[tuple[str, Change]] = list(_OWN)
    patterns += [
        (pattern, functools.partial(_moved, by))
        for start, pattern, by in _MOVING
        if key.startswith(start)
    ]
    text = json.dumps(answer)
    found = sorted(
        (
            (match.span(), change, match)
            for pattern, change in patterns
            for match in re.finditer(pattern, text)
        ),
        key=lambda row: row[0],
    )
    texts, holes, at = [], [], 0
    for (start, end), change, match in found:
        if start >= at:
            texts.append(text[at:start])
            holes.append(functools.partial(change, match))
            at = end
    return Template((*texts, text[at:]), tuple(holes))


def _moved(by: int, found: re.Match[str], number: int) -> str:
    """Another number of the same size; a temperature only within a few degrees."""
    return str(int(found[0]) + (by * (number % 997) if by else number % 5))


@functools.cache
def _recorded() -> dict[str, dict[str, Json]]:
    packed = resources.files("clusterprep").joinpath(f"data/fleets/{KIND}.json.gz").read_bytes()
    return unpacked(json.loads(gzip.decompress(packed)))


# As one sets it up who has so many nodes in one network.
_RAISED: dict[str, Json] = {
    f'["file", "/proc/sys/net/ipv4/neigh/default/gc_thresh{place}"]': ["ok", f"{limit}\n"]
    for place, limit in enumerate((32_768, 65_536, 131_072), 1)
}


class Answers:
    """The answers of a grown fleet's nodes to the reads of a plan."""

    def __init__(self) -> None:
        self._templates: dict[str, Template] = {}
        self._answers = {**_recorded()["n4"]["answers"], **_RAISED}

    def frame(self, number: int, asked: Sequence[Read]) -> bytes:
        """The JSON object by which an agent answers `look`, as a link reads it."""
        rows = ", ".join(self._answer(number, read) for read in asked)
        return f'{{"answers": [{rows}], "id": 1}}'.encode()

    def _answer(self, number: int, read: Read) -> str:
        if read.kind == "resolve":
            return json.dumps(
                ["ok", {name: [address_of(int(name[4:]) - 1)] for name in map(str, read.args)}]
            )
        if read.kind == "target":
            return json.dumps(_target(number))
        key = read_key(read)
        if key not in self._templates:
            self._templates[key] = template(
                key, self._answers.get(key, ["no", "not_recorded", key])
            )
        return self._templates[key].of(number)


def _target(number: int) -> Json:
    """A file that may be written: on two nodes of three it is there and says something else."""
    if number % 3 == 0:
        return ["no", "missing", "No such file or directory"]
    old = f"export NCCL_DEBUG={'INFO' if number % 3 == 1 else 'TRACE'}\n"
    return [
        "ok",
        {"data": base64.b64encode(old.encode()).decode(), "mode": 0o644, "uid": 0, "gid": 0},
    ]


# ---------------------------------------------------------------- faults

UNREAD = "lim.nofile"  # what cannot be read on some


@dataclass(frozen=True)
class Fates:
    """What happens to some nodes; all others are healthy. No node has two fates."""

    silent: frozenset[str] = frozenset()
    refusing: frozenset[str] = frozenset()
    deaf: frozenset[str] = frozenset()  # behind a firewall: no node reaches their ports
    unread: frozenset[str] = frozenset()
    checks: Mapping[str, Check] = field(default_factory=dict)  # by node: its proof is planted there


def fates(inventory: Inventory, share: float = 0.03) -> Fates:
    """Of every twelve nodes that are not healthy eight have a fault that a check must find.

    Each node in its turn.
    """
    names = [node.name for node in inventory.nodes]
    count = max(4, int(share * len(names)))
    chosen = names[1 :: len(names) // count][:count]  # not the first, where all others meet
    silent, refusing, deaf, unread = (frozenset(chosen[start::12]) for start in range(4))
    sick = [name for place, name in enumerate(chosen) if place % 12 > 3]
    return Fates(
        silent, refusing, deaf, unread, dict(zip(sick, itertools.cycle(proofs()), strict=False))
    )


# Faults that show on other nodes too: a twin of another node, an end of a login between two nodes,
# and a file of Slurm that knows the recorded names alone.
NAMES_OTHERS = ("host.identity", "ib.guid_dup", "ssh.mesh", "slurm.gres")


def proofs() -> list[Check]:
    """Every check that can be shown to fail on these machines by one fact of one node."""
    return [check for check in registry.checks().values() if _plantable(check)]


def _plantable(check: Check) -> bool:
    proof = check.proof
    if check.name in NAMES_OTHERS:
        return False
    return bool(
        proof
        and proof.fact
        and registry.facts()[proof.fact].stage != "stress"  # these fleets are under no load
        and proof.fleet == KIND
        and proof.verdict == "fail"
        and not proof.between
    )


def planted(fleet: Fleet, fated: Fates) -> Fleet:
    """The fleet with the faults that nodes tell of in a look, and an hour ago without any."""
    fleet = with_certified(with_past(fleet), None)
    faults = _faults(fleet, fated, of_look=True)
    for name in fated.unread:
        faults[name] = {UNREAD: Absent("denied", "EACCES")}
    return fleet.with_facts(faults)


def dialled(fleet: Fleet, fated: Fates) -> Fleet:
    """The fleet with the faults that show when nodes dial."""
    return fleet.with_facts(_faults(fleet, fated, of_look=False))


def _faults(fleet: Fleet, fated: Fates, *, of_look: bool) -> dict[str, dict[str, Any]]:
    faults: dict[str, dict[str, Any]] = {}
    for name, check in fated.checks.items():
        proof = check.proof
        if proof is not None and (registry.facts()[proof.fact].stage is None) == of_look:
            faults[name] = {proof.fact: proof.turn(fleet.fact(name, proof.fact))}
    return faults


def without(node: Node, fated: Fates) -> NodeSnapshot | None:
    """A node that cannot be asked."""
    if node.name in fated.silent:
        return NodeSnapshot(
            node.name, node.address, False, "timed_out", "no answer within 10 s", answered=False
        )
    if node.name in fated.refusing:
        return NodeSnapshot(
            node.name,
            node.address,
            False,
            "auth_refused",
            "permission denied",
            shell_line("ssh-copy-id"),
        )
    return None


def expected(fated: Fates) -> dict[tuple[str, str], set[str]]:
    """The nodes that each check must fail, or not know, and no others, by (check, verdict)."""
    wanted: dict[tuple[str, str], set[str]] = {("ssh.reach", "unknown"): set(fated.silent)}
    wanted["ssh.reach", "fail"] = set(fated.refusing)
    wanted["net.ports", "fail"] = set(fated.deaf)
    for check in registry.checks().values():
        if UNREAD in check.facts:
            wanted[check.name, "unknown"] = set(fated.unread)
    for name, check in fated.checks.items():
        wanted.setdefault((check.name, "fail"), set()).add(name)
    return {key: nodes for key, nodes in wanted.items() if nodes}


def looked(
    queries: Queries,
    inventory: Inventory,
    fated: Fates,
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Fleet:
    """Return the facts of a look at all nodes, from bytes on.

    `beside` times the nodes' own work.
    """
    answers, seen = Answers(), dict[str, NodeSnapshot]()
    for number, node in enumerate(inventory.nodes):
        with beside():
            sheet, lost = queries.of(node), without(node, fated)
            frame = answers.frame(number, sheet.reads)
        if lost:
            seen[node.name] = lost
            continue
        facts = queries.facts(sheet, parsed(frame, in_pieces=True)["answers"])
        brought = {"ssh.peer": node.address, "clock.offset": offset(number)}
        row = queries.row(facts, brought)
        seen[node.name] = NodeSnapshot(
            node.name, node.address, True, facts=row, seconds=1.0, login=0.5
        )
    return Fleet(inventory, seen)


# -------------------------------------------------------- what nodes find out about each other


class Wires:
    """The agents of a grown fleet when they listen and dial: what they answer came as JSON."""

    def __init__(self, fleet: Fleet, deaf: Iterable[str] = ()) -> None:
        self.links = {node.name: node for node in fleet.reached}
        self._deaf = {self.links[name].address for name in deaf}

    def ask(
        self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        self.ask_each(op, bodies, timeout, answers.__setitem__)
        return answers

    def ask_each(
        self,
        op: str,
        bodies: Mapping[str, Mapping[str, Any]],
        timeout: float,
        take: Callable[[str, Any], object],
    ) -> None:
        for name, body in bodies.items():
            take(name, json.loads(self._answer(op, body)))

    def tell(self, op: str, names: Iterable[str]) -> None:
        """Do nothing: answers to this are not waited for."""

    def _answer(self, op: str, body: Mapping[str, Any]) -> str:
        if op == "listen":
            return json.dumps({"ports": [first for first, _ in body["spans"]]})
        rows = [_LOST if address in self._deaf else _OPEN for address, _ in body.get("targets", ())]
        return f'{{"dials": [{", ".join(rows)}]}}'


_OPEN, _LOST = '["ok", 80, 9000, true, 9000]', '["timed_out"]'


def offset(number: int) -> Offset:
    """A clock that is right within a millisecond."""
    return Offset(0.0001 * (number % 9 - 4), 0.0004)


def compare(findings: Iterable[Finding], fated: Fates) -> None:
    """Raise AssertionError unless exactly what was planted is found.

    That more is unknown of a faulty node is no fault.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        if finding.verdict in ("fail", "unknown"):
            found.setdefault((finding.check, finding.verdict), set()).update(finding.nodes)
    wanted, excused = expected(fated), set(fated.checks)
    wrong = {key: wanted.get(key, set()) ^ found.get(key, set()) for key in {*wanted, *found}}
    wrong = {key: names - excused if key[1] == "unknown" else names for key, names in wrong.items()}
    assert not any(wrong.values()), {
        key: sorted(names)[:5] for key, names in wrong.items() if names
    }
