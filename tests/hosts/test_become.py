"""Real sudo on four real hosts: with a password, without, with a wrong one, with another program.

Failed passwords are counted by pam_faillock, as on hosts that lock an account after some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = pytest.mark.hosts

USER, RIGHT, WRONG = "alice", "correct-horse", "wrong-horse"
NAMES = ["n1", "n2", "n3", "n4"]
RULES = f"/etc/sudoers.d/{USER}"
ASKS = f"{USER} ALL=(ALL:ALL) ALL\n"
FREE = f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n"
# nodelay, as the two seconds after a wrong password prove nothing here.
PAM = """\
auth required pam_faillock.so preauth silent deny=9
auth sufficient pam_unix.so nodelay
auth [default=die] pam_faillock.so authfail silent deny=9
account required pam_unix.so
session required pam_limits.so
"""


@pytest.fixture(scope="module")
def accounts(lab4: Lab) -> Iterator[Lab]:
    for host in lab4.hosts:
        faults.add_user(host, USER, "password", RIGHT)
        host.write("/etc/pam.d/sudo", PAM)
    yield lab4
    for host in lab4.hosts:
        host.run(["userdel", "--force", "--remove", USER])


@pytest.fixture
def lab(accounts: Lab) -> Lab:
    """Every account as new: nothing failed, nothing remembered, a password wanted."""
    for host in accounts.hosts:
        host.run(["sh", "-c", f"rm -rf /run/faillock/{USER} /run/sudo/ts/{USER} /var/log/sudo"])
        rules(host, ASKS)
    return accounts


def rules(host: Host, line: str, *defaults: str) -> None:
    text = "".join(f"Defaults {words}\n" for words in ("logfile=/var/log/sudo", *defaults))
    host.write(RULES, text + line, 0o440)


def failures(host: Host) -> int:
    """Wrong passwords that the host has counted."""
    return host.run(["faillock", "--user", USER]).stdout.count(" V\n")


def counted(lab: Lab) -> list[int]:
    return [failures(host) for host in lab.hosts]


def check(lab: Lab, password: str | None, *words: str) -> Answer:
    path = lab.inventory(
        lab.folder / "sudo.yaml", ssh={**lab.inventory_content()["ssh"], "user": USER}, become=True
    )
    given = {} if password is None else {"CLUSTERPREP_BECOME_PASSWORD": password}
    return clusterprep(lab, "check", "--only", "ssh.reach", *words, inventory=path, env=given)


def reached(answer: Answer) -> list[str]:
    return [node["name"] for node in answer.report["nodes"] if node["reached"]]


def refusals(answer: Answer) -> dict[str, Sequence[str]]:
    """What was seen, by message."""
    return {finding["message"]: finding["nodes"] for finding in answer.findings("ssh.reach")}


# ---------------------------------------------------------------- a password


def test_the_right_password_on_all_nodes(lab: Lab) -> None:
    for name in ("n3", "n4"):
        rules(lab.host(name), ASKS, "use_pty", "lecture=always", "!visiblepw", "passwd_tries=1")
    answer = check(lab, RIGHT)
    assert (reached(answer), counted(lab)) == (NAMES, [0, 0, 0, 0]), answer.report
    for host in lab.hosts:
        assert host.read("/var/log/sudo").count("COMMAND=/bin/sh") == 1
        assert host.run(["test", "-e", f"/run/sudo/ts/{USER}"], check=False).returncode, (
            "sudo remembers the password"
        )


def test_a_wrong_password_fails_once_on_one_node_and_is_given_to_no_other(lab: Lab) -> None:
    answer = check(lab, WRONG)
    assert (reached(answer), answer.code) == ([], 1)
    assert {finding["reason"] for finding in answer.findings("ssh.reach")} == {"sudo_refused"}
    assert sorted(counted(lab)) == [0, 0, 0, 1]
    (first,) = [name for name, count in zip(NAMES, counted(lab), strict=True) if count]
    said = (
        f"sudo did not let us in: Sorry, try again. ({first} was given the password first, "
        "and no other node after that"
    )
    assert [(words.startswith(said), names) for words, names in refusals(answer).items()] == [
        (True, NAMES)
    ]
    assert not [host.name for host in lab.hosts if host.processes("^sudo ")]


def test_a_wrong_password_where_the_first_node_wants_none(lab: Lab) -> None:
    rules(lab.host("n1"), FREE)
    answer = check(lab, WRONG, "--forks", "1")
    assert (reached(answer), sum(counted(lab))) == (["n1"], 1)


def test_one_node_that_has_another_password(lab: Lab) -> None:
    odd = lab.host("n2")
    odd.run(["chpasswd"], input=f"{USER}:other-horse\n")
    try:
        answer = check(lab, RIGHT, "--forks", "1")
        assert (reached(answer), counted(lab)) == (["n1", "n3", "n4"], [0, 1, 0, 0])
        answer = check(
            lab, "other-horse", "--forks", "1"
        )  # and where it is not the first, the first one refuses it
        assert (reached(answer), counted(lab)) == ([], [1, 1, 0, 0])
        assert all("NOPASSWD" in finding["remedy"] for finding in answer.findings("ssh.reach"))
        assert odd.run(["test", "-e", "/var/log/sudo"], check=False).returncode, (
            "sudo started a command on n2"
        )
    finally:
        odd.run(["chpasswd"], input=f"{USER}:{RIGHT}\n")


# ---------------------------------------------------------------- none


def test_no_password_where_none_is_wanted_or_sudo_remembers_one_and_a_terminal_that_there_is_not(
    lab: Lab,
) -> None:
    rules(lab.host("n1"), FREE)
    rules(lab.host("n2"), ASKS, "timestamp_type=global")
    rules(lab.host("n3"), FREE, "requiretty")
    lab.host("n2").run(["sudo", "-S", "-v"], user=USER, input=f"{RIGHT}\n")
    answer = check(lab, None, "--limit", "n[1-3]")
    assert (reached(answer), counted(lab)) == (["n1", "n2"], [0, 0, 0, 0])
    (found,) = answer.findings("ssh.reach")
    assert "must have a tty" in found["message"]
    assert f"Defaults:{USER} !requiretty" in found["remedy"]


# ---------------------------------------------------------------- another program

ECHO = 'read -r word; echo "heard $word" >> /tmp/heard; echo "you said $word" >&2'
HOSTILE = {
    "twice": 'printf "%s\\n%s\\n" "$4" "$4" >&2; ' + ECHO,
    "again": 'echo "$4" >&2; ' + ECHO + '; echo "$4" >&2; ' + ECHO,
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_program_in_the_place_of_sudo_gets_the_password_once_and_no_report_shows_it(
    lab: Lab, kind: str
) -> None:
    host = lab.host("n1")
    with faults.written(host, "/usr/bin/sudo", f"#!/bin/sh\n{HOSTILE[kind]}\n", 0o755):
        answer = check(lab, RIGHT, "--limit", "n1")
    (found,) = answer.findings("ssh.reach")
    assert found["reason"] == "sudo_refused"
    assert RIGHT not in str(answer.report) + answer.stderr
    heard = host.run(["sh", "-c", "cat /tmp/heard; rm -f /tmp/heard"], check=False).stdout
    assert heard.count(RIGHT) == (0 if kind == "twice" else 1)
    if heard:
        assert "you said <hidden>" in found["message"]


# ---------------------------------------------------------------- files in the way

PLANTED = """\
import os, sys
with open("/tmp/ran", "a") as log:
    log.write("%s as user %d\\n" % (__name__, os.geteuid()))
