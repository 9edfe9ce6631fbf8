"""What NCCL itself would use, against what reaches all nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.facts.nccl_address import BoundAddress, Variable
from clusterprep.model import Absent, EnvSetting, Fleet, Gpus, Interfaces
from tests.support.fleet import LOOPBACK, absent, bound, eth, findings, fleet, told

CHECK = "nccl.iface"
SSH, LOGIN = "ssh command", "login shell"
NO_LIBRARY = BoundAddress(None)
RAIL = "192.168.1"


def facts(
    number: int, *paths: BoundAddress | Absent, rail: bool = True, **more: Any
) -> dict[str, Any]:
    """A node with a front end, perhaps a faster network, docker, and NCCL's answers."""
    docker = eth("docker0", "172.17.0.1/16", physical=False, bridge=True)
    rails = (eth("rail0", f"{RAIL}.{number}/24", speed=400_000),) if rail else ()
    ssh, login = paths if len(paths) == 2 else (paths or (bound(f"10.0.0.{number}"),)) * 2
    found = (LOOPBACK, eth("eth0", f"10.0.0.{number}/16"), *rails, docker)
    return {"net.interfaces": found, "nccl.address": {SSH: ssh, LOGIN: login}, **more}


def seen(*paths: BoundAddress | Absent, rail: bool = False, **options: Any) -> Fleet:
    """Three nodes of which n2 answers as given."""
    return fleet(
        n1=facts(1, rail=rail), n2=facts(2, *paths, rail=rail), n3=facts(3, rail=rail), **options
    )


def on_n2(*paths: BoundAddress | Absent, **options: Any) -> str:
    said = told(seen(*paths, **options), CHECK)
    assert (said["n1"], said["n3"]) == ("pass", "pass")
    return said["n2"]


def ifname(value: str, place: str = "/etc/nccl.conf:3") -> tuple[Variable, ...]:
    return (Variable("NCCL_SOCKET_IFNAME", value, place),)


GOOD, LO, DOCKER = bound("10.0.0.2"), bound("127.0.0.1", "lo"), bound("172.17.0.1", "docker0")


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        pytest.param((GOOD,), "pass", id="the-address"),
        pytest.param((LO,), "fail error", id="loopback"),
        pytest.param((DOCKER,), "fail error", id="docker-though-all-nodes-have-it"),
        pytest.param((bound(None),), "fail error", id="no-interface"),
        pytest.param((bound("10.0.0.1"),), "fail error", id="of-another-node"),
        pytest.param((bound("10.1.0.2"),), "fail error", id="of-no-interface"),
        pytest.param((GOOD, LO), "fail error", id="in-a-login-shell-alone"),
        pytest.param((LO, absent("timed_out")), "fail error", id="wrong-whatever-the-other-is"),
        pytest.param(
            (GOOD, absent("timed_out")), "unknown error timed_out", id="a-profile-that-hangs"
        ),
        pytest.param(
            (absent("denied"), GOOD), "unknown error denied", id="the-session-is-not-known"
        ),
        pytest.param((GOOD, absent("not_applicable")), "pass", id="no-login-shell"),
        pytest.param(
            (absent("garbled"), absent("not_applicable")),
            "unknown error garbled",
            id="nothing-known",
        ),
        pytest.param((bound("fe80::1", "eth0"),), "fail error", id="link-local"),
        pytest.param((bound("fe80::1", "eth0"), LO), "fail error", id="link-local-and-loopback"),
        pytest.param((GOOD, NO_LIBRARY), "pass", id="a-library-in-one-path-alone"),
        pytest.param((NO_LIBRARY,), "skip not_applicable", id="no-nccl"),
    ],
)
def test_every_launch_path_must_use_the_address(
    paths: tuple[BoundAddress | Absent, ...], said: str
) -> None:
    assert on_n2(*paths) == said


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("fact", ["nccl.address", "net.interfaces"])
def test_what_is_not_known_is_not_passed(fact: str, reason: str) -> None:
    found = fleet(n1=facts(1), n2={**facts(2), fact: absent(reason)}, n3=facts(3))
    assert told(found, CHECK)["n2"] == f"unknown error {reason}"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (Gpus(8), "unknown error missing_tool"),
        (Gpus(0), "skip not_applicable"),
        (None, "skip not_applicable"),
    ],
)
def test_a_node_without_nccl_is_judged_by_its_declared_gpus(gpus: Gpus | None, said: str) -> None:
    assert on_n2(NO_LIBRARY, each={"gpus": gpus}) == said


