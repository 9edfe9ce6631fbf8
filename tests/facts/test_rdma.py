"""RDMA devices, character devices, modules and settings, and answers that are cut or garbled."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

import pytest

from clusterprep.facts.rdma import Gid, Port, Rail, RdmaDevice, Verbs
from clusterprep.model import Absent
from tests.support.fleet import learned

LINK_LOCAL = "fe80:0000:0000:0000:9e63:c0ff:fef7:0107"
IPV4 = "0000:0000:0000:0000:0000:ffff:c0a8:0101"
IB = {"lid": "0x1a", "gids": []}
EN = {"lid": None, "gids": [[0, LINK_LOCAL, "IB/RoCE v1", "eth2"], [3, IPV4, "RoCE v2", "eth2"]]}


def files(device: str = "mlx5_0", port: int = 1, **texts: str) -> dict[str, str]:
    shown = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
        **texts,
    }
    return {
        f"/sys/class/infiniband/{device}/ports/{port}/{key}": text for key, text in shown.items()
    }


def row(**ports: Any) -> dict[str, Any]:
    return {
        "fw_ver": "28.39.1002",
        "board_id": "MT_0000000838",
        "hca_type": "MT4129",
        "node_type": "1: CA",
        "pci": "0000:18:00.0",
        "net": ["ib0"],
        "ports": {key.strip("p"): value for key, value in ports.items()},
    }


def devices(shown: dict[str, str], tree: dict[str, Any]) -> Any:
    return learned("rdma.devices", ["ok", shown], ["ok", tree])


def test_an_infiniband_card() -> None:
    port = Port(1, "ACTIVE", "LinkUp", "InfiniBand", 400.0, 26)
    card = RdmaDevice(
        "mlx5_0", "0000:18:00.0", "28.39.1002", "MT_0000000838", "MT4129", ("ib0",), (port,)
    )
    assert devices(files(), {"mlx5_0": row(p1=IB)}) == (card,)
    assert port.active
    assert port.addressed


def test_devices_come_in_the_kernels_order() -> None:
    names = ["mlx5_10", "mlx5_2", "mlx5_1"]
    shown = {path: text for name in names for path, text in files(name).items()}
    found = devices(shown, {name: row(p1=IB) for name in names})
    assert [device.name for device in found] == ["mlx5_1", "mlx5_2", "mlx5_10"]


def test_ports_come_in_the_order_of_their_numbers() -> None:
    shown = {**files(port=2, state="1: DOWN"), **files(port=1)}
    (card,) = devices(shown, {"mlx5_0": row(p2=IB, p1=IB)})
    assert [(port.number, port.active) for port in card.ports] == [(1, True), (2, False)]


def test_a_roce_port_has_its_table_of_addresses() -> None:
    (card,) = devices(files(link_layer="Ethernet"), {"mlx5_0": row(p1=EN)})
    (port,) = card.ports
    assert port.gids == (
        Gid(0, IPv6Address("fe80::9e63:c0ff:fef7:107"), "IB/RoCE v1", "eth2"),
        Gid(3, IPv6Address("::ffff:192.168.1.1"), "RoCE v2", "eth2"),
    )
    assert [entry.ipv4 for entry in port.gids] == [None, "192.168.1.1"]
    assert port.addressed


@pytest.mark.parametrize(
    ("texts", "port", "active", "addressed"),
    [
        pytest.param(
            {"state": "1: DOWN", "phys_state": "2: Polling"},
            {**IB, "lid": "0x0"},
            False,
            False,
            id="no-cable",
        ),
        pytest.param(
            {"state": "2: INIT"}, {**IB, "lid": "0x0"}, False, False, id="no-subnet-manager"
        ),
        pytest.param(
            {"state": "1: DOWN", "phys_state": "3: Disabled"}, IB, False, True, id="disabled"
        ),
        pytest.param({"state": "3: ARMED"}, IB, False, True, id="armed"),
        pytest.param({"state": "5: ACTIVE_DEFER"}, IB, False, True, id="active-and-waiting"),
        pytest.param({"phys_state": "6: LinkErrorRecovery"}, IB, False, True, id="recovering"),
        pytest.param(
            {"link_layer": "Ethernet"},
            {**EN, "gids": EN["gids"][:1]},
            True,
            False,
            id="link-local-only",
        ),  # type: ignore[index]
        pytest.param({"link_layer": "Ethernet"}, {**EN, "gids": []}, True, False, id="no-gid"),
        pytest.param({"link_layer": "Unspecified"}, {**EN, "gids": []}, True, True, id="efa"),
        pytest.param({}, {**IB, "lid": None}, True, False, id="a-lid-that-was-not-read"),
    ],
)
def test_active_and_addressed(
    texts: dict[str, str], port: Any, active: bool, addressed: bool
) -> None:
    (card,) = devices(files(**texts), {"mlx5_0": row(p1=port)})
    assert (card.ports[0].active, card.ports[0].addressed) == (active, addressed)


def test_a_card_without_a_place_firmware_or_make() -> None:
    odd = {**row(p1=IB), "pci": "mlx5_core", "fw_ver": None, "board_id": "", "hca_type": None}
    (card,) = devices(files(), {"mlx5_0": odd})
    assert (card.pci, card.firmware, card.board, card.model) == (None, None, None, None)


def test_iwarp_is_told_from_roce() -> None:
    (card,) = devices(
        files(link_layer="Ethernet"), {"mlx5_0": {**row(p1=EN), "node_type": "4: RNIC"}}
    )
    assert card.iwarp


def test_no_rdma_is_an_answer() -> None:
    assert devices({}, {}) == ()


@pytest.mark.parametrize(
    ("shown", "tree"),
    [
        pytest.param({}, {"mlx5_0": row(p1=IB)}, id="no-state"),
        pytest.param(files(), {}, id="went-in-between"),
        pytest.param(files(state="ACTIVE"), {"mlx5_0": row(p1=IB)}, id="state-without-number"),
        pytest.param(files(state=""), {"mlx5_0": row(p1=IB)}, id="state-empty"),
        pytest.param(files(rate="fast"), {"mlx5_0": row(p1=IB)}, id="rate-in-words"),
        pytest.param(files(), {"mlx5_0": row(p1={**IB, "lid": "x"})}, id="lid"),
        pytest.param(
            files(),
            {"mlx5_0": row(p1={"lid": None, "gids": [[0, "fe80", None, None]]})},
            id="gid-cut",
        ),
        pytest.param(files(), {"mlx5_0": {}}, id="another-shape"),
        pytest.param(files(), None, id="nothing"),
        pytest.param([], {}, id="a-list-of-files"),
    ],
)
def test_what_is_not_understood_is_garbled(shown: Any, tree: Any) -> None:
    found = devices(shown, tree)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


def test_a_port_without_phys_state_is_not_taken_as_up() -> None:
    shown = {path: text for path, text in files().items() if not path.endswith("phys_state")}
    assert devices(shown, {"mlx5_0": row(p1=IB)}).reason == "garbled"


# ---------------------------------------------------------------- who may open them


def uverbs(mode: int, uid: int = 0, gid: int = 0) -> dict[str, Any]:
    return {"name": "uverbs0", "device": "mlx5_0", "mode": 0o020000 | mode, "uid": uid, "gid": gid}


@pytest.mark.parametrize(
    ("device", "uid", "groups", "closed"),
    [
        pytest.param(uverbs(0o666), 1000, [1000], (), id="open-to-all"),
        pytest.param(uverbs(0o600), 0, [0], (), id="root"),
        pytest.param(uverbs(0o600), 1000, [1000], ("uverbs0",), id="root-alone"),
        pytest.param(uverbs(0o660, gid=27), 1000, [1000, 27], (), id="by-group"),
        pytest.param(uverbs(0o660, gid=27), 1000, [1000], ("uverbs0",), id="not-in-the-group"),
        pytest.param(uverbs(0o600, uid=1000), 1000, [1000], (), id="owner"),
        pytest.param(uverbs(0o644), 1000, [1000], ("uverbs0",), id="read-only"),
        pytest.param(uverbs(0o606, gid=27), 1000, [27], ("uverbs0",), id="the-group-is-shut-out"),
    ],
)
def test_rights_as_the_kernel_takes_them(
    device: Any, uid: int, groups: list[int], closed: tuple[str, ...]
) -> None:
    found = learned("rdma.verbs", ["ok", {"devices": [device], "uid": uid, "groups": groups}])
    assert found == Verbs({"uverbs0": "mlx5_0"}, closed)


def test_a_user_that_is_not_there_is_no_answer() -> None:
    assert learned("rdma.verbs", ["no", "no_user", "there is no user slurm"]) == Absent(
        "no_user", "there is no user slurm"
    )


# ---------------------------------------------------------------- what NCCL is told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("export NCCL_IB_DISABLE=1\n", True, id="profile"),
        pytest.param("export NCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n", True, id="nccl.conf"),
        pytest.param("printf '%s\\n' 'export NCCL_IB_DISABLE=1'\n", True, id="task-prolog"),
        pytest.param("export NCCL_IB_DISABLE='1'\n", True, id="quoted"),
        pytest.param('[Service]\nEnvironment="NCCL_IB_DISABLE=1"\n', True, id="drop-in"),
        pytest.param('env = [\n  "NCCL_IB_DISABLE=1",\n]\n', True, id="containers.conf"),
        pytest.param("export NCCL_IB_DISABLE=0\n", False, id="zero"),
        pytest.param("export NCCL_IB_DISABLE=10\n", False, id="ten"),
        pytest.param("# export NCCL_IB_DISABLE=1\n", False, id="comment"),
        pytest.param("export MY_NCCL_IB_DISABLE=1\n", False, id="another-name"),
        pytest.param("", False, id="empty"),
    ],
)
def test_ib_disable_in_a_file(text: str, expected: bool) -> None:
    assert learned("rdma.disabled", ["ok", text], ["no", "missing", ""]) is expected
    assert learned("rdma.disabled", ["no", "missing", ""], ["ok", text]) is expected


def test_a_file_that_may_not_be_read_is_no_answer() -> None:
    assert (
        learned("rdma.disabled", ["no", "denied", "EACCES"], ["no", "missing", ""]).reason
        == "denied"
    )


# ---------------------------------------------------------------- modules and drivers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "nvidia_peermem 16384 0 - Live 0x0\n"
                "ib_uverbs 163840 2 nvidia_peermem,mlx5_ib, Live 0x0\n"
            ),
            "nvidia_peermem",
        ),
        ("nv_peer_mem 16384 0 - Live 0x0\n", "nv_peer_mem"),
        ("nvidia 56823808 236 - Live 0x0\n", None),
        ("ib_core 1 1 nvidia_peermem, Live 0x0\n", None),
        ("", None),
    ],
)
def test_the_module_for_peer_memory(text: str, expected: str | None) -> None:
    assert learned("rdma.peermem", ["ok", text]) == expected


OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  "
    "Release Build  (dvs-builder@U16)\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(["ok", OPEN], True), (["ok", CLOSED], False), (["no", "missing", ""], False)],
)
def test_the_open_driver(raw: list[Any], expected: bool) -> None:
    assert learned("nv.open_driver", raw) is expected


def test_a_driver_file_without_a_version_is_garbled() -> None:
    assert learned("nv.open_driver", ["ok", ""]).reason == "garbled"


MODULE = "/sys/module/mlx5_core"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param(
            {f"{MODULE}/refcnt": "1", f"{MODULE}/version": "23.10-0.5.5"},
            "mlx5_core 23.10-0.5.5",
            id="ofed",
        ),
        pytest.param({f"{MODULE}/refcnt": "1"}, "mlx5_core of the kernel", id="inbox"),
        pytest.param(
            {
                f"{MODULE}/refcnt": "1",
                "/sys/module/efa/refcnt": "0",
                "/sys/module/efa/version": "2.13.0g",
            },
            "mlx5_core of the kernel, efa 2.13.0g",
            id="two",
        ),
        pytest.param({}, None, id="none"),
    ],
)
def test_the_drivers(shown: dict[str, str], expected: str | None) -> None:
    assert learned("rdma.stack", ["ok", shown]) == expected


# ---------------------------------------------------------------- routes


SETTINGS = {"rp_filter": "0", "arp_ignore": "1", "arp_announce": "0"}
RAIL = {"name": "rail0", "address": "10.1.0.1", "prefix": 16, "leaves": "rail0", **SETTINGS}


def test_of_two_settings_the_larger_holds() -> None:
    every = {"rp_filter": "2", "arp_ignore": "0", "arp_announce": "0"}
    (rail,) = learned("rdma.rails", ["ok", {"rails": [RAIL], "all": every}])
    assert rail == Rail("rail0", "10.1.0.1", 16, "rail0", 2, 1, 0)


@pytest.mark.parametrize("router", [True, False, None])
def test_a_router_is_known_there_or_not_told_of(router: bool | None) -> None:
    (rail,) = learned(
        "rdma.rails", ["ok", {"rails": [{**RAIL, "router": router}], "all": SETTINGS}]
    )
    assert (rail.router, rail.network) == (router, "10.1.0.0/16")


def test_a_rail_of_ipv6_has_no_settings_of_arp() -> None:
    row = {"name": "rail0", "address": "fd02:0:0:1:0:0:0:1", "prefix": 64, "leaves": "rail0"}
    (rail,) = learned("rdma.rails", ["ok", {"rails": [row], "all": SETTINGS}])
    assert rail == Rail("rail0", "fd02:0:0:1::1", 64, "rail0")
    assert (rail.network, rail.family) == ("fd02:0:0:1::/64", "AF_INET6")


def test_one_address_needs_no_route() -> None:
    assert learned("rdma.rails", ["ok", {"rails": []}]) == ()


@pytest.mark.parametrize(
    "raw",
    [
        {"rails": [RAIL]},
        {"rails": [{**RAIL, "rp_filter": None}], "all": SETTINGS},
        {"rails": [{**RAIL, "arp_ignore": "x"}], "all": SETTINGS},
        {"rails": [{**RAIL, "router": "no"}], "all": SETTINGS},
        {"rails": [{**RAIL, "address": "10.1.0.256"}], "all": SETTINGS},
        {"rails": [{**RAIL, "prefix": 33}], "all": SETTINGS},
        {"rails": [{**RAIL, "address": "fd02::1", "prefix": 129}], "all": SETTINGS},
        {},
        None,
    ],
)
def test_settings_that_were_not_read_are_no_zeros(raw: Any) -> None:
    assert learned("rdma.rails", ["ok", raw]).reason == "garbled"
