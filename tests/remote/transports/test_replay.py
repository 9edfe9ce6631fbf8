"""A recording answers like the fleet it was taken from, and refuses what it was never asked."""

from __future__ import annotations

from datetime import date

import pytest

from clusterprep.errors import Unreached
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.link import open_link
from clusterprep.remote.transports.local import LocalTransport
from clusterprep.remote.transports.replay import ReplayTransport, record
from clusterprep.reports.progress import Progress
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import QueryPlan, plan_queries
from tests.support.asked import answered, reads

MOMENTARY = ("proc.", "irq.")  # what may be otherwise a second later
CHECKS = tuple(check for name, check in registry.checks().items() if not name.startswith(MOMENTARY))


def plan() -> QueryPlan:
    return plan_queries(CHECKS, registry.facts())


def test_judging_a_recording_gives_what_judging_the_node_gave() -> None:
    """Recorded from this machine over the real agent, then judged with and without it."""
    node = Node("here", "127.0.0.1", 0, transport="local")
    inventory = Inventory("test", (node,))
    asked = reads(plan(), node, inventory)
    link = open_link(
        LocalTransport(),
        node,
        bootstrap.parts_for({read.kind for read in asked}),
        lambda node: None,
    )
    try:
        recording = {
            "here": record(dict(zip(asked, answered(link, asked), strict=True)), peer=link.peer)
        }
    finally:
        link.close()
    fleets = []
    for transport in (LocalTransport(), ReplayTransport(recording)):
        with Fanout(inventory, {"local": transport}, 4, lambda node: None, Progress()) as fanout:
            fleets.append(probe_pairs(fanout, fanout.survey(plan()), "here"))
    live, replayed = (judge(fleet, CHECKS, date(2026, 1, 1)) for fleet in fleets)
    assert {(f.check, f.verdict) for f in live} == {(f.check, f.verdict) for f in replayed}
    assert any(finding.verdict == "pass" for finding in replayed)


def test_a_read_that_was_not_recorded_has_no_answer() -> None:
    node = Node("a", "127.0.0.1", 0)
    link = open_link(ReplayTransport({"a": {"answers": {}}}), node, ["look"], lambda node: None)
    answers = answered(link, [Read("file", ("/proc/version",))])
    assert answers[0][:2] == ["no", "not_recorded"]


def test_recorded_clocks_and_lost_nodes_come_back() -> None:
    nodes = tuple(Node(name, name, i) for i, name in enumerate("abc"))
    recording = {
        "a": {"answers": {}, "offset": 5.0},
        "b": {"unreached": ["timed_out", "no answer"]},
    }
    with Fanout(
        Inventory("t", nodes), {"ssh": ReplayTransport(recording)}, 2, lambda n: None, Progress()
    ) as fanout:
        fleet = fanout.survey(plan())
    assert fleet.fact("a", "clock.offset").seconds == pytest.approx(5.0, abs=0.5)
    assert [s.reason for s in fleet.snapshots.values()] == [None, "timed_out", "name_unknown"]
    assert isinstance(fleet.fact("a", "kernel.release"), Absent)


def test_a_recording_cannot_write() -> None:
    link = open_link(
        ReplayTransport({"a": {"answers": {}}}), Node("a", "a", 0), ["act"], lambda node: None
    )
    assert link.request("stage", 1.0)["no"] == "not_recorded"
    with pytest.raises(Unreached):
        ReplayTransport({}).open(Node("a", "a", 0), "")
