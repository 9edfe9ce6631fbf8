"""What the job's user cannot read: what is asked, what the answers mean, and what does not count.

The answers are composed: the agent's own are in tests/remote/agent/test_readable.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.readable import READABLE, Readable, Refusal
from clusterprep.model import Inventory, Node
from tests.support.fleet import env, learned

ROW = {
    "path": "/etc/nccl.conf",
    "need": "read",
    "use": "target",
    "why": "Permission denied",
    "at": "/etc/nccl.conf",
    "folder": False,
    "mode": 0o600,
    "owner": "root",
    "group": "root",
    "acl": False,
    "exists": True,
    "sets": True,
}
REFUSAL = Refusal(
    "/etc/nccl.conf",
    "read",
    "target",
    "Permission denied",
    "/etc/nccl.conf",
    mode=0o600,
    owner="root",
    group="root",
)


def answer(*rows: dict[str, Any]) -> list[Any]:
    return ["ok", {"user": "alice", "refused": list(rows)}]


def test_a_refusal_is_learned() -> None:
    assert learned("env.readable", answer()) == Readable("alice")
    assert learned("env.readable", answer(ROW)) == Readable("alice", (REFUSAL,))


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"mode": "0600"}, id="mode"),
        pytest.param({"mode": True}, id="mode-is-true"),
        pytest.param({"need": "write"}, id="need"),
        pytest.param({"use": "cron"}, id="use"),
        pytest.param({"path": 7}, id="path"),
        pytest.param({"owner": 0}, id="owner"),
        pytest.param({"exists": "yes"}, id="exists"),
    ],
)
def test_what_is_not_understood_is_garbled(field: dict[str, Any]) -> None:
    assert learned("env.readable", answer({**ROW, **field})).reason == "garbled"


def test_without_the_right_to_become_the_user_it_is_denied() -> None:
    why = "a session of alice cannot be opened"
    assert learned("env.readable", ["no", "denied", why]).reason == "denied"


@pytest.mark.parametrize(
    ("use", "exists", "sets", "matters"),
    [
        ("target", False, None, True),
        ("target", None, None, True),
        ("nccl", True, None, True),
        ("nccl", True, False, False),
        ("nccl", False, None, False),
        ("nccl", None, None, None),
        ("slurm", True, None, True),
        ("shell", True, True, True),
        ("shell", True, False, False),
        ("shell", True, None, None),
        ("shell", None, None, None),
    ],
)
def test_what_a_job_loses(
    use: Any, exists: bool | None, sets: bool | None, matters: bool | None
) -> None:
    assert replace(REFUSAL, use=use, exists=exists, sets=sets).matters is matters


def test_a_folder_that_cannot_be_listed_always_counts() -> None:
    assert replace(REFUSAL, use="shell", need="list", sets=None).matters is True


def test_the_paths_that_are_written_are_asked_below_the_nodes_root() -> None:
    declared = env(NCCL_CONF_FILE="/shared/nccl.conf")
    node = Node("n1", "10.0.0.1", 0, job_user="alice", root="/mnt", env=declared)
    targets = ("env-file", "slurm-task-prolog")
    (read,) = READABLE.reads(node, Inventory("test", (node,), env_targets=targets))
    assert read.kind == "readable"
    assert read.args == (
        "alice",
        (
            ("/mnt/etc/clusterprep/nccl.env", "read", "target"),
            ("/mnt/etc/clusterprep/task_prolog.sh", "run", "target"),
            ("/shared/nccl.conf", "read", "nccl"),
        ),
    )
