"""Signatures by the real ssh-keygen: of these bytes, by this key, for this purpose."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from clusterprep.cli import signing
from clusterprep.errors import InputError

TEXT = b'{"kind": "clusterprep certificate"}\n'


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return signing.make_site_key()


def signed(key: Path, tmp_path: Path, data: bytes = TEXT) -> Path:
    place = tmp_path / "c.json.sig"
    place.write_text(signing.sign(data, key))
    return place


def test_the_key_of_the_site_is_made_once_and_is_private(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    assert signing.make_site_key().read_bytes() == before
    assert signing.fingerprint(Path(f"{key}.pub")).startswith("SHA256:")


def test_what_was_signed_is_valid(key: Path, tmp_path: Path) -> None:
    assert signing.trouble_with(TEXT, signed(key, tmp_path), Path(f"{key}.pub")) == ""


def test_one_changed_byte_is_not_valid(key: Path, tmp_path: Path) -> None:
    changed = TEXT.replace(b"kind", b"kinD")
    assert signing.trouble_with(changed, signed(key, tmp_path), Path(f"{key}.pub"))


def test_the_key_of_another_site_is_not_valid(key: Path, tmp_path: Path) -> None:
    signature = signed(key, tmp_path)
    other = tmp_path / "other"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
    subprocess.run(words, check=True)
    assert signing.trouble_with(TEXT, signature, Path(f"{other}.pub"))


def test_other_programs_can_check_it(key: Path, tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text(f"{signing.IDENTITY} {Path(f'{key}.pub').read_text()}")
    words = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", signing.IDENTITY]
    words += ["-n", signing.NAMESPACE, "-s", signed(key, tmp_path)]
    subprocess.run(words, input=TEXT, check=True, capture_output=True)


def test_a_file_that_is_no_key_is_refused_with_its_name(tmp_path: Path) -> None:
    place = tmp_path / "notes.txt"
    place.write_text("no key\n")
    place.chmod(0o600)
    with pytest.raises(InputError, match=r"notes\.txt"):
        signing.sign(TEXT, place)
