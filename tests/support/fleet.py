"""Fleets for tests of the pure core: nodes with their facts, and what the checks make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from msgspec.structs import replace

from clusterprep.facts.bonding import Bond, Member
from clusterprep.facts.clock import Daemon, Offset
from clusterprep.facts.gpu import DeviceNodes, Function, Gone, Gpu, Listed, Model, Nvml
from clusterprep.facts.gpu_driver import FabricManager, FabricState, Firmware, Library
from clusterprep.facts.gpu_health import EccErrors, EccMode, Remap, Temperatures
from clusterprep.facts.gpu_state import Clocks, Persistence, Power, Use
from clusterprep.facts.nccl_address import BoundAddress
from clusterprep.facts.network import Interface
from clusterprep.facts.nvlink import Fabric, NvLinks
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import Port, RdmaDevice
from clusterprep.facts.storage import Mount
from clusterprep.facts.torch import Libraries, Plugin, Plugins, Python, Torch
from clusterprep.model import (
    Absent,
    EnvSetting,
    Finding,
    Fleet,
    Gpus,
    Inventory,
    Node,
    NodeSnapshot,
)
from clusterprep.remedies import shell_line
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import QueryPlan
from tests.support.asked import interpret, reads

TODAY = date(2026, 11, 21)
PORT = 29500

# Every way in which a fact can be missing: words of the contract, of the agent, and a sentence.
REASONS = (
    "denied",
    "missing_tool",
    "timed_out",
    "hung",
    "garbled",
    "truncated",
    "not_reached",
    "not_asked",
    "no sysfs here",
)


def fleet(
    each: Mapping[str, Any] | None = None,
    some: Mapping[str, Mapping[str, Any]] | None = None,
    inventory: Mapping[str, Any] | None = None,
    **nodes: Mapping[str, Any] | NodeSnapshot,
) -> Fleet:
    """A fleet of the nodes named.

    Facts by name, or a whole snapshot for a node that was not reached.

    `each` holds fields of Node for all of them, `some` for single ones, `inventory` fields of
    Inventory.
    """
    listed = []
    for number, name in enumerate(nodes, 1):
        settings = {"address": _address(number), **(each or {}), **(some or {}).get(name, {})}
        listed.append(Node(name=name, index=number - 1, **settings))
    seen = {
        node.name: facts
        if isinstance(facts, NodeSnapshot)
        else NodeSnapshot(node.name, node.address, True, facts=dict(facts))
        for node, facts in zip(listed, nodes.values(), strict=True)
    }
    return Fleet(Inventory("test", tuple(listed), **(inventory or {})), seen)


def same(fact: str, *values: Any) -> dict[str, dict[str, Any]]:
    """Nodes n1, n2, … with one fact each."""
    return {f"n{number}": {fact: value} for number, value in enumerate(values, 1)}


def silent(
    name: str, reason: str = "timed_out", detail: str = "no answer within 10 s"
) -> NodeSnapshot:
    """A node that gave no answer."""
    return NodeSnapshot(name, "10.0.0.9", False, reason, detail, answered=False)


def refusing(
    name: str, reason: str = "auth_refused", detail: str = "permission denied"
) -> NodeSnapshot:
    """A node that answered and refused us."""
    return NodeSnapshot(
        name, "10.0.0.9", False, reason, detail, shell_line("ssh-copy-id"), answered=True
    )


def findings(seen: Fleet, check: str, today: date = TODAY) -> tuple[Finding, ...]:
    return judge(seen, [registry.checks()[check]], today)


def told(seen: Fleet, check: str) -> dict[str, str]:
    """Return a check's verdict by node: «pass», «fail error», «unknown warning denied».

    Several of one node are joined with +.
    """
    return by_node(findings(seen, check))


def by_node(found: Iterable[Finding]) -> dict[str, str]:
    words: dict[str, list[str]] = {}
    for finding in found:
        parts = [finding.verdict]
        if finding.verdict in ("fail", "unknown"):
            parts.append(finding.severity)
        if finding.verdict in ("unknown", "skip"):
            parts.append(str(finding.reason))
        for node in finding.nodes:
            words.setdefault(node, []).append(" ".join(parts))
    return {node: " + ".join(sorted(said)) for node, said in sorted(words.items())}


def eth(name: str, *ipv4: str, **fields: Any) -> Interface:
    """An interface that is up, with its addresses; a card unless told otherwise."""
    return replace(
        Interface(name, True, True, False, True, False, None, 1500, 10_000, False, ipv4), **fields
    )


LOOPBACK = Interface("lo", True, True, True, False, False, None, 65536, None, False, ())


def rdma_device(name: str = "mlx5_0", active: bool = True) -> RdmaDevice:
    """A card of which the bus is not shown, as in a sandbox."""
    state = ("ACTIVE", "LinkUp") if active else ("DOWN", "Polling")
    return RdmaDevice(name, None, None, None, None, (), (Port(1, *state, "InfiniBand", 400.0, 7),))


def torch(
    version: str | None = "2.6.0+cu124", cuda: str | None = "12.4", nccl: str | None = "2.21.5"
) -> Torch:
    return Torch(version, cuda, nccl, "/usr/lib/python3/dist-packages/torch" if version else None)


NO_TORCH = torch(None, None, None)
WHEEL_NCCL = "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2"
SYSTEM_NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"


def libraries(
    system: str | None = "2.21.5", loaded: str | None = WHEEL_NCCL, **fields: Any
) -> Libraries:
    """A wheel with its NCCL, and the system's beside it; `system` is the version of that one."""
    path = None if system is None else SYSTEM_NCCL
    return replace(Libraries(loaded, WHEEL_NCCL, "2.21.5", path, system), **fields)


