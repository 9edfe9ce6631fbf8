"""What all-reduces should reach.

The published figures within a stated band, and no guess where there is none.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from clusterprep.facts.gpu import Gpu, Model, Nvml
from clusterprep.facts.nvlink import NvLinks
from clusterprep.facts.nvlink_domain import ALONE, Domain
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.rdma import Port, RdmaDevice
from clusterprep.jobs.verify.hardware_model import Expected, expected
from clusterprep.model import Absent, Fleet, Gpus
from tests import machines as fleets
from tests.machines import play
from tests.support.fleet import absent, env, eth, fleet

# Published over expected; above one are two nodes, where NVLS or trees need fewer bytes of the
# cards.
BAND = (0.85, 1.25)
NONE = Absent("not_applicable", "this GPU has no NVLink")

MODELS = {
    "V100": ("7.0", "Tesla V100-SXM2-32GB"),
    "A100": ("8.0", "NVIDIA A100-SXM4-80GB"),
    "A6000": ("8.6", "NVIDIA RTX A6000"),
    "H100": ("9.0", "NVIDIA H100 80GB HBM3"),
    "H100 NVL": ("9.0", "NVIDIA H100 NVL"),
    "H200": ("9.0", "NVIDIA H200"),
    "B200": ("10.0", "NVIDIA B200"),
    "GB200": ("10.0", "NVIDIA GB200"),
    "B300": ("10.3", "NVIDIA B300 SXM6 AC"),
    "B400": ("11.0", "NVIDIA B400"),
    "GB300": ("10.3", "NVIDIA GB300"),
    "L40S": ("8.9", "NVIDIA L40S"),
    "GB10": ("12.1", "NVIDIA GB10"),
}


def facts(
    gpu: str,
    gpus: int,
    links: Any,
    cards: int = 0,
    gbits: float = 0,
    speed: int | None = None,
    gen: float = 32.0,
) -> dict[str, Any]:
    """Of one node: `links` is the number of NVLinks through a switch, Links, or Absent."""
    capability, name = MODELS[gpu]
    if isinstance(links, int):
        links = NvLinks(tuple(range(links)), (), True, ())
    slot = PciLink(16, 16, gen, gen)
    devices = [PciDevice(f"0000:{n:02x}:00.0", True, "0x10de", slot) for n in range(gpus)]
    devices += [PciDevice(f"0001:{n:02x}:00.0", False, "0x15b3", slot) for n in range(cards)]
    port = Port(1, "ACTIVE", "LinkUp", "InfiniBand", gbits, 7)
    return {
        "gpu.model": {n: Model(name, 80 << 30, capability) for n in range(gpus)},
        "nvlink.links": links if isinstance(links, Absent) else dict.fromkeys(range(gpus), links),
        "pci.tree": PciTree(tuple(devices), {}),
        "rdma.devices": tuple(
            RdmaDevice(f"mlx5_{n}", f"0001:{n:02x}:00.0", None, None, None, (), (port,))
            for n in range(cards)
        ),
        "net.interfaces": (eth("eth0", "10.0.0.1/16", speed=speed),),
    }


RACK_1 = Domain("9c6f5af3-53bf-49b5-a436-b66766c413c3", 32766)
RACK_2 = Domain("dc6e40c4-d722-4357-9ba6-5291dd461278", 32766)


def in_rack(gpu: str, domain: Domain = RACK_1) -> dict[str, Any]:
    """A tray with four cards of 400 Gbit/s, in a domain of several nodes."""
    return {**facts(gpu, 4, 18, 4, 400), "nvlink.domain": dict.fromkeys(range(4), domain)}


def of(
    nodes: int, ranks: int, told: dict[str, Any], env: dict[str, str] | None = None, **other: Any
) -> Expected:
    seen = fleet(**{f"n{n}": dict(told) for n in range(1, nodes + 1)}, **other)
    names = [node.name for node in seen.reached]
    return expected(seen, dict.fromkeys(names, ranks), dict.fromkeys(names, env or {}))


def peers(count: int, links: int) -> NvLinks:
    return NvLinks(
        tuple(range(links)), (), False, tuple(f"0000:{n:02x}:00.0" for n in range(count))
    )


# GB/s; what was measured, or the least that an operator accepts of healthy machines («floor»).
PUBLISHED = [
    ("8 V100 SXM2, floor of Azure NDv2", 110, 1, 8, facts("V100", 8, peers(4, 6), gen=8.0)),
    ("8 A100 SXM, stas00/ml-engineering", 235, 1, 8, facts("A100", 8, 12)),
    ("8 A100 SXM, floor of Azure", 228, 1, 8, facts("A100", 8, 12)),
    ("2 H100 NVL with a bridge, floor of Azure", 208, 1, 2, facts("H100 NVL", 2, peers(1, 12))),
    ("8 H100 SXM, floor of Azure", 460, 1, 8, facts("H100", 8, 18)),
    ("8 H200 SXM, ml-engineering, 16 GiB", 480, 1, 8, facts("H200", 8, 18)),
    ("8 H200 SXM, floor of Azure", 431, 1, 8, facts("H200", 8, 18)),
    ("4 of 8 H200, ml-engineering", 363, 1, 4, facts("H200", 8, 18)),
    ("5 of 8 H200, ml-engineering", 414, 1, 5, facts("H200", 8, 18)),
    ("6 of 8 H200, ml-engineering", 436, 1, 6, facts("H200", 8, 18)),
    ("7 of 8 H200, ml-engineering", 460, 1, 7, facts("H200", 8, 18)),
    ("8 B200, ml-engineering", 838, 1, 8, facts("B200", 8, 18)),
    ("8 B300, floor of operators", 700, 1, 8, facts("B300", 8, 18)),
    ("a GB200 tray, operators", 770, 1, 4, facts("GB200", 4, 18)),
    ("a GB200 rack at 1 GiB, coreweave/nccl-tests#43", 681, 18, 4, in_rack("GB200")),
    ("a GB200 rack at 4 GiB, coreweave/nccl-tests#43", 839, 18, 4, in_rack("GB200")),
    ("two GB200 trays, operators", 843, 2, 4, in_rack("GB200")),
    ("two GB300 trays, as GB200", 843, 2, 4, in_rack("GB300")),
    (
        "A100, 16 ports of 100 Gbit/s, floor of OCI",
        185,
        2,
        8,
        facts("A100", 8, 12, 16, 100, gen=16.0),
    ),
    ("H100, 8 ports of 400 Gbit/s, floor of OCI", 440, 2, 8, facts("H100", 8, 18, 8, 400)),
    ("8 NDR ports, nccl-tests#290, low", 370, 4, 8, facts("H100", 8, 18, 8, 400)),
    ("8 NDR ports, nccl-tests#290, high", 390, 4, 8, facts("H100", 8, 18, 8, 400)),
    ("4 p5en with EFA, ml-engineering", 364.9, 4, 8, facts("H200", 8, 18, 16, 200)),
    ("4 B200 nodes, ml-engineering", 381.8, 4, 8, facts("B200", 8, 18, 8, 400)),
    ("A100, 4 HDR ports, 3 nodes", 90, 3, 8, facts("A100", 8, 12, 4, 200, gen=16.0)),
    ("TCP at 25 Gbit/s, low", 2.0, 2, 1, facts("L40S", 1, NONE, speed=25_000)),
    ("TCP at 25 Gbit/s, high", 2.5, 2, 1, facts("L40S", 1, NONE, speed=25_000)),
    ("TCP at 100 Gbit/s, high", 10.0, 2, 1, facts("L40S", 1, NONE, speed=100_000)),
]


@pytest.mark.parametrize(
    ("what", "figure", "nodes", "ranks", "told"), PUBLISHED, ids=[row[0] for row in PUBLISHED]
)
def test_published_figures_are_within_the_band(
    what: str, figure: float, nodes: int, ranks: int, told: Any
) -> None:
    found = of(nodes, ranks, told)
    assert found.gbs is not None, found.why
    low, high = BAND
    assert low <= figure / found.gbs <= high, (
        f"{what}: {figure} published, {found.gbs:.0f} expected"
    )


@pytest.mark.parametrize(
    ("figure", "nodes", "ranks", "told", "env"),
    [
        pytest.param(
            367, 1, 8, facts("H200", 8, 18), {"NCCL_NVLS_ENABLE": "0"}, id="8-H200-in-a-ring"
        ),
        pytest.param(
            682, 1, 8, facts("B200", 8, 18), {"NCCL_NVLS_ENABLE": "0"}, id="8-B200-in-a-ring"
        ),
    ],
)
def test_without_the_switch_it_is_a_ring(
    figure: float, nodes: int, ranks: int, told: Any, env: dict[str, str]
) -> None:
    assert of(nodes, ranks, told, env).gbs == pytest.approx(figure, rel=0.05)


def test_no_healthy_machine_of_the_table_would_be_accused() -> None:
    """Half of what is expected is an error and four fifths a warning.

    No published figure is under either.
    """
    assert (
        min(
            figure / (of(nodes, ranks, told).gbs or 0)
            for _, figure, nodes, ranks, told in PUBLISHED
        )
        > 0.8
    )


# ---------------------------------------------------------------- what is not known

UNKNOWN = [
    (1, 4, facts("A100", 4, peers(1, 12), gen=16.0), "joins only pairs of GPUs on n1"),
    (2, 4, facts("L40S", 4, NONE, 1, 100, gen=16.0), "by PCIe alone"),
    (1, 8, facts("B400", 8, 18), "nothing is published about the NVLink of NVIDIA B400"),
    (2, 8, facts("B300", 8, 18, 8, 800, gen=64.0), "RDMA ports of 800 Gbit/s"),
    (1, 8, facts("H100", 8, absent("hung")), "the NVLinks of n1 are not known: hung"),
    (
        1,
        8,
        {**facts("H100", 8, 18), "gpu.model": absent("denied")},
        "the GPUs of n1 are not known: denied",
    ),
    (
        2,
        8,
        {**facts("H100", 8, 18), "rdma.devices": absent("garbled")},
        "cards of n1 are not known: garbled",
    ),
    (
        2,
        8,
        facts("H100", 8, 18, speed=200_000),
        r"sockets reach on eth0 \(200 Gbit/s\) has no figure",
    ),
    (2, 8, facts("H100", 8, 18), "the speed of the interface of n1 is not known"),
    (
        2,
        8,
        facts("H100", 8, 18) | {"net.interfaces": absent("hung")},
        "the speed of the interface of n1 is not known",
    ),
    (1, 1, facts("H100", 8, 18), "one rank alone"),
]


@pytest.mark.parametrize(("nodes", "ranks", "told", "why"), UNKNOWN)
def test_what_has_no_figure_is_not_guessed(
    nodes: int, ranks: int, told: dict[str, Any], why: str
) -> None:
    found = of(nodes, ranks, told)
    assert found.gbs is None
    assert re.search(why, found.why)


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE"])
def test_what_changes_the_algorithm_is_not_modelled(name: str) -> None:
    assert of(1, 8, facts("H100", 8, 18), {name: "1"}) == Expected(
        None, f"{name} is set, which the hardware model does not know"
    )


def test_a_network_plug_in_is_not_modelled() -> None:
    assert (
        "FasTrak is a plug-in"
        in of(2, 8, facts("H100", 8, 18, 8, 400), {"NCCL_NET": "FasTrak"}).why
    )


def test_gpus_of_several_models_are_not_modelled() -> None:
    told = facts("H100", 8, 18)
    told["gpu.model"] = {**told["gpu.model"], 3: Model("NVIDIA H200", 141 << 30, "9.0")}
    assert "several models" in of(1, 8, told).why


def test_only_the_gpus_in_use_count() -> None:
    told = facts("H100", 8, 18)
    told["gpu.model"] = {**told["gpu.model"], 3: Model("NVIDIA H200", 141 << 30, "9.0")}
    found = of(1, 2, told, each={"gpus": Gpus(8, None, (0, 1))})
    assert found.gbs == pytest.approx(0.79 * 450)


# ---------------------------------------------------------------- the slowest part


@pytest.mark.parametrize(
    ("ranks", "told", "env", "gbs", "why"),
    [
        pytest.param(
            8, facts("H100", 8, 18, 8, 400), {}, 368, "8 RDMA ports of 400 Gbit/s", id="cards"
        ),
        pytest.param(8, facts("H100", 8, 8, 8, 400), {}, 158, "8 NVLinks of 25 GB/s", id="nvlink"),
        pytest.param(
            1,
            facts("H100", 8, 18, 8, 400, gen=16.0),
            {},
            29,
            "PCIe of 1 GPUs",
            id="pcie-of-the-gpu",
        ),
        pytest.param(
            8,
            facts("H100", 8, 18, 8, 400, gen=16.0),
            {},
            232,
            "8 RDMA ports of 252",
            id="pcie-of-cards",
        ),
        pytest.param(
            8,
            facts("H100", 8, 18, 8, 400, 25_000),
            {"NCCL_IB_DISABLE": "1"},
            2.2,
            "TCP",
            id="rdma-switched-off",
        ),
        pytest.param(
            8,
            facts("H100", 8, 18, 8, 400, 25_000),
            {"NCCL_NET": "Socket"},
            2.2,
            "TCP",
            id="sockets",
        ),
    ],
)
def test_the_slowest_part_decides(
    ranks: int, told: Any, env: dict[str, str], gbs: float, why: str
) -> None:
    found = of(2, ranks, told, env)
    assert found.gbs == pytest.approx(gbs, rel=0.03)
    assert why in found.why


def test_a_card_that_came_up_slow_is_not_what_is_normal() -> None:
    good, bad = facts("H100", 8, 18, 8, 400), facts("H100", 8, 18, 8, 100)
    assert expected(
        fleet(n1=good, n2=bad, n3=good), {"n1": 8, "n2": 8, "n3": 8}, {}
    ).gbs == pytest.approx(368)


def machines(kind: str) -> Fleet:
    return play.world(kind).fleet


@pytest.mark.parametrize(
    ("env", "second", "gbs", "why"),
    [
        pytest.param({}, RACK_1, 711, "18 NVLinks of 50 GB/s in a ring", id="one-domain"),
        pytest.param({}, RACK_2, None, "several NVLink domains", id="two-racks"),
        pytest.param({}, ALONE, 184, "4 RDMA ports", id="one-is-in-none"),
        pytest.param({"NCCL_MNNVL_ENABLE": "0"}, RACK_1, 184, "4 RDMA ports", id="switched-off"),
        pytest.param({"NCCL_CUMEM_ENABLE": "0"}, RACK_1, 184, "4 RDMA ports", id="no-cumem"),
    ],
)
def test_nvlink_between_nodes_takes_the_place_of_cards(
    env: dict[str, str], second: Domain, gbs: float | None, why: str
) -> None:
    seen = fleet(
        n1=in_rack("GB200", RACK_1 if second != ALONE else ALONE), n2=in_rack("GB200", second)
    )
    found = expected(seen, {"n1": 4, "n2": 4}, dict.fromkeys(("n1", "n2"), env))
    assert found.gbs == (None if gbs is None else pytest.approx(gbs, rel=0.01))
    assert why in found.why


def spark(*functions: str) -> dict[str, Any]:
    """A DGX Spark with RDMA devices on these PCIe functions of x4."""
    told = facts("GB10", 1, NONE)
    narrow = PciLink(4, 4, 32.0, 32.0)
    port = Port(1, "ACTIVE", "LinkUp", "Ethernet", 200, 4)
    gpu = PciDevice("000f:01:00.0", True, "0x10de", PciLink(1, 1, 2.5, 2.5))
    cards = [PciDevice(at, False, "0x15b3", narrow) for at in functions]
    told["gpu.nvml"] = Nvml("580.126.09", "13.0", (Gpu(0, "NVIDIA GB10", "GPU-0", gpu.at),))
    told["pci.tree"] = PciTree((gpu, *cards), {})
    told["rdma.devices"] = tuple(
        RdmaDevice(f"rocep{n}", at, None, None, None, (), (port,)) for n, at in enumerate(functions)
    )
    return told


@pytest.mark.parametrize(
    ("functions", "figure", "gbs"),
    [
        pytest.param(("0000:01:00.0",), 12.25, 14.5, id="one-function"),
        pytest.param(("0000:01:00.0", "0002:01:00.0"), 20.1, 23, id="both-of-a-port"),
        pytest.param(("0000:01:00.0", "0002:01:00.0"), 23.74, 23, id="both-of-a-port-2.28.9"),
    ],
)
def test_two_functions_of_a_spark_share_a_port(
    functions: tuple[str, ...], figure: float, gbs: float
) -> None:
    """tonyd2wild#35: 98 Gbit/s over one and 161 over both; dgx-spark-playbooks#103: 23.74 GB/s."""
    found = of(2, 1, spark(*functions))
    assert found.gbs == pytest.approx(gbs, rel=0.01)
    assert figure / found.gbs > 0.8


