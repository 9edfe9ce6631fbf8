"""The table as text and as nft lists it, the addresses in it, and what other tables drop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterprep.changes.firewalls import firewalld
from clusterprep.changes.firewalls.owner import FirewallOwner
from clusterprep.changes.firewalls.rules import merge_ranges
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.firewall import (
    BOOT,
    NAME,
    OWNER,
    PATH,
    RANGE,
    RESOURCE,
    RULES,
    SSHD,
    UNIT,
    UNIT_TEXT,
    PacketFilters,
    addresses_of,
    is_loaded,
    parse_filters,
    parse_service,
    parse_sshd,
    table_text,
    wanted_rules,
)
from clusterprep.changes.resources.service import Unit
from clusterprep.facts.firewall import Chain, Rule, RuleMatch, parse_nft
from clusterprep.facts.network import Interface
from clusterprep.model import Absent, Fleet, Inventory, Node, NodeSnapshot, SshSettings
from clusterprep.model.files import FileState
from clusterprep.model.operations import RunCommand, StepAction, Write
from clusterprep.nccl.environment import Environment

PORTS = (32768, 60999)
RUNS = Unit("loaded", "enabled", "active", stale=False)
NO_UNIT = Unit("not-found", "", "inactive", stale=False)
# What nft 1.0.6 lists with -j of the table for n1, n2 and 10.0.0.4-10.0.0.7.
LISTED = """
{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
{"table": {"family": "inet", "name": "clusterprep", "handle": 3}},
{"chain": {"family": "inet", "table": "clusterprep", "name": "input", "handle": 1, "type": "filter",
 "hook": "input", "prio": 0, "policy": "accept"}},
{"rule": {"family": "inet", "table": "clusterprep", "chain": "input", "handle": 2, "expr": [
 {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}, {"accept": null}]}},
{"rule": {"family": "inet", "table": "clusterprep", "chain": "input", "handle": 4, "expr": [
 {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}},
 {"accept": null}]}},
{"rule": {"family": "inet", "table": "clusterprep", "chain": "input", "handle": 7, "expr": [
 {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
  "right": {"set": [{"range": ["10.0.0.1", "10.0.0.2"]},
                    {"prefix": {"addr": "10.0.0.4", "len": 30}}]}}},
 {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
  "right": {"set": [29500, {"range": [32768, 60999]}]}}}, {"accept": null}]}},
{"rule": {"family": "inet", "table": "clusterprep", "chain": "input", "handle": 9, "expr": [
 {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
  "right": {"set": [29500, {"range": [32768, 60999]}]}}},
 {"match": {"op": "==", "left": {"&": [{"payload": {"protocol": "tcp", "field": "flags"}},
  {"|": [{"|": [{"|": ["fin", "syn"]}, "rst"]}, "ack"]}]}, "right": "syn"}},
 {"counter": {"packets": 3, "bytes": 180}}, {"drop": null}]}}]}
