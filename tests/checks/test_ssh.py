"""A node that refused the login fails; a node without an answer is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.errors import Unreached
from clusterprep.facts.account import Rights
from clusterprep.model import NodeSnapshot
from clusterprep.remedies import shell_line
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from tests.support.fleet import TODAY, absent, by_node, findings, fleet, refusing, silent, told

REFUSALS = (
    *("host_key_unknown", "host_key_changed", "auth_refused"),
    *("denied", "no_python", "sudo_refused"),
)
SILENCES = ("name_unknown", "refused", "timed_out", "no_banner", "hung")


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal_is_a_failure(reason: str) -> None:
    error = Unreached(reason, "what was seen", shell_line("what to do"))
    seen = NodeSnapshot(
        "n2", "10.0.0.2", False, reason, error.message, error.remedy, error.answered
    )
    assert told(fleet(n1={}, n2=seen), "ssh.reach") == {"n1": "pass", "n2": "fail error"}
    bad = findings(fleet(n2=seen), "ssh.reach")[0]
    assert (bad.reason, bad.message, bad.remedy) == (reason, "what was seen", "what to do")


@pytest.mark.parametrize("reason", SILENCES)
def test_no_answer_is_not_known(reason: str) -> None:
    error = Unreached(reason, "nothing came")
    seen = NodeSnapshot(
        "n2", "10.0.0.2", False, reason, error.message, error.remedy, error.answered
    )
    assert told(fleet(n1={}, n2=seen), "ssh.reach") == {
        "n1": "pass",
        "n2": f"unknown error {reason}",
    }


def test_no_other_check_speaks_of_a_node_that_was_not_reached() -> None:
    seen = fleet(n1={}, n2=silent("n2"), n3=refusing("n3"))
    found = judge(seen, list(registry.checks().values()), TODAY)
    assert {f.check for f in found if set(f.nodes) & {"n2", "n3"}} == {"ssh.reach"}
    assert by_node(f for f in found if f.check == "ssh.reach")["n1"] == "pass"


def test_no_reached_node_is_not_a_success() -> None:
    found = judge(fleet(n1=silent("n1"), n2=silent("n2")), list(registry.checks().values()), TODAY)
    assert [(f.check, f.verdict, f.nodes) for f in found] == [
        ("ssh.reach", "unknown", ("n1", "n2"))
    ]


def test_different_reasons_are_different_findings() -> None:
    found = findings(
        fleet(n1=silent("n1"), n2=silent("n2", "refused"), n3=silent("n3")), "ssh.reach"
    )
    assert {(f.reason, f.nodes) for f in found} == {
        ("timed_out", ("n1", "n3")),
        ("refused", ("n2",)),
    }


# ---------------------------------------------------------------- root

ALICE, WITHOUT, NO_SUDO = (
    Rights(1000, "alice", 0),
    Rights(1000, "alice", 1),
    Rights(1000, "alice", None),
)
DENIED = {"mem.total": 1 << 40, "kernel.log": absent("denied"), "pcie.acs": absent("denied")}
KNOWN = {
    "mem.total": 1 << 40,
    "kernel.log": absent("missing_tool"),
    "pcie.acs": absent("not_applicable"),
}


@pytest.mark.parametrize(
    ("rights", "others", "expected"),
    [
        pytest.param(Rights(0, "root"), DENIED, "pass", id="root"),
        pytest.param(Rights(0, "root"), KNOWN, "pass", id="root-and-nothing-denied"),
        pytest.param(ALICE, KNOWN, "skip not_applicable", id="nothing-needs-root"),
        pytest.param(WITHOUT, KNOWN, "skip not_applicable", id="nothing-needs-it-and-sudo-asks"),
        pytest.param(ALICE, DENIED, "unknown warning denied", id="sudo-would-do"),
        pytest.param(WITHOUT, DENIED, "unknown warning denied", id="sudo-asks"),
        pytest.param(NO_SUDO, DENIED, "unknown warning denied", id="no-sudo"),
        pytest.param(absent("hung"), KNOWN, "unknown error hung", id="sudo-hangs"),
        pytest.param(absent("garbled"), KNOWN, "unknown error garbled", id="garbled"),
    ],
)
def test_root_is_missed_where_something_was_denied(
    rights: Any, others: dict[str, Any], expected: str
) -> None:
    assert told(fleet(n1={"ssh.rights": rights, **others}), "ssh.sudo") == {"n1": expected}


def test_what_was_denied_on_one_node_is_not_missed_on_another() -> None:
    seen = fleet(n1={"ssh.rights": ALICE, **DENIED}, n2={"ssh.rights": ALICE, **KNOWN})
    assert told(seen, "ssh.sudo") == {"n1": "unknown warning denied", "n2": "skip not_applicable"}


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        (ALICE, "set `ssh: {become: true}`"),
        (
            WITHOUT,
            "(umask 227 && echo 'alice ALL=(root) NOPASSWD: /bin/sh' > /etc/sudoers.d/cluster",
        ),
    ],
)
def test_the_remedy_is_what_works_there(rights: Rights, words: str) -> None:
    (found,) = findings(fleet(n1={"ssh.rights": rights, **DENIED}), "ssh.sudo")
    assert found.remedy.startswith(words)
    assert found.message == "2 facts need root: kernel.log, pcie.acs"


def unknown_key(name: str, address: str) -> NodeSnapshot:
    remedy = shell_line(
        "ssh-keyscan -t ed25519 -p 22 {host} >> ~/.ssh/known_hosts   # first compare",
        host=address,
    )
    error = Unreached("host_key_unknown", f"the host key of {address} is not known", remedy)
    return NodeSnapshot(
        name, address, False, error.reason, error.message, error.remedy, error.answered
    )


def test_one_command_adds_the_host_keys_of_all_nodes() -> None:
    seen = {f"n{number}": unknown_key(f"n{number}", f"10.0.0.{number}") for number in (1, 2, 3)}
    (found,) = findings(fleet(**seen), "ssh.reach")
    hosts = "10.0.0.1 10.0.0.2 10.0.0.3"
    assert found.remedy == f"ssh-keyscan -t ed25519 -p 22 {hosts} >> ~/.ssh/known_hosts"
    assert found.remedy.note == "first compare"
    assert "the host key of 10.0.0.3 is not known (n3)" in found.message
