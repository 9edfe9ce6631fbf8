"""`exec` on four real hosts: outputs, exit codes, sudo, scripts, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = pytest.mark.hosts

USER, PASSWORD = "alice", "correct-horse"
NAMES = ["n1", "n2", "n3", "n4"]


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Lab:
    for host in lab4.hosts:
        faults.add_user(host, USER, "password", PASSWORD)
        host.write(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL:ALL) ALL\n", 0o440)
    return lab4


def run(lab: Lab, *words: str, **options: object) -> Answer:
    return clusterprep(lab, "exec", *words, **options)


def by_node(seen: Answer) -> dict[str, tuple[int | None, str]]:
    rows = seen.report["results"]
    return {node: (row["exit"], row["stdout"]) for row in rows for node in row["nodes"]}


def gone(host: Host, pattern: str, limit: float = 8.0) -> bool:
    """Whether no process of a pattern is left on a host, after some seconds at most."""
    until = time.monotonic() + limit
    while host.processes(pattern):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def test_equal_outputs_are_one_result(lab: Lab) -> None:
    seen = run(lab, "--", "uname", "-r")
    (row,) = seen.report["results"]
    assert (row["nodes"], row["exit"], row["stdout"]) == (NAMES, 0, f"{os.uname().release}\n")
    assert seen.code == 0


def test_known_hosts_of_the_command_line_count(lab: Lab) -> None:
    empty = lab.folder / "no-keys"
    empty.write_text("")
    seen = run(lab, "--known-hosts", str(empty), "--", "touch", "/tmp/ran")
    assert (seen.code, seen.report["results"]) == (1, [])
    assert {node["reason"] for node in seen.report["nodes"]} == {"host_key_unknown"}


def test_words_reach_the_command_as_they_are(lab: Lab) -> None:
    words = ["$HOME", "`id`", "a b", "it's", "*", ";", "", "é", "a\nb", "\\", "-n"]
    seen = run(lab, "--limit", "n1", "--", "printf", "%s|", *words)
    assert seen.report["results"][0]["stdout"] == "".join(f"{word}|" for word in words)


def test_a_shell_that_the_user_writes_is_one(lab: Lab) -> None:
    seen = run(lab, "--", "sh", "-c", "echo $(hostname) | tr n m; exit 3")
    assert by_node(seen) == {f"n{i}": (3, f"m{i}\n") for i in (1, 2, 3, 4)}
    assert seen.code == 1


@pytest.mark.parametrize(("word", "code"), [("exit", 127), ("if", 127), ("A=b", 127), ("/", 126)])
def test_what_is_no_program_is_none_of_the_shell_either(lab: Lab, word: str, code: int) -> None:
    seen = run(lab, "--limit", "n1", "--", word)
    assert by_node(seen) == {"n1": (code, "")}


def test_an_odd_login_shell_reads_no_word(lab: Lab) -> None:
    host = lab.host("n2")
    host.write("/usr/local/bin/odd", '#!/bin/sh\necho "$2" >>/tmp/odd; exec /bin/sh "$@"\n', 0o755)
    host.run(["usermod", "-s", "/usr/local/bin/odd", USER])
    seen = as_user(lab, "--limit", "n2", "--", "echo", "secret words")
    assert by_node(seen) == {"n2": (0, "secret words\n")}
    assert "secret" not in host.read("/tmp/odd")
    host.run(["usermod", "-s", "/bin/sh", USER])


def as_user(lab: Lab, *words: str, password: str | None = None, become: bool = False) -> Answer:
    ssh = {**lab.inventory_content()["ssh"], "user": USER}
    path = lab.inventory(lab.folder / "user.yaml", ssh=ssh, become=become or None)
    env = {} if password is None else {"CLUSTERPREP_BECOME_PASSWORD": password}
    return run(lab, *words, inventory=path, env=env)


def test_sudo_with_a_password(lab: Lab) -> None:
    seen = as_user(lab, "-b", "--", "id", "-un", password=PASSWORD)
    (row,) = seen.report["results"]
    assert (row["exit"], row["stdout"], row["stderr"]) == (0, "root\n", "")
    assert row["nodes"] == NAMES


@pytest.mark.parametrize("password", ["wrong-horse", None])
def test_sudo_that_refuses_is_told_and_nothing_runs(lab: Lab, password: str | None) -> None:
    seen = as_user(lab, "-b", "--", "touch", "/tmp/ran", password=password)
    assert (seen.code, seen.report["results"]) == (1, [])
    assert {node["reason"] for node in seen.report["nodes"]} == {"sudo_refused"}
    for host in lab.hosts:
        assert host.run(["test", "-e", "/tmp/ran"], check=False).returncode == 1


def test_a_script_runs_by_its_first_line_and_is_removed(lab: Lab) -> None:
    script = lab.folder / "look at.py"
    script.write_text(f"#!{sys.executable} -I\nimport sys\nprint(sys.flags.isolated, __file__)\n")
    seen = run(lab, "--script", str(script))
    assert seen.code == 0
    for code, out in by_node(seen).values():
        flag, _, path = out.strip().partition(" ")
        assert (code, flag, Path(path).name) == (0, "1", "look at.py")
    for host in lab.hosts:
        assert "clusterprep-" not in host.run(["ls", "/tmp"]).stdout


def test_a_node_that_is_down_is_unknown_and_holds_up_no_other(lab: Lab) -> None:
    content = lab.inventory_content()
    content["ssh"]["connect_timeout"] = 2
    nodes = [*content["nodes"], {"name": "n9", "address": "10.255.255.1"}]
    path = lab.inventory(lab.folder / "down.yaml", nodes=nodes, ssh=content["ssh"])
    seen = run(lab, "--", "true", inventory=path)
    assert (seen.code, seen.report["results"][0]["nodes"]) == (3, NAMES)
    assert [node["name"] for node in seen.report["nodes"] if not node["reached"]] == ["n9"]


def test_what_a_node_prints_is_bounded_and_clean(lab: Lab) -> None:
    line = "printf '\\033]0;title\\007red\\033[31m\\n'; head -c 3000000 /dev/zero | tr '\\0' x"
    argv = [*CLI, "exec", str(lab.inventory()), "--limit", "n1", "--", "sh", "-c", line]
    done = lab.controller.run(argv, timeout=60)
    assert "\033" not in done.stdout
    assert "red" in done.stdout
    assert "more bytes were not kept" in done.stdout
    assert len(done.stdout) < 1 << 20


def test_stream_shows_lines_with_their_nodes(lab: Lab) -> None:
    argv = [*CLI, "exec", str(lab.inventory()), "--stream", "--", "sh", "-c", "echo a; echo b >&2"]
    done = lab.controller.run(argv, timeout=60)
    lines = done.stdout.splitlines()
    for name in NAMES:
        assert f"{name}: a" in lines
        assert f"{name}: b" in lines


def test_stream_shows_no_password(lab: Lab) -> None:
    ssh = {**lab.inventory_content()["ssh"], "user": USER}
    path = lab.inventory(lab.folder / "user.yaml", ssh=ssh)
    # The word is not whole in what `ps` or the report shows of the command.
    words = ["-b", "--stream", "--", "sh", "-c", "echo it is correct-$0; echo 1 >&2", "horse"]
    env = {"CLUSTERPREP_BECOME_PASSWORD": PASSWORD}
    done = lab.controller.run([*CLI, "exec", str(path), *words], timeout=60, env=env)
    lines = done.stdout.splitlines()
    for name in NAMES:
        assert f"{name}: it is <hidden>" in lines
    assert PASSWORD not in done.stdout + done.stderr


# ---------------------------------------------------------------- nothing outlives it

# One ignores SIGTERM, one has a child, and both are told apart by their argument.
STUBBORN = "trap '' TERM; echo begun; sleep 7777 & while :; do sleep 1; done"


def test_timeout_keeps_what_is_known_and_ends_the_rest(lab: Lab) -> None:
    line = f"if [ $(hostname) = n3 ]; then {STUBBORN}; else echo done; fi"
    seen = run(lab, "--timeout", "3", "--", "sh", "-c", line)
    assert seen.code == 3
    assert by_node(seen) == {
        "n1": (0, "done\n"), "n2": (0, "done\n"), "n4": (0, "done\n"), "n3": (None, "begun\n"),
    }  # fmt: skip
    (late,) = [row for row in seen.report["results"] if row["nodes"] == ["n3"]]
    assert late["reason"] == "timed_out"
    assert gone(lab.host("n3"), "sleep 7777")
    assert gone(lab.host("n3"), "echo begun")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_controller_that_ends_takes_the_commands_along(lab: Lab, number: signal.Signals) -> None:
    argv = [*CLI, "exec", str(lab.inventory()), "--", "sh", "-c", STUBBORN]
    process = lab.controller.popen(argv)
    until = time.monotonic() + 30
    while not all(host.processes("sleep 7777") for host in lab.hosts):
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(20)
    for host in lab.hosts:
        assert gone(host, "sleep 7777")
        assert gone(host, "echo begun")


def test_under_sudo_it_ends_as_well(lab: Lab) -> None:
    seen = as_user(lab, "-b", "--timeout", "3", "--", "sh", "-c", STUBBORN, password=PASSWORD)
    assert seen.code == 3
    for host in lab.hosts:
        assert gone(host, "sleep 7777")
        assert gone(host, "^sudo ")


def test_what_a_command_leaves_in_its_group_ends_with_it(lab: Lab) -> None:
    seen = run(lab, "--", "sh", "-c", "sleep 7777 & setsid -f sleep 8888; sleep 1; echo ok")
    assert seen.code == 0
    for host in lab.hosts:
        assert gone(host, "sleep 7777")
        assert host.processes("sleep 8888")  # it went its own way on purpose
        host.run(["pkill", "-f", "sleep 8888"])
