"""What is said of packages without dpkg-query, held against dpkg-query itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterprep.remote.agent import dpkg
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
    monkeypatch.setattr(dpkg, "STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(dpkg, "UPDATES", str(tmp_path / "updates"))

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
    assert dpkg.has_none(names)


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
    assert not dpkg.has_none(names)


def test_a_list_that_is_not_complete_is_not_believed(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dpkg.has_none(["libcuda1"])
    (tmp_path / "updates/0001").touch()
    assert not dpkg.has_none(["libcuda1"])
    (tmp_path / "updates/0001").unlink()
    monkeypatch.setenv("DPKG_ADMINDIR", "/srv/other")
    assert not dpkg.has_none(["libcuda1"])
    monkeypatch.delenv("DPKG_ADMINDIR")
    (tmp_path / "status").unlink()
    assert not dpkg.has_none(["libcuda1"])


def test_without_dpkg_query_there_is_no_answer(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterprep.remote.agent.readers.FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswer) as raised:
        dpkg.read_tool("dpkg-query", "-W", "-f", FORMAT, "libcuda1")
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
    assert dpkg.read_tool(*argv) == read_command(*argv)
