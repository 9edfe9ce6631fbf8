"""Logs of jobs that ended well: nothing in them is a failure, whatever stands above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.diagnose.banners import BANNERS
from tests.jobs.diagnose.examination import diagnosed
from tests.jobs.diagnose.make_healthy import HEALTHY, RUNS

FILES = sorted(HEALTHY.glob("*.log"))


def test_every_run_is_recorded() -> None:
    recorded = {path.name.split(".")[0] for path in FILES}
    assert recorded >= {run.name for run in RUNS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_healthy_log_has_no_failure(path: Path) -> None:
    code, report = diagnosed([path])
    assert [cause for cause in report["causes"] if cause["severity"] != "benign"] == []
    assert code in {0, 3}


@pytest.mark.parametrize("banner", BANNERS)
def test_settings_above_a_healthy_log_are_no_failure(banner: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    for path in FILES:
        log = tmp_path / path.name
        log.write_text(BANNERS[banner] + path.read_text())
        _, report = diagnosed([log])
        wrong += [f"{path.name}: {cause['cause']}" for cause in _failures(report)]
    assert wrong == []


def _failures(report: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    return [cause for cause in report["causes"] if cause["severity"] != "benign"]