sys.path[:] = [path for path in sys.path if path]
del sys.modules[__name__]
__import__(__name__)
"""


def test_no_file_of_the_login_user_s_home_is_run_by_root_or_in_the_job_s_python(lab: Lab) -> None:
    """sudo keeps the folder that the session begins in."""
    host = lab.host("n1")
    names = ("resource", "struct", "subprocess", "ctypes", "json", "binascii")
    for name in names:
        host.write(f"/home/{USER}/{name}.py", PLANTED)
    try:
        answer = check(
            lab, RIGHT, "--limit", "n1", "--deep", "--only", "ssh.reach,gpu.,mem.,python.env"
        )
        ran = host.run(["sh", "-c", "cat /tmp/ran; rm -f /tmp/ran"], check=False).stdout
    finally:
        host.run(["rm", "-f", *(f"/home/{USER}/{name}.py" for name in names)])
    assert reached(answer) == ["n1"]
    assert answer.report["nodes"][0]["facts"]["python.env"], "the job's interpreter was asked"
    assert ran == ""


# ---------------------------------------------------------------- shells that are none

SHELLS = {"n1": "/usr/sbin/nologin", "n2": "/bin/rbash", "n3": "/bin/false"}


@pytest.mark.parametrize("become", [True, False])
def test_a_login_shell_that_runs_nothing_is_said_and_neither_sudo_nor_python_is_blamed(
    lab: Lab, become: bool
) -> None:
    for name, shell in SHELLS.items():
        lab.host(name).run(["usermod", "--shell", shell, USER])
    rules(lab.host("n4"), FREE)
    path = lab.inventory(
        lab.folder / "shells.yaml",
        ssh={**lab.inventory_content()["ssh"], "user": USER},
        become=become,
    )
    try:
        answer = clusterprep(lab, "check", "--only", "ssh.reach", inventory=path)
    finally:
        for name in SHELLS:
            lab.host(name).run(["usermod", "--shell", "/bin/bash", USER])
    assert reached(answer) == ["n4"]
    (found,) = answer.findings("ssh.reach")
    assert (found["reason"], found["nodes"]) == ("denied", list(SHELLS))
    assert f"the login shell of {USER} does not run our command" in found["message"]
    assert "it says: This account is currently not available" in found["message"]
    assert found["remedy"] == f"getent passwd {USER}"


def test_writing_without_root_is_one_sentence_before_anything_is_asked(lab: Lab) -> None:
    """The user has sudo, and the command was not told to use it."""
    path = lab.inventory(
        lab.folder / "plain.yaml", ssh={**lab.inventory_content()["ssh"], "user": USER}
    )
    book = lab.folder / "rootless.yaml"
    book.write_text('- file: {path: /etc/lab-rootless, content: "x\\n"}\n')
    for command, *more in (
        ("plan", "--playbook", str(book)),
        ("apply", "--playbook", str(book), "--no-verify"),
        ("rollback",),
    ):
        found = clusterprep(lab, command, *more, inventory=path)
        assert found.code == 1
        refused = [row for row in found.report["changes"] if row["resource"] == "rights"]
        assert [(row["nodes"], row["outcome"]) for row in refused] == [(NAMES, "not-started")]
        diffs = [row["diff"] for row in found.report["changes"] if row["diff"]]
        assert len(diffs) == (command != "rollback")
    for host in lab.hosts:
        assert not host.run(["ls", "/etc/lab-rootless"], check=False).stdout
        assert not host.run(["ls", "-d", "/var/lib/clusterprep"], check=False).stdout
