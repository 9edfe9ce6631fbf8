"""What a trial and what checks say of one node is one story."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.model import Because, Culprit, Finding
from clusterprep.survey.culprit_findings import MOST, with_findings

PASS = Finding("ssh.reach", "pass", "error", ("n1", "n2", "n3"), "reached")
MTU = Finding("eth.mtu", "fail", "warning", ("n2",), "another MTU", "1400")
SLOW = Culprit("node", ("n2",), 0.9, "its links are slow", ("0.2 GB/s",))


def evidence(*findings: Finding, culprit: Culprit = SLOW) -> tuple[str, ...]:
    (told,) = with_findings([culprit], [PASS, *findings], {"net.tcp_bw"})
    return told.evidence


def test_a_culprit_names_what_a_check_has_found_on_its_node() -> None:
    assert evidence(MTU) == ("eth.mtu fails on n2 too: 1400", "0.2 GB/s")


def test_a_link_names_what_was_found_at_either_end() -> None:
    link = Culprit("link", (), 0.9, "slow", source="n1", target="n2")
    assert evidence(MTU, culprit=link) == ("eth.mtu fails on n2 too: 1400",)


def test_errors_come_first_and_not_without_end() -> None:
    warnings = [replace(MTU, check=f"a.w{number}") for number in range(5)]
    error = replace(MTU, check="gpu.lost", severity="error")
    lines = evidence(*warnings, error)
    assert lines[0].startswith("gpu.lost fails")
    assert len(lines) == MOST + 1


def test_what_says_nothing_about_the_culprit_is_left_out() -> None:
    assert evidence(
        replace(MTU, nodes=("n1",)),
        replace(MTU, nodes=("n1", "n2", "n3")),
        replace(MTU, verdict="unknown"),
        replace(MTU, silenced="known"),
        replace(MTU, fixed=True),
        replace(MTU, check="net.tcp_bw"),
    ) == ("0.2 GB/s",)


def test_a_consequence_is_left_to_its_cause() -> None:
    path = Finding("eth.path_mtu", "fail", "error", ("n2",), "too large")
    lines = evidence(MTU, replace(path, because=(Because("eth.mtu", ("n2",)),)))
    assert lines == ("eth.mtu fails on n2 too: 1400", "0.2 GB/s")


def test_a_culprit_that_was_made_of_a_finding_does_not_name_it_again() -> None:
    gate = Culprit("node", ("n2",), 0.9, "another MTU", ("eth.mtu: 1400",))
    assert evidence(MTU, culprit=gate) == ("eth.mtu: 1400",)
