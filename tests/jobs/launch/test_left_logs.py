"""What launch leaves on real hosts is explained by `diagnose`: a crash, a hang, a success."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launch import PROGRAMS
from tests.support.command import CLI
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts
ENDS = str(PROGRAMS / "ends.py")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require_lab()
    with Lab(2) as two:
        yield two


@pytest.mark.parametrize(
    ("what", "seconds", "code", "expected"),
    [
        ("exit", 100, 1, ("program", "rank 2")),
        ("segv", 100, 1, ("program", "rank 2")),
        ("kill", 100, 1, ("host_oom_kill", "rank 2")),
        # It is the limit that ends it, after all ranks have begun on a machine that has much to do.
        ("hang", 15, 1, ("rank_desync_control_flow", "rank 2")),
        ("finish", 100, 0, None),
    ],
)
def test_diagnose_explains_what_launch_leaves(
    lab: Lab,
    tmp_path: Path,
    what: str,
    seconds: int,
    code: int,
    expected: tuple[str, str] | None,
) -> None:
    logs = tmp_path / "logs"
    inventory = str(lab.inventory(nproc_per_node=2))
    words = ["--direct", "--timeout", str(seconds), "--log-dir", str(logs), "--", ENDS, what, "2"]
    pipe = subprocess.PIPE
    argv = [*CLI, "launch", inventory, *words]
    launch = lab.controller.popen(argv, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL)
    launch.communicate(timeout=110)
    paths = sorted(map(str, logs.rglob("*.log")))
    answer = subprocess.run(
        [*CLI, "diagnose", *paths, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == code, answer.stdout + answer.stderr
    causes = json.loads(answer.stdout)["causes"]
    found = (causes[0]["cause"], causes[0]["culprit"]) if causes else None
    assert found == expected
