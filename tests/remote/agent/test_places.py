"""Where nothing is written.

Each trick that leads a file elsewhere, and the ordinary ways that are none.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterprep.remote.agent import places
from clusterprep.remote.agent.readers import NoAnswer
from clusterprep.remote.agent.targets import read_target

OTHER_USER = 4711
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def theirs(path: Path) -> Path:
    os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
    return path


def folder(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


def linked(path: Path, to: Path | str) -> Path:
    path.symlink_to(to)
    return path


def given(path: Path, mode: int) -> Path:
    """A folder of root's that a foreign group may write to."""
    os.chown(path, 0, OTHER_USER)
    path.chmod(mode)
    return path


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "of-another-user": (lambda at: theirs(folder(at / "f")), "belongs to user 4711"),
    "below-one-of-another-user": (
        lambda at: (folder(at / "f" / "g"), theirs(at / "f")),
        "belongs to user 4711",
    ),
    "of-all-users": (lambda at: folder(at / "f", 0o777), "(mode 0777) can be written by all users"),
    "of-all-users-and-sticky": (
        lambda at: folder(at / "f", 0o1777),
        "(mode 1777) can be written by all users",
    ),
    "below-one-of-all-users": (
        lambda at: (folder(at / "f" / "g"), (at / "f").chmod(0o777)),
        "written by all users",
    ),
    "of-a-group": (lambda at: given(folder(at / "f"), 0o775), "can be written by group 4711"),
    "a-link-of-another-user": (
        lambda at: theirs(linked(at / "f", folder(at / "real"))),
        "is a link of user 4711",
    ),
    "a-link-to-what-is-another-users": (
        lambda at: linked(at / "f", theirs(folder(at / "real"))),
        "belongs to user 4711",
    ),
    "a-link-to-nothing": (
        lambda at: linked(at / "f", at / "nowhere"),
        "is a link that leads nowhere",
    ),
    "a-link-to-itself": (lambda at: linked(at / "f", "f"), "more than 40 links"),
    "a-file": (lambda at: (at / "f").write_text("x"), "is no folder"),
    "the-kernels": (lambda at: linked(at / "f", "/proc/sys/kernel"), "holds no files"),
}
FINE: dict[str, Callable[[Path], object]] = {
    "a-folder": lambda at: folder(at / "f"),
    "no-folder-yet": lambda at: None,
    "a-link": lambda at: linked(at / "f", folder(at / "real")),
    "a-link-up-and-down": lambda at: (
        folder(at / "g"),
        linked(at / "f", "g/../real"),
        folder(at / "real"),
    ),
    "a-link-to-what-is-to-be-made-below": lambda at: (
        folder(at / "real"),
        linked(at / "f", at / "real"),
    ),
    "below-a-sticky-one": lambda at: (folder(at / "f" / "g"), (at / "f").chmod(0o1777)),
    "of-the-group-of-root": lambda at: folder(at / "f", 0o775),
}


def target(at: Path) -> str:
    inner = at / "f/g"
    return str((inner if inner.is_dir() else at / "f") / "file")


@pytest.mark.machine
@as_root
@pytest.mark.parametrize("name", PLACES)
def test_where_others_decide_nothing_is_touched(name: str, tmp_path: Path) -> None:
    plant, words = PLACES[name]
    plant(tmp_path)
    assert words in str(places.refusal(target(tmp_path)))
    with pytest.raises(NoAnswer, match="not_ours") as no:
        read_target(target(tmp_path))
    assert words in no.value.why


