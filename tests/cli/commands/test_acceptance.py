"""What an acceptance needs at its end is looked at before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import asked

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
