"""RemoveIPC as logind reads it, and whose shared memory it concerns.

Files are composed by logind.conf(5); the commented default of Red Hat is that of
/etc/systemd/logind.conf of RHEL 9, that of Debian is /etc/systemd/logind.conf of Debian 12.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.ipc_removeipc import Logind, parse_logind, parse_wanted
from clusterprep.facts.account import Rights
from tests.support.fleet import absent, findings, fleet, told

USER = {"uid": 1000, "gid": 1000}
SEAT = {"/run/systemd/seats/seat0": "IS_SEAT0=1"}
ETC, RUN = "/etc/systemd/logind.conf", "/run/systemd/logind.conf.d"
LIB, LOCAL = "/usr/lib/systemd/logind.conf.d", "/usr/local/lib/systemd/logind.conf.d"


@pytest.mark.parametrize(
    ("files", "removes", "source"),
    [
        pytest.param({}, True, "", id="nothing"),
        pytest.param({ETC: "[Login]\n#RemoveIPC=yes\n"}, True, ETC, id="debian"),
        pytest.param({ETC: "[Login]\n#RemoveIPC=no\n"}, False, ETC, id="red-hat"),
        pytest.param({ETC: "[Login]\nRemoveIPC=no\n"}, False, ETC, id="the-file"),
        pytest.param({ETC: "[Login]\nRemoveIPC = FALSE\n"}, False, ETC, id="blanks-and-letters"),
        pytest.param({ETC: "RemoveIPC=no\n"}, True, "", id="before-a-section"),
        pytest.param({ETC: "[Sleep]\nRemoveIPC=no\n"}, True, "", id="another-section"),
        pytest.param({ETC: "[Login]\n;RemoveIPC=no\n"}, True, "", id="a-comment"),
        pytest.param({ETC: "[Login]\nRemoveIPC=never\n"}, True, "", id="no-boolean"),
        pytest.param(
            {ETC: "[Login]\nRemoveIPC=no\nRemoveIPC=yes\n"}, True, ETC, id="the-last-line-wins"
        ),
        pytest.param(
            {ETC: "[Login]\nRemoveIPC=yes\n", f"{ETC}.d/10-a.conf": "[Login]\nRemoveIPC=no\n"},
            False,
            f"{ETC}.d/10-a.conf",
            id="a-drop-in-wins",
        ),
        pytest.param(
            {
                f"{ETC}.d/10-a.conf": "[Login]\nRemoveIPC=no\n",
                f"{LIB}/20-b.conf": "[Login]\nRemoveIPC=yes\n",
            },
            True,
            f"{LIB}/20-b.conf",
            id="by-name-and-not-by-folder",
        ),
        pytest.param(
            {
                f"{RUN}/20-b.conf": "[Login]\nRemoveIPC=no\n",
                f"{LOCAL}/20-b.conf": "[Login]\nRemoveIPC=yes\n",
                f"{LIB}/20-b.conf": "[Login]\nRemoveIPC=yes\n",
            },
            False,
            f"{RUN}/20-b.conf",
            id="one-name-hides-another",
        ),
        pytest.param(
            {f"{ETC}.d/20-b.conf": "", f"{LIB}/20-b.conf": "[Login]\nRemoveIPC=no\n"},
            True,
            "",
            id="an-empty-file-hides-one",
        ),
        pytest.param({f"{ETC}.d/README": "[Login]\nRemoveIPC=no\n"}, True, "", id="no-conf"),
        pytest.param(
            {
                "/usr/lib/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                ETC: "[Login]\n",
            },
            True,
            "",
            id="one-main-file",
        ),
    ],
)
def test_what_logind_was_told(files: dict[str, str], removes: bool, source: str) -> None:
    found = parse_logind({**SEAT, **files}, USER)
    assert (found.removes, found.source) == (removes, source)


def test_who_lingers_whether_slurmd_runs_and_logind_does() -> None:
    files = {
        **SEAT,
        "/var/lib/systemd/linger/alice": "",
        "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs": "812\n",
    }
    assert parse_logind(files, USER) == Logind(True, "", ("alice",), True, True, 1000)
    assert parse_logind({}, None) == Logind(True, "", (), False, False, None)
    stopped = {"/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs": ""}
    assert not parse_logind(stopped, USER).slurmd


def facts(uid: int = 1000, **fields: Any) -> dict[str, Any]:
    return {
        "ipc.logind": Logind(**{"removes": True, "source": "", "uid": uid, **fields}),
        "ssh.rights": Rights(uid, "alice", 0),
    }


@pytest.mark.parametrize(
    ("known", "settings", "expected"),
    [
        pytest.param(facts(slurmd=True), {}, "fail warning", id="slurm-on-the-node"),
        pytest.param(facts(), {"transport": "slurm"}, "fail warning", id="through-slurm"),
        pytest.param(facts(), {}, "pass", id="in-sessions"),
        pytest.param(facts(slurmd=True, removes=False), {}, "pass", id="removes-nothing"),
        pytest.param(facts(0, slurmd=True), {}, "pass", id="root"),
        pytest.param(facts(999, slurmd=True), {}, "pass", id="a-system-user"),
        pytest.param(facts(slurmd=True, lingering=("alice",)), {}, "pass", id="lingers"),
        pytest.param(facts(slurmd=True, lingering=("bob",)), {}, "fail warning", id="another-does"),
        pytest.param(facts(runs=False, slurmd=True), {}, "skip not_applicable", id="no-logind"),
        pytest.param(facts(), {"require": {"ipc.removeipc": "no"}}, "fail error", id="required"),
        pytest.param(
            facts(removes=False), {"require": {"ipc.removeipc": "no"}}, "pass", id="as-required"
        ),
        pytest.param(
            {**facts(), "ipc.logind": absent("denied")}, {}, "unknown warning denied", id="denied"
        ),
    ],
)
def test_whose_segments_are_lost(
    known: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    seen = fleet(each=settings, n1=known)
    assert told(seen, "ipc.removeipc") == {"n1": expected}


def test_what_is_told_and_done() -> None:
    (bad,) = findings(fleet(n1=facts(slurmd=True, source=ETC)), "ipc.removeipc")
    assert bad.seen == f"RemoveIPC=yes in {ETC}"
    assert "when alice logs out" in bad.message
    assert "/etc/systemd/logind.conf.d/90-clusterprep-ipc.conf" in bad.remedy
    (good,) = findings(fleet(n1=facts()), "ipc.removeipc")
    assert good.message == (
        "shared memory of alice goes with the last session: start no job in the background"
    )


def test_what_may_be_required() -> None:
    assert (parse_wanted("no"), parse_wanted("yes")) == (False, True)
    with pytest.raises(ValueError, match="expected yes or no"):
        parse_wanted("perhaps")
