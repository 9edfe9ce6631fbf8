"""RDMA devices and ports: there, up, fast, alike, open; and what must not be taken for a fault."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.ib import parse_device_count, parse_rate
from clusterprep.facts.rdma import Verbs
from clusterprep.model import Gpus, Interfaces
from clusterprep.survey import registry
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import DOWN, UP, card, gid, hca, hcas, nic_at, node, tree

PORTS = ("ib.state", "ib.rate", "ib.link_layer")
VERBS = Verbs({f"uverbs{n}": f"mlx5_{n}" for n in range(4)})
INIT = replace(UP, state="INIT", lid=0)


def four(check: str, *devices: Any, each: Any = None, some: Any = None) -> list[str]:
    """What the check says of nodes with these devices."""
    return list(
        told(
            fleet(each=each, some=some, **{f"n{n}": node(d) for n, d in enumerate(devices, 1)}),
            check,
        ).values()
    )


# ---------------------------------------------------------------- ib.present


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([hcas()] * 3, ["pass"] * 3, id="alike"),
        pytest.param([hcas(), hcas(3), hcas()], ["pass", "fail error", "pass"], id="one-missing"),
        pytest.param([hcas(), hcas(3)], ["fail error"] * 2, id="two-nodes-and-no-majority"),
        pytest.param([hcas(), (), hcas()], ["pass", "fail error", "pass"], id="none-at-all"),
        pytest.param([()] * 3, ["skip not_applicable"] * 3, id="no-rdma-anywhere"),
        pytest.param([hcas()], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [hcas(), absent("hung"), hcas()], ["pass", "unknown error hung", "pass"], id="hung"
        ),
        pytest.param(
            [hcas(), absent("garbled"), hcas()],
            ["pass", "unknown error garbled", "pass"],
            id="garbled",
        ),
    ],
)
def test_nodes_of_one_kind_have_the_same_devices(devices: list[Any], expected: list[str]) -> None:
    assert four("ib.present", *devices) == expected


def test_another_model_in_the_same_number_differs() -> None:
    other = (*hcas(3), hca("mlx5_3", nic_at(3), model="MT4125"))
    (bad,) = [
        f
        for f in findings(fleet(n1=node(), n2=node(other), n3=node()), "ib.present")
        if f.verdict == "fail"
    ]
    assert bad.nodes == ("n2",)
    assert bad.seen == "4 × MT4129 on n[1,3]; 1 × MT4125, 3 × MT4129 on n2"


def test_a_head_node_without_gpus_is_of_another_kind() -> None:
    seen = fleet(head=node((), tree(0)), n1=node(), n2=node())
    assert told(seen, "ib.present") == {"head": "skip not_applicable", "n1": "pass", "n2": "pass"}


def test_virtual_functions_do_not_count() -> None:
    guest = card("0000:14:00.2", physical=nic_at(0))
    more = node((*hcas(), hca("mlx5_4", guest.at)), tree(4, guest))
    assert set(told(fleet(n1=node(), n2=more), "ib.present").values()) == {"pass"}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(("mlx5_0", "mlx5_3:1"), "pass", id="there"),
        pytest.param(("mlx5_0", "mlx5_4"), "fail error", id="missing"),
        pytest.param((), "skip not_applicable", id="declared-as-none"),
    ],
)
def test_what_is_declared_must_be_there(declared: tuple[str, ...], expected: str) -> None:
    assert four("ib.present", hcas(), each={"interfaces": Interfaces(rdma=declared)}) == [expected]


def test_the_missing_one_is_named() -> None:
    seen = fleet(each={"interfaces": Interfaces(rdma=("mlx5_0", "mlx5_9"))}, n1=node())
    (bad,) = findings(seen, "ib.present")
    assert bad.message == "mlx5_9 is declared and not there"
    assert bad.seen == "mlx5_0, mlx5_1, mlx5_2, mlx5_3"


@pytest.mark.parametrize(
    ("wanted", "expected"), [("4", "pass"), ("8", "fail error"), ("3", "fail error")]
)
def test_a_number_that_is_required(wanted: str, expected: str) -> None:
    assert four("ib.present", hcas(), each={"require": {"ib.present": wanted}}) == [expected]


@pytest.mark.parametrize("text", ["", "eight", "-1", "4.0", "257", "\uff18"])
def test_a_number_of_devices_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of RDMA devices"):
        parse_device_count(text)


# ---------------------------------------------------------------- ib.state


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([hcas()] * 3, ["pass"] * 3, id="up"),
        pytest.param(
            [hcas(), hcas(4, mlx5_3=DOWN), hcas()], ["pass", "fail error", "pass"], id="one-down"
        ),
        pytest.param(
            [hcas(), hcas(4, mlx5_3=INIT), hcas()],
            ["pass", "fail error", "pass"],
            id="no-subnet-manager",
        ),
        pytest.param(
            [hcas(), hcas(4, mlx5_3=DOWN)], ["pass", "fail error"], id="down-on-one-of-two"
        ),
        pytest.param([hcas(4, mlx5_3=DOWN)] * 3, ["pass"] * 3, id="in-use-nowhere"),
        pytest.param(
            [hcas(), hcas(4, **{f"mlx5_{n}": DOWN for n in range(4)}), hcas()],
            ["pass", "skip not_applicable", "pass"],
            id="all-down-is-for-ib.configured",
        ),
        pytest.param([()], ["skip not_applicable"], id="no-rdma"),
        pytest.param(
            [hcas(), absent("denied"), hcas()],
            ["pass", "unknown error denied", "pass"],
            id="denied",
        ),
    ],
)
def test_ports_that_others_use_are_active(devices: list[Any], expected: list[str]) -> None:
    assert four("ib.state", *devices) == expected


@pytest.mark.parametrize(
    ("port", "words", "cure"),
    [
        (DOWN, "no link", "mlxlink -d mlx5_3 -p 1"),
        (
            replace(DOWN, phys_state="Disabled"),
            "switched off",
            "ibportstate -C mlx5_3 -P 1 -D 0 1 enable",
        ),
        (INIT, "no subnet manager", "sminfo -C mlx5_3 -P 1"),
    ],
)
def test_each_way_of_being_down_has_its_words_and_its_remedy(
    port: Any, words: str, cure: str
) -> None:
    seen = fleet(n1=node(), n2=node(hcas(4, mlx5_3=port)), n3=node())
    (bad,) = [f for f in findings(seen, "ib.state") if f.verdict == "fail"]
    assert words in bad.message
    assert bad.seen == f"mlx5_3 {port.state}, {port.phys_state}"
    assert bad.remedy.startswith(cure)


def test_storage_ports_that_are_down_are_nobodys_fault() -> None:
    far = card("0000:f1:00.0")
    up, down = ((*hcas(), hca("mlx5_4", far.at, port)) for port in (UP, DOWN))
    seen = fleet(n1=node(up, tree(4, far)), n2=node(down, tree(4, far)), n3=node(up, tree(4, far)))
    assert set(told(seen, "ib.state").values()) == {"pass"}


def test_a_declared_port_is_judged_even_if_nobody_uses_it() -> None:
    down = hcas(4, mlx5_3=DOWN)
    assert (
        four("ib.state", down, down, each={"interfaces": Interfaces(rdma=("mlx5_0", "mlx5_3"))})
        == ["fail error"] * 2
    )


@pytest.mark.parametrize("check", [*PORTS, "ib.chardev", "ib.configured"])
@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "garbled"])
def test_a_bus_that_was_not_read_leaves_everything_open(check: str, reason: str) -> None:
    facts = {"rdma.verbs": VERBS, "rdma.disabled": False}
    seen = fleet(n1=node(**facts), n2=node(pci=absent(reason), **facts), n3=node(**facts))
    assert told(seen, check)["n2"].split()[::2] == ["unknown", reason]


# ---------------------------------------------------------------- ib.rate


def at(rate: float | None, **others: float) -> Any:
    ports = {name: replace(UP, rate=value) for name, value in others.items()}
    return tuple(replace(d, ports=(ports.get(d.name, replace(UP, rate=rate)),)) for d in hcas())


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([at(400)] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [at(400), at(400, mlx5_2=200), at(400)],
            ["pass", "fail warning", "pass"],
            id="one-port-slower",
        ),
        pytest.param(
            [at(400), at(200), at(400)], ["pass", "fail warning", "pass"], id="one-node-slower"
        ),
        pytest.param([at(400), at(200)], ["fail warning"] * 2, id="no-majority"),
        pytest.param([at(400, mlx5_2=200)], ["fail warning"], id="within-one-node"),
        pytest.param([at(None)], ["unknown warning garbled"], id="not-said"),
        pytest.param([hcas(1)], ["skip not_applicable"], id="one-port-in-all"),
        pytest.param([hcas(4, mlx5_1=DOWN)], ["pass"], id="what-is-down-has-no-rate"),
    ],
)
def test_cards_of_one_make_run_at_one_rate(devices: list[Any], expected: list[str]) -> None:
    assert four("ib.rate", *devices) == expected


def test_cards_of_different_makes_are_not_compared() -> None:
    mixed = tuple(replace(d, board=f"MT_{n}") for n, d in enumerate(at(400, mlx5_2=300)))
    assert four("ib.rate", mixed, mixed) == ["pass", "pass"]


@pytest.mark.parametrize(
    ("rate", "wanted", "expected"),
    [
        (400, "400", "pass"),
        (400, "200", "pass"),
        (200, "400", "fail error"),
        (399, "400", "fail error"),
    ],
)
def test_a_rate_that_is_required(rate: float, wanted: str, expected: str) -> None:
    assert four("ib.rate", at(rate), each={"require": {"ib.rate": wanted}}) == [expected]


@pytest.mark.parametrize("text", ["", "fast", "400G", "0", "-400", "nan", "inf"])
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate in Gbit/s"):
        parse_rate(text)


# ---------------------------------------------------------------- ib.link_layer

EN = replace(UP, link_layer="Ethernet")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([hcas()] * 3, ["pass"] * 3, id="infiniband"),
        pytest.param(
            [hcas(4, mlx5_1=EN), hcas(), hcas()],
            ["fail warning", "pass", "pass"],
            id="one-port-as-ethernet",
        ),
        pytest.param([hcas(4, mlx5_1=EN)], ["fail warning"], id="within-one-node"),
        pytest.param([hcas(1)], ["skip not_applicable"], id="nothing-to-compare"),
    ],
)
def test_one_link_layer(devices: list[Any], expected: list[str]) -> None:
    assert four("ib.link_layer", *devices) == expected


@pytest.mark.parametrize(
    ("check", "port", "cure"),
    [
        ("ib.rate", replace(UP, rate=200.0), "mlxlink -d mlx5_1 -p 1"),
        ("ib.link_layer", EN, "mlxconfig -d mlx5_1 set LINK_TYPE_P1=1"),
    ],
)
def test_the_remedy_names_the_port(check: str, port: Any, cure: str) -> None:
    seen = fleet(n1=node(), n2=node(hcas(4, mlx5_1=port)), n3=node())
    (bad,) = [f for f in findings(seen, check) if f.verdict == "fail"]
    assert bad.remedy.startswith(cure)
    assert bad.seen.startswith("mlx5_1 ")


def test_ethernet_everywhere_is_as_good() -> None:
    every = hcas(4, **{f"mlx5_{n}": EN for n in range(4)})
    assert four("ib.link_layer", every, every) == ["pass", "pass"]


# ---------------------------------------------------------------- ib.chardev


@pytest.mark.parametrize(
    ("verbs", "devices", "expected"),
    [
        pytest.param(VERBS, hcas(), "pass", id="open"),
        pytest.param(Verbs({}), hcas(), "fail warning", id="none"),
        pytest.param(replace(VERBS, closed=("uverbs2",)), hcas(), "fail warning", id="one-closed"),
        pytest.param(
            Verbs({"uverbs0": "mlx5_0"}), hcas(), "fail warning", id="one-of-four-in-a-container"
        ),
        pytest.param(Verbs({"uverbs0": None}), hcas(), "pass", id="which-it-serves-is-not-said"),
        pytest.param(Verbs({}), (), "skip not_applicable", id="no-rdma"),
        pytest.param(absent("no_user"), hcas(), "unknown warning no_user", id="no-such-user"),
    ],
)
def test_the_jobs_user_reaches_the_verbs(verbs: Any, devices: Any, expected: str) -> None:
    assert told(fleet(n1=node(devices, **{"rdma.verbs": verbs})), "ib.chardev") == {"n1": expected}


def test_a_closed_device_is_named_with_the_user() -> None:
    seen = fleet(
        each={"job_user": "train"}, n1=node(**{"rdma.verbs": replace(VERBS, closed=("uverbs2",))})
    )
    (bad,) = findings(seen, "ib.chardev")
    assert (bad.message, bad.seen) == ("train may not read and write the verbs", "uverbs2")


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (("mlx5_0", "mlx5_1", "mlx5_2"), "mlx5_3 has no character device here"),
        (("mlx5_0", "mlx5_1"), "mlx5_2, mlx5_3 have no character device here"),
    ],
)
def test_devices_without_a_character_device_are_named(
    served: tuple[str, ...], message: str
) -> None:
    verbs = Verbs({f"uverbs{number}": name for number, name in enumerate(served)})
    (bad,) = findings(fleet(n1=node(**{"rdma.verbs": verbs})), "ib.chardev")
    assert bad.message == message


# ---------------------------------------------------------------- ib.configured

ALL_DOWN = hcas(4, **{f"mlx5_{n}": DOWN for n in range(4)})
LINK_LOCAL = replace(EN, lid=None, gids=(gid(1, "fe80::1"),))
ADDRESSED = replace(EN, lid=None, gids=(gid(1, "fe80::1"), gid(3, "10.1.0.1")))


@pytest.mark.parametrize(
    ("devices", "disabled", "settings", "expected"),
    [
        pytest.param(hcas(), False, {}, "pass", id="usable"),
        pytest.param(hcas(4, mlx5_1=DOWN), False, {}, "pass", id="one-down-is-for-ib.state"),
        pytest.param(ALL_DOWN, False, {}, "fail error", id="not-configured"),
        pytest.param(ALL_DOWN, True, {}, "pass", id="nccl-is-told"),
        pytest.param(
            (hca("mlx5_0", nic_at(0), LINK_LOCAL),),
            False,
            {},
            "fail error",
            id="up-without-an-address",
        ),
        pytest.param(
            (hca("mlx5_0", nic_at(0), ADDRESSED),), False, {}, "pass", id="up-with-an-address"
        ),
        pytest.param(
            (hca("mlx5_0", nic_at(0), replace(UP, lid=0)),),
            False,
            {},
            "fail error",
            id="up-without-a-lid",
        ),
        pytest.param(
            (hca("irdma0", nic_at(0), ADDRESSED, iwarp=True),),
            False,
            {},
            "fail error",
            id="iwarp-alone",
        ),
        pytest.param((), False, {}, "skip not_applicable", id="no-rdma"),
        pytest.param(ALL_DOWN, False, {"gpus": Gpus(0)}, "skip not_applicable", id="cpu-only"),
        pytest.param(
            hcas(),
            False,
            {"interfaces": Interfaces(rdma=())},
            "fail error",
            id="declared-none-and-not-told",
        ),
        pytest.param(
            hcas(), True, {"interfaces": Interfaces(rdma=())}, "pass", id="declared-none-and-told"
        ),
        pytest.param(absent("hung"), False, {}, "unknown error hung", id="hung"),
        pytest.param(ALL_DOWN, absent("denied"), {}, "unknown error denied", id="files-denied"),
    ],
)
def test_rdma_is_configured_or_left_alone(
    devices: Any, disabled: Any, settings: Any, expected: str
) -> None:
    seen = fleet(each=settings, n1=node(devices, **{"rdma.disabled": disabled}))
    assert told(seen, "ib.configured") == {"n1": expected}


def test_one_fault_is_one_finding() -> None:
    """Only ib.configured names a node without a usable port, only ib.state a single port."""
    facts = {"rdma.disabled": False, "rdma.verbs": VERBS}
    for devices, blamed in ((ALL_DOWN, "ib.configured"), (hcas(4, mlx5_3=DOWN), "ib.state")):
        seen = fleet(n1=node(**facts), n2=node(devices, **facts), n3=node(**facts))
        checks = [name for name in registry.checks() if name.startswith("ib.")]
        assert [name for name in checks if told(seen, name)["n2"].startswith("fail")] == [blamed]


def test_what_is_down_is_listed() -> None:
    (bad,) = findings(
        fleet(n1=node(hcas(1, mlx5_0=DOWN), **{"rdma.disabled": False})), "ib.configured"
    )
    assert bad.seen == "mlx5_0 DOWN"
    assert bad.remedy.startswith("clusterprep apply INVENTORY")