def plugin(
    name: str = "libnccl-net.so", sha256: str | None = "5f" * 32, size: int | None = 270_336
) -> Plugin:
    return Plugin(f"/opt/hpcx/nccl_rdma_sharp_plugin/lib/{name}", size, sha256)


def bound(address: str | None, interface: str | None = None, **fields: Any) -> BoundAddress:
    """What NCCL answers: an address, or that it finds no interface."""
    result = 3 if address is None else 0
    return replace(BoundAddress(WHEEL_NCCL, "2.21.5", result, address, interface), **fields)


def python(version: str = "3.10.12", prefix: str = "/usr", base: str = "/usr") -> Python:
    return Python(f"{prefix}/bin/python3", version, prefix, base)


def bond(
    name: str = "bond0", mode: str = "802.3ad", policy: str | None = "layer3+4", **mii: str
) -> Bond:
    """A bond whose members are up where `mii` does not say otherwise."""
    states = {"eth1": "up", "eth2": "up", **mii}
    members = tuple(
        Member(card, state, "1" if mode == "802.3ad" else None) for card, state in states.items()
    )
    return Bond(
        name, mode, "up", members, policy, "98:5d:82:a1:00:01" if mode == "802.3ad" else None
    )


def nvml(count: int = 8, lost: tuple[str, ...] = (), driver: str = "550.54.15") -> Nvml:
    gpus = tuple(
        Gpu(i, "NVIDIA H100 80GB HBM3", f"GPU-{i}", f"00000000:{i:02x}:00.0") for i in range(count)
    )
    return Nvml(driver, "12.4", gpus, lost)


def mount(
    point: str, kind: str = "ext4", source: str = "/dev/md0", device: str = "9:0", **options: str
) -> Mount:
    """A mount that is rw unless `options` or `inner` say otherwise, comma separated."""
    own, inner = (frozenset(options.get(name, "rw").split(",")) for name in ("options", "inner"))
    return Mount(point, kind, source, own, inner, device)


def env(**values: str) -> dict[str, EnvSetting]:
    return {name: EnvSetting(value, "env") for name, value in values.items()}


def resolved(*names: str, **other: list[str] | None) -> dict[str, tuple[str, ...] | None]:
    """Every name at its place in 10.0.0.0/16, where `other` does not say otherwise."""
    answers: dict[str, tuple[str, ...] | None] = {}
    for number, name in enumerate(names, 1):
        answers[name] = (_address(number),)
    for name, addresses in other.items():
        answers[name] = None if addresses is None else tuple(addresses)
    return answers


def healthy(count: int = 4) -> Fleet:
    """A fleet of GPU nodes with RDMA of which every check passes every node."""
    names = tuple(f"n{number}" for number in range(1, count + 1))
    facts = {name: _facts(number, name, names) for number, name in enumerate(names, 1)}
    return fleet(each={"gpus": Gpus(8)}, **facts)


