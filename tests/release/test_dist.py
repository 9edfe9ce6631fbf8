"""sdist and wheel: the same bytes from the same commit, wherever and whenever they are built."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from release import dist
from release.source_date import changelog_date, source_date

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """clusterprep (0.1.0) unstable; urgency=medium

  * First release.

 -- clusterprep <root@localhost>  Sun, 29 Nov 2026 09:00:00 +0100

clusterprep (0.0.1) unstable; urgency=medium

 -- clusterprep <root@localhost>  Mon, 02 Nov 2026 08:00:00 +0000
"""


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.timeout(600)  # four seconds of processor time, which a machine in use gives slowly
def test_two_builds_have_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is of what the first has, in another folder, with other times, modes and zone."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second, unpacked = (tmp_path / name for name in ("first", "second", "unpacked"))
    dist.build(ROOT, first)
    (archive,) = first.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    for path in unpacked.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(path.stat().st_mode & 0o770 | 0o060)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        dist.build(next(unpacked.iterdir()), second)
    finally:
        os.umask(before)
    assert sums(first) == sums(second)
    assert len(sums(first)) == 2


def test_the_date_of_the_newest_entry_counts() -> None:
    assert changelog_date(CHANGELOG) == 1795939200
    with pytest.raises(ValueError, match="no entry"):
        changelog_date("clusterprep (0.1.0)\n")


def test_the_variable_counts_before_the_commit_and_the_commit_before_the_changelog(
    tmp_path: Path,
) -> None:
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian" / "changelog").write_text(CHANGELOG)
    assert source_date(tmp_path, {"SOURCE_DATE_EPOCH": "7"}) == 7
    assert source_date(tmp_path, {"SOURCE_DATE_EPOCH": ""}) == 1795939200
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    environ = {**os.environ, "GIT_COMMITTER_DATE": "1700000001 +0000"}
    for words in (
        ["init", "--quiet"],
        [*identity, "commit", "--quiet", "--allow-empty", "-m", "a"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, env=environ)
    assert source_date(tmp_path, {}) == 1700000001
