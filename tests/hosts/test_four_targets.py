"""apply and rollback of all four targets on hosts that begin differently.

Afterwards /etc is as it was, to the byte.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts

TARGETS = {
    "/etc/profile.d/clusterprep-nccl.sh": "profile.d",
    "/etc/nccl.conf": "nccl.conf",
    "/etc/clusterprep/nccl.env": "env-file",
    "/etc/clusterprep/task_prolog.sh": "slurm-task-prolog",
}
FOLDER = "/etc/clusterprep"
BLOCK = b"# BEGIN clusterprep\nNCCL_DEBUG=INFO\n# END clusterprep\n"
Entry = tuple[int, int, int, str]  # mode with the kind of file, owner, group, what is in it


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts that begin differently.

    n1 has none of the files; n2 has all, with its own owners, modes and bytes; n3 has some of them;
    n4 lacks the folders too.
    """
    for host in lab4.hosts:
        host.run(
            [
                "sh",
                "-c",
                (
                    f"rm -rf /var/lib/clusterprep {FOLDER} {' '.join(TARGETS)}; "
                    "mkdir -p /etc/profile.d"
                ),
            ]
        )
    for number, path in enumerate(TARGETS):
        text = b"\xef\xbb\xbf# mine\r\nNCCL_IB_TC=106\r\n export X=\xff\0" + bytes([number])
        laid(
            lab4.host("n2"), path, text, (0o4750, 0o600, 0o444, 0o777)[number], 4711 + number, 4720
        )
    laid(lab4.host("n3"), "/etc/nccl.conf", b"A=1\n" + BLOCK + b"NCCL_DEBUG=TRACE", 0o640, 0, 4720)
    laid(lab4.host("n3"), f"{FOLDER}/mine", b"", 0o600, 4711, 4711)
    inside(lab4.host("n3"), FOLDER).chmod(0o711)
    lab4.host("n4").run(["mv", "/etc/profile.d", "/etc/profile.away"])
    laid(lab4.host("n4"), "/etc/nccl.conf", b"", 0o644, 0, 0)
    yield lab4
    lab4.host("n4").run(["mv", "/etc/profile.away", "/etc/profile.d"])


def laid(host: Host, path: str, content: bytes, mode: int, owner: int, group: int) -> None:
    place = inside(host, path)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(content)
    os.chown(place, owner, group)
    place.chmod(mode)


def etc(host: Host) -> dict[str, Entry]:
    """Everything below /etc of a host."""
    root = inside(host, "/etc")
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            place = Path(folder, name)
            state = place.lstat()
            content = ""
            if stat.S_ISREG(state.st_mode):
                content = hashlib.sha256(place.read_bytes()).hexdigest()
            elif place.is_symlink():
                content = str(place.readlink())
            found[str(place.relative_to(root))] = (
                state.st_mode,
                state.st_uid,
                state.st_gid,
                content,
            )
    return found


def apply(lab: Lab, **env: str) -> Answer:
    inventory = lab.inventory(env_targets=list(TARGETS.values()), env=env)
    return clusterprep(lab, "apply", "--no-verify", "--only", "ssh.", inventory=inventory)


def rollback(lab: Lab, *words: str) -> Answer:
    return clusterprep(lab, "rollback", *words)


def everywhere(lab: Lab) -> dict[str, dict[str, Entry]]:
    return {host.name: etc(host) for host in lab.hosts}


def test_rollback_gives_back_bytes_modes_owners_and_absence(lab: Lab) -> None:
    before = everywhere(lab)
    assert "clusterprep" not in before["n1"]
    assert before["n2"]["nccl.conf"][1:3] == (4712, 4720)
    done = apply(lab)
    assert (done.code, done.outcomes()) == (0, {"done"})
    assert len([change for change in done.report["changes"] if "n2" in change["nodes"]]) == 4
    written(lab, before)
    undone = rollback(lab)
    assert (undone.code, undone.outcomes()) == (0, {"undone"})
    assert everywhere(lab) == before
    again = rollback(lab)
    assert (again.code, again.report["changes"]) == (0, [])
    assert everywhere(lab) == before


def written(lab: Lab, before: dict[str, dict[str, Entry]]) -> None:
    """All hosts got the four files, with the modes and owners of earlier ones, and nothing else."""
    now = everywhere(lab)
    names = {path.removeprefix("/etc/") for path in TARGETS}
    for host, entries in now.items():
        assert names <= entries.keys()
        assert {n: e[:3] for n, e in entries.items() if n in before[host]} == {
            n: e[:3] for n, e in before[host].items()
        }
        same = {
            name: entry
            for name, entry in entries.items()
            if name in before[host] and name not in names
        }
        assert same == {name: entry for name, entry in before[host].items() if name not in names}
        assert {
            name
            for name in entries.keys() - before[host].keys()
            if not name.startswith("profile.d/.")
        } <= {
            *names,
            "clusterprep",
            "clusterprep/.",
            "profile.d",
            "profile.d/.",
        }
        assert {entries[name][0] & 0o777 for name in names - before[host].keys()} <= {0o644, 0o755}
    conf = inside(lab.host("n3"), "/etc/nccl.conf").read_bytes()
    assert conf.endswith(b"# END clusterprep\nA=1\nNCCL_DEBUG=TRACE")
    assert conf.count(b"# BEGIN clusterprep") == 1
    foreign = inside(lab.host("n2"), "/etc/nccl.conf").read_bytes()
    assert foreign.endswith(b"\xef\xbb\xbf# mine\r\nNCCL_IB_TC=106\r\n export X=\xff\0\1")


@pytest.mark.slow
def test_the_last_of_two_runs_is_undone(lab: Lab) -> None:
    assert apply(lab, NCCL_IB_TC="1").code == 0
    first = everywhere(lab)
    assert apply(lab, NCCL_IB_TC="2").code == 0
    assert everywhere(lab) != first
    for _ in range(2):
        assert rollback(lab).code == 0
        assert everywhere(lab) == first


def test_an_edit_of_any_target_is_shown_and_kept(lab: Lab) -> None:
    before = everywhere(lab)
    assert apply(lab).code == 0
    host = lab.host("n2")
    for path in TARGETS:
        place = inside(host, path)
        content = place.read_bytes()
        place.write_bytes(content + b"\n# by hand\n")
        edited = etc(host)
        refused = rollback(lab)
        assert (refused.code, refused.report["verdict"]) == (4, "refused")
        assert f"n2: {path} was edited after run" in refused.report["error"]["message"]
        assert "+# by hand" in refused.stderr
        assert etc(host) == edited
        place.write_bytes(content)
    inside(host, "/etc/nccl.conf").unlink()
    inside(host, "/etc/clusterprep/nccl.env").write_bytes(b"mine\n")
    gone = rollback(lab)
    assert (gone.code, "n2: /etc/nccl.conf was edited after run" in gone.stderr) == (4, True)
    assert rollback(lab, "--force").code == 0
    assert everywhere(lab) == before, "also the owner of a file that was gone"


def test_a_folder_that_others_use_by_now_stays_and_is_told(lab: Lab) -> None:
    assert apply(lab).code == 0
    for name in ("n1", "n2"):
        lab.host(name).write(f"{FOLDER}/theirs", "x\n")
    undone = rollback(lab)
    assert undone.code == 0
    (told,) = [notice for notice in undone.report["notices"] if "stays" in notice]
    assert told.startswith(f"{FOLDER} of n1 stays: run "), "on n2 the folder was there before"
    assert [place.name for place in inside(lab.host("n1"), FOLDER).iterdir()] == ["theirs"]
    assert not inside(lab.host("n4"), FOLDER).exists()
