"""An acceptance that is ended before its time: what was measured until then is in the report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.verify.loopback import free_port
from tests.support.command import CLI, finished
from tests.support.patience import killed_on_failure

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
PATIENCE = 200  # seconds for what takes some on a machine with nothing else to do


def inventory(folder: Path, sizes: tuple[str, ...] = ("8",)) -> Path:
    """Return an inventory of two nodes, both of them this machine."""
    nodes = [{"name": name, "address": "127.0.0.1", "env": {"NCCL_HOSTID": name}} for name in "ab"]
    content = {
        "cluster": "one-machine",
        "transport": "local",
        "python": sys.executable,
        "gpus": 0,
        "ports": {"master": free_port()},
        "verify": {"sizes": list(sizes), "timeout": 60},
        "nodes": nodes,
    }
    path = folder / "inventory.yaml"
    path.write_text(json.dumps(content))
    return path


def started(folder: Path, place: Path, certificate: Path) -> subprocess.Popen[str]:
    words = ("verify", str(place), "--for", "10s", "--certificate", str(certificate))
    return subprocess.Popen(
        [*CLI, *words, "--format", "json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )


def has_rank(ancestor: int) -> bool:
    """Return whether a process below this one is a rank."""
    parents: dict[int, int] = {}
    ranks: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"clusterprep-rank" in (folder / "cmdline").read_bytes():
                ranks.append(pid)
    for rank in ranks:
        process = rank
        while process in parents and process != ancestor:
            process = parents[process]
        if process == ancestor:
            return True
    return False


@pytest.mark.timeout(2 * PATIENCE)
def test_an_interruption_reports_the_rounds_before_it_and_is_no_pass(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.json"
    process = started(tmp_path, inventory(tmp_path), certificate)
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


@pytest.mark.timeout(2 * PATIENCE)
def test_an_interruption_of_the_first_trial_reports_that_no_round_was_run(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.json"
    endless = ("8", *["16M"] * 2000)
    process = started(tmp_path, inventory(tmp_path, endless), certificate)
    with killed_on_failure(process):
        end = time.monotonic() + PATIENCE
        while not has_rank(process.pid):
            assert process.poll() is None
            assert time.monotonic() < end, "no rank was started"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        answer = finished(process, timeout=PATIENCE)
    report = answer.report
    assert (answer.code, report["verdict"]) == (130, "interrupted")
    verify = report["verify"]
    during = "interrupted by SIGINT during the first trial"
    assert (verify["verdict"], verify["message"]) == ("unknown", f"{during}: no round was run")
    acceptance = verify["acceptance"]
    assert (acceptance["rounds"], acceptance["wanted"], acceptance["finished"]) == (0, 10, False)
    (unknown,) = answer.findings("nccl.busbw_multi", "unknown")
    assert unknown["message"].startswith(f"not finished: {during}")
    assert answer.findings("torch.version", "pass")  # what is known of the nodes is kept
    assert "no certificate was made, as this is no pass of an acceptance" in report["notices"]
    assert not certificate.exists()
