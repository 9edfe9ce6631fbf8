"""What the program says of public dumps, against what somebody else made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.survey import registry
from tests import public
from tests.machines import play
from tests.public import Case

ALL = [
    pytest.param(case, id=f"{kind}-{case.name.replace(' ', '-')}")
    for kind in public.evidence()
    for case in public.cases(kind)
]
OF_TRIALS = ("nccl.transport", "nccl.nvls", "rdma.gdr_effective")
PAGE = Path(__file__).parents[2] / "docs" / "why" / "gpu-nodes.md"


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize("case", ALL)
def test_it_says_what_was_labelled(case: Case) -> None:
    """`wrong` lists the misses of today; a line that is no longer true has to go."""
    assert public.misses(case, public.findings(case)) == list(case.wrong)


@pytest.mark.parametrize("case", ALL)
def test_labels_are_of_checks_that_exist(case: Case) -> None:
    known = {*registry.checks(), *OF_TRIALS}
    named = {check for label in case.says for check in label.split(" or ")}
    assert named <= known
    said = [[label] if isinstance(label, str) else label for label in case.says.values()]
    assert {word for words in said for word in words} <= set(public.VERDICTS) - {"none"}


def test_names_of_cases_are_their_own() -> None:
    names = [case.name for kind in public.evidence() for case in public.cases(kind)]
    assert len(names) == len(set(names))


def test_the_page_has_their_numbers() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    told = sorted(int(row[1]) for row in rows if row[1].strip().isdigit())
    rounds: dict[str, list[int]] = {}
    for kind in public.evidence():
        rounds.setdefault(kind.rpartition("/")[0], []).append(len(public.cases(kind)))
    assert told == sorted(count for counts in rounds.values() for count in (*counts, sum(counts)))
