"""A check whose options leave nothing to judge does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import asked

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run a check of this machine and return its exit code and report."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = asked(capsys, "check", "--local", "--format", "json", *words)
        return code, json.loads(out)

    return run


@pytest.mark.parametrize(
    ("only", "names", "reason"),
    [
        ("container.rt", {"container.rt"}, "not built yet"),
        ("container.", {"container.rt"}, "not built yet"),
        ("nccl.correct", {"nccl.correct"}, "only verify judges it"),
        ("container.rt,nccl.correct", {"container.rt", "nccl.correct"}, None),
    ],
)
def test_a_check_that_is_not_there_is_skipped_and_does_not_pass(
    check: Run, only: str, names: set[str], reason: str | None
) -> None:
    code, report = check("--only", only)
    skips = [row for row in report["findings"] if row["verdict"] == "skip"]
    assert (code, report["verdict"], {row["check"] for row in skips}) == (3, "unknown", names)
    assert reason is None or {row["reason"] for row in skips} == {reason}
    (notice,) = [text for text in report["notices"] if "no check that was asked for" in text]
    assert all(name in notice for name in names)


def test_beside_a_check_that_is_judged_it_is_skipped(check: Run) -> None:
    code, report = check("--only", "container.rt,kernel.version")
    verdicts = {row["check"]: row["verdict"] for row in report["findings"]}
    assert (code, verdicts["container.rt"]) == (0, "skip")
    assert not any("no check that was asked for" in text for text in report.get("notices", ()))


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "kernel.", "--skip", "kernel."),
        ("--only", "kernel.version", "--tags", "gpu"),
        ("--tags", "eth", "--skip-tags", "eth"),
        ("--deep", "--only", "kernel.version"),
        ("--skip", "host.nosuch"),
        ("--tags", "nosuch"),
        ("--skip-tags", "nosuch"),
        ("--limit", "nosuch"),
    ],
)
def test_options_that_leave_nothing_are_wrong(check: Run, words: tuple[str, ...]) -> None:
    code, report = check(*words)
    assert (code, report["verdict"]) == (2, "error")