def _facts(number: int, name: str, names: tuple[str, ...]) -> dict[str, Any]:
    first, address = number == 1, _address(number)
    return {
        "host.machine_id": f"{number:032x}",
        "host.boot_id": f"00000000-0000-0000-0000-{number:012x}",
        "host.name": name,
        "kernel.release": "6.8.0-45-generic",
        "kernel.installed": ("6.8.0-44-generic", "6.8.0-45-generic"),
        "os.release": "ubuntu 22.04",
        "clock.offset": Offset(0.0001 * number, 0.0004),
        "clock.daemon": Daemon("chronyd", True, "10.0.0.254"),
        "names.own": (name, [address]),
        "names.resolved": resolved(*names),
        "rt.setup": None,  # the job runs on the node itself
        "rt.inside": None,
        "torch.build": torch(),
        "nccl.libraries": libraries(),
        "nccl.plugins": Plugins((plugin(),)),
        "nccl.address": dict.fromkeys(("ssh command", "login shell"), bound(address)),
        "python.env": python(),
        "cuda.libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
        "cuda.toolkit": "12.4.1",
        "nv.driver": "550.54.15",
        "gpu.pci": tuple(f"0000:{i:02x}:00.0" for i in range(8)),
        "gpu.nvml": nvml(),
        **gpu_facts(),
        "net.interfaces": (LOOPBACK, eth("eth0", f"{address}/16", mtu=9000)),
        "net.bonds": {"eth0": bond("eth0")},
        "net.filter": (),
        "net.port_range": (32768, 60999),
        "rdma.devices": (rdma_device("mlx5_0"), rdma_device("mlx5_1")),
        "pci.tree": PciTree((), {}),
        "lim.memlock": float("inf"),
        "net.listen": Listen(name, PORT, "ok") if first else None,
        "net.dials": () if first else (Dial(name, "n1", "10.0.0.1", PORT, "ok"),),
        "ssh.peer": address,
    }


# What derivation looks at, on a node without GPUs and RDMA.
NO_DEVICES: dict[str, Any] = {
    "rdma.devices": (),
    "rdma.rails": (),
    "pci.tree": PciTree((), {}),
    "gpu.nvml": None,
    "gpu.mig": {},
    "nvlink.links": {},
    "nvlink.pairs": {},
}


def gpu_facts(count: int = 8) -> dict[str, Any]:
    """What is known of healthy H100s on an NVSwitch board, besides how many there are."""
    h100, clocks = "NVIDIA H100 80GB HBM3", (1980, 2619)
    firmware = {"VBIOS": "96.00.74.00.01", "InfoROM": "G520.0200.00.05", "GSP": "550.54.15"}
    links = NvLinks(tuple(range(18)), (), switched=True, peers=())
    fabric = dict.fromkeys(range(count), Fabric("completed", 0, ()))
    of_each = {
        "gpu.model": Model(h100, 85520809984, "9.0"),
        "gpu.ecc_mode": EccMode(on=True, pending=True),
        "gpu.ecc": EccErrors(0, 0, exceeded=False),
        "gpu.remap": Remap(0, 0, pending=False, failed=False, spent=0),
        "gpu.heat": Temperatures(34, 44, 53),
        "gpu.throttle": (1, 1, 1),
        "gpu.latency": 0.002,
        "gpu.clocks": Clocks(clocks, clocks, clocks),
        "gpu.power": Power(700.0, 700.0),
        "gpu.persistence": Persistence(on=True, virtual=False),
        "gpu.mig": (False, False),
        "gpu.compute_mode": "default",
        "gpu.use": Use((), 0, apart=True),
        "gpu.firmware": Firmware(h100, firmware),
        "nvlink.links": links,
    }
    return {
        **{fact: dict.fromkeys(range(count), value) for fact, value in of_each.items()},
        "nvlink.pairs": {
            index: dict.fromkeys(range(index + 1, count), 0) for index in range(count)
        },
        "gpu.functions": tuple(
            Function(f"0000:{i:02x}:00.0", False, i // 4, False) for i in range(count)
        ),
        "gpu.nodes": DeviceNodes(
            dict.fromkeys(range(count), "open"), tuple(f"0000:{i:02x}:00.0" for i in range(count))
        ),
        "gpu.listed": Listed(count),
        "gpu.gone": Gone(),
        "gpu.fabric_state": FabricState(
            fabric, FabricManager("loaded", "active", None), "550.54.15"
        ),
        "nv.library": Library(
            "550.54.15", {"/usr/lib64/libnvidia-ml.so.1": "550.54.15"}, refused=False, works=True
        ),
    }


def _address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256}"


def with_facts(seen: Fleet, changed: Mapping[tuple[str, str], Any]) -> Fleet:
    """The fleet with other values for some (node, fact)."""
    snapshots = dict(seen.snapshots)
    for (name, fact), value in changed.items():
        snapshots[name] = replace(snapshots[name], facts={**snapshots[name].facts, fact: value})
    return replace(seen, snapshots=snapshots)


def learned(fact: str, *answers: Any, **settings: Any) -> Any:
    """What a fact becomes of raw answers, one for each of its reads.

    ["ok", value] or ["no", reason, why]. `settings` are fields of the node.
    """
    node = Node("n1", "10.0.0.1", 0, **settings)
    inventory = Inventory("test", (node,))
    plan = QueryPlan((), (registry.facts()[fact],))
    return interpret(
        plan, node, inventory, dict(zip(reads(plan, node, inventory), answers, strict=True))
    )[fact]


def absent(reason: str = "denied", detail: str = "EACCES") -> Absent:
    return Absent(reason, detail)