@pytest.mark.machine
@as_root
@pytest.mark.parametrize(
    ("path", "mode", "advised"),
    [
        ("tmp", 0o1777, False),
        ("var/tmp", 0o1777, False),
        ("dev/shm", 0o1777, False),
        ("home/alice", 0o775, False),
        ("srv/shared", 0o2775, False),
        ("srv/open", 0o777, False),
        ("etc/open", 0o777, False),
        ("etc/sticky", 0o1775, False),
        ("etc/group", 0o775, True),
        ("etc", 0o775, True),
        ("etcetera", 0o775, False),
        ("var/lib/clusterprep", 0o777, True),
        ("var/lib/clusterprep/runs", 0o775, True),
    ],
)
def test_a_mode_that_programs_rely_on_is_never_to_be_taken_off(
    path: str, mode: int, advised: bool, tmp_path: Path
) -> None:
    """`chmod go-w /tmp` breaks every user of a node; only among our settings it mends something."""
    at = given(folder(tmp_path / path), mode)
    why = str(places.refusal(f"{at}/file", str(tmp_path)))
    assert ("chmod" in why) == advised, why
    assert (f"chmod go-w {at} takes that off" in why) == advised
    assert ("choose a folder that no other user can write" in why) != advised


@pytest.mark.parametrize("name", FINE)
def test_what_root_has_laid_is_followed(name: str, tmp_path: Path) -> None:
    FINE[name](tmp_path)
    assert places.refusal(target(tmp_path)) is None


@pytest.mark.parametrize("link", ["/etc", "../../outside", "/"])
def test_no_link_leads_out_of_the_root(link: str, tmp_path: Path) -> None:
    folder(tmp_path / "outside")
    folder(tmp_path / "img/in")
    linked(tmp_path / "img/f", link)
    linked(tmp_path / "img/good", "in")
    linked(tmp_path / "other", "img")
    for root in (tmp_path / "img", tmp_path / "other"):
        assert f"a link leads out of {tmp_path}/img, to " in str(
            places.refusal(f"{root}/f/file", str(root))
        )
        assert places.refusal(f"{root}/good/file", str(root)) is None
    assert places.refusal(f"{tmp_path}/img/f/file") is None or link == "../../outside", (
        "it is the root that it leaves"
    )


def test_an_access_list_of_somebody_counts(tmp_path: Path) -> None:
    """The bits of the group are then its mask, and say nothing of the group."""
    at = folder(tmp_path / "f", 0o775)
    entries = [(1, 7, -1), (2, 7, OTHER_USER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    packed = b"\2\0\0\0" + b"".join(
        kind.to_bytes(2, "little")
        + bits.to_bytes(2, "little")
        + (who & 0xFFFFFFFF).to_bytes(4, "little")
        for kind, bits, who in entries
    )
    try:
        os.setxattr(at, "system.posix_acl_access", packed)
    except OSError:
        pytest.skip("this file system has no access lists")
    assert "can be written by group" in str(places.refusal(target(tmp_path)))


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(path))


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (lambda at: linked(at, "/etc/hostname"), "symbolic link"),
    "link-beside": (
        lambda at: (at.with_name("b").write_text("x"), linked(at, "b")),
        "symbolic link",
    ),
    "folder": (lambda at: at.mkdir(), "not a regular file"),
    "fifo": (os.mkfifo, "not a regular file"),
    "socket": (bind, "not a regular file"),
    "two-names": (
        lambda at: (at.write_text("x"), at.with_name("b").hardlink_to(at)),
        "has 2 names",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_one_name_is_not_opened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, words = FILES[name]
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    plant(Path("a") if name == "socket" else tmp_path / "a")
    with pytest.raises(NoAnswer, match="not_a_file") as no:
        read_target(str(tmp_path / "a"))
    assert words in no.value.why


@pytest.mark.machine
@as_root
def test_a_device_is_not_even_opened(tmp_path: Path) -> None:
    """The one here has no driver.

    To open it would be ENXIO, and for a watchdog the beginning of a reboot.
    """
    os.mknod(tmp_path / "a", stat.S_IFCHR | 0o666, os.makedev(240, 77))
    with pytest.raises(ValueError, match="not a regular file"):
        places.opened(str(tmp_path / "a"))


@pytest.mark.machine
@as_root
@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o664, 0), (0o600, OTHER_USER)])
def test_a_journal_that_others_could_have_written_is_none(
    mode: int, owner: int, tmp_path: Path
) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    assert places.owned_text(str(path)) == b"{}"
    os.chown(path, owner, owner)
    path.chmod(mode)
    with pytest.raises(
        ValueError, match=f"belongs to user {owner}, mode {mode:04o}: others could have written it"
    ):
        places.owned_text(str(path))
