"""Files of the environment that the job's user cannot read: who, which file, what opens it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.readable import Readable, Refusal
from clusterprep.model import Fleet
from tests.support.fleet import absent, findings, fleet, told

CONF, PROLOG = "/etc/nccl.conf", "/etc/clusterprep/task_prolog.sh"
CLOSED = Refusal(
    CONF,
    "read",
    "target",
    "Permission denied",
    CONF,
    mode=0o600,
    owner="root",
    group="root",
)
FOLDER = replace(CLOSED, path="/etc/clusterprep/nccl.env", at="/etc/clusterprep", folder=True)
PROFILE = replace(CLOSED, path="/etc/profile.d/site.sh", use="shell", at="/etc/profile.d/site.sh")


def one(*refusals: Refusal) -> Fleet:
    return fleet(n1={"env.readable": Readable("alice", refusals)})


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(Readable("alice"), "pass", id="all-read"),
        pytest.param(Readable("alice", (CLOSED,)), "fail error", id="what-apply-writes"),
        pytest.param(
            Readable("alice", (replace(FOLDER, mode=0o700, exists=False),)),
            "fail error",
            id="apply-will-write-into-a-closed-folder",
        ),
        pytest.param(
            Readable("alice", (replace(CLOSED, use="nccl"),)), "fail warning", id="ncclconf"
        ),
        pytest.param(Readable("alice", (PROFILE,)), "fail warning", id="profile"),
        pytest.param(
            Readable("alice", (replace(PROFILE, sets=False),)), "pass", id="profile-of-another-kind"
        ),
        pytest.param(
            Readable("alice", (replace(PROFILE, sets=None),)),
            "unknown warning the file cannot be read by the login either",
            id="profile-that-cannot-be-read-by-us",
        ),
        pytest.param(
            Readable("alice", (replace(CLOSED, use="nccl", exists=False, sets=None),)),
            "pass",
            id="no-file-behind-a-closed-folder",
        ),
        pytest.param(absent("denied"), "unknown error denied", id="not-tried"),
        pytest.param(absent("hung"), "unknown error hung", id="file-server-hangs"),
    ],
)
def test_a_file_that_the_job_cannot_read(known: Any, expected: str) -> None:
    assert told(fleet(n1={"env.readable": known}), "env.readable") == {"n1": expected}


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        pytest.param(CLOSED, f"chmod 0644 {CONF}", id="file"),
        pytest.param(
            replace(CLOSED, path=PROLOG, at=PROLOG, need="run", mode=0o644),
            f"chmod 0755 {PROLOG}",
            id="script",
        ),
        pytest.param(replace(FOLDER, mode=0o700), "chmod a+x /etc/clusterprep", id="folder"),
        pytest.param(
            Refusal(
                "/etc/profile.d",
                "list",
                "shell",
                "Permission denied",
                "/etc/profile.d",
                folder=True,
                mode=0o711,
                owner="root",
                group="root",
            ),
            "chmod a+rx /etc/profile.d",
            id="folder-that-cannot-be-listed",
        ),
        pytest.param(
            replace(FOLDER, path="/root/nccl.conf", at="/root", mode=0o700),
            "setfacl -m u:alice:x /root",
            id="a-home-is-opened-to-the-user-alone",
        ),
        pytest.param(
            replace(CLOSED, mode=0o644, acl=True), f"setfacl -m u:alice:r {CONF}", id="acl"
        ),
        pytest.param(
            replace(CLOSED, mode=0o644),
            f"the mode of {CONF} lets alice in: look for a security module such as SELinux, or a "
            "file server, that does not",
            id="neither-mode-nor-acl",
        ),
        pytest.param(
            replace(CLOSED, at="", mode=None, why="Stale file handle"),
            f"look after the file {CONF}: Stale file handle",
            id="no-right-is-missing",
        ),
    ],
)
def test_the_remedy_opens_what_refuses(refusal: Refusal, remedy: str) -> None:
    (finding,) = findings(one(refusal), "env.readable")
    assert finding.remedy == remedy


NAMED = [
    # export NCCL_CONF_FILE=/root/.ssh/id_rsa, in a start-up file of alice
    replace(FOLDER, path="/root/.ssh/id_rsa", use="nccl", at="/root", mode=0o700),
    replace(CLOSED, path="/root/.ssh/id_rsa", use="nccl", at="/root/.ssh/id_rsa"),
    replace(CLOSED, path="/etc/ssl/private/key", use="nccl", at="/etc/ssl/private/key"),
    replace(CLOSED, path="/etc/../root/key", use="nccl", at="/root/key"),
    # . /root/secrets
    replace(FOLDER, path="/root/secrets", use="shell", at="/root", mode=0o700, sets=None),
    replace(CLOSED, path="/root/secrets", use="shell", at="/root/secrets"),
    replace(CLOSED, path="/etc/../root/key", use="shell", at="/root/key"),
]


@pytest.mark.parametrize("refusal", NAMED)
def test_a_user_has_no_file_opened_by_naming_it(refusal: Refusal) -> None:
    (finding,) = findings(one(refusal), "env.readable")
    assert not finding.remedy.is_command
    assert "is no reason to open" in finding.remedy


def test_the_finding_says_who_cannot_read_what() -> None:
    (finding,) = findings(one(CLOSED), "env.readable")
    lost = "a job of alice gets nothing that apply writes there"
    assert finding.message == f"alice cannot read {CONF}, so {lost}"
    assert finding.seen == f"{CONF} 0600 root:root"
    assert finding.wanted == f"alice can read {CONF}"


def test_the_folder_that_refuses_is_named() -> None:
    (finding,) = findings(one(replace(FOLDER, mode=0o700)), "env.readable")
    assert "cannot enter /etc/clusterprep, so" in finding.message
    assert finding.seen == "/etc/clusterprep 0700 root:root"


def test_nodes_with_the_same_fault_share_a_finding() -> None:
    closed = {"env.readable": Readable("alice", (CLOSED,))}
    seen = fleet(n1=closed, n2={"env.readable": Readable("alice")}, n3=closed)
    assert [(f.verdict, f.nodes) for f in findings(seen, "env.readable")] == [
        ("fail", ("n1", "n3")),
        ("pass", ("n2",)),
    ]
