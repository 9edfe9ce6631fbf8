"""A soak of some seconds over six hosts: it ends by itself, plants faults, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.play import Soak, Wanted
from tests.soak.table import markdown
from tests.support.lab.fixtures import require_lab
from tests.support.lab.lab import Lab

pytestmark = pytest.mark.hosts

SEED, HOSTS, SECONDS = (
    3817,
    6,
    8.0,
)  # of this seed the first four rounds wait for no node that is down


def test_a_short_soak(tmp_path: Path) -> None:
    require_lab()
    with Lab(HOSTS) as lab:
        soak = Soak(lab, tmp_path, Wanted(SEED, HOSTS, 0.1, SECONDS))
        soak.play()
        soak.finish()
    assert soak.tally.wrong == []
    assert sum(soak.tally.tried.values()) >= 1
    assert {"check", "apply", "rollback"} <= set(soak.tally.commands)
    assert "Violations: 0." in markdown(soak.tally, [f"{HOSTS} hosts"])
