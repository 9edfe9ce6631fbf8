"""A key that is accepted at first sight: what the file says by then decides, not what it said."""

from __future__ import annotations

import base64
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.host_key_policy import HostKeys
from clusterprep.remote.transports.known_hosts import KnownHosts
from clusterprep.remote.transports.ssh_route import Route, RouteMap

TYPE = "ssh-ed25519"


def blob(letter: bytes) -> bytes:
    name = TYPE.encode()
    key = letter * 32
    return len(name).to_bytes(4, "big") + name + len(key).to_bytes(4, "big") + key


SHOWN, OTHER = blob(b"s"), blob(b"o")


def text_of(key: bytes) -> str:
    return f"{TYPE} {base64.b64encode(key).decode()}"


def route(folder: Path, host_keys: str = "accept-new", port: int = 22) -> Route:
    settings = SshSettings(
        port=port,
        config="none",
        known_hosts=str(folder / "known_hosts"),
        host_keys=host_keys,  # type: ignore[arg-type]
    )
    return RouteMap().to(Node("n1", "n1", 0, settings))


@contextmanager
def no_more_files() -> Iterator[None]:
    """Every open file that this process may have is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def verified(keys: HostKeys, where: Route) -> str:
    """Return the reason why the key is refused, or nothing."""
    try:
        keys.verify(where, TYPE, SHOWN)
    except Unreached as error:
        return f"{error.reason}: {error.message}"
    return ""


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (f"@revoked n1 {text_of(SHOWN)}", "host_key_changed: n1 shows a host key that is revoked"),
        (f"@revoked * {text_of(SHOWN)}", "host_key_changed: n1 shows a host key that is revoked"),
        (f"@cert-authority * {text_of(OTHER)}", "host_key_unknown: "),
        (f"n1 {text_of(OTHER)}", "host_key_changed: the host key of n1 is not the known one"),
        (f"n1 {text_of(SHOWN)}", ""),
        (f"@revoked n2 {text_of(SHOWN)}", ""),
    ],
)
def test_what_came_into_the_file_meanwhile_decides(line: str, refusal: str, tmp_path: Path) -> None:
    keys, where = HostKeys(str(tmp_path / "system")), route(tmp_path)
    keys.algorithms(where)  # reads the file, which does not exist yet
    (tmp_path / "known_hosts").write_text(f"{line}\n")
    assert verified(keys, where).startswith(refusal)
    assert bool(verified(keys, where)) is bool(refusal)
    is_added = line.startswith("@revoked n2")
    added = f"n1 {text_of(SHOWN)}\n" if is_added else ""
    assert (tmp_path / "known_hosts").read_text() == f"{line}\n{added}"


def test_a_revoked_key_is_refused_under_the_name_without_a_port_too(tmp_path: Path) -> None:
    keys, where = HostKeys(str(tmp_path / "system")), route(tmp_path, port=2222)
    keys.algorithms(where)
    (tmp_path / "known_hosts").write_text(f"@revoked n1 {text_of(SHOWN)}\n")
    assert "revoked" in verified(keys, where)


def test_another_key_under_the_name_without_a_port_is_of_another_server(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text(f"n1 {text_of(OTHER)}\n")
    keys, where = HostKeys(str(tmp_path / "system")), route(tmp_path, port=2222)
    assert verified(keys, where) == ""
    assert f"[n1]:2222 {text_of(SHOWN)}\n" in (tmp_path / "known_hosts").read_text()


@pytest.mark.parametrize("name", ["known_hosts", "system"])
def test_a_file_that_cannot_be_read_makes_no_key_new(name: str, tmp_path: Path) -> None:
    """It may revoke the key. Of open files there are none left when a fleet is too large."""
    (tmp_path / name).write_text(f"@revoked * {text_of(SHOWN)}\n")
    keys, where = HostKeys(str(tmp_path / "system")), route(tmp_path)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        keys.algorithms(where)  # the login ends with it: this machine is to blame
    refusal = verified(keys, where)
    assert "revoked" in refusal, "nothing is remembered of the file that could not be read"
    assert (tmp_path / name).read_text() == f"@revoked * {text_of(SHOWN)}\n"


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").mkdir()
    for host_keys in ("strict", "accept-new"):
        refusal = verified(HostKeys(str(tmp_path / "system")), route(tmp_path, host_keys))
        assert f"{tmp_path}/known_hosts cannot be read: Is a directory" in refusal
    assert KnownHosts.from_path(str(tmp_path / "none")).trouble == ""
    assert KnownHosts.from_path(str(tmp_path / "known_hosts")).trouble == "Is a directory"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_disk_that_is_full_takes_no_part_of_a_line(room: int, tmp_path: Path) -> None:
    """The next line would stand behind it, and be none."""
    file = tmp_path / "known_hosts"
    old = f"n2 {text_of(OTHER)}\n"
    file.write_text(old)
    keys, where = HostKeys(str(tmp_path / "system")), route(tmp_path)
    with largest_file(len(old) + room):
        refusal = verified(keys, where)
    assert refusal.startswith("host_key_unknown: ")
    assert f"and {file} cannot be written: " in refusal
    assert file.read_text() == old
    assert verified(keys, where) == ""
    assert file.read_text() == f"{old}n1 {text_of(SHOWN)}\n"
