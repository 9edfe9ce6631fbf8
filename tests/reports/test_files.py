"""Files of `--output`: refused before anything runs if they cannot be written, never partial."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.cli.exit import ending
from clusterprep.errors import InputError
from clusterprep.reports import SUFFIXES
from clusterprep.reports.files import check, check_places, write
from tests.support.command import CLI


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *words], capture_output=True, text=True, timeout=60, check=False, **options
    )  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text("nodes: [{name: n1, address: 127.0.0.1, transport: local}]\n")
    return path


def test_every_format_at_once_each_by_its_suffix(good: Path, tmp_path: Path) -> None:
    files = {fmt: tmp_path / f"report{suffix}" for fmt, suffix in SUFFIXES.items()}
    words = [word for path in files.values() for word in ("--output", str(path))]
    done = run("check", str(good), "--only", "os.release", *words)
    assert done.returncode == 0, done.stderr
    beginnings = {
        "console": "clusterprep check",
        "json": "{",
        "junit": "<?xml",
        "markdown": "## PASS",
        "prometheus": "# HELP clusterprep_",
        "html": "<!DOCTYPE html>",
        "svg": "<svg xmlns=",
        "nagios": "CLUSTERPREP OK - ",
    }
    assert {
        fmt: path.read_text().startswith(beginnings[fmt]) for fmt, path in files.items()
    } == dict.fromkeys(files, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["good.yaml", *(p.name for p in files.values())]
    )


def test_what_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    names = [str(tmp_path / name) for name in ("no/where.json", "folder.json", "a.md", "./a.md")]
    with pytest.raises(InputError) as caught:
        check("console", names)
    told = [problem.message for problem in caught.value.problems]
    assert told == [
        f"there is no folder '{tmp_path}/no'",
        "is a folder",
        "two reports cannot be one file",
    ]
    done = run("check", "missing.yaml", "--output", names[0])
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert "missing.yaml" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_others_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="permission denied"):
        check("json", [str(tmp_path / "a.json")])


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "a.prom", tmp_path / "link.prom"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)

    def parts() -> Iterator[str]:
        yield "new"
        assert path.read_text() == "old"
        assert [other.suffix for other in tmp_path.iterdir() if other not in (path, link)] == [
            ".tmp"
        ]
        yield "er\n"

    assert write(str(link), parts()) == ""
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == (
        "newer\n",
        0o640,
        True,
    )


def test_what_breaks_on_the_way_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def parts() -> Iterator[str]:
        yield "new"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(str(path), parts())
    assert [(other.name, other.read_text()) for other in tmp_path.iterdir()] == [("a.json", "old")]


def test_a_full_disk_spoils_neither_the_report_nor_the_other_files(
    good: Path, tmp_path: Path
) -> None:
    full, other = tmp_path / "full.json", tmp_path / "other.xml"
    full.symlink_to("/dev/full")
    words = (
        "check",
        str(good),
        "--only",
        "os.release",
        "--output",
        str(full),
        "--output",
        str(other),
    )
    done = run(*words, "--format", "json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["verdict"] == "pass"
    assert "No space left on device" in done.stderr
    assert other.read_text().startswith("<?xml")
    assert run(*words, "--format", "nagios").returncode == 3


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives links away")
def test_a_link_of_another_user_is_not_followed(good: Path, tmp_path: Path) -> None:
    """In /tmp every user can lay a link to another user's file where a report will be written."""
    precious, link, way = tmp_path / "precious", tmp_path / "report.json", tmp_path / "other.json"
    precious.write_text("mine")
    link.symlink_to(precious)
    way.symlink_to(link)
    assert write(str(way), ["a report"]) == ""
    assert precious.read_text() == "a report", "a link of one's own is what one wants"
    precious.write_text("mine")
    os.lchown(link, 4711, 4711)
    for name in (link, way):
        with pytest.raises(
            InputError, match=r"report\.json is a link that user 4711 has laid; it is not followed"
        ):
            check_places([str(name)])
        assert "is a link that user 4711 has laid" in write(str(name), ["a report"])
    assert precious.read_text() == "mine"


def test_the_name_of_a_temporary_file_cannot_be_guessed(tmp_path: Path) -> None:
    seen: list[str] = []

    def text() -> Iterator[str]:
        seen.append(next(path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")))
        yield "x"

    for _ in range(2):
        assert write(str(tmp_path / "a.json"), text()) == ""
    assert len(set(seen)) == 2


def test_the_story_of_a_bug_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may quote what nodes said; nor does it go where a link leads."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def fault() -> int:
        raise ZeroDivisionError("what a node said")

    before = os.umask(0)
    try:
        assert ending(fault, [], "check") == 70
        (log,) = (tmp_path / "state/clusterprep").iterdir()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (log.parent, log)] == [0o700, 0o600]
        assert "what a node said" in log.read_text()
        log.unlink()
        log.symlink_to(tmp_path / "elsewhere")
        assert ending(fault, [], "check") == 70
    finally:
        os.umask(before)
    assert not (tmp_path / "elsewhere").exists()


def test_devices_are_written_to(tmp_path: Path) -> None:
    link = tmp_path / "null.json"
    link.symlink_to("/dev/null")
    assert write(str(link), ["x"]) == ""
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("fmt", [fmt for fmt in SUFFIXES if fmt != "console"])
def test_an_error_comes_in_the_format_that_was_asked_for(fmt: str) -> None:
    done = run("check", "missing.yaml", "--format", fmt)
    assert done.returncode == (3 if fmt == "nagios" else 2)
    assert "missing.yaml" in done.stderr
    if fmt != "prometheus":
        assert "missing.yaml" in done.stdout
    assert len(done.stdout.splitlines()) == 1 or fmt != "nagios"


def test_a_diagnosis_is_refused_in_what_it_cannot_be_written_as(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("hello\n")
    done = run("diagnose", str(log), "--output", str(tmp_path / "x.html"))
    assert done.returncode == 2
    assert "a diagnosis is not written as 'html'" in done.stderr
    assert not (tmp_path / "x.html").exists()
