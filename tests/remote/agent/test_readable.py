"""Files that the job's user cannot read, opened as that user.

As root another user is tried in a child; without root this user is refused its own files.
"""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import readable, readers

IS_ROOT = os.geteuid() == 0
USER = "nobody" if IS_ROOT else pwd.getpwuid(os.geteuid()).pw_name
OWNER = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, which those of pytest are not."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for place in [path, *path.rglob("*")]:
        if not place.is_symlink():
            place.chmod(0o755)
    shutil.rmtree(path)


def rows(*named: tuple[Path, str]) -> dict[str, Any]:
    """What is refused of these files, by path."""
    answer = readable.read_readable(USER, [[str(path), need, "target"] for path, need in named])
    assert answer["user"] == USER
    paths = {str(path) for path, _ in named}
    return {row["path"]: row for row in answer["refused"] if row["path"] in paths}


def written(path: Path, mode: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("NCCL_DEBUG=WARN\n")
    path.chmod(mode)
    return path


def test_a_file_that_can_be_read_or_is_not_there_is_not_told(folder: Path) -> None:
    conf = written(folder / "nccl.conf", 0o644)
    (folder / "link").symlink_to(folder / "nothing")
    named = [(conf, "read"), (folder / "missing", "read"), (folder / "link", "read")]
    assert rows(*named, (conf / "below", "read")) == {}


def test_a_file_of_root_alone_is_told_with_its_mode_and_owner(folder: Path) -> None:
    conf = written(folder / "nccl.conf", 0o600 if IS_ROOT else 0o000)
    (row,) = rows((conf, "read")).values()
    assert (row["why"], row["at"], row["folder"]) == ("Permission denied", str(conf), False)
    assert (row["mode"], row["owner"]) == (0o600 if IS_ROOT else 0, OWNER)
    assert (row["exists"], row["sets"], row["acl"]) == (True, None, False)


def test_the_folder_that_refuses_is_told_also_behind_a_link(folder: Path) -> None:
    secret = written(folder / "closed" / "nccl.conf", 0o644)
    link = folder / "nccl.conf"
    link.symlink_to("closed/nccl.conf")
    secret.parent.chmod(0o700 if IS_ROOT else 0o600)
    told = rows((secret, "read"), (link, "read"), (secret.parent / "missing", "read"))
    assert {row["at"] for row in told.values()} == {str(secret.parent)}
    assert {row["folder"] for row in told.values()} == {True}
    exists = {Path(path).name: row["exists"] for path, row in told.items()}
    if IS_ROOT:
        assert exists == {"nccl.conf": True, "missing": False}
    else:
        assert exists == {"nccl.conf": None, "missing": None}


def test_a_script_has_to_be_run_too(folder: Path) -> None:
    script = written(folder / "prolog.sh", 0o644)
    assert rows((script, "read")) == {}
    (row,) = rows((script, "run")).values()
    assert (row["need"], row["at"]) == ("run", str(script))
    script.chmod(0o755)
    assert rows((script, "run")) == {}


def test_a_folder_has_to_be_listed(folder: Path) -> None:
    profiles = folder / "profile.d"
    profiles.mkdir()
    profiles.chmod(0o711 if IS_ROOT else 0o311)
    (row,) = rows((profiles, "list")).values()
    assert (row["at"], row["folder"]) == (str(profiles), True)
    profiles.chmod(0o755)
    assert rows((profiles, "list")) == {}


def test_a_pipe_does_not_hold_it_up_and_a_folder_is_no_file(folder: Path) -> None:
    pipe = folder / "nccl.conf"
    os.mkfifo(pipe, 0o644)
    pipe.chmod(0o644)
    assert rows((pipe, "read")) == {}
    (row,) = rows((folder, "read")).values()
    assert (row["why"], row["at"]) == ("Is a directory", "")


# acl(5) as linux/posix_acl_xattr.h has it: version 2, then tag, rights and id of each entry.
ALL, NAMED, GROUP, MASK, OTHERS, NO_ID = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF


def acl(rights_of_user: int) -> bytes:
    """An access control list that says r for all, and something else for the user."""
    uid = pwd.getpwnam(USER).pw_uid
    entries = [(ALL, 6, NO_ID), (NAMED, rights_of_user, uid), (GROUP, 4, NO_ID)]
    entries += [(MASK, 4, NO_ID), (OTHERS, 4, NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.skipif(not IS_ROOT, reason="the owner of a file is not looked up in its list")
def test_an_access_control_list_is_obeyed(folder: Path) -> None:
    conf = written(folder / "nccl.conf", 0o644)
    try:
        os.setxattr(conf, readable.ACL, acl(0))
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    (row,) = rows((conf, "read")).values()
    assert (row["acl"], row["mode"]) == (True, 0o644)
    os.setxattr(conf, readable.ACL, acl(4))
    assert rows((conf, "read")) == {}


def test_nccls_file_that_a_start_up_file_names_is_found() -> None:
    texts = [
        ["/etc/profile", "# export NCCL_CONF_FILE=/not/this\n"],
        ["/home/a/.profile", 'export NCCL_CONF_FILE="/opt/site.conf"; X=1\n'],
        ["/home/a/.bashrc", "NCCL_CONF_FILE=~/mine.conf\nexport NCCL_CONF_FILE=$SITE/x\n"],
        ["/home/a/.kshrc", "NCCL_CONF_FILE=\n"],
    ]
    named = readable.named_conf_files(texts, "/home/a")
    assert named == ["/opt/site.conf", "/home/a/mine.conf"]


@pytest.mark.skipif(IS_ROOT, reason="root may become every user")
def test_without_root_another_user_cannot_be_tried() -> None:
    with pytest.raises(readers.NoAnswer, match="denied"):
        readable.read_readable("root", [])
