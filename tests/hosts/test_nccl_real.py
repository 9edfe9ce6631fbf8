"""`nccl.iface` against NVIDIA's own library in three releases, with interfaces of real nodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support import real_nccl
from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

OLD, MIDDLE, NEW = RELEASES = tuple(real_nccl.RELEASES)
PLACE = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
CONF, HOME_CONF, OTHER_CONF = "/etc/nccl.conf", "/root/.nccl.conf", "/opt/nccl.conf"
PROFILE = "/etc/profile.d/zz-site.sh"
LO, DOCKER, IPOIB, NONE = (
    "lo 127.0.0.1",
    "docker0 172.17.0.1",
    "ib0 10.99.0.1",
    "no interface (result ",
)

# What NCCL answers, without a word of ours in between: bytes 12 to 15 of the id are the address.
ASK = """
import ctypes, os, socket, sys
answer = (ctypes.c_char * 128)()
result = ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(answer)
os.write(1, (socket.inet_ntoa(answer.raw[12:16]) if result == 0 else str(result)).encode())
os._exit(0)
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts with a release of NCCL each, n4 with the newest once more.

    All have the interfaces that containers leave behind.
    """
    try:
        libraries = [real_nccl.library(release) for release in RELEASES]
    except LookupError as why:
        pytest.skip(str(why))
    with contextlib.ExitStack() as undo:
        for host, library in zip(lab4.hosts, [*libraries, libraries[-1]], strict=True):
            host.run(["mkdir", "-p", "/usr/lib/x86_64-linux-gnu"])
            host.run(["ln", "-s", str(library), PLACE])
            undo.enter_context(faults.docker0(host))
            host.run(["ip", "link", "add", "veth9a", "type", "veth", "peer", "name", "veth9b"])
            for command in (
                "address add 169.254.7.1/16 dev veth9a",
                "link set veth9a up",
                "link set veth9b up",
            ):
                host.run(["ip", *command.split()])
        yield lab4


@dataclass(frozen=True)
class Case:
    """Files and variables on all hosts, and what NCCL then uses: nothing said is eth0."""

    name: str
    conf: str | None = None
    used: dict[str, str] = field(
        default_factory=dict
    )  # by release; where no release is named, all of them
    home: str | None = None
    other: str | None = None
    profile: str | None = None
    session: dict[str, str] = field(default_factory=dict)
    ib0: bool = False
    slow: bool = False  # like another one, and left to `make test-all`


def everywhere(place: str) -> dict[str, str]:
    return dict.fromkeys(RELEASES, place)


def setting(value: str) -> str:
    return f"NCCL_SOCKET_IFNAME={value}\n"


CASES = [
    Case("unset beside docker0 and veth"),
    Case("unset, and names that begin with ib come first", None, everywhere(IPOIB), ib0=True),
    Case("a prefix", setting("eth")),
    Case("a whole name", setting("=eth0")),
    Case("a whole name that is a prefix", setting("=eth"), everywhere(NONE), slow=True),
    Case("all but docker", setting("^docker"), everywhere(LO)),
    Case("all but exactly docker0", setting("^=docker0"), everywhere(LO), slow=True),
    Case("all but loopback and containers", setting("^lo,docker,veth")),
    Case("a list, one of it absent", setting("eth7,eth0")),
    Case("a list, in another order than the kernel's", setting("eth0,lo"), everywhere(LO)),
    Case("a blank before the value", setting(" eth0"), everywhere(NONE)),
    Case("a blank in a list", setting("ib0, eth0"), everywhere(NONE), slow=True),
    Case("a blank behind the value", setting("eth0 "), everywhere(NONE)),
    Case("quotes", setting('"eth0"'), everywhere(NONE), slow=True),
    Case("a wildcard", setting("eth*"), everywhere(NONE), slow=True),
    Case("absent", setting("ib0"), everywhere(NONE)),
    Case("one letter is as if unset", setting("x")),
    Case("line ends of Windows", setting("eth0\r"), {OLD: NONE, MIDDLE: NONE}),
    Case(
        "the session against the conf file",
        setting("docker0"),
        session={"NCCL_SOCKET_IFNAME": "eth0"},
    ),
    Case(
        "a stale session",
        setting("eth0"),
        everywhere(DOCKER),
        session={"NCCL_SOCKET_IFNAME": "docker0"},
    ),
    Case(
        "the user's file against that of all",
        setting("eth0"),
        everywhere(DOCKER),
        home=setting("docker0"),
    ),
    Case(
        "a profile, in login shells alone",
        None,
        everywhere(DOCKER),
        profile=f"export {setting('docker0')}",
    ),
    Case(
        "NCCL_CONF_FILE, which old releases do not know",
        setting("docker0"),
        {OLD: DOCKER},
        other=setting("eth0"),
        session={"NCCL_CONF_FILE": OTHER_CONF},
    ),
    Case(
        "NCCL_COMM_ID of this network, whatever the name says",
        setting("docker0"),
        session={"NCCL_COMM_ID": "10.77.0.2:29400"},
    ),
    Case(
        "NCCL_COMM_ID of loopback",
        setting("eth0"),
        everywhere("no interface (result 2"),
        session={"NCCL_COMM_ID": "10.66.0.2:29400"},
    ),
]


@contextlib.contextmanager
def laid(lab: Lab, case: Case) -> Iterator[None]:
    """A case on all hosts, and nothing of it afterwards."""
    files = {CONF: case.conf, HOME_CONF: case.home, OTHER_CONF: case.other, PROFILE: case.profile}
    with contextlib.ExitStack() as undo:
        for host in lab.hosts:
            for path, text in files.items():
                if text is not None:
                    undo.enter_context(faults.written(host, path, text))
            if case.session:
                undo.enter_context(faults.session_environment(host, case.session))
            if case.ib0:
                undo.enter_context(lonely(host))
        yield


@contextlib.contextmanager
def lonely(host: Host) -> Iterator[None]:
    """An interface called as IPoIB's are, which leads nowhere."""
    for command in (
        "link add ib0 type bridge",
        "address add 10.99.0.1/16 dev ib0",
        "link set ib0 up",
    ):
        host.run(["ip", *command.split()])
    yield
    host.run(["ip", "link", "del", "ib0"])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
        for case in CASES
    ],
)
def test_what_nccl_would_use_is_told(lab: Lab, case: Case) -> None:
    with laid(lab, case):
        found = clusterprep(lab, "check", "--only", "nccl.iface")
    rows = {
        node: row
        for row in found.report["findings"]
        if row["check"] == "nccl.iface"
        for node in row["nodes"]
    }
    told = {name: row["seen"] for name, row in rows.items()}
    for host, release in zip(lab.hosts, (*RELEASES, NEW), strict=True):
        row, place = rows[host.name], case.used.get(release)
        assert row["verdict"] == ("pass" if place is None else "fail"), (
            release,
            told,
            row["message"],
        )
        assert row["seen"].startswith(place or "eth0"), (release, told)
    assert found.code == (1 if case.used else 0)


