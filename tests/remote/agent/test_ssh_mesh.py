"""What ssh says and what it means, and that no more than four run at a time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from clusterprep.remote.agent.readers import NoAnswer
from clusterprep.remote.agent.ssh_mesh import explain, read_ssh_mesh

UNKNOWN = "No ED25519 host key is known for n2 and you have requested strict checking."
CHANGED = "@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@@@@"


# Printed by OpenSSH 9.2 of Debian 12.
@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("n2: Permission denied (publickey,password).\n", "no key"),
        (f"{UNKNOWN}\nHost key verification failed.\n", "host key not known"),
        (f"{CHANGED}\nHost key verification failed.\n", "host key changed"),
        ("ssh: connect to host n2 port 22: Connection refused\n", "refused"),
        ("ssh: connect to host n2 port 22: No route to host\n", "no route"),
        ("ssh: connect to host n2 port 22: Connection timed out\n", "no answer"),
        ("ssh: Could not resolve hostname n2: Name or service not known\n", "no name"),
        ("kex_exchange_identification: read: Connection reset by peer\n", "closed"),
        ("This account is currently not available.\n", "other"),
        ("", "other"),
    ],
)
def test_what_ssh_says_has_a_meaning(said: str, meaning: str) -> None:
    assert explain(255, said)[0] == meaning
    assert explain(0, said) == ("", "")


def program(folder: Path, text: str) -> str:
    path = folder / "ssh"
    to_host = "while [ $1 != -- ]; do shift; done"
    path.write_text(f"#!/bin/sh\n{to_host}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_every_host_is_tried_and_equal_failures_are_one_row(tmp_path: Path) -> None:
    ssh = program(
        tmp_path,
        'shift; case $1 in good*) exit 0;; *) echo "$1: Permission denied (publickey)." >&2;'
        " exit 255;; esac",
    )
    answer = read_ssh_mesh(None, False, "good1", "bad1", "good2", "bad2", program=ssh)
    assert answer["tried"] == 4
    assert answer["untried"] == []
    ((meaning, said, hosts),) = answer["failed"]
    assert (meaning, sorted(hosts)) == ("no key", ["bad1", "bad2"])
    assert said.endswith("Permission denied (publickey).")


def test_what_ssh_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """A ProxyCommand of the user's configuration has stderr of ssh, and may never end."""
    said = 'echo "n2: Permission denied (publickey)." >&2'
    ssh = program(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid; {said}; exit 255")
    try:
        answer = read_ssh_mesh(None, False, "n2", program=ssh)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (answer["tried"], answer["failed"][0][0]) == (1, "no key")


def test_ssh_asks_for_nothing_and_writes_nothing(tmp_path: Path) -> None:
    ssh = program(tmp_path, "exit 0")
    Path(ssh).write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/argv\n')
    read_ssh_mesh(None, False, "-oProxyCommand=x", program=ssh)
    argv = (tmp_path / "argv").read_text()
    for option in (
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "ControlPath=none",
        "-- -oProxyCommand=x true",
    ):
        assert option in argv


def test_a_closed_connection_is_tried_again(tmp_path: Path) -> None:
    ssh = program(
        tmp_path,
        f"[ -e {tmp_path}/once ] && exit 0; touch {tmp_path}/once\n"
        'echo "Connection closed by 10.0.0.2 port 22" >&2; exit 255',
    )
    assert read_ssh_mesh(None, False, "n2", program=ssh)["failed"] == []


def test_there_is_an_end_to_it(tmp_path: Path) -> None:
    began = time.monotonic()
    hosts = [f"n{at}" for at in range(9)]
    answer = read_ssh_mesh(
        None, False, *hosts, seconds=0.5, program=program(tmp_path, "exec sleep 60")
    )
    assert time.monotonic() - began < 10
    assert (answer["tried"], sorted(answer["untried"])) == (0, hosts)


def test_a_machine_without_ssh(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer) as raised:
        read_ssh_mesh(None, False, "n2", program=f"{tmp_path}/ssh")
    assert raised.value.args[0] == "missing_tool"
