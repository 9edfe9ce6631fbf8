"""What an acceptance needs at its end is looked at before it begins, and one that has no round."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CLI, asked, finished, report_schema
from tests.support.patience import LONG, killed_on_failure

INVENTORY = "cluster: demo\nnodes:\n  - {name: n1, address: 127.0.0.1, ssh: {port: 1}}\n"


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "inventory.yaml"
    place.write_text(INVENTORY)
    return str(place)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what is said of options that are refused before a node is asked."""
    code, out, err = asked(capsys, "verify", *words)
    assert code == 2, out + err
    assert "1/1 nodes" not in err
    return err


def test_a_certificate_that_could_not_be_written_is_refused_before_the_rounds(
    inventory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "nowhere" / "c.json")
    said = refused(capsys, inventory, "--for", "30m", "--certificate", place)
    assert "--certificate" in said
    assert place in said


def test_a_key_that_does_not_sign_is_refused_before_the_rounds(
    inventory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "notes.txt"
    key.write_text("no key\n")
    key.chmod(0o600)
    said = refused(capsys, inventory, "--for", "30m", "--sign-key", str(key))
    assert str(key) in said


def test_no_time_is_refused(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--for" in refused(capsys, inventory, "--for", "0")


def test_a_certificate_without_an_acceptance_is_refused(
    inventory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "add --for" in refused(capsys, inventory, "--certificate", "c.json")


# ---------------------------------------------------------------- ended before the first round


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, socket.socket]]:
    """Yield an inventory of one node that takes connections and says nothing, and its socket."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        place = tmp_path / "silent.yaml"
        place.write_text(
            "nodes: [{name: n1, address: 127.0.0.1}]\n"
            f"ssh: {{port: {listener.getsockname()[1]}, connect_timeout: 600}}\n"
        )
        yield str(place), listener


def of_no_round(report: dict[str, Any], ended_by: str) -> list[dict[str, Any]]:
    """Return the findings of a report that says that no round was run, and nothing passed."""
    report_schema().validate(report)
    assert report["error"]["message"] == ended_by
    during = f"{ended_by} during the survey of the nodes"
    verify = report["verify"]
    assert (verify["verdict"], verify["message"]) == ("unknown", f"{during}: no round was run")
    assert verify["acceptance"]["rounds"] == 0
    assert not verify["acceptance"]["finished"]
    assert "no certificate was made, as this is no pass of an acceptance" in report["notices"]
    findings: list[dict[str, Any]] = report["findings"]
    assert {one["verdict"] for one in findings} == {"unknown"}
    (unfinished,) = [one for one in findings if one["check"] == "nccl.busbw_multi"]
    assert (unfinished["nodes"], unfinished["reason"]) == (["n1"], "not finished")
    assert unfinished["message"] == f"not finished: {during}; what comes later is not known"
    return findings


def test_a_time_limit_during_the_survey_is_reported_as_unknown(
    silent: tuple[str, socket.socket], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("verify", silent[0], "--for", "30m", "--timeout", "1", "--format", "json")
    code, out, _ = asked(capsys, *words)
    report = json.loads(out)
    assert (code, report["verdict"]) == (3, "unknown")
    findings = of_no_round(report, "--timeout of 1 s reached")
    assert "ssh.reach" in {one["check"] for one in findings}


def test_an_interruption_during_the_survey_is_reported_as_unknown(
    silent: tuple[str, socket.socket],
) -> None:
    place, listener = silent
    process = subprocess.Popen(
        [*CLI, "verify", place, "--for", "30m", "--format", "json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    with killed_on_failure(process):
        connection, _ = listener.accept()
        process.send_signal(signal.SIGINT)
        answer = finished(process, timeout=LONG)
    connection.close()
    assert (answer.code, answer.report["verdict"]) == (130, "interrupted")
    of_no_round(answer.report, "interrupted by SIGINT")
