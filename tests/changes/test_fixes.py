"""What findings ask for becomes steps of their nodes alone; none holds up another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from clusterprep.changes.by_hand import REBOOT, reason
from clusterprep.changes.fixes import (
    FAILED,
    NO_ANSWER,
    Proposal,
    feasible,
    final_rows,
    planned_rows,
    proposed,
)
from clusterprep.changes.playbook.steps import resources
from clusterprep.changes.resources.limits import FILES as LIMITS
from clusterprep.changes.resources.service import Unit
from clusterprep.model import Finding, FixRow, Fleet, Inventory, Node, NodeSnapshot
from clusterprep.model.files import FileState
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.nccl.environment import Environment
from clusterprep.survey import registry

NAMES = ("n1", "n2", "n3")
NODES = tuple(Node(name, f"10.0.0.{number}", number) for number, name in enumerate(NAMES))
INVENTORY = Inventory("test", NODES)
NO_ENVIRONMENT = Environment((), {})
STOPPED = Unit("loaded", "disabled", "inactive", False)
MISSING = Unit("not-found", "", "inactive", False)
SERVICE = fix_of(wanted_state("service", name="a", enabled=True, running=True))
MTU = fix_of(wanted_state("mtu", interface="eth0", size="9000"))


def failure(check: str, *nodes: str, fix: Fix | None = None, **fields: Any) -> Finding:
    return Finding(check, "fail", "error", nodes, "it fails", fix=fix, **fields)


def passing(check: str, *nodes: str) -> Finding:
    return Finding(check, "pass", "error", nodes, "it passes")


def asked(*findings: Finding, reached: Sequence[str] = NAMES) -> Proposal:
    return proposed(INVENTORY, reached, findings, resources())


def steps_of(proposal: Proposal) -> list[tuple[str, dict[str, Any], str]]:
    return [
        (step.resource.name, dict(step.params), ",".join(sorted(step.nodes or ())))
        for step in proposal.steps
    ]


def fleet(**facts: Any) -> Fleet:
    """Nodes that know the same, but for what `n2` holds."""
    odd = facts.pop("n2", {})
    snapshots = {}
    for node in NODES:
        known = {**facts, **(odd if node.name == "n2" else {})}
        snapshots[node.name] = NodeSnapshot(node.name, node.address, True, facts=known)
    return Fleet(INVENTORY, snapshots)


def test_steps_are_for_the_nodes_of_the_finding_alone() -> None:
    proposal = asked(failure("svc.required", "n2", fix=SERVICE), failure("eth.mtu", "n3", fix=MTU))
    assert steps_of(proposal) == [
        ("mtu", {"interface": "eth0", "size": "9000"}, "n3"),
        ("service", {"name": "a", "enabled": True, "running": True}, "n2"),
    ]
    assert [step.name for step in proposal.steps] == ["eth.mtu", "svc.required"]
    assert proposal.wanted == {("svc.required", "n2"): (1,), ("eth.mtu", "n3"): (0,)}


def test_failures_about_the_same_file_are_one_step() -> None:
    memlock = fix_of(wanted_state("limits", memlock="unlimited", others="keep"))
    nofile = fix_of(wanted_state("limits", nofile="65536", others="keep"))
    proposal = asked(
        failure("lim.memlock", "n1", "n2", fix=memlock), failure("lim.nofile", "n2", fix=nofile)
    )
    assert steps_of(proposal) == [
        ("limits", {"memlock": "unlimited", "others": "keep"}, "n1"),
        ("limits", {"memlock": "unlimited", "others": "keep", "nofile": "65536"}, "n2"),
    ]


def test_packages_come_before_services_and_clocks_after() -> None:
    fix = fix_of(
        wanted_state("clock"),
        wanted_state("service", name="chrony", running=True),
        wanted_state("package", name="chrony"),
    )
    names = [name for name, _, _ in steps_of(asked(failure("time.daemon", "n1", fix=fix)))]
    assert names == ["package", "service", "clock"]


def test_what_is_equal_in_a_job_is_for_all_nodes() -> None:
    fix = fix_of(wanted_state("env"), everywhere=True)
    assert steps_of(asked(failure("nccl.iface", "n2", fix=fix))) == [("env", {}, "n1,n2,n3")]


@pytest.mark.parametrize(
    ("finding", "why"),
    [
        pytest.param(failure("kernel.cmdline", "n1"), REBOOT, id="for-people"),
        pytest.param(failure("eth.mtu", "n3", fix=MTU), NO_ANSWER, id="not-reached"),
        pytest.param(
            failure("site.a", "n1", fix=fix_of(wanted_state("magic"))),
            "magic: there is no such resource",
            id="no-such-resource",
        ),
        pytest.param(
            failure("eth.mtu", "n1", fix=fix_of(wanted_state("mtu", interface="a b", size="9"))),
            "mtu: expected the name of a network interface, such as eth0",
            id="wrong-parameter",
        ),
        pytest.param(
            failure("a.b", "n1", fix=fix_of(wanted_state("unset", path="/{{ node }}", name="A"))),
            "unset: a word in it is not plain",
            id="braces-of-a-node",
        ),
    ],
)
def test_what_is_left_to_people_has_a_reason(finding: Finding, why: str) -> None:
    proposal = asked(finding, reached=("n1", "n2"))
    assert (proposal.steps, proposal.left) == ((), {(finding.check, finding.nodes[0]): why})
    assert planned_rows(proposal) == (FixRow(finding.check, finding.nodes, "by hand", why),)


@pytest.mark.parametrize(
    "finding",
    [
        failure("svc.required", "n1", fix=SERVICE, silenced="known"),
        failure("svc.required", "n1", fix=SERVICE, fixed=True),
        passing("svc.required", "n1"),
        Finding("svc.required", "unknown", "error", ("n1",), "not known"),
    ],
    ids=["silenced", "fixed", "passes", "unknown"],
)
def test_what_does_not_count_asks_for_nothing(finding: Finding) -> None:
    assert asked(finding) == Proposal()


def test_every_check_has_a_fix_or_a_reason() -> None:
    for name in registry.checks():
        assert reason(name)


# ---------------------------------------------------------------- what a node can have


def test_a_step_that_one_node_cannot_have_holds_up_no_other() -> None:
    proposal = asked(
        failure("svc.required", "n1", "n2", fix=SERVICE), failure("eth.mtu", "n2", fix=MTU)
    )
    seen = fleet(
        **{"service:a.service": STOPPED, "mtu:eth0": 1500}, n2={"service:a.service": MISSING}
    )
    found = feasible(seen, proposal, NO_ENVIRONMENT)
    assert [(name, nodes) for name, _, nodes in steps_of(found)] == [
        ("mtu", "n2"),
        ("service", "n1"),
    ]
    assert found.wanted == {("svc.required", "n1"): (1,), ("eth.mtu", "n2"): (0,)}
    assert "systemd has no unit a.service" in found.left["svc.required", "n2"]


def test_a_failure_gets_all_of_its_steps_or_none() -> None:
    fix = fix_of(*MTU.states, *SERVICE.states)
    proposal = asked(failure("a.b", "n1", "n2", fix=fix))
    seen = fleet(
        **{"service:a.service": STOPPED, "mtu:eth0": 1500}, n2={"service:a.service": MISSING}
    )
    found = feasible(seen, proposal, NO_ENVIRONMENT)
    assert [nodes for _, _, nodes in steps_of(found)] == ["n1", "n1"]


def test_limits_of_an_earlier_run_stay() -> None:
    memlock = fix_of(wanted_state("limits", memlock="unlimited", others="keep"))
    files = {f"target:{path}": FileState(path, None) for path in LIMITS}
    proposal = asked(failure("lim.memlock", "n1", fix=memlock))
    assert feasible(fleet(**files), proposal, NO_ENVIRONMENT) == proposal


# ---------------------------------------------------------------- what became of it


def rows(*after: Finding, failed: Sequence[str] = ()) -> set[FixRow]:
    proposal = asked(
        failure("svc.required", "n1", "n2", fix=SERVICE),
        failure("kernel.cmdline", "n3"),
        failure("eth.path_mtu", "n3"),
    )
    return set(final_rows(proposal, after, failed))


def test_a_failure_is_cured_only_if_the_second_look_says_so() -> None:
    found = rows(
        passing("svc.required", "n1"),
        failure("svc.required", "n2", seen="a failed"),
        failure("kernel.cmdline", "n3"),
        passing("eth.path_mtu", "n3"),
    )
    assert found == {
        FixRow("svc.required", ("n1",), "cured"),
        FixRow(
            "svc.required",
            ("n2",),
            "not cured",
            "the step is done, and the check still fails: a failed",
        ),
        FixRow("kernel.cmdline", ("n3",), "by hand", REBOOT),
        FixRow("eth.path_mtu", ("n3",), "cured"),  # with the cause of it
    }


def test_a_step_that_failed_is_named_and_what_is_not_known_is_not_cured() -> None:
    found = rows(failure("svc.required", "n2"), failed=("n2",))
    assert FixRow("svc.required", ("n2",), "not cured", FAILED) in found
    assert FixRow("svc.required", ("n1",), "not cured", "the second look could not tell") in found
