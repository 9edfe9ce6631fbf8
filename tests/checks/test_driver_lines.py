"""What the checks make of lines that drivers really wrote: tests/checks/driver_lines.py."""

from __future__ import annotations

import itertools

import pytest

from tests.checks.driver_lines import LINES, Line
from tests.support.fleet import findings, fleet
from tests.support.kernel_lines import facts_of, ring_answer

CHECKS = ("gpu.xid", "gpu.sxid", "pcie.mlx_limited", "log.kernel")


def grades(*texts: str) -> dict[str, list[tuple[str, str]]]:
    """Check → (grade, what is said) of a node whose log has these lines; silence is left out."""
    seen = fleet(n1=facts_of(ring_answer(*texts)))
    found: dict[str, list[tuple[str, str]]] = {}
    for check in CHECKS:
        for finding in findings(seen, check):
            words = f"{finding.seen} {finding.message}"
            if finding.verdict == "fail":
                grade = "fatal" if finding.severity == "error" else "warning"
            elif finding.seen in ("", "none"):
                continue
            else:
                grade = "said"
            found.setdefault(check, []).append((grade, words))
    return found


@pytest.mark.parametrize(
    "line", LINES, ids=lambda line: f"{line.check or 'other'}-{line.text[:60]}"
)
def test_each_line_is_judged_by_its_own_check_and_tells_where(line: Line) -> None:
    found = grades(line.text)
    if line.grade == "nothing":
        assert found == {}
        return
    assert set(found) == {line.check}
    ((grade, words),) = found[line.check]
    assert grade == line.grade
    for told in line.tells:
        assert told in words


def test_all_lines_of_one_log_are_told_and_none_hides_another() -> None:
    found = grades(*(line.text for line in LINES))
    for check, grade in itertools.product(("gpu.xid", "gpu.sxid"), ("fatal", "warning")):
        words = " ".join(words for told, words in found[check] if told == grade)
        for line in LINES:
            if (line.check, line.grade) == (check, grade):
                assert all(told in words for told in line.tells), line.text


def test_a_gpu_that_fell_off_is_told_once_whatever_the_driver_wrote_of_it() -> None:
    """As in the log of leptonai/gpud, sxid/README.md."""
    lines = (
        (
            "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus."
        ),
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
    )
    for order in itertools.permutations(lines):
        ((grade, words),) = grades(*order)["gpu.xid"]
        assert grade == "fatal"
        assert words.startswith("Xid 79 on 0000:91:00: last")


def test_an_sxid_is_told_once_of_its_three_lines() -> None:
    """As in the log of leptonai/gpud, sxid/README.md."""
    lines = (
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up",
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 62 "
            "Sub-engine instance 00"
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Data {0x10000000, 0x10000000, "
            "0x00000000, 0x10000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000}"
        ),
    )
    ((grade, words),) = grades(*lines)["gpu.sxid"]
    assert grade == "fatal"
    assert words.startswith("SXid 20034 on 0000:05:00.0 (link 62): last")