def test_another_network_that_reaches_all_serves_as_well() -> None:
    """The fastest network is chosen for the files; sockets over the front end are no fault."""
    assert on_n2(GOOD, rail=True) == "pass"
    assert on_n2(bound(f"{RAIL}.2", "rail0"), rail=True) == "pass"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((GOOD,), "NCCL itself would use eth0, which reaches all nodes"),
        (
            (GOOD, bound(f"{RAIL}.2", "rail0")),
            "NCCL itself would use eth0 and rail0, which reach all nodes",
        ),
    ],
)
def test_interfaces_that_reach_all_nodes_are_named(
    paths: tuple[BoundAddress, ...], message: str
) -> None:
    found = findings(seen(*paths, rail=True), CHECK)
    assert message in [finding.message for finding in found if "n2" in finding.nodes]


def test_a_network_that_one_node_lacks_does_not() -> None:
    found = fleet(n1=facts(1), n2=facts(2, bound(f"{RAIL}.2", "rail0")), n3=facts(3, rail=False))
    assert told(found, CHECK) == {"n1": "pass", "n2": "fail error", "n3": "pass"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        # n1 and n2 share both networks, and the rail is the one chosen
        (bound(f"{RAIL}.2", "rail0"), "pass"),
        (bound("10.0.0.2"), "unknown error interfaces of another node"),
        (bound("127.0.0.1", "lo"), "fail error"),
    ],
)
def test_whether_it_reaches_a_node_whose_interfaces_are_not_known_is_not_known(
    answer: BoundAddress, said: str
) -> None:
    found = fleet(
        n1=facts(1), n2=facts(2, answer), n3={**facts(3), "net.interfaces": absent("denied")}
    )
    assert told(found, CHECK)["n2"] == said


def test_a_declared_interface_is_the_only_one() -> None:
    found = seen(GOOD, rail=True, each={"interfaces": Interfaces(nccl="rail0")})
    assert told(found, CHECK)["n2"] == "fail error"
    good = bound(f"{RAIL}.2", "rail0")
    assert (
        told(seen(good, rail=True, each={"interfaces": Interfaces(nccl="rail0")}), CHECK)["n2"]
        == "pass"
    )


def test_without_a_chosen_interface_there_is_nothing_to_compare_with() -> None:
    found = fleet(n1=facts(1), n2={**facts(2), "net.interfaces": (LOOPBACK,)}, n3=facts(3))
    assert told(found, CHECK)["n2"] == "unknown error eth.iface_choice"


@pytest.mark.parametrize(
    ("answer", "words", "remedy"),
    [
        pytest.param(
            LO, "is not set", "apply INVENTORY   # writes NCCL_SOCKET_IFNAME=eth0", id="unset"
        ),
        pytest.param(
            bound("127.0.0.1", "lo", variables=ifname("^docker")),
            "lo 127.0.0.1 in ssh command and in login shell: "
            "NCCL_SOCKET_IFNAME=^docker of /etc/nccl.conf:3 decides",
            "apply INVENTORY   # writes NCCL_SOCKET_IFNAME=eth0",
            id="a-line-of-ours-stands-above",
        ),
        pytest.param(
            bound("127.0.0.1", "lo", variables=ifname("^docker", "/root/.nccl.conf:1")),
            "/root/.nccl.conf:1 decides",
            "remove NCCL_SOCKET_IFNAME=^docker of /root/.nccl.conf:1",
            id="the-users-file-comes-first",
        ),
        pytest.param(
            bound(
                None,
                variables=ifname("eth0 ", "environment"),
                warning="Bootstrap : no socket interface found",
            ),
            "no interface (result 3 of NCCL 2.21.5) in ssh command and in login shell: "
            "NCCL_SOCKET_IFNAME='eth0 ' of the environment decides. "
            "It says: Bootstrap : no socket interface found",
            "remove NCCL_SOCKET_IFNAME=?eth0 ? of the environment",
            id="a-blank-in-the-environment",
        ),
        pytest.param(
            bound("127.0.0.1", "lo", variables=ifname("x")),
            "is not set",
            "apply",
            id="one-letter-is-unset",
        ),
        pytest.param(
            bound("127.0.0.1", "lo", variables=ifname("")),
            "is not set",
            "apply",
            id="empty-is-unset",
        ),
        pytest.param(
            bound(
                None,
                variables=(*ifname("eth0"), Variable("NCCL_COMM_ID", "10.9.0.1:4", "environment")),
            ),
            "NCCL_COMM_ID=10.9.0.1:4 of the environment decides",
            "unset NCCL_COMM_ID",
            id="a-fixed-root",
        ),
    ],
)
def test_the_variable_that_decides_is_named_and_what_helps(
    answer: BoundAddress, words: str, remedy: str
) -> None:
    finding = next(f for f in findings(seen(answer), CHECK) if f.verdict == "fail")
    assert words in finding.message
    assert remedy in f"{finding.remedy}   # {finding.remedy.note}"
    assert finding.wanted == "eth0"


