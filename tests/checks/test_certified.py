"""What the check says of a node that is not as it was certified."""

from __future__ import annotations

from datetime import date

from clusterprep.facts.certified import CERTIFIED, Certified, CertifiedPart
from clusterprep.model import Finding, Fleet, Inventory, Node, NodeSnapshot
from clusterprep.survey import registry
from clusterprep.survey.judge import judge


def judged(answer: Certified | None) -> Finding:
    node = Node("n1", "n1", 0)
    snapshot = NodeSnapshot("n1", "n1", True, facts={CERTIFIED.name: answer})
    fleet = Fleet(Inventory("demo", (node,)), {"n1": snapshot})
    (finding,) = judge(fleet, [registry.checks()["host.certified"]], date.max)
    return finding


def test_what_differs_is_shown_with_both_values() -> None:
    part = CertifiedPart("kernel.release", '"6.1.0"', '"6.1.9"')
    finding = judged(Certified("2026-11-21", (part,), ()))
    assert (finding.verdict, finding.severity) == ("fail", "warning")
    assert finding.seen == 'kernel.release is "6.1.9"'
    assert finding.wanted == '"6.1.0"'


def test_of_many_differences_the_first_are_shown() -> None:
    parts = tuple(CertifiedPart(f"fact{number}", "1", "2") for number in range(9))
    assert judged(Certified("2026-11-21", parts, ())).seen.endswith("fact5 is 2; and 3 more")


def test_what_is_not_told_today_is_unknown() -> None:
    finding = judged(Certified("2026-11-21", (), ("gpu.nvml",)))
    assert (finding.verdict, finding.reason) == ("unknown", "not told today")


def test_without_a_certificate_it_is_skipped() -> None:
    assert judged(None).verdict == "skip"
