"""Three A6000 in one node with Linux 5.4: the trainer's start hangs, and a broadcast times out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.incidents.families import FAMILIES
from tests.incidents.sizes import FLOAT32, tried
from tests.machines import tree
from tests.support.command import clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

SEATS = ("0000:17:00.0", "0000:65:00.0", "0000:b3:00.0")
LINK = {"max_link_width": 16, "current_link_width": 16}
SPEED = {"max_link_speed": "16.0 GT/s PCIe", "current_link_speed": "2.5 GT/s PCIe"}
A6000 = {"name": "NVIDIA RTX A6000", "capability": "8.6", "memory": 49140}


def buses() -> list[dict[str, object]]:
    """Each GPU below a root port of its own; that in the second slot came up with eight lanes."""
    found: list[dict[str, object]] = []
    for number, seat in enumerate(SEATS):
        root = f"{seat[:8]}01.0".replace(seat[5:7], f"{int(seat[5:7], 16) - 1:02x}")
        bridge = {
            "at": root,
            "class": "0x060400",
            "vendor": "0x8086",
            "device": "0x347a",
            **LINK,
            **SPEED,
        }
        gpu = {
            "at": seat,
            "parent": root,
            "class": "0x030000",
            "vendor": "0x10de",
            "device": "0x2230",
            **LINK,
            **SPEED,
        }
        found += [bridge, {**gpu, "current_link_width": 8} if number == 1 else gpu]
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two of the three GPUs share a bridge of four links, of which one is down on one side."""
    from tests.support.lab.fixtures import require_lab

    require_lab()
    with Lab(1, ipv6=request.param) as one:
        host = one.hosts[0]
        peers = [[{"type": "gpu", "pci": other}] * 4 for other in (SEATS[1], SEATS[0])]
        links = [peers[0], [*peers[1][:3], "down"], []]
        described = [
            {"model": "l40s", **A6000, "pci": seat, "numa": 0, "nvlink": nvlink}
            for seat, nvlink in zip(SEATS, links, strict=True)
        ]
        faults.gpus(host, described, bus=False)
        faults.sys_tree(host, *tree.pci(buses()))
        faults.file_over(host, "/proc/sys/kernel/osrelease", "5.4.0-150-generic\n")
        yield one


def test_what_people_are_told_to_look_at_is_looked_at(lab: Lab) -> None:
    answer = clusterprep(
        lab, "check", "--only", "kernel.version,pcie.,nvl.", inventory=lab.inventory(gpus=3)
    )
    (old,) = answer.findings("kernel.version")
    assert (old["seen"], old["wanted"]) == ("5.4.0-150-generic", ">=5.5")
    (narrow,) = answer.findings("pcie.width")
    assert SEATS[1] in narrow["seen"]
    assert "8" in narrow["seen"]
    assert answer.blamed("nvl.state") == ["n1"]
    assert "GPU 1" in str(answer.findings("nvl.state"))


SET_BY_HAND = """\
export NCCL_BLOCKING_WAIT=1
export NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_IB_DISABLE=1
export NCCL_SOCKET_IFNAME=eth0
export NCCL_DEBUG=INFO
"""


def test_the_old_names_that_people_set_are_told_their_new_ones(lab: Lab) -> None:
    planted = faults.written(lab.hosts[0], "/root/.bashrc", SET_BY_HAND)
    try:
        answer = clusterprep(
            lab, "check", "--only", "env.deprecated", inventory=lab.inventory(gpus=3)
        )
    finally:
        planted.undo()
    found = {
        finding["seen"].split("=")[0]: finding for finding in answer.findings("env.deprecated")
    }
    assert {name: finding["wanted"] for name, finding in found.items()} == {
        "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
        "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }
    assert {finding["severity"] for finding in found.values()} == {"warning"}
    assert all("renamed in torch 2.2" in finding["message"] for finding in found.values())


def test_apply_writes_the_names_that_this_torch_reads(lab: Lab) -> None:
    planted = faults.written(lab.hosts[0], "/root/.bashrc", SET_BY_HAND)
    try:
        answer = clusterprep(
            lab, "apply", "--no-verify", "--only", "env.", inventory=lab.inventory(gpus=3)
        )
    finally:
        planted.undo()
    values = {row["name"]: row["value"] for row in answer.report["env"]}
    assert values["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert (
        not {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DEBUG_SUBSYS"} & values.keys()
    )
    assert "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1" in lab.hosts[0].read(
        "/etc/profile.d/clusterprep-nccl.sh"
    )
    told = {finding["seen"].partition("=")[0] for finding in answer.findings("env.shadow")}
    assert told == {"NCCL_DEBUG"}  # the one name of these that apply writes too, with another value
    assert clusterprep(lab, "rollback", inventory=lab.inventory(gpus=3)).code == 0


RANKS, SENT = 3, 253_440_000  # elements of the broadcast that timed out


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "timeout"),
    [
        # What fits is reckoned from the speed of a moment before: a longer limit bears more that
        # changes meanwhile.
        pytest.param(None, 60, id="as-much-as-the-limit-lets", marks=pytest.mark.timeout(300)),
        pytest.param(
            "only",
            60,
            id="over-ipv6",
            marks=[pytest.mark.slow, pytest.mark.timeout(300)],
        ),
        pytest.param(
            None,
            100,
            id="all-of-it-where-memory-allows",
            marks=[pytest.mark.slow, pytest.mark.timeout(300)],
        ),
    ],
)
def test_verify_broadcasts_what_this_job_broadcast_and_starts_in_time(
    make_lab: Callable[..., Lab], family: str | None, timeout: int
) -> None:
    """On processors, for there are no such cards here: three ranks of one node, as there."""
    lab = make_lab(1, ipv6=family)
    settings = {"sizes": ["8", "1M"], "timeout": timeout}
    found = clusterprep(
        lab,
        "verify",
        "--incident-sizes",
        inventory=lab.inventory(verify=settings, nproc_per_node=RANKS),
    )
    assert found.report["verify"]["world_size"] == RANKS
    sent = tried(found, "broadcast", SENT)
    assert sent > 1 << 20
    if timeout > 60 and sent < SENT * FLOAT32:
        assert "memory" in found.report["verify"]["message"].split("broadcast ")[1]
    (started,) = found.findings("nccl.init_time", "pass")
    assert started["wanted"] == "< 60 s"
    assert 0 < float(started["seen"].removesuffix(" s")) < 60
    assert found.blamed("nccl.broadcast", "pass") == ["n1"]
