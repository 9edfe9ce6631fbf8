"""SSH between nodes: which lines it takes, who may use the key, and that no message shows it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.file_plan import diff_text
from clusterprep.changes.key_pair import KeyPair, key_pair
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.ssh_mesh import RESOURCE, parse_host_keys
from clusterprep.errors import InputError
from clusterprep.model import Fleet
from clusterprep.model.files import FileChange, FileState
from clusterprep.nccl.environment import Environment
from tests.support.fleet import absent, fleet

PAIR = KeyPair("ssh-ed25519 AAAA clusterprep-c", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n")
PARAMS = {"user": "trainer", "pair": PAIR}
HOME = "/home/trainer/.ssh"
# Of `ssh-keygen -t ed25519`.
HOST_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG0m9qFQd7b7y4nLrjzQ3kXK8m5m1yYkCw0m2x1cHcQp root@n1\n"
)


def two(**of_second: Any) -> Fleet:
    keys = {"ssh.host_keys": ("ssh-ed25519 K1",)}
    some = {"n1": {"address": "10.0.0.1"}, "n2": {"address": "10.0.0.2"}}
    return fleet(some=some, n1=keys, n2={"ssh.host_keys": ("ssh-ed25519 K2",), **of_second})


def planned(seen: Fleet, **contents: bytes) -> dict[str, FileChange]:
    files = {}
    for path in RESOURCE.paths(PARAMS, seen.inventory):
        files[path] = FileState(path, contents.get(Path(path).name))
    context = PlanContext(seen, seen.inventory.nodes[0], files, {}, Environment((), {}))
    return {Path(change.path).name: change for change in RESOURCE.plan(PARAMS, context)}


def test_a_key_and_three_blocks() -> None:
    changes = planned(two(), authorized_keys=b"ssh-rsa MINE me\n", config=b"ForwardAgent no\n")
    assert {change.path for change in changes.values()} == {
        f"{HOME}/{name}"
        for name in ("clusterprep_mesh", "authorized_keys", "known_hosts", "config")
    }
    key = changes["clusterprep_mesh"]
    assert (key.after, key.mode) == (PAIR.private, 0o600)
    authorized = (changes["authorized_keys"].after or b"").decode()
    assert authorized.startswith("ssh-rsa MINE me\n# BEGIN clusterprep ssh_mesh")
    assert (
        'from="10.0.0.1,10.0.0.2",no-agent-forwarding,no-X11-forwarding ssh-ed25519 AAAA'
        in authorized
    )
    known = (changes["known_hosts"].after or b"").decode().splitlines()
    assert known[1:3] == ["10.0.0.1,n1 ssh-ed25519 K1", "10.0.0.2,n2 ssh-ed25519 K2"]
    config = (changes["config"].after or b"").decode().splitlines()
    assert config[1:4] == [
        "Host 10.0.0.1 n1 10.0.0.2 n2",
        f"  IdentityFile {HOME}/clusterprep_mesh",
        "Host *",
    ]
    assert config[-1] == "ForwardAgent no"


def test_a_second_time_nothing_changes() -> None:
    contents = {name: change.after for name, change in planned(two()).items()}
    again = planned(two(), **contents)  # type: ignore[arg-type]
    assert {change.action for change in again.values()} == {"none"}


def test_the_private_key_is_in_no_diff_and_no_message() -> None:
    change = planned(two())["clusterprep_mesh"]
    assert "PRIVATE KEY" not in diff_text(change)
    assert "not shown" in diff_text(change)
    assert "PRIVATE" not in diff_text(replace(change, before=change.after, after=None))
    assert "PRIVATE" not in repr(PARAMS)


def test_all_nodes_have_to_be_known() -> None:
    with pytest.raises(NoPlan, match="host keys of n2"):
        planned(two(**{"ssh.host_keys": absent()}))


@pytest.mark.parametrize(
    "text",
    ["", "ssh-ed25519", "ssh-ed25519 AAAA", HOST_KEY.replace("ssh-ed", "cert-authority *")],
)
def test_what_is_no_host_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_host_keys(text, None, None)


def test_host_keys_are_written_without_their_comments() -> None:
    (key,) = parse_host_keys(HOST_KEY, None, None)
    assert key == HOST_KEY.removesuffix(" root@n1\n")


def test_the_key_pair_of_a_cluster_is_made_once_and_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pair = key_pair("a/../b")
    (path,) = (tmp_path / "clusterprep" / "ssh_mesh").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert pair == key_pair("a/../b")
    assert pair.private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert pair.public.startswith("ssh-ed25519 AAAA")
    assert pair != key_pair("other")
    path.write_text("x")
    with pytest.raises(InputError, match="no private key"):
        key_pair("a/../b")
