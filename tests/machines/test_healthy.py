"""Healthy machines of every kind: check says so, and says what it cannot know of them."""

from __future__ import annotations

from datetime import date

import pytest
from msgspec.structs import replace

from clusterprep.cli.exit_codes import findings_code
from clusterprep.model import Finding
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from tests import machines as fleets
from tests.machines import play

pytestmark = [
    pytest.mark.machine,
    play.needs_chroot,
]


def sentence(finding: Finding) -> str:
    nodes = ",".join(finding.nodes)
    why = f"{finding.reason}: " if finding.reason else ""
    return (
        f"{finding.check} {finding.verdict} {nodes}: {why}{finding.message} (seen: {finding.seen})"
    )


def of(kind: str, verdict: str) -> list[Finding]:
    return [finding for finding in play.world(kind).findings if finding.verdict == verdict]


@pytest.mark.parametrize("kind", fleets.names())
def test_no_check_fails_a_healthy_machine(kind: str) -> None:
    assert [sentence(finding) for finding in of(kind, "fail")] == []


@pytest.mark.parametrize("kind", fleets.names())
def test_what_is_not_known_is_listed_with_its_reason(kind: str) -> None:
    expected = fleets.load(kind).unknown
    surprising = [
        sentence(finding) for finding in of(kind, "unknown") if finding.check not in expected
    ]
    assert surprising == []
    assert set(expected) == {finding.check for finding in of(kind, "unknown")}, (
        "listed, and known by now"
    )


@pytest.mark.parametrize("kind", fleets.names())
def test_check_ends_as_described(kind: str) -> None:
    """With 0; 3 only where something grave is among what cannot be known."""
    assert findings_code(play.world(kind).findings) == fleets.load(kind).exit


@pytest.mark.parametrize("kind", fleets.names())
def test_every_check_answers_for_every_machine(kind: str) -> None:
    findings = play.world(kind).findings
    for check in registry.checks():
        answered = {
            node for finding in findings if finding.check == check for node in finding.nodes
        }
        assert answered == {node.name for node in play.world(kind).inventory.nodes}, check


@pytest.mark.parametrize("kind", fleets.names())
def test_machines_that_are_alike_are_judged_as_each_by_itself(kind: str) -> None:
    """A site's check is asked for every node, as nothing is known of what it looks at."""
    fleet = play.world(kind).fleet
    together = tuple(registry.checks().values())
    apart = [replace(check, source="site/checks.py") for check in together]
    today = date(2026, 11, 21)
    assert judge(fleet, together, today) == judge(fleet, apart, today)


def test_every_check_passes_some_machine() -> None:
    """A check that passes none of these could as well say nothing."""
    passed = {finding.check for kind in fleets.names() for finding in of(kind, "pass")}
    silent = sorted(set(registry.checks()) - passed - NEVER)
    assert silent == [], "where no machine has what they read: give `machine=` to their proofs"


# What no recorded machine has: ssh.mesh asks each node for all others, and rt.* are about runtimes,
# which no job of these machines has. Hosts pass them, in test_ssh_mesh.py, test_runtime.py and
# test_containers.py of tests/hosts. host.certified takes a certificate, and is passed in
# jobs/acceptance/test_hosts.py.
OF_RUNTIMES = {"devices", "engine", "env", "gpus", "ipc", "libs", "memlock", "network", "shm"}
NEVER = {"ssh.mesh", "host.certified", *(f"rt.{name}" for name in OF_RUNTIMES)}


@pytest.mark.parametrize("kind", fleets.names())
def test_every_kind_says_where_it_comes_from(kind: str) -> None:
    source = fleets.load(kind).source
    assert source
    assert all(len(sentence) > 40 for sentence in source), "title, place, and what was taken"
    assert any("nferred" in sentence for sentence in source), "says what was filled in"


def test_check_ends_well_on_thirty_kinds() -> None:
    """Nearly all of them; the others hide the kernel's log from whom the check runs as."""
    well = [kind for kind in fleets.names() if fleets.load(kind).exit == 0]
    assert len(well) >= 30
