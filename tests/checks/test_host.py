"""One machine under two names, two with one id, ids that are not known, machines just booted."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.cli.commands.stages import with_boots_before
from clusterprep.facts.host import NO_MACHINE_ID
from clusterprep.model import EnvSetting
from tests.support.fleet import absent, findings, fleet, silent, told

NOT_COMPARED = "unknown error fewer than two nodes have a value to compare"


def host(machine: Any, boot: Any = None, name: Any = None) -> dict[str, Any]:
    return {
        "host.machine_id": machine,
        "host.boot_id": boot or f"boot {machine}",
        "host.name": name or f"h{machine}",
    }


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([host("a"), host("b"), host("c")], ["pass"] * 3, id="three-machines"),
        pytest.param(
            [host("a"), host("b"), host("a")], ["fail error", "pass", "fail error"], id="one-twice"
        ),
        pytest.param([host("a"), host("a")], ["fail error"] * 2, id="both-are-one"),
        pytest.param(
            [host("a"), host("b"), host("a"), host("b")], ["fail error"] * 4, id="two-twice"
        ),
        pytest.param([host("a")], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [host("a"), host(absent())], [NOT_COMPARED, "unknown error denied"], id="one-id-of-two"
        ),
    ],
)
def test_every_machine_is_listed_once(nodes: list[dict[str, Any]], expected: list[str]) -> None:
    seen = fleet(**{f"n{number}": node for number, node in enumerate(nodes, 1)})
    assert list(told(seen, "host.identity").values()) == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([("b1", "h1"), ("b2", "h2")], ["pass"] * 2, id="two-machines"),
        pytest.param([("b1", "h1"), ("b1", "h1")], ["fail error"] * 2, id="one-twice"),
        pytest.param([("b1", "h1"), ("b1", "h2")], ["pass"] * 2, id="two-containers"),
        pytest.param(
            [("b1", "h1"), (absent(), "h2")],
            [NOT_COMPARED, "unknown error denied"],
            id="no-boot-id",
        ),
    ],
)
def test_systems_without_a_machine_id_are_told_by_boot_and_name(
    nodes: list[tuple[Any, str]], expected: list[str]
) -> None:
    facts = [host(NO_MACHINE_ID, boot, name) for boot, name in nodes]
    seen = fleet(**{f"n{number}": node for number, node in enumerate(facts, 1)})
    assert list(told(seen, "host.identity").values()) == expected


def test_a_system_without_a_machine_id_that_is_listed_twice() -> None:
    twice = host(NO_MACHINE_ID, "b1", "h1")
    (found,) = findings(fleet(n1=twice, n2=twice), "host.identity")
    assert found.message == "the same machine is listed more than once"
    assert found.seen == "no machine id, boot id b1, host name h1"


def test_two_pairs_are_two_findings() -> None:
    found = findings(fleet(n1=host("a"), n2=host("b"), n3=host("a"), n4=host("b")), "host.identity")
    assert [f.nodes for f in found] == [("n1", "n3"), ("n2", "n4")]


@pytest.mark.parametrize(
    ("second", "story"),
    [
        pytest.param(
            host("a", "boot", "h"),
            "the same machine is listed more than once",
            id="same-boot-and-name",
        ),
        pytest.param(host("a", "other", "h"), "cloned from one image", id="other-boot"),
        pytest.param(
            host("a", "boot", "g"), "cloned from one image", id="container-beside-it-on-one-kernel"
        ),
    ],
)
def test_a_clone_is_told_from_a_double_entry(second: dict[str, Any], story: str) -> None:
    (found,) = findings(fleet(n1=host("a", "boot", "h"), n2=second), "host.identity")
    assert story in found.message
    assert ("machine-id" in found.remedy) == ("clone" in story)


@pytest.mark.parametrize("fact", ["host.boot_id", "host.name"])
def test_an_id_that_appears_twice_is_seen_although_one_of_the_two_knows_nothing_else(
    fact: str,
) -> None:
    half = {**host("a"), fact: absent()}
    assert told(fleet(n1=host("a"), n2=half, n3=host("c")), "host.identity") == {
        "n1": "fail error", "n2": "fail error + unknown error denied", "n3": "pass"
    }  # fmt: skip


def test_two_that_know_nothing_else_are_not_called_one_machine() -> None:
    half = {**host("a"), "host.boot_id": absent(), "host.name": absent()}
    found = findings(fleet(n1=half, n2=half, n3=host("c")), "host.identity")
    (bad,) = [finding for finding in found if finding.verdict == "fail"]
    assert bad.nodes == ("n1", "n2")
    assert "cloned" in bad.message


def test_a_node_that_was_not_reached_leaves_nothing_to_compare_with() -> None:
    assert told(fleet(n1=host("a"), n2=silent("n2")), "host.identity") == {"n1": NOT_COMPARED}


# ---------------------------------------------------------------- nodes that share a machine


def here(host_id: str | None, transport: str = "local") -> dict[str, Any]:
    return {
        "transport": transport,
        "env": {"NCCL_HOSTID": EnvSetting(host_id, "node")} if host_id else {},
    }


@pytest.mark.parametrize(
    ("first", "second", "verdict", "told_what_to_do"),
    [
        pytest.param(here("a"), here("b"), "pass", False, id="local-and-told-apart"),
        pytest.param(here("a"), here("a"), "fail", True, id="one-host-id"),
        pytest.param(here("a"), here(None), "fail", True, id="one-has-none"),
        pytest.param(here(None), here(None), "fail", True, id="none-has-one"),
        pytest.param(here("a"), here("b", "ssh"), "fail", False, id="one-over-ssh"),
        pytest.param(here("a", "ssh"), here("b", "ssh"), "fail", False, id="both-over-ssh"),
    ],
)
def test_local_nodes_may_share_a_machine_where_nccl_can_tell_them_apart(
    first: Any, second: Any, verdict: str, told_what_to_do: bool
) -> None:
    one = host("a", "boot", "h")
    found = findings(
        fleet(some={"n1": first, "n2": second}, n1=one, n2=one, n3=host("c")), "host.identity"
    )
    (about,) = [finding for finding in found if "n1" in finding.nodes]
    assert (about.verdict, about.nodes) == (verdict, ("n1", "n2"))
    assert ("NCCL_HOSTID" in about.message) == (verdict == "pass")
    assert ("NCCL_HOSTID" in about.remedy) == told_what_to_do


def test_one_host_id_for_several_machines_makes_them_one_to_nccl() -> None:
    seen = fleet(each=here("x", "ssh"), n1=host("a"), n2=host("b"))
    (bad,) = findings(seen, "host.identity")
    assert (bad.verdict, bad.nodes, bad.seen) == ("fail", ("n1", "n2"), "NCCL_HOSTID=x")


def test_containers_on_one_kernel_may_have_one_host_id() -> None:
    seen = fleet(each=here("x", "ssh"), n1=host("a", "boot"), n2=host("b", "boot"))
    assert told(seen, "host.identity") == {"n1": "pass", "n2": "pass"}


def test_a_double_entry_is_seen_beside_a_host_id_of_several_machines() -> None:
    seen = fleet(
        each=here("x", "ssh"), n1=host("a", "b1", "h"), n2=host("a", "b1", "h"), n3=host("c")
    )
    assert told(seen, "host.identity") == {
        "n1": "fail error + fail error", "n2": "fail error + fail error", "n3": "fail error"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "wanted", "expected"),
    [
        pytest.param(86_400.0, None, "pass", id="a-day"),
        pytest.param(600.01, None, "pass", id="just-over-ten-minutes"),
        pytest.param(600.0, None, "fail warning", id="ten-minutes-are-not-more"),
        pytest.param(12.5, None, "fail warning", id="seconds"),
        pytest.param(12.5, "10s", "pass", id="enough-for-this-inventory"),
        pytest.param(3000.0, "1h", "fail error", id="less-than-required"),
        pytest.param(absent("denied"), None, "unknown warning denied", id="denied"),
        pytest.param(absent("garbled"), "1h", "unknown error garbled", id="garbled-and-required"),
    ],
)
def test_a_node_has_been_up_for_a_while(seconds: Any, wanted: str | None, expected: str) -> None:
    settings = {"require": {"host.uptime": wanted}} if wanted else {}
    assert told(fleet(each=settings, n1={"host.uptime": seconds}), "host.uptime") == {
        "n1": expected
    }


def test_how_long_ago_it_booted_is_said_where_it_matters() -> None:
    found = findings(
        fleet(n1={"host.uptime": 95.0}, n2={"host.uptime": 7000.0}, n3={"host.uptime": 9000.0}),
        "host.uptime",
    )
    assert {(f.verdict, f.nodes, f.seen) for f in found} == {
        ("fail", ("n1",), "up for 95 s"),
        ("pass", ("n2", "n3"), "more than 10 min"),
    }
    assert [f.remedy.split(" ")[1] for f in found if f.verdict == "fail"] == ["n1"]


BOOTS = ("0b1f7f1e-6a1c-4a8e-9d5e-0123456789ab", "7c2d7f1e-6a1c-4a8e-9d5e-0123456789ab")


@pytest.mark.parametrize(
    ("before", "seconds", "expected"),
    [
        pytest.param(None, 90000.0, "pass", id="one-look"),
        pytest.param(BOOTS[1], 90000.0, "pass", id="the-same-boot"),
        pytest.param(BOOTS[0], 90.0, "fail warning", id="another-boot"),
        pytest.param(BOOTS[0], 90000.0, "fail warning", id="another-boot-of-a-long-run"),
        pytest.param(absent("denied"), 90000.0, "pass", id="the-first-look-did-not-tell"),
    ],
)
def test_a_boot_in_the_middle_of_a_run_is_named(before: Any, seconds: float, expected: str) -> None:
    facts = {"host.uptime": seconds, "host.boot_id": BOOTS[1], "host.boot_before": before}
    seen = fleet(n1=facts)
    assert told(seen, "host.uptime") == {"n1": expected}
    if before == BOOTS[0]:
        (bad,) = findings(seen, "host.uptime")
        assert bad.message == "the node booted in the middle of this run"
        assert bad.seen == f"boot id {BOOTS[0]} at the first look, {BOOTS[1]} at the second"


def test_the_second_look_knows_the_boots_of_the_first() -> None:
    first = fleet(n1={"host.boot_id": BOOTS[0]}, n2={"host.boot_id": BOOTS[0]})
    second = fleet(
        n1={"host.boot_id": BOOTS[1], "host.uptime": 90.0},
        n2={"host.boot_id": BOOTS[0], "host.uptime": 9000.0},
    )
    assert told(with_boots_before(second, first), "host.uptime") == {
        "n1": "fail warning",
        "n2": "pass",
    }
