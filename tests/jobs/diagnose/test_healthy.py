"""Logs of jobs that ended well: nothing in them is a failure, whatever stands above them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.diagnose.banners import BANNERS
from tests.jobs.diagnose.examination import diagnosed
from tests.jobs.diagnose.make_healthy import HEALTHY, RUNS

FILES = sorted(HEALTHY.glob("*.log"))
PUBLIC = Path(__file__).with_name(
    "healthy.jsonl"
)  # public logs, without secrets and people's names


def healthy_logs() -> Iterator[tuple[str, str]]:
    """Yield name and text of each log: those recorded here, then the public ones."""
    for path in FILES:
        yield path.stem, path.read_text()
    for line in PUBLIC.read_text().splitlines():
        raw = json.loads(line)
        yield raw["id"], raw["log"]


LOGS = dict(healthy_logs())


def test_every_run_is_recorded() -> None:
    recorded = {path.name.split(".")[0] for path in FILES}
    assert recorded >= {run.name for run in RUNS}


@pytest.mark.parametrize("name", LOGS)
def test_a_healthy_log_has_no_failure(name: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(LOGS[name])
    code, report = diagnosed([log])
    assert _failures(report) == []
    assert code in {0, 3}


@pytest.mark.parametrize("banner", BANNERS)
def test_settings_above_a_healthy_log_are_no_failure(banner: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    for name, text in LOGS.items():
        log = tmp_path / f"{name}.log"
        log.write_text(BANNERS[banner] + text)
        _, report = diagnosed([log])
        wrong += [f"{name}: {cause['cause']}" for cause in _failures(report)]
    assert wrong == []


def _failures(report: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    return [cause for cause in report["causes"] if cause["severity"] != "benign"]
