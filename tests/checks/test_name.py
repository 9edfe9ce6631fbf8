"""Names: equal on all nodes, on loopback, different on one node, as systemd's resolver answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import absent, findings, fleet, resolved, told

NAMES = ("n1", "n2", "n3")


def node(number: int, own: Any = ..., **other: list[str] | None) -> dict[str, Any]:
    address = [f"10.0.0.{number}"] if own is ... else own
    return {"names.own": (f"n{number}", address), "names.resolved": resolved(*NAMES, **other)}


def test_equal_answers_pass() -> None:
    assert told(fleet(n1=node(1), n2=node(2), n3=node(3)), "name.resolve") == dict.fromkeys(
        NAMES, "pass"
    )


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(["127.0.1.1"], id="debians-line"),
        pytest.param(["127.0.0.1"], id="on-localhosts-line"),
        pytest.param(["::1"], id="ipv6"),
        pytest.param(["10.0.0.2", "127.0.1.1"], id="both"),
        pytest.param(["127.0.0.2"], id="systemd-without-an-address"),
    ],
)
def test_an_own_name_on_loopback_is_a_failure_of_that_node_alone(own: list[str]) -> None:
    seen = fleet(n1=node(1), n2=node(2, own, n2=own), n3=node(3))
    assert told(seen, "name.resolve") == {"n1": "pass", "n2": "fail error", "n3": "pass"}
    (bad,) = [f for f in findings(seen, "name.resolve") if f.verdict == "fail"]
    assert "127." in bad.seen or "::1" in bad.seen
    assert "/etc/hosts" in bad.remedy


def test_a_label_of_the_inventory_may_be_loopback_on_its_own_node() -> None:
    """Only the host name is published, and others resolve the label by themselves."""
    seen = fleet(
        n1=node(1),
        n2={**node(2, n2=["127.0.0.1"]), "names.own": ("gpu-17", ["10.0.0.2"])},
        n3=node(3),
    )
    assert told(seen, "name.resolve") == dict.fromkeys(NAMES, "pass")


def test_a_hosts_file_copied_to_all_nodes_with_its_loopback_line_fails_on_all() -> None:
    copied = {"n1": ["127.0.1.1"]}
    seen = fleet(n1=node(1, ["127.0.1.1"], **copied), n2=node(2, **copied), n3=node(3, **copied))
    assert told(seen, "name.resolve") == dict.fromkeys(NAMES, "fail error")


def test_of_two_nodes_the_one_that_takes_the_other_for_itself_fails() -> None:
    seen = fleet(n1=node(1), n2=node(2, n1=["127.0.0.1"]))
    assert told(seen, "name.resolve") == {"n1": "pass", "n2": "fail error"}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(["10.9.9.9"], id="another-address"),
        pytest.param(["10.0.0.1", "192.168.1.1"], id="one-more-address"),
        pytest.param(None, id="none"),
    ],
)
def test_a_name_that_is_different_on_one_node_is_that_nodes_fault(wrong: list[str] | None) -> None:
    seen = fleet(n1=node(1), n2=node(2), n3=node(3, n1=wrong))
    assert told(seen, "name.resolve") == {"n1": "pass", "n2": "pass", "n3": "fail error"}
    (bad,) = [f for f in findings(seen, "name.resolve") if f.verdict == "fail"]
    assert "n1 is" in bad.seen
    assert "elsewhere 10.0.0.1" in bad.seen


def test_two_nodes_that_disagree_about_a_third_name_are_both_named() -> None:
    seen = fleet(n1=node(1), n2=node(2, n3=["10.9.9.9"]))
    assert told(seen, "name.resolve") == {"n1": "fail error", "n2": "fail error"}


def test_a_host_that_answers_for_itself_with_all_its_addresses_is_well() -> None:
    """As nss-myhostname and systemd-resolved do, by default on Fedora and RHEL."""
    every = ["10.0.0.2", "172.17.0.1", "fe80::5054:ff:fe12:3456"]
    seen = fleet(n1=node(1), n2=node(2, every, n2=every), n3=node(3))
    assert told(seen, "name.resolve") == dict.fromkeys(NAMES, "pass")
    assert told(fleet(n1=node(1), n2=node(2, every, n2=every)), "name.resolve") == {
        "n1": "pass",
        "n2": "pass",
    }


def test_a_host_whose_own_answer_is_of_another_network_is_blamed() -> None:
    seen = fleet(n1=node(1), n2=node(2, ["192.168.1.2"], n2=["192.168.1.2"]), n3=node(3))
    assert told(seen, "name.resolve") == {"n1": "pass", "n2": "fail error", "n3": "pass"}


def test_names_that_mean_nothing_to_any_resolver_are_alike() -> None:
    """Names of the inventory may be labels only; addresses are what we use."""
    unknown = dict.fromkeys(NAMES)
    seen = fleet(n1=node(1, **unknown), n2=node(2, **unknown), n3=node(3, **unknown))
    assert told(seen, "name.resolve") == dict.fromkeys(NAMES, "pass")


def test_an_own_name_that_does_not_resolve_is_no_pass() -> None:
    seen = fleet(n1=node(1), n2=node(2, None), n3=node(3))
    assert told(seen, "name.resolve") == {"n1": "pass", "n2": "fail warning", "n3": "pass"}


@pytest.mark.parametrize("fact", ["names.own", "names.resolved"])
def test_a_resolver_that_did_not_answer_is_not_known(fact: str) -> None:
    seen = fleet(n1=node(1), n2={**node(2), fact: absent("timed_out")}, n3=node(3))
    assert told(seen, "name.resolve") == {
        "n1": "pass",
        "n2": "unknown error timed_out",
        "n3": "pass",
    }


@pytest.mark.parametrize("own", [["10.0.0.1"], ["127.0.1.1"], None], ids=str)
def test_one_node_alone_has_nobody_who_must_find_it(own: list[str] | None) -> None:
    """Debian's own line in /etc/hosts is no fault of a machine that is looked at by itself."""
    seen = fleet(n1={**node(1), "names.own": ("n1", own)})
    assert told(seen, "name.resolve") == {"n1": "skip not_applicable"}


def test_a_name_that_was_asked_for_and_not_answered_is_not_alike() -> None:
    half = {**node(2), "names.resolved": resolved("n1", "n2")}
    assert told(fleet(n1=node(1), n2=half, n3=node(3)), "name.resolve") == {
        "n1": "pass", "n2": "unknown error garbled", "n3": "pass"
    }  # fmt: skip
