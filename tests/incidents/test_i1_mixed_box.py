"""One node, the job on GPUs 6,7,8,9 of a mixed box, an RDMA card that is not configured.

A LoRA run hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.incidents.families import FAMILIES
from tests.machines import tree
from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

# Six L40S, two of them on the second socket, and four L20 that share the sockets in halves.
SEATS = [
    ("l40s", f"0000:{bus:02x}:00.0", int(bus > 0x50))
    for bus in (0x16, 0x17, 0x38, 0x39, 0x98, 0x99)
]
SEATS += [
    ("l20", "0000:3a:00.0", 0),
    ("l20", "0000:3b:00.0", 0),
    ("l20", "0000:9a:00.0", 1),
    ("l20", "0000:9b:00.0", 1),
]
CARD = {
    "at": "0000:03:00.0",
    "class": "0x020700",
    "vendor": "0x15b3",
    "device": "0x1017",
    "numa_node": 0,
}
PORT = {
    "state": "1: DOWN",
    "phys_state": "3: Disabled",
    "rate": "10 Gb/sec (4X SDR)",
    "link_layer": "InfiniBand",
}


def box(lab: Lab) -> None:
    """NVML and the bus show ten GPUs.

    The RDMA card has a driver and a port without a cable or an address.
    """
    host = lab.hosts[0]
    faults.gpus(host, [{"model": model, "pci": at, "numa": numa} for model, at, numa in SEATS])
    files, links = tree.pci([CARD])
    device = {
        "pci": CARD["at"],
        "fw_ver": "16.35.3006",
        "board_id": "MT_0000000008",
        "ports": {1: PORT},
    }
    more, further = tree.rdma({"mlx5_0": device}, links)
    faults.sys_tree(host, {**files, **more}, {**links, **further})


@pytest.fixture(scope="module", params=FAMILIES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    from tests.support.lab.fixtures import require_lab

    require_lab()
    with Lab(1, ipv6=request.param) as one:
        box(one)
        yield one


def check(lab: Lab, **declared: Any) -> Answer:
    return clusterprep(lab, "check", "--only", "gpu.,ib.", inventory=lab.inventory(**declared))


def test_mixed_models_and_the_dead_card_are_named_before_the_start(lab: Lab) -> None:
    answer = check(lab, gpus=10)
    assert answer.code == 1
    (mixed,) = answer.findings("gpu.model_mix")
    assert "L40S" in mixed["seen"]
    assert "L20" in mixed["seen"]
    (card,) = answer.findings("ib.configured")
    assert (card["nodes"], card["severity"]) == (["n1"], "error")
    assert "mlx5_0" in card["seen"]


def test_the_four_alike_span_the_sockets_and_that_is_said(lab: Lab) -> None:
    """Declared as the job has it, the four are of one model; what is left is where they sit."""
    answer = check(lab, gpus={"count": 10, "use": "6-9"})
    assert answer.findings("gpu.model_mix") == []
    (spread,) = answer.findings("gpu.numa_span")
    assert "NUMA 0: GPU 6,7" in spread["seen"]
    assert "NUMA 1: GPU 8,9" in spread["seen"]


def test_apply_tells_nccl_to_leave_the_card_alone(lab: Lab) -> None:
    inventory = lab.inventory(gpus={"count": 10, "use": "6-9"}, nproc_per_node=4)
    answer = clusterprep(lab, "apply", "--no-verify", "--only", "ib.", inventory=inventory)
    values = {row["name"]: row for row in answer.report["env"]}
    assert values["NCCL_IB_DISABLE"]["value"] == "1"
    assert "RDMA" in values["NCCL_IB_DISABLE"]["why"]
    assert values["CUDA_VISIBLE_DEVICES"]["value"] == "6,7,8,9"
    assert values["NCCL_SOCKET_IFNAME"]["value"] == "eth0"
    assert "NCCL_P2P_DISABLE" not in values  # it is not shown that peer access fails
    assert all(row["why"] for row in values.values())
    (cured,) = answer.findings("ib.configured")
    assert cured["fixed"]
    assert check(lab, gpus={"count": 10, "use": "6-9"}).findings("ib.configured") == []


def test_without_a_declaration_the_session_says_which_devices_the_job_has(lab: Lab) -> None:
    """The user's own shell has the list that the story is about, and nothing is declared."""
    faults.session_environment(lab.hosts[0], {"CUDA_VISIBLE_DEVICES": "6,7,8,9"})
    answer = clusterprep(
        lab, "check", "--only", "gpu.,env.cuda_visible", inventory=lab.inventory(gpus=10)
    )
    (listed,) = answer.findings("env.cuda_visible")
    assert (listed["severity"], listed["seen"]) == ("warning", "6,7,8,9")
    (spread,) = answer.findings("gpu.numa_span")
    assert spread["seen"] == "NUMA 0: GPU 6,7; NUMA 1: GPU 8,9"
    (mixed,) = answer.findings("gpu.model_mix")
    assert 'use: "6,7,8,9"' in mixed["remedy"]
    places = [
        (row["rank"], row["gpu"]["index"], row["gpu"]["pci"], row["gpu"]["numa"])
        for row in answer.report["ranks"]
    ]
    assert places == [
        (0, 6, "0000:3a:00.0", 0),
        (1, 7, "0000:3b:00.0", 0),
        (2, 8, "0000:9a:00.0", 1),
        (3, 9, "0000:9b:00.0", 1),
    ]
    assert len({row["gpu"]["uuid"] for row in answer.report["ranks"]}) == 4
    assert [(row["model"], row["numa"]) for row in answer.report["gpus"]][5:7] == [
        ("NVIDIA L40S", 1),
        ("NVIDIA L20", 0),
    ]
