"""An acceptance that is ended before its time: what was measured until then is in the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.verify.loopback import free_port
from tests.support.command import CLI, finished
from tests.support.patience import killed_on_failure

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
PATIENCE = 200  # seconds for what takes some on a machine with nothing else to do


def inventory(folder: Path) -> Path:
    """Return an inventory of two nodes, both of them this machine."""
    nodes = [{"name": name, "address": "127.0.0.1", "env": {"NCCL_HOSTID": name}} for name in "ab"]
    content = {
        "cluster": "one-machine",
        "transport": "local",
        "python": sys.executable,
        "gpus": 0,
        "ports": {"master": free_port()},
        "verify": {"sizes": ["8"], "timeout": 60},
        "nodes": nodes,
    }
    path = folder / "inventory.yaml"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.timeout(2 * PATIENCE)
def test_an_interruption_reports_the_rounds_before_it_and_is_no_pass(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.json"
    words = ("verify", str(inventory(tmp_path)), "--for", "10s", "--certificate", str(certificate))
    process = subprocess.Popen(
        [*CLI, *words, "--format", "json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    with killed_on_failure(process):
        assert process.stderr is not None
        stages = 0
        while stages < 2:  # the second is shown when a round has ended
            line = process.stderr.readline()
            assert line, "it ended before a round had"
            stages += line.startswith("round ")
        process.send_signal(signal.SIGINT)
        answer = finished(process, timeout=PATIENCE)
    report = answer.report
    assert (answer.code, report["verdict"]) == (130, "interrupted")
    assert report["error"]["message"] == "interrupted by SIGINT"
    acceptance = report["verify"]["acceptance"]
    assert acceptance["rounds"] >= 1
    assert acceptance["seconds"] > 0
    assert [row["bytes"] for row in acceptance["speeds"]] == [8]
    assert (acceptance["wanted"], acceptance["finished"]) == (10, False)
    assert report["verify"]["verdict"] == "unknown"
    (unknown,) = answer.findings("nccl.busbw_multi", "unknown")
    assert (unknown["nodes"], unknown["reason"]) == (["a", "b"], "not finished")
    assert not certificate.exists()