KINDS = {
    "a100-4hdr": 92, "a100-slurm-job": 92, "azure-nd-h100": 368, "azure-ndv2-vm": 11.5,
    "bonded-frontend": 184, "dgx-h200": 368, "dual-port-hca": 46, "gb10-spark": 23,
    "gb200-tray": 711,
    "gb300-nvl72": 711, "gcp-a3-ultra-vm": 368, "gh200": 46, "h800": 158, "oci-h100-roce": 368,
    "p4d-efa-vm": 46, "p5en-efa-vm": 368, "p6-b200-vm": 368, "hgx-b200": 368, "hgx-h100-ib": 368,
    "hgx-h100-roce": 368, "k8s-pod": 368, "ordinary-user": 368, "p5-efa-vm": 368,
    "roce-lag": 184, "storage-hcas": 368, "v100-dgx1": 46,
}  # fmt: skip


NO_GPUS = {"alpine-openrc", "arm-cpu-efa", "cpu-only"}


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize("kind", sorted({*fleets.names()} - NO_GPUS))
def test_described_machines(kind: str) -> None:
    """By hand: number of training ports × rate × 0.92, or NVLink where that is slower.

    All others are not known.
    """
    seen = machines(kind)
    ranks = {node.name: node.gpus.used if node.gpus else 1 for node in seen.reached}
    found = expected(seen, ranks, {})
    assert found.gbs == (pytest.approx(KINDS[kind]) if kind in KINDS else None), found.why
    assert found.why


def test_nodes_that_share_one_gpu_have_no_normal_speed() -> None:
    told = facts("H100", 1, 18, cards=1, gbits=400)
    ids = {f"n{n}": {"transport": "local", "env": env(NCCL_HOSTID=f"n{n}")} for n in (1, 2)}
    assert of(2, 1, told).gbs is not None
    assert of(2, 1, told, some=ids) == Expected(
        None, "2 nodes share one GPU, whose ranks take turns"
    )
    apart = expected(
        fleet(some=ids, n1=told, n2=told), {"n1": 1, "n2": 1}, {"n2": {"CUDA_VISIBLE_DEVICES": "1"}}
    )
    assert apart.gbs is not None
