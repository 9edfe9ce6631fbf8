"""What is said without starting a tool, held against the tool itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterprep.remote.agent import tools
from clusterprep.remote.agent.readers import NoAnswer, read_command

FORMAT = "${db:Status-Status} ${binary:Package}\\n"
LIST = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Depends: libgcc-s1
Description: C library
 Package: not-a-package

Package: nvidia-driver-550
Status: hold ok installed

Package: half
Status: install reinstreq half-installed
"""
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="there is no dpkg")
Listed = Callable[[str], None]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listed:
    """Let dpkg's list have this text."""
    (tmp_path / "updates").mkdir()
    monkeypatch.setattr(tools, "STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(tools, "UPDATES", str(tmp_path / "updates"))

    def write(text: str) -> None:
        (tmp_path / "status").write_text(text)

    write(LIST)
    return write


@pytest.mark.parametrize(
    "names",
    [
        ["libcuda1"],
        ["libc7", "cuda-drivers*"],
        ["driver*"],
        ["not-a-package"],
        ["nvidia-driver-550-server"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("listed")
def test_names_that_no_package_has(names: list[str]) -> None:
    assert tools.has_none(names)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["libc6"], id="installed"),
        pytest.param(["half"], id="half-installed"),
        pytest.param(["libcuda1", "nvidia-driver*"], id="one-of-two"),
        pytest.param(["nvidia"], id="the-beginning-of-a-name"),
        pytest.param(["libcuda1:amd64"], id="with-an-architecture"),
        pytest.param(["lib?uda1"], id="another-pattern"),
        pytest.param(["*"], id="any"),
        pytest.param([], id="no-name"),
    ],
)
@pytest.mark.usefixtures("listed")
def test_for_other_names_dpkg_query_is_started(names: list[str]) -> None:
    assert not tools.has_none(names)


def test_a_list_that_is_not_complete_is_not_believed(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.has_none(["libcuda1"])
    (tmp_path / "updates/0001").touch()
    assert not tools.has_none(["libcuda1"])
    (tmp_path / "updates/0001").unlink()
    monkeypatch.setenv("DPKG_ADMINDIR", "/srv/other")
    assert not tools.has_none(["libcuda1"])
    monkeypatch.delenv("DPKG_ADMINDIR")
    (tmp_path / "status").unlink()
    assert not tools.has_none(["libcuda1"])


def test_without_dpkg_query_there_is_no_answer(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterprep.remote.agent.readers.FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswer) as raised:
        tools.read_tool("dpkg-query", "-W", "-f", FORMAT, "libcuda1")
    assert raised.value.reason == "missing_tool"


@needs_dpkg
@pytest.mark.machine
@pytest.mark.parametrize(
    "names",
    [["no-such-package", "no-such-*"], ["dpkg", "no-such-package"], ["dpk*"]],
    ids=" ".join,
)
def test_the_answer_is_that_of_dpkg_query(names: list[str]) -> None:
    argv = ("dpkg-query", "-W", "-f", FORMAT, *names)
    assert tools.read_tool(*argv) == read_command(*argv)


# ---------------------------------------------------------------- rpm


OWNER = ("env", "HOME=/proc", "rpm", "-qf", "--qf", "%{NAME}")


def test_a_file_that_does_not_exist_has_no_package(tmp_path: Path) -> None:
    missing = str(tmp_path / "nvidia-smi")
    answer = tools.read_tool(*OWNER, missing)
    assert (answer["code"], answer["out"]) == (1, "")
    assert missing in answer["err"]


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("rpm") is None, reason="there is no rpm")
def test_of_a_file_that_does_not_exist_rpm_says_the_same() -> None:
    argv = (*OWNER, "/no-such-file")
    said, known = read_command(*argv), tools.read_tool(*argv)
    assert (said["code"], said["out"]) == (known["code"], known["out"])
    # Debian's rpm, whose database is empty, says before it that it has none.
    assert said["err"].endswith(known["err"])


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("rpm") is None, reason="there is no rpm")
def test_of_a_file_that_exists_rpm_is_asked() -> None:
    argv = (*OWNER, "/etc/passwd")
    assert tools.read_tool(*argv) == read_command(*argv)


# ---------------------------------------------------------------- systemd


TIMEDATECTL = ["timedatectl", "show", "-p", "NTP"]


def test_timedatectl_is_asked_only_where_systemd_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "timedatectl"
    program.write_text("#!/bin/sh\necho NTP=yes\n")
    program.chmod(0o755)
    monkeypatch.setattr("clusterprep.remote.agent.readers.FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "BOOTED", str(tmp_path / "system"))
    answer = tools.read_tool(*TIMEDATECTL)
    assert (answer["code"], answer["out"]) == (1, "")
    assert "not been booted with systemd" in answer["err"]
    (tmp_path / "system").mkdir()
    assert tools.read_tool(*TIMEDATECTL)["out"] == "NTP=yes\n"


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("timedatectl") is None, reason="there is no timedatectl")
@pytest.mark.skipif(Path(tools.BOOTED).is_dir(), reason="systemd runs here")
def test_without_systemd_timedatectl_says_what_is_said_for_it() -> None:
    said, known = read_command(*TIMEDATECTL), tools.read_tool(*TIMEDATECTL)
    assert said["code"] == known["code"]
    assert said["err"].startswith(known["err"].rstrip())


# ---------------------------------------------------------------- one instead of another


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        pytest.param(["true"], None, id="ended-well"),
        pytest.param(["false"], "second\n", id="failed"),
        pytest.param(["sh", "-c", "true"], "second\n", id="was-never-asked"),
    ],
)
def test_a_second_tool_is_asked_where_the_first_did_not_end_well(
    monkeypatch: pytest.MonkeyPatch, first: list[str], expected: str | None
) -> None:
    monkeypatch.setattr(tools, "_ended_well", [])
    for words in (["true"], ["false"]):
        tools.read_tool(*words)
    answer = tools.read_otherwise(first, ["echo", "second"])
    assert (answer and answer["out"]) == expected


def test_a_second_tool_is_asked_where_the_first_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_ended_well", [])
    with pytest.raises(NoAnswer):
        tools.read_tool("no-such-tool")
    assert tools.read_otherwise(["no-such-tool"], ["echo", "second"])["out"] == "second\n"