"""
MINE = parse_nft(LISTED)
RECORDED = Path(__file__).parents[2] / "facts/distributions/sshd"
WALL = Chain(
    "inet filter", "input", (Rule((RuleMatch("dport", ("22",)),), "accept"),), "input", "drop"
)


def interface(*ipv4: str, ipv6: tuple[str, ...] = (), name: str = "eth0") -> Interface:
    shape = {
        "up": True,
        "running": True,
        "loopback": False,
        "physical": True,
        "bridge": False,
        "master": None,
    }
    more = {"mtu": 1500, "speed": None, "infiniband": False, "ipv6": ipv6}
    return Interface(name=name, ipv4=ipv4, **shape, **more)  # type: ignore[arg-type]


def fleet(*more: Interface, left_out: tuple[Node, ...] = (), port: int = 29500) -> Fleet:
    nodes = tuple(Node(f"n{number}", f"10.0.0.{number}", number - 1) for number in (1, 2))
    snapshots = {
        node.name: NodeSnapshot(
            node.name,
            node.address,
            True,
            facts={"net.interfaces": (interface(f"{node.address}/24"), *more)},
        )
        for node in nodes
    }
    return Fleet(Inventory("test", nodes, master_port=port, left_out=left_out), snapshots)


def context_of(over: Fleet | None = None, **given: Any) -> PlanContext:
    """n1 as it is; without more there is no table, no file and no unit."""
    over = over or fleet()
    facts = {
        RULES.name: PacketFilters((), nft=True),
        SSHD.name: (22,),
        BOOT.name: RUNS,
        OWNER.name: FirewallOwner(),
        "net.port_range": PORTS,
    }
    facts["net.interfaces"] = over.snapshots["n1"].facts["net.interfaces"]
    facts.update(given.pop("facts", {}))
    files = {
        path: FileState(path, content)
        for path, content in {
            PATH: None,
            UNIT: None,
            firewalld.PATH: None,
            **given.pop("files", {}),
        }.items()
    }
    return PlanContext(over, over.inventory.nodes[0], files, facts, Environment((), {}), **given)


def planned(against: PlanContext, **params: Any) -> StepAction:
    (step_action,) = RESOURCE.plan(params, against)
    return step_action


def shown(step_action: StepAction) -> list[str]:
    return [
        " ".join(each.argv) if isinstance(each, RunCommand) else getattr(each, "path", "?")
        for each in step_action.operations
    ]


TEXT = table_text(wanted_rules({"allow": ["10.0.0.4/30"]}, context_of()))


def test_the_table_closes_what_it_does_not_open_and_ssh_never() -> None:
    assert TEXT.split("\n")[1:] == [
        "table inet clusterprep",
        "delete table inet clusterprep",
        "table inet clusterprep {",
        "\tchain input {",
        "\t\ttype filter hook input priority 0; policy accept;",
        '\t\tiifname "lo" accept',
        "\t\ttcp dport { 22 } accept",
        (
            "\t\tip saddr { 10.0.0.1-10.0.0.2, 10.0.0.4-10.0.0.7 } "
            "tcp dport { 29500, 32768-60999 } accept"
        ),
        (
            "\t\ttcp dport { 29500, 32768-60999 } "
            "tcp flags & (fin | syn | rst | ack) == syn counter drop"
        ),
        "\t}",
        "}",
        "",
    ]


def test_the_listing_of_nft_is_the_table_that_was_loaded_whatever_form_its_sets_have() -> None:
    want = wanted_rules({"allow": ["10.0.0.4/30"]}, context_of())
    assert is_loaded(MINE, want)
    assert not is_loaded((), want)
    assert not is_loaded(MINE, wanted_rules({"allow": ["10.0.0.4/31"]}, context_of()))
    assert not is_loaded(MINE, wanted_rules({"allow": ["10.0.0.4/30", "fd00::1"]}, context_of()))
    for number in range(4):
        rules = [item for item in json.loads(LISTED)["nftables"] if "rule" in item]
        others = [item for item in json.loads(LISTED)["nftables"] if item != rules[number]]
        assert not is_loaded(parse_nft(json.dumps({"nftables": others})), want)


@pytest.mark.parametrize(
    ("given", "files", "facts", "expected"),
    [
        pytest.param(
            {}, {}, {}, [PATH, f"nft -f {PATH}", UNIT, "systemctl daemon-reload"], id="new"
        ),
        pytest.param(
            {},
            {PATH: TEXT, UNIT: UNIT_TEXT},
            {RULES.name: PacketFilters(MINE, True)},
            [],
            id="as-wanted",
        ),
        pytest.param({}, {PATH: TEXT, UNIT: UNIT_TEXT}, {}, [f"nft -f {PATH}"], id="not-loaded"),
        pytest.param(
            {},
            {PATH: "x", UNIT: UNIT_TEXT},
            {RULES.name: PacketFilters(MINE, True)},
            [PATH],
            id="another-file",
        ),
        pytest.param(
            {},
            {PATH: TEXT, UNIT: UNIT_TEXT},
            {RULES.name: PacketFilters(MINE, True), BOOT.name: NO_UNIT},
            [
                "systemctl enable -- clusterprep-firewall.service",
                "systemctl start -- clusterprep-firewall.service",
            ],
            id="not-at-boot",
        ),
        pytest.param(
            {},
            {PATH: TEXT},
            {RULES.name: PacketFilters(MINE, True), BOOT.name: None},
            [],
            id="no-systemd",
        ),
    ],
)
def test_what_is_done_is_what_is_missing(
    given: Any, files: dict[str, str], facts: Any, expected: list[str]
) -> None:
    against = context_of(
        files={path: text.encode() for path, text in files.items()}, facts=facts, **given
    )
    step_action = planned(against, allow=["10.0.0.4/30"])
    assert shown(step_action) == expected
    assert ("there is no systemd" in step_action.diff) is (
        BOOT.name in facts and facts[BOOT.name] is None
    )


def loads(step_action: StepAction) -> RunCommand:
    return next(
        each
        for each in step_action.operations
        if isinstance(each, RunCommand) and each.argv[0] == "nft"
    )


def test_an_undo_takes_a_new_table_away_and_loads_a_former_one_from_its_file() -> None:
    fresh = loads(planned(context_of()))
    assert fresh.undo is not None
    assert [run.argv for run in fresh.undo] == [("nft", "delete", "table", "inet", NAME)]
    changed = {"facts": {RULES.name: PacketFilters(MINE, True)}}
    former = loads(planned(context_of(files={PATH: b"old"}, **changed)))
    assert (former.undo, [run.argv for run in former.again]) == (None, [("nft", "-f", PATH)])
    lost = planned(context_of(**changed))
    assert (loads(lost).undo, loads(lost).again) == (None, ())
    assert "no way back" in lost.diff


def test_every_address_of_every_node_may_connect_and_containers_may_not() -> None:
    rail = interface("10.9.0.7/16", ipv6=("fd00::7/64",), name="eth1")
    bridge = msgspec.structs.replace(interface("172.17.0.1/16", name="docker0"), bridge=True)
    over = fleet(rail, bridge)
    assert addresses_of(over) == {"10.0.0.1", "10.0.0.2", "10.9.0.7", "fd00::7"}
    assert "ip6 saddr { fd00::7 } tcp dport" in table_text(wanted_rules({}, context_of(over)))


def test_a_node_that_was_left_out_is_not_shut_out() -> None:
    third = (Node("n3", "10.0.0.3", 2),)
    assert addresses_of(fleet(left_out=third)) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    with pytest.raises(NoPlan, match="those of n3 are needed"):
        addresses_of(fleet(interface("10.9.0.7/16", name="eth1"), left_out=third))


def test_ports_are_those_that_the_playbook_leaves_and_ssh_is_where_sshd_listens() -> None:
    file = FileState(RANGE, b"20000 29600\n")
    against = context_of(fleet(port=29500), written={RANGE: file}, facts={SSHD.name: (22, 20022)})
    node = msgspec.structs.replace(against.node, ssh=SshSettings(port=2200))
    want = wanted_rules({}, msgspec.structs.replace(against, node=node))
    assert want.ports == ((20000, 29600),)
    assert want.ssh == ((22, 22), (2200, 2200), (20022, 20022))


def test_what_another_table_drops_is_no_plan_unless_a_step_before_may_open_it() -> None:
    against = context_of(facts={RULES.name: PacketFilters((WALL,), True)})
    with pytest.raises(
        NoPlan, match=r"policy drop drops TCP from the other nodes, port 29500: nft insert rule"
    ):
        planned(against)
    opens = StepAction("n1", "command", "open", "run", (RunCommand(("true",)),))
    assert planned(msgspec.structs.replace(against, earlier=(opens,))).operations
    some = msgspec.structs.replace(
        WALL, policy="accept", rules=(Rule((RuleMatch("other"),), "drop"),)
    )
    step_action = planned(context_of(facts={RULES.name: PacketFilters((some,), True)}))
    assert "may be dropped all the same by inet filter input, rule 1" in step_action.diff


def test_nft_that_is_not_there_is_said() -> None:
    against = context_of(
        facts={
            RULES.name: parse_filters(
                {"nft": None, "iptables": None, "legacy": None}, Absent("missing_tool")
            )
        }
    )
    with pytest.raises(NoPlan, match="package nftables"):
        planned(against)
    brings = StepAction("n1", "package", "nftables", "create", (RunCommand(("true",)),))
    assert any(
        isinstance(each, Write)
        for each in planned(msgspec.structs.replace(against, earlier=(brings,))).operations
    )
    assert parse_filters(Absent("denied"), {"code": 0}) == Absent("denied")


def test_what_sshd_and_systemd_say() -> None:
    assert parse_sshd(
        {"out": "port 22\nport 2222\nlistenaddress [::]:2022\nportx 9\n", "code": 0}
    ) == (22, 2022, 2222)
    in_vrf = "port 22\nlistenaddress 0.0.0.0:2200 rdomain mgmt\n"
    assert parse_sshd({"out": in_vrf, "code": 0}) == (22, 2200)
    assert parse_sshd(Absent("missing_tool")) == ()
    for path in RECORDED.iterdir():
        assert parse_sshd({"out": path.read_text(), "code": 0}) == (22,), path.name
    assert (
        parse_service({"out": "", "code": 1, "err": "System has not been booted with systemd"})
        is None
    )
    assert parse_service(Absent("missing_tool")) is None


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([(5, 6), (1, 4)], ((1, 6),)), ([(1, 9), (3, 4), (11, 12)], ((1, 9), (11, 12))), ([], ())],
)
def test_ranges_next_to_each_other_are_one(spans: list[tuple[int, int]], expected: Any) -> None:
    assert merge_ranges(spans) == expected


def test_networks_that_are_none() -> None:
    assert [
        key for key, _ in RESOURCE.wrong({"allow": ["10.0.0.1/24", "10.0.0.0/24", "1.2.3"]})
    ] == ["allow", "allow"]
