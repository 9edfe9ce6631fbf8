"""No check passes what it does not know: answers of healthy machines are spoilt one by one.

A node whose answer is missing or spoilt never passes the checks that need it, unless the fact is
the same as before, for then nothing was lost. Nor does any other check begin to pass. And a fault
that is there stays, whatever else is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.cli.commands.selftest import turned_bad
from clusterprep.model import Absent, Fleet, Json, Node, Read
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.transports.replay import read_key
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import QueryPlan, plan_queries
from tests import machines as fleets
from tests.machines import play
from tests.support.asked import interpret, reads

pytestmark = [
    pytest.mark.machine,
    play.needs_chroot,
]

KINDS = [
    "hgx-h100-ib",
    "hgx-h100-roce",
    "bonded-frontend",
    "a10g-cloud-vm",
    "l20-mixed-box",
    "cpu-only",
]
CHECKS = tuple(registry.checks().values())
VICTIM = 1  # neither the rendezvous host, nor a majority
REASONS = ("denied", "missing_tool", "timed_out", "hung", "truncated", "garbled", "no sysfs here")

# Facts that may know although one of their reads does not, and why that is no guess.
KNOWS_ANYWAY = {
    "clock.daemon": "chronyd and systemd answer for each other",
    "gpu.fabric_state": "GPUs and the service are two witnesses",
    "gpu.latency": "how long the driver took is known also where it answered with a refusal",
    "gpu.listed": "without NVML it is known that nothing is listed",
    "gpu.xids": (
        "ring and journal are two witnesses; the bus is asked only whether there is a GPU where "
        "the log cannot be read"
    ),
    "gpu.sxids": "likewise, and whether there is an NVSwitch",
    "log.records": "ring and journal are two witnesses",
    "mem.errors": (
        "processors are asked only to tell a virtual machine without counters "
        "from a real one without"
    ),
    "nv.library": "the library's file name tells its version where NVML does not answer",
}
# (check, part of the read): why the check may pass although this answer is another one than before.
TOLERATED = {
    ("eth.mtu", "/sys/class/infiniband"): "it is asked only whether there is an RDMA device at all",
    ("lim.memlock", "/sys/class/infiniband"): "likewise",
    ("time.clocksource", "available_clocksource"): "what else there would be is for the remedy",
    (
        "kernel.cmdline",
        "/proc/cmdline",
    ): "what was lost held none of the words that are compared: with one, it fails",
    (
        "pcie.iommu",
        "/proc/cmdline",
    ): "no IOMMU is in use on this machine, whatever the command line says",
    (
        "host.identity",
        "/proc/sys/kernel/hostname",
    ): "names tell a clone from a double entry once machine ids are equal",
    (
        "name.resolve",
        "/proc/sys/kernel/hostname",
    ): "its addresses are judged, the name is for the message",
    (
        "numa.balancing",
        "node/online",
    ): "balancing is off, so it does not matter how many NUMA nodes there are",
    ("fs.ro", "/etc/fstab"): "nothing is mounted read-only that would need a line there",
    ("rdma.peermem", "osrelease"): "the module is loaded, so the kernel need not bring DMA-BUF",
    ("rdma.peermem", "/proc/modules"): "the open driver with this kernel needs no module",
    ("gpu.latency", '["nvml"]'): "what is judged is the time that the driver took to answer",
    ("gpu.hidden", '["nvml"]'): "device nodes tell by access(2) whether they may be opened",
    ("gpu.xid", '["pci"'): "the log was read, and holds no Xid",
    ("gpu.sxid", '["pci"'): "the log was read, and holds no SXid",
    **{
        (check, read): "the other one of ring and journal goes back as far as is asked"
        for check in ("gpu.xid", "gpu.sxid", "log.kernel", "pcie.mlx_limited")
        for read in ('["kernel_log"', '["kernel_journal"')
    },
    (
        "ipc.removeipc",
        "logind.conf",
    ): "Slurm does not run there, and without it what logind does is only told",
    ("gpu.fabricmanager", "fabric_manager"): "every GPU says itself that its fabric is complete",
    (
        "nv.module_vs_lib",
        "nvml",
    ): "the file's name and NVML are two witnesses of the library's version",
    (
        "nv.pkg_hold",
        "/etc/dnf/",
    ): "nothing installs updates by itself, so it does not matter what is locked",
    ("ib.rate", "/sys/class/infiniband"): "a port outside the training set may say no rate",
    (
        "ib.counters",
        "ports/*/phys_state",
    ): "a rate or a link layer that was lost is not what it judges",
    ("ib.downed", "ports/*/phys_state"): "likewise",
    (
        "ib.counters",
        "counters/symbol_error",
    ): "a counter of a port outside the training set may be lost",
    ("ib.downed", "counters/symbol_error"): "likewise",
    (
        "svc.required",
        "systemctl",
    ): "units answer in the order in which they were asked, whatever they are called",
    **dict.fromkeys(
        [
            (check, "/sys/class/infiniband")
            for check in ("fw.nic", "ib.present", "ib.chardev", "ib.configured", "ib.state")
        ]
        + [
            (check, "/sys/class/infiniband")
            for check in ("ib.link_layer", "numa.gpu_nic", "rdma.peermem", "roce.gid", "roce.route")
        ]
        + [
            (check, "/sys/class/infiniband")
            for check in ("ib.sm", "ib.pkey", "ib.guid_dup", "pcie.relaxed", "roce.qos", "net.rail")
        ]
        + [("roce.gid_choice", "/sys/class/infiniband")]
        + [
            (check, "/sys/class/infiniband")
            for check in ("env.nccl_debug", "env.nccl_hca_exists", "env.shadow")
        ],
        "a rate or a link layer that was lost is not what it judges",
    ),
}


def the_node(world: play.World) -> Node:
    """The one whose answers are spoilt."""
    return world.inventory.nodes[min(VICTIM, len(world.inventory.nodes) - 1)]


def victim(world: play.World) -> str:
    return the_node(world).name


def asked(world: play.World) -> tuple[Read, ...]:
    return reads(everything(), the_node(world), world.inventory)


def everything() -> QueryPlan:
    return plan_queries(CHECKS, registry.facts())


def told(world: play.World, read: Read) -> Json:
    return world.recording[victim(world)]["answers"][read_key(read)]


def spoilt(world: play.World, instead: Mapping[Read, Json]) -> tuple[Fleet, dict[str, Any]]:
    """The fleet with other raw answers of one node, and the facts that became others."""
    node = the_node(world)
    facts = [f for f in everything().facts if set(f.reads(node, world.inventory)) & set(instead)]
    answers = {
        read: told(world, read) for fact in facts for read in fact.reads(node, world.inventory)
    }
    new = interpret(QueryPlan((), tuple(facts)), node, world.inventory, {**answers, **instead})
    changed = {
        name: value
        for name, value in new.items()
        if not alike(value, world.fleet.fact(node.name, name))
    }
    fleet = with_facts(world.fleet, node.name, changed)
    if (
        "net.interfaces" in changed and node.name not in choose(fleet).picks
    ):  # then no node was dialled from there
        fleet = with_facts(
            fleet, node.name, dict.fromkeys(("net.listen", "net.dials"), Absent("eth.iface_choice"))
        )
    return fleet, changed


def alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other and repr(one) == repr(other)


def with_facts(fleet: Fleet, node: str, changed: Mapping[str, Any]) -> Fleet:
    before = fleet.snapshots[node]
    after = replace(before, facts={**before.facts, **changed})
    return replace(fleet, snapshots={**fleet.snapshots, node: after})


def passes(fleet: Fleet, checks: Iterable[Check] = CHECKS) -> set[tuple[str, str]]:
    found = judge(fleet, tuple(checks), play.TODAY)
    return {
        (finding.check, node)
        for finding in found
        if finding.verdict == "pass"
        for node in finding.nodes
    }


def dishonest(
    world: play.World,
    instead: Mapping[Read, Json],
    way: str,
    healthy: set[tuple[str, str]],
    everyone: bool = False,
) -> list[str]:
    """Wrong passes after these answers; `everyone`: also of checks that do not need them."""
    fleet, changed = spoilt(world, instead)
    needing = [check for check in CHECKS if set(check.facts) & set(changed)]
    now, name = passes(fleet, CHECKS if everyone else needing) if changed else set(), victim(world)
    keys = " ".join(read_key(read) for read in instead)
    fine = {check for check, part in TOLERATED if part in keys}
    wrong = [
        f"{check} begins to pass {node}"
        for check, node in sorted(now - healthy)
        if check not in fine
    ]
    for check in needing:
        if (check.name, name) in now and check.name not in fine:
            of = [f"{fact}={changed[fact]!r:.80}" for fact in check.facts if fact in changed]
            wrong.append(f"{check.name} passes with {', '.join(of)}")
    return [
        f"{' + '.join(read_key(read)[:90] for read in instead)} as {way}: {line}" for line in wrong
    ]


# ---------------------------------------------------------------- ways not to know, spoilt values


TEXTS = (
    "file",
    "files",
    "target",
    "command",
    "otherwise",
)  # kinds of reads that bring texts of others; the rest is our own JSON


def spoilings(kind: str, value: Json) -> Iterator[tuple[str, Json]]:
    """What a broken tool, a strange locale or half a transfer make of a value."""
    for wrong in (
        7,
        "x",
        True,
        [["x"]],
        {"x": 1},
    ):  # null is «there is no such thing», and empty is empty
        if type(wrong) is not type(value):
            yield f"{wrong!r} instead", wrong
    if kind in TEXTS:
        for part in (0.25, 0.5, 0.75, 0.9):
            yield "cut", texts(value, lambda text, part=part: cut(text, part))
        yield "empty texts", texts(value, lambda text: "")
        yield (
            "binary",
            texts(value, lambda text: "\x00\ufffd\x7fELF\x02\x01" * (1 + len(text) // 8)),
        )
        yield "German", texts(value, lambda text: text.translate(str.maketrans(".,", ",.")))
    if isinstance(value, Mapping):
        keys = list(value)
        for key in keys[:: 1 + len(keys) // 12]:
            yield "one left out", {name: item for name, item in value.items() if name != key}


def cut(text: str, part: float) -> str:
    """The beginning of a text of several lines; a line of the kernel comes whole, in one read."""
    return text[: int(len(text) * part)] if "\n" in text.rstrip("\n") else text


def texts(value: Json, turn: Any) -> Json:
    """The value with every text in it turned; keys stay."""
    if isinstance(value, str):
        return turn(value)
    if isinstance(value, Mapping):
        return {key: texts(item, turn) for key, item in value.items()}
    return [texts(item, turn) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_answer_never_passes(kind: str) -> None:
    world = play.world(kind)
    healthy = passes(world.fleet)
    wrong = []
    for read in asked(world):
        for (
            reason
        ) in REASONS:  # the engine makes no difference between reasons, but lenient facts do
            instead = {read: ["no", reason, "made up"]}
            wrong += dishonest(world, instead, reason, healthy, everyone=reason == REASONS[0])
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_absent_where_an_answer_is_missing(kind: str) -> None:
    """Strictly: a fact that still has a value is listed, with the reason."""
    world = play.world(kind)
    node = the_node(world)
    know = set()
    for fact in everything().facts:
        for read in fact.reads(node, world.inventory):
            for reason in REASONS:
                if told(world, read)[0] == "ok":
                    now = spoilt(world, {read: ["no", reason, "made up"]})[0].fact(
                        node.name, fact.name
                    )
                    know |= set() if isinstance(now, Absent) else {fact.name}
    assert know <= set(KNOWS_ANYWAY)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_answer_never_passes(kind: str) -> None:
    world = play.world(kind)
    healthy = passes(world.fleet)
    wrong = []
    for read in asked(world):
        answer = told(world, read)
        if answer[0] == "ok":
            for way, value in spoilings(read.kind, answer[1]):
                wrong += dishonest(world, {read: ["ok", value]}, way, healthy)
    assert wrong == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_two_spoilt_answers_never_pass(data: st.DataObject) -> None:
    world = play.world(data.draw(st.sampled_from(KINDS), label="kind"))
    pair = data.draw(
        st.lists(st.sampled_from(asked(world)), min_size=2, max_size=2, unique=True), label="reads"
    )
    ways: list[str] = []
    instead = {}
    for read in pair:
        answer = told(world, read)
        given_up = [(reason, ["no", reason, "made up"]) for reason in REASONS]
        broken = (
            [(way, ["ok", value]) for way, value in spoilings(read.kind, answer[1])]
            if answer[0] == "ok"
            else []
        )
        way, instead[read] = data.draw(st.sampled_from([*given_up, *broken]), label="way")
        ways.append(way)
    assert dishonest(world, instead, " and ".join(ways), passes(world.fleet), everyone=True) == []


# ---------------------------------------------------------------- faults stay


# Facts of other nodes without which a fault of this one cannot be told, and who then says so.
RELATIVE = {
    "host.identity": (
        "of two nodes with one machine id, the one whose id is not known is unknown, "
        "and that is an error"
    ),
}


def proved() -> list[Check]:
    return [
        check
        for check in CHECKS
        if check.proof and check.proof.fact and check.proof.fleet in fleets.names()
    ]


@pytest.mark.parametrize("check", proved(), ids=lambda check: check.name)
def test_a_fault_stays_whatever_else_is_unknown(check: Check) -> None:
    assert check.proof is not None
    proof, world = check.proof, play.world(check.proof.fleet)
    name = victim(world)
    sick = turned_bad(world.fleet, name, proof)
    assert isinstance(sick, Fleet)
    assert (check.name, name) not in passes(sick, [check])
    for fact in world.fleet.snapshots[name].facts:
        others = tuple(
            other for other in world.fleet.snapshots if other != name and check.name not in RELATIVE
        )
        for node in (name,) if fact != proof.fact else others:
            worse = with_facts(sick, node, {fact: Absent("denied", "made up")})
            assert (check.name, name) not in passes(worse, [check]), (
                f"{fact} of {node} is unknown, and the fault is gone"
            )