UNIT = "systemd (train.service)"


def with_unit(answer: BoundAddress | Absent, ssh: BoundAddress = GOOD, **more: Any) -> Fleet:
    n2 = facts(2, rail=False, **more)
    return fleet(
        n1=facts(1, rail=False),
        n2={**n2, "nccl.address": {SSH: ssh, UNIT: answer}},
        n3=facts(3, rail=False),
    )


def test_a_unit_is_a_warning_for_it_may_run_on_one_node() -> None:
    lo = bound("127.0.0.1", "lo", variables=ifname("lo", "environment"))
    assert told(with_unit(lo), CHECK)["n2"] == "fail warning"
    assert told(with_unit(GOOD), CHECK)["n2"] == "pass"
    both = [
        (f.verdict, f.severity) for f in findings(with_unit(lo, LO), CHECK) if f.nodes == ("n2",)
    ]
    assert sorted(both) == [("fail", "error"), ("fail", "warning")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (7, "NCCL_SOCKET_IFNAME=lo of /etc/systemd/system/train.service:7 decides"),
        (None, "NCCL_SOCKET_IFNAME=lo of the environment decides"),
    ],
)
def test_the_file_behind_the_environment_is_named(line: int | None, words: str) -> None:
    unit = "/etc/systemd/system/train.service"
    paths = {
        "systemd": (Setting("NCCL_SOCKET_IFNAME", "lo", unit if line else None, line),),
        "nccl": (),
    }
    lo = bound("127.0.0.1", "lo", variables=ifname("lo", "environment"))
    finding = next(
        f for f in findings(with_unit(lo, **{"env.paths": paths}), CHECK) if f.verdict == "fail"
    )
    assert words in finding.message
    if line:
        assert finding.remedy.startswith(f"remove NCCL_SOCKET_IFNAME=lo of {unit}:7 there")


def test_another_value_than_the_look_found_has_no_file() -> None:
    paths = {
        "systemd": (Setting("NCCL_SOCKET_IFNAME", "eth0", "/etc/x", 1),),
        "nccl": absent("hung"),
    }
    lo = bound("127.0.0.1", "lo", variables=ifname("lo", "environment"))
    finding = next(
        f for f in findings(with_unit(lo, **{"env.paths": paths}), CHECK) if f.verdict == "fail"
    )
    assert "of the environment decides" in finding.message


def test_a_declared_value_that_is_wrong_is_for_the_inventory() -> None:
    declared = {"NCCL_SOCKET_IFNAME": EnvSetting("^docker", "env")}
    answer = bound("127.0.0.1", "lo", variables=ifname("^docker"))
    finding = next(
        f for f in findings(seen(answer, each={"env": declared}), CHECK) if f.verdict == "fail"
    )
    assert finding.remedy.startswith("set NCCL_SOCKET_IFNAME=eth0 under `env:` of the inventory")


def test_an_address_names_its_interface_where_nccl_did_not() -> None:
    finding = next(f for f in findings(seen(bound("172.17.0.1")), CHECK) if f.verdict == "fail")
    assert finding.seen == "docker0 172.17.0.1"
