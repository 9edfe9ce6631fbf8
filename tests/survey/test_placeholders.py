"""No remedy of a finding has a word in capitals that stands for a name known on the node.

Every check's fault is made on its recorded machine, on one node and, where there are two at least,
on half of them, so that no value has a majority.
"""

from __future__ import annotations

import functools
from datetime import date

import pytest

from clusterprep.checks import Check
from clusterprep.cli.commands.selftest import recorded_fleet, turned_bad
from clusterprep.model import Absent, Finding, Fleet
from clusterprep.remedies import has_placeholder, shell_line
from clusterprep.survey import registry
from clusterprep.survey.judge import judge

CHECKS = tuple(check for check in registry.checks().values() if check.proof is not None)
TODAY = date(2026, 11, 21)


@functools.cache
def recorded(kind: str) -> Fleet:
    return recorded_fleet(kind, tuple(registry.checks().values()))


def with_fault(fleet: Fleet, check: Check, nodes: tuple[str, ...]) -> Fleet | Absent:
    for name in nodes:
        found = turned_bad(fleet, name, check.proof)  # type: ignore[arg-type]
        if isinstance(found, Absent):
            return found
        fleet = found
    return fleet


def findings(check: Check, share: int) -> tuple[Finding, ...]:
    """What the check says of a fleet of which one node, or one of `share`, has its fault."""
    fleet = recorded(check.proof.fleet)  # type: ignore[union-attr]
    names = [node.name for node in fleet.reached]
    bad = with_fault(fleet, check, tuple(names[-(len(names) // share or 1) :]))
    return () if isinstance(bad, Absent) else judge(bad, (check,), TODAY)


@pytest.mark.parametrize("share", [1000, 2], ids=["one node", "half of them"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_remedies_name_what_the_node_has(check: Check, share: int) -> None:
    wrong = [
        f"{finding.verdict}: {finding.remedy}"
        for finding in findings(check, share)
        if has_placeholder(finding.remedy)
    ]
    assert not wrong


def test_a_placeholder_is_seen() -> None:
    assert has_placeholder(shell_line("ethtool NAME"))
    assert has_placeholder(shell_line("apt-get install nvidia-driver-BRANCH"))
    assert not has_placeholder(shell_line("grep -rn NCCL_DEBUG /etc/environment"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_without_a_majority_no_node_is_told_to_become_like_the_others(check: Check) -> None:
    wrong = [
        str(finding.remedy)
        for finding in findings(check, 2)
        if "no value has a majority" in finding.message
        and any(word in finding.remedy for word in ("odd nodes", "of the others", "other nodes,"))
    ]
    assert not wrong