def test_after_apply_nccl_itself_uses_what_was_meant(lab: Lab) -> None:
    with laid(lab, Case("a stale file, and ib0", setting("^docker"), ib0=True)):
        assert set(clusterprep(lab, "check").blamed("nccl.iface")) == {
            host.name for host in lab.hosts
        }
        applied = clusterprep(lab, "apply", "--no-verify")
        assert applied.code == 0, applied.failed()
        cured = [row for row in applied.findings("nccl.iface") if row["fixed"]]
        assert {node for row in cured for node in row["nodes"]} == {host.name for host in lab.hosts}
        for host in lab.hosts:
            host.write("/opt/ask.py", ASK)
            for line in (
                f"{sys.executable} /opt/ask.py {PLACE}",
                f"bash -lc '{sys.executable} /opt/ask.py {PLACE}'",
            ):
                assert lab.controller.run(lab.ssh(host, line)).stdout == host.address
        assert clusterprep(lab, "rollback").code == 0
        assert {
            node
            for row in clusterprep(lab, "check").findings("nccl.iface")
            for node in row["nodes"]
        } == {host.name for host in lab.hosts}


def test_names_and_values_are_judged_by_the_nccl_that_is_there(lab: Lab) -> None:
    """2.32.3 reads a name that is in no list of ours, and says that a word is no switch."""
    text = (
        "NCCL_IB_EVENT_BASED_LB_REMOTE=1\n"
        "NCCL_SOKET_IFNAME=eth0\n"
        "NCCL_DEBUG_TIMESTAMP_LEVELS=SOMETIMES\n"
    )
    with laid(lab, Case("names", text)):
        found = clusterprep(lab, "check", "--only", "env.nccl_unknown,env.no_effect,nccl.iface")
    strange = {
        (row["seen"].partition("=")[0], n)
        for row in found.findings("env.nccl_unknown")
        for n in row["nodes"]
    }
    everywhere = {("NCCL_SOKET_IFNAME", host.name) for host in lab.hosts}
    assert strange - everywhere == {
        ("NCCL_IB_EVENT_BASED_LB_REMOTE", name) for name in ("n1", "n2")
    }
    assert strange >= everywhere
    told = [row for row in found.findings("env.no_effect") if "itself says" in row["message"]]
    assert {name for row in told for name in row["nodes"]} == {"n3", "n4"}
    assert all(row["seen"].startswith("NCCL_DEBUG_TIMESTAMP_LEVELS=SOMETIMES") for row in told)


def test_nothing_stays_behind(lab: Lab) -> None:
    """NCCL listens in the process that was asked, which ends with the answer.

    It does not write to the log file of the configuration.
    """
    with laid(lab, Case("a log", "NCCL_DEBUG=INFO\nNCCL_DEBUG_FILE=/srv/nccl.log\n")):
        assert clusterprep(lab, "check", "--only", "nccl.iface").code == 0
    for host in lab.hosts:
        listening = host.run(["ss", "-Htlnp"]).stdout.splitlines()
        assert [line for line in listening if "sshd" not in line] == []
        assert host.run(["test", "-e", "/srv/nccl.log"], check=False).returncode == 1
