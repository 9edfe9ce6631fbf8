"""What NCCL's answer means: ids and output of real releases, and everything that is neither."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.nccl_address import ADDRESS, BoundAddress, Taken, Variable
from clusterprep.model import Absent, Gpus, Inventory, Node
from tests.support.fleet import learned

PATHS = ("ssh command", "login shell")
WHEEL = "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2"
# What 2.21.5, 2.27.5 and 2.32.3 answered on a machine with docker0 alone.
DOCKER = "232698a0e94266bc0200e365ac110001" + 32 * "0"
LO = "a0819d91a0d8bd450200b1317f000001" + 32 * "0"
NOTHING = 64 * "0"
OLD_LOG = """\
vm:31694:31694 [32764] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker
vm:31694:31694 [32764] NCCL INFO NCCL_SOCKET_IFNAME set to ^docker
vm:31694:31694 [32764] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>
vm:31694:31694 [32589] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)
"""
NEW_LOG = """\
vm:32086:32086 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
vm:32086:32086 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>
"""
REFUSED = """\
vm:31958:31958 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to nope

[2026-11-21 16:21:48] vm:31958:31958 [0] bootstrap.cc:115 NCCL WARN Bootstrap : \
no socket interface found
vm:31958:31958 [0] NCCL INFO init.cc:80 -> 5
"""


def said(
    version: str = "22105", result: str = "0", id: str = DOCKER, log: str = ""
) -> dict[str, Any]:
    return {
        "library": WHEEL,
        "failed": "0",
        "version": version,
        "result": result,
        "id": id,
        "log": log,
        "end": "",
    }


def parsed(answer: dict[str, Any]) -> Any:
    """The answer of both paths, or why there is none."""
    found = learned("nccl.address", ["ok", dict.fromkeys(PATHS, answer)])
    if isinstance(found, Absent):
        return found
    assert list(found) == list(PATHS)
    return found[PATHS[0]]


def test_an_address_with_its_interface_and_what_was_set() -> None:
    more = {"value:NCCL_SOCKET_IFNAME": "^docker", "place:NCCL_SOCKET_IFNAME": "/etc/nccl.conf:2"}
    variables = (Variable("NCCL_SOCKET_IFNAME", "^docker", "/etc/nccl.conf:2"),)
    assert parsed({**said(id=LO, log=OLD_LOG), **more}) == BoundAddress(
        WHEEL, "2.21.5", 0, "127.0.0.1", "lo", variables
    )
    assert parsed(said("23203", log=NEW_LOG)) == BoundAddress(
        WHEEL, "2.32.3", 0, "172.17.0.1", "docker0"
    )


@pytest.mark.parametrize("log", ["", "a banner\n", "NCCL INFO Bootstrap", OLD_LOG[:60]])
def test_the_address_needs_no_output(log: str) -> None:
    """An id has it; NCCL_DEBUG may have been taken away by a plug-in."""
    assert parsed(said(log=log)) == BoundAddress(WHEEL, "2.21.5", 0, "172.17.0.1", None)


@pytest.mark.parametrize("result", ["3", "5", "2"])
def test_a_result_that_is_not_0_has_no_address_and_a_reason(result: str) -> None:
    found = parsed(said("22705", result, NOTHING, REFUSED))
    assert (found.result, found.address, found.warning) == (
        int(result),
        None,
        "Bootstrap : no socket interface found",
    )


def test_with_a_fixed_root_the_own_address_is_in_the_output() -> None:
    """NCCL_COMM_ID is what the id then holds, on every node."""
    fixed = {"value:NCCL_COMM_ID": "10.77.0.2:29400", "place:NCCL_COMM_ID": "environment"}
    log = "n3:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.77.0.4<0>\n"
    assert parsed({**said(id=DOCKER, log=log), **fixed}).address == "10.77.0.4"
    assert parsed({**said(id=DOCKER), **fixed}).reason == "garbled"


def test_ipv6() -> None:
    six = "232698a0e94266bc0a00e36500000000" + "fe80000000000000985d82fffea10001"
    log = "n3:1:1 [0] NCCL INFO Bootstrap: Using eth0:fe80::985d:82ff:fea1:1%eth0<0>\n"
    found = parsed(said(id=six, log=log))
    assert (found.address, found.interface) == ("fe80::985d:82ff:fea1:1", "eth0")


def test_what_the_library_knows_and_took_of_what_is_set() -> None:
    found = parsed(
        {
            **said("23203"),
            "reads": "NCCL_NEW NCCL_SOCKET_IFNAME",
            "taken:NCCL_SET_THREAD_NAME": "Default FALSE",
        }
    )
    assert found.reads == ("NCCL_NEW", "NCCL_SOCKET_IFNAME")
    assert found.taken == {"NCCL_SET_THREAD_NAME": Taken("Default", "FALSE")}


def test_a_user_who_cannot_log_in_has_no_sessions() -> None:
    assert list(learned("nccl.address", ["ok", {"a bare process": said()}])) == ["a bare process"]
    assert list(learned("nccl.address", ["ok", {"container": said()}])) == ["container"]
    half = learned("nccl.address", ["ok", {"container": said(), "login shell": said()}])
    assert isinstance(half, Absent)


def test_units_are_launch_paths_too() -> None:
    found = learned(
        "nccl.address", ["ok", {**dict.fromkeys(PATHS, said()), "systemd (train.service)": said()}]
    )
    assert found["systemd (train.service)"].address == "172.17.0.1"


def test_no_library_is_an_answer() -> None:
    assert parsed({"library": "", "end": "", "log": ""}) == BoundAddress(None)


def test_one_path_may_have_no_answer() -> None:
    raw = {
        PATHS[0]: said(),
        PATHS[1]: {"no": "timed_out", "why": "/bin/bash did not end within 8 s"},
    }
    found = learned("nccl.address", ["ok", raw])
    assert found[PATHS[0]].address == "172.17.0.1"
    assert found[PATHS[1]] == Absent("timed_out", "/bin/bash did not end within 8 s")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": DOCKER[:40]},
        {"id": NOTHING},
        {"id": "z" * 64},
        {"result": ""},
        {"result": "ok"},
        {"version": "0"},
        {"failed": "1"},
        {"log": 7},
        {"value:NCCL_DEBUG": "INFO"},
    ],
)
def test_what_no_nccl_says_is_garbled(wrong: dict[str, Any]) -> None:
    found = parsed({**said(), **wrong})
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        "x",
        {PATHS[0]: {}},
        {PATHS[0]: said()},
        {PATHS[1]: said()},
        {PATHS[0]: said(), PATHS[1]: []},
    ],
)
def test_another_shape_is_garbled(raw: Any) -> None:
    assert learned("nccl.address", ["ok", raw]).reason == "garbled"


@pytest.mark.parametrize("reason", ["missing_tool", "denied", "hung"])
def test_no_answer_keeps_its_reason(reason: str) -> None:
    assert learned("nccl.address", ["no", reason, "why"]) == Absent(reason, "why")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (Variable("A", "x", "environment"), "A=x of the environment"),
        (Variable("A", "x", "/etc/nccl.conf:3"), "A=x of /etc/nccl.conf:3"),
        (Variable("A", "x", ""), "A=x"),
        (Variable("A", " x", ""), "A=' x'"),
        (Variable("A", "x\r", ""), "A='x\\r'"),
    ],
)
def test_what_cannot_be_seen_is_shown(variable: Variable, text: str) -> None:
    assert str(variable) == text


@pytest.mark.parametrize(("gpus", "asked"), [(None, 1), (Gpus(8), 1), (Gpus(0), 0)])
def test_a_node_declared_without_gpus_is_not_asked(gpus: Gpus | None, asked: int) -> None:
    node = Node("n1", "10.0.0.1", 0, gpus=gpus)
    assert len(ADDRESS.reads(node, Inventory("test", (node,)))) == asked
    if not asked:
        assert ADDRESS.parse().reason == "not_applicable"
