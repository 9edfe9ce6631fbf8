"""The fact that a certificate brings: no node is asked for it, and it is compared with no run."""

from __future__ import annotations

from clusterprep.facts.certified import CERTIFIED, Certified, CertifiedPart


def test_no_read_belongs_to_it() -> None:
    assert (CERTIFIED.stage, CERTIFIED.moves) == ("certificate", True)


def test_equal_differences_are_one_value() -> None:
    part = CertifiedPart("kernel.release", '"6.1.0"', '"6.1.9"')
    assert len({Certified("2026-11-21", (part,), ()), Certified("2026-11-21", (part,), ())}) == 1
