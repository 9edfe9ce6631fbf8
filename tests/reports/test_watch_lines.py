"""How changes look to people and to programs."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from clusterprep.reports.watch_lines import console_lines, json_rows
from clusterprep.survey.watch.changes import Change

AT = datetime(2026, 11, 29, 10, 15, 3, tzinfo=timezone.utc)
MTU = Change(
    "new",
    ("n2", "n3"),
    "eth.mtu",
    "fail",
    "warning",
    "the MTU differs",
    "1400",
    "1500",
    "ip link set dev eth0 mtu 1500",
)


def shown(change: Change) -> list[str]:
    return list(console_lines([change], AT))


def test_a_new_finding_has_what_was_seen_and_what_to_do() -> None:
    assert shown(MTU) == [
        "10:15:03  new       n[2-3] warning eth.mtu: the MTU differs; seen 1400; wanted 1500",
        "          do: ip link set dev eth0 mtu 1500",
    ]


def test_what_is_gone_says_how_long_it_was_there_and_nothing_to_do() -> None:
    gone = Change("gone", ("n2",), "eth.mtu", "fail", "error", "the MTU differs", seconds=125.2)
    assert shown(gone) == [
        "10:15:03  gone      n2 error eth.mtu: the MTU differs, after 2 min 5 s",
    ]


def test_what_is_not_known_says_so() -> None:
    unknown = Change("new", ("n2",), "eth.mtu", "unknown", "error", "no answer")
    assert shown(unknown) == ["10:15:03  new       n2 error (unknown) eth.mtu: no answer"]


def test_nodes_go_and_come() -> None:
    down = Change("down", ("n4",), "ssh.reach", message="the node is not reached", seen="no route")
    back = Change("back", ("n4",), "ssh.reach", seconds=20.0)
    assert shown(down) == ["10:15:03  down      n4: the node is not reached; seen no route"]
    assert shown(back) == ["10:15:03  back      n4, after 20 s"]


def test_lines_of_the_kernel_stand_below_and_cannot_act_on_the_terminal() -> None:
    log = Change("log", ("n1",), message="new lines", lines=("Xid 79\x1b[2J",), left_out=3)
    assert shown(log) == [
        "10:15:03  log       n1: new lines",
        "          | Xid 79\N{REPLACEMENT CHARACTER}[2J",
        "          | and 3 lines before",
    ]


def test_what_is_about_no_node_is_a_sentence() -> None:
    slept = Change("unseen", message="this machine slept", seconds=3600.0)
    assert shown(slept) == ["10:15:03  unseen    this machine slept, after 1 h"]


def test_programs_get_an_object_on_a_line_for_each() -> None:
    (row,) = json_rows([MTU], AT, "lab")
    assert json.loads(row) == {
        "schema": 1,
        "time": "2026-11-29T10:15:03Z",
        "cluster": "lab",
        "kind": "new",
        "nodes": ["n2", "n3"],
        "check": "eth.mtu",
        "verdict": "fail",
        "severity": "warning",
        "message": "the MTU differs",
        "seen": "1400",
        "wanted": "1500",
        "remedy": "ip link set dev eth0 mtu 1500",
    }
