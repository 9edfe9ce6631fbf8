"""Controllers that die or lose a node while they write.

Every host is wholly old or wholly new, and one command makes all equal.
"""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Answer, clusterprep, finished
from tests.support.lab import Lab, faults
from tests.support.lab.faults.files import inside
from tests.support.lab.rooms import Host

pytestmark = pytest.mark.hosts

OLD_FILE, NEW_FILE = "/etc/lab-limits.conf", "/etc/clusterprep/hello"
OLD, NEW = ("old\n", None), ("new\n", "hello\n")
RUNS = "/var/lib/clusterprep"
STOPPING = (sys.executable, "-m", "tests.support.stopping")
SECONDS = 35  # from the death of a holder until the next may write


@pytest.fixture
def lab(lab4: Lab, tmp_path: Path) -> Iterator[Lab]:
    """The module's lab as if nothing had ever been written, and a playbook of two files.

    One of the files exists, the other does not.
    """
    for host in lab4.hosts:
        host.run(
            ["sh", "-c", f"rm -rf {RUNS} {OLD_FILE} {Path(NEW_FILE).parent} /etc/.*.clusterprep-*"]
        )
        host.write(OLD_FILE, "old\n", mode=0o640)
    content = (
        f'- file: {{path: {OLD_FILE}, content: "new\\n"}}\n'
        f'- file: {{path: {NEW_FILE}, content: "hello\\n"}}\n'
    )
    book(lab4).write_text(content)
    yield lab4
    quiet(lab4)


def book(lab: Lab) -> Path:
    return lab.folder / "two-files.yaml"


def words(lab: Lab) -> list[str]:
    return ["--playbook", str(book(lab)), "--no-verify", "--only", "ssh."]


def apply(lab: Lab, *more: str) -> Answer:
    return clusterprep(lab, "apply", *words(lab), *more)


def rollback(lab: Lab, *more: str) -> Answer:
    return clusterprep(lab, "rollback", *more)


def begun(lab: Lab, how: str, point: str, command: str = "apply") -> subprocess.Popen[str]:
    """A command that ends or stops itself at a point of its writing."""
    more = words(lab) if command == "apply" else []
    argv = [*STOPPING, how, point, command, str(lab.inventory()), "--format", "json", *more]
    pipe = subprocess.PIPE
    return lab.controller.popen(argv, stdout=pipe, stderr=pipe, stdin=pipe, text=True)


def cut_off(lab: Lab, point: str, command: str = "apply") -> None:
    """Run a command whose controller is killed at that point. Its agents are gone on return."""
    process = begun(lab, "kill", point, command)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    quiet(lab)


def stopped(lab: Lab, point: str) -> subprocess.Popen[str]:
    """A command that stands still at that point."""
    process = begun(lab, "stop", point)
    standing_still(process)
    return process


def standing_still(process: subprocess.Popen[str]) -> None:
    """Wait until a command stands still."""
    end = time.monotonic() + 60
    while not Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("T"):
        assert time.monotonic() < end, "it never came there"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def goes_on(process: subprocess.Popen[str]) -> Answer:
    process.send_signal(signal.SIGCONT)
    return finished(process, timeout=60)


def quiet(lab: Lab) -> None:
    end = time.monotonic() + 60
    while any(host.processes("-ISB") for host in lab.hosts) and time.monotonic() < end:
        time.sleep(0.02)
    assert {host.name: host.processes("-ISB") for host in lab.hosts} == {
        host.name: [] for host in lab.hosts
    }


def pair(host: Host) -> tuple[str | None, ...]:
    """What stands in the two files, straight from the host's file system."""
    places = [inside(host, path) for path in (OLD_FILE, NEW_FILE)]
    return tuple(place.read_text() if place.exists() else None for place in places)


def pairs(lab: Lab) -> list[tuple[str | None, ...]]:
    return [pair(host) for host in lab.hosts]


def leftovers(lab: Lab) -> list[str]:
    return [
        line
        for host in lab.hosts
        for line in host.run(["find", "/etc", "-name", "*.clusterprep-*"]).stdout.split()
    ]


def equal(lab: Lab, wanted: tuple[str | None, ...]) -> None:
    """All hosts are alike, nothing lies about, and no journal is open."""
    assert pairs(lab) == [wanted] * 4
    assert leftovers(lab) == []
    found = clusterprep(lab, "check", "--only", "state.")
    assert (found.code, sorted(found.blamed("state.journal", "pass"))) == (
        0,
        ["n1", "n2", "n3", "n4"],
    )
    modes = [inside(host, OLD_FILE).stat().st_mode & 0o777 for host in lab.hosts]
    assert modes == [0o640] * 4


def settled_by(lab: Lab, command: str) -> Answer:
    """One command after a death makes all hosts equal: rollback as before, apply as wanted."""
    assert set(pairs(lab)) <= {OLD, NEW}, "a host is neither old nor new"
    done = rollback(lab) if command == "rollback" else apply(lab)
    assert done.code == 0, done.report
    equal(lab, OLD if command == "rollback" else NEW)
    return done


# ---------------------------------------------------------------- the controller dies


@pytest.mark.parametrize(
    ("point", "command"),
    [("commit n2", "rollback"), ("settle n2", "apply")],
)
def test_a_killed_controller_leaves_hosts_that_one_command_makes_equal(
    lab: Lab, point: str, command: str
) -> None:
    cut_off(lab, point)
    if point == "commit n2":
        assert pairs(lab) == [NEW, NEW, OLD, OLD]
        found = clusterprep(lab, "check", "--only", "state.")
        assert (found.code, found.failed()) == (1, {"state.journal": ["n1", "n2"]})
    done = settled_by(lab, command)
    told = [notice for notice in done.report.get("notices", []) if "was cut off" in notice]
    assert len(told) == 1
    assert rollback(lab).code == 0
    equal(lab, OLD)


@pytest.mark.slow
def test_a_controller_killed_anywhere(lab: Lab) -> None:
    """Every request that writes, once sent to each host, and once answered by all.

    21 points, two ways out of each.
    """
    told = begun(lab, "tell", "")
    points = [
        line.removeprefix("point: ")
        for line in told.communicate(timeout=60)[1].splitlines()
        if "point: " in line
    ]
    assert len(dict.fromkeys(points)) == 20  # «lock answered» comes twice
    assert rollback(lab).code == 0
    for number, point in enumerate(dict.fromkeys(points)):
        cut_off(lab, point)
        settled_by(lab, "apply" if number % 2 else "rollback")
        assert rollback(lab).code == 0
        assert pairs(lab) == [OLD] * 4, point


@pytest.mark.slow
def test_a_rollback_killed_anywhere(lab: Lab) -> None:
    for point in (
        "stage n3",
        "commit n1",
        "commit n3",
        "commit answered",
        "settle n1",
        "settle n3",
    ):
        assert apply(lab).code == 0
        cut_off(lab, point, "rollback")
        settled_by(lab, "apply")
        assert rollback(lab).code == 0
        assert pairs(lab) == [OLD] * 4, point


def test_a_recovery_that_is_cut_off_is_finished_by_the_next(lab: Lab) -> None:
    cut_off(lab, "commit answered")
    assert pairs(lab) == [NEW] * 4
    cut_off(lab, "undo n2", "rollback")
    assert set(pairs(lab)) == {OLD, NEW}
    settled_by(lab, "rollback")


def test_a_rollback_after_a_death_undoes_that_run_and_no_other(lab: Lab) -> None:
    assert apply(lab).code == 0
    book(lab).write_text(
        book(lab).read_text().replace("hello", "good morning").replace("new", "newer")
    )
    cut_off(lab, "commit n3")
    assert rollback(lab).code == 0
    assert [pair(host)[0] for host in lab.hosts] == ["new\n"] * 4
    again = rollback(lab)
    assert (again.code, again.report["changes"]) == (0, [])
    assert [pair(host)[0] for host in lab.hosts] == ["new\n"] * 4


def test_an_edit_after_a_death_is_shown_and_kept(lab: Lab) -> None:
    cut_off(lab, "commit n2")
    lab.host("n1").write(OLD_FILE, "mine\n")
    refused = [apply(lab), rollback(lab)]
    assert [found.code for found in refused] == [4, 4]
    assert all("+mine" in found.stderr and "--force" in found.stderr for found in refused)
    assert pair(lab.host("n1"))[0] == "mine\n"
    assert rollback(lab, "--force").code == 0
    equal(lab, OLD)


# ---------------------------------------------------------------- an agent dies, a node is lost


def test_an_agent_that_is_killed_before_the_commit_takes_all_back(lab: Lab) -> None:
    process = stopped(lab, "stage answered")
    kill_agent(lab.host("n3"))
    found = goes_on(process)
    assert (found.code, found.failed()) == (1, {"state.journal": ["n3"]})
    outcomes = {
        node: change["outcome"] for change in found.report["changes"] for node in change["nodes"]
    }
    assert outcomes == {
        "n1": "rolled-back",
        "n2": "rolled-back",
        "n3": "unanswered",
        "n4": "rolled-back",
    }
    assert pairs(lab) == [OLD] * 4
    assert clusterprep(lab, "check", "--only", "state.").failed() == {"state.journal": ["n3"]}
    settled_by(lab, "apply")


@pytest.mark.slow
def test_an_agent_that_is_killed_after_the_commit_leaves_all_new(lab: Lab) -> None:
    process = stopped(lab, "commit answered")
    kill_agent(lab.host("n3"))
    found = goes_on(process)
    assert (found.code, found.failed()) == (1, {"ssh.reach": ["n3"], "state.journal": ["n3"]})
    assert pairs(lab) == [NEW] * 4
    assert clusterprep(lab, "check", "--only", "state.").failed() == {"state.journal": ["n3"]}
    again = settled_by(lab, "apply")
    assert any("is done now" in notice for notice in again.report["notices"])
    assert rollback(lab).code == 0
    equal(lab, OLD)


def kill_agent(host: Host) -> None:
    for pid in host.processes("-ISB"):
        host.run(["kill", "-9", str(pid)], check=False)


@pytest.mark.slow
def test_a_node_that_is_lost_between_the_phases_drops_what_was_staged(lab: Lab) -> None:
    """Its agent ends after 30 s without a sign of the controller, and lets go of the lock."""
    process = stopped(lab, "stage answered")
    with faults.cable_out(lab.host("n3")):
        lost = time.monotonic()
        found = goes_on(process)
        assert (found.code, found.failed()) == (1, {"state.journal": ["n3"]})
        assert pairs(lab) == [OLD] * 4
    while (again := apply(lab)).code != 0:
        assert time.monotonic() - lost < SECONDS + 5
        assert again.code in (3, 4), again.report
        time.sleep(0.5)
    equal(lab, NEW)
    assert rollback(lab).code == 0


@pytest.mark.slow
def test_agents_whose_controller_gives_no_sign_end_and_drop_what_was_staged(lab: Lab) -> None:
    process = stopped(lab, "stage answered")
    assert apply(lab).code == 4
    end = time.monotonic() + SECONDS
    while any(host.processes("-ISB") for host in lab.hosts):
        assert time.monotonic() < end
        time.sleep(0.5)
    equal(lab, OLD)
    assert apply(lab).code == 0
    process.kill()
    process.communicate()
    equal(lab, NEW)
    assert rollback(lab).code == 0


# ---------------------------------------------------------------- two at once


def test_a_second_apply_is_told_who_works_and_follows_after_his_death(lab: Lab) -> None:
    process = stopped(lab, "stage answered")
    refused = apply(lab)
    assert refused.code == 4
    assert "another run holds the lock (run 2" in refused.report["error"]["message"]
    assert "of cluster lab, since" in refused.report["error"]["message"]
    seen = clusterprep(lab, "check", "--only", "state.")
    assert (seen.code, sorted(seen.blamed("state.journal", "pass"))) == (
        0,
        ["n1", "n2", "n3", "n4"],
    )
    process.kill()
    process.communicate()
    end = time.monotonic() + SECONDS
    while apply(lab).code != 0:
        assert time.monotonic() < end
    equal(lab, NEW)
    assert rollback(lab).code == 0


def test_a_second_apply_is_refused_also_where_it_has_nothing_to_write(lab: Lab) -> None:
    process = stopped(lab, "commit answered")
    assert pairs(lab) == [NEW] * 4
    refused = apply(lab)
    assert (refused.code, refused.report["verdict"]) == (4, "refused")
    assert goes_on(process).code == 0
    equal(lab, NEW)
    assert rollback(lab).code == 0


@pytest.mark.parametrize(
    ("first", "point", "second"),
    [
        ("apply", "commit n2", "rollback"),
        pytest.param("rollback", "commit n2", "apply", marks=pytest.mark.slow),
        pytest.param("rollback", "commit n2", "rollback", marks=pytest.mark.slow),
        pytest.param("apply", "stage n2", "rollback", marks=pytest.mark.slow),
        pytest.param("rollback", "commit answered", "apply", marks=pytest.mark.slow),
    ],
)
def test_of_two_controllers_one_works_and_the_other_is_told_who(
    lab: Lab, first: str, point: str, second: str
) -> None:
    """The second one changes nothing, and the first ends as if it were alone."""
    if first == "rollback" or second == "rollback":
        assert apply(lab).code == 0
    if first == "apply":
        book(lab).write_text(f'- file: {{path: {OLD_FILE}, content: "newer\\n"}}\n')
    process = begun(lab, "stop", point, first)
    standing_still(process)
    before = pairs(lab)
    time.sleep(0.5)
    while before != pairs(lab):  # agents still do what they were told before it stood still
        before = pairs(lab)
        time.sleep(0.5)
    refused = apply(lab) if second == "apply" else rollback(lab)
    looked = clusterprep(lab, "check", "--only", "state.")
    assert pairs(lab) == before
    done = goes_on(process)
    assert (refused.code, refused.report["verdict"]) == (4, "refused")
    message = refused.report["error"]["message"]
    assert f"another run holds the lock (run {done.report['run']} of cluster lab, since" in message
    assert f", by {getpass.getuser()}@" in message
    assert (looked.code, looked.blamed("state.journal")) == (0, [])
    assert done.code == 0, done.report
    equal(lab, OLD if first == "rollback" else ("newer\n", "hello\n"))


@pytest.mark.slow
def test_two_at_once_many_times(lab: Lab) -> None:
    """One works and the other is refused, or comes later and finds nothing to do.

    Never do both write.
    """
    for _ in range(20):
        both = [begun(lab, "tell", "") for _ in range(2)]
        ended = [
            (json.loads(process.communicate(timeout=60)[0]), process.returncode) for process in both
        ]
        ended.sort(
            key=lambda one: {change["outcome"] for change in one[0].get("changes", ())} == {"done"}
        )
        (other, code), (wrote, zero) = ended
        assert ({change["outcome"] for change in wrote["changes"]}, zero) == ({"done"}, 0)
        assert (other["verdict"], code) in (("refused", 4), ("pass", 0))
        if code == 4:
            assert (
                "holds the lock" in other["error"]["message"]
                or "since it was planned" in other["error"]["message"]
            )
        else:
            assert {change["outcome"] for change in other["changes"]} == {"unchanged"}
        assert pairs(lab) == [NEW] * 4
        quiet(lab)
        assert rollback(lab).code == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_while_one_works_the_other_is_told_whose_run_it_is_many_times(lab: Lab) -> None:
    """The first run is stopped between its lock and its end: alone two short runs hardly meet."""
    points = (
        "stage n1",
        "stage answered",
        "commit n1",
        "commit n3",
        "commit answered",
        "settle n2",
    )
    for number in range(20):
        process = stopped(lab, points[number % len(points)])
        refused = apply(lab)
        before = pairs(lab)
        done = goes_on(process)
        assert (done.code, done.outcomes()) == (0, {"done"})
        assert refused.code == 4, refused.report
        assert (
            f"another run holds the lock (run {done.report['run']} of cluster lab, since"
            in refused.stderr
        )
        assert set(before) <= {OLD, NEW}
        assert pairs(lab) == [NEW] * 4
        assert rollback(lab).code == 0


# ---------------------------------------------------------------- one host that cannot


@pytest.mark.parametrize(
    "fault", ["full etc", "full journal", "read-only", "immutable", "link", "device"]
)
def test_one_host_that_cannot_be_written_to_stops_all(lab: Lab, fault: str) -> None:
    host = lab.host("n3")
    with planted(host, fault):
        found = apply(lab)
        assert pairs(lab)[:2] == [OLD] * 2
        assert pair(lab.host("n4")) == OLD
    assert found.code == 1, found.report
    told = {
        node
        for change in found.report["changes"]
        for node in change["nodes"]
        if change.get("detail")
    }
    assert told == {"n3"}
    assert "done" not in found.outcomes()
    equal(lab, OLD)


def planted(host: Host, fault: str) -> faults.Fault:
    if fault == "full etc":
        return faults.full(host, str(Path(NEW_FILE).parent))
    if fault == "full journal":
        return faults.full(host, RUNS)
    if fault == "read-only":
        return faults.read_only(host, "/etc")
    place = inside(host, OLD_FILE)
    if fault == "immutable":

        def flag(sign: str) -> subprocess.CompletedProcess[bytes]:
            argv = ["chattr", f"{sign}i", place]
            return subprocess.run(argv, check=False, capture_output=True)

        if flag("+").returncode:
            pytest.skip("no chattr on this file system")
        return faults.Fault(lambda: flag("-"))
    place.rename(place.with_suffix(".kept"))
    if fault == "link":
        place.symlink_to("/etc/passwd")
    else:
        host.run(["mknod", OLD_FILE, "c", "1", "3"])
    return faults.Fault(lambda: place.with_suffix(".kept").replace(place))


# ---------------------------------------------------------------- what failed, again


@pytest.mark.slow
def test_what_failed_is_tried_again(lab: Lab) -> None:
    inventory = lab.inventory(ssh={**lab.inventory_content()["ssh"], "connect_timeout": 2})
    with faults.drop_port(lab.host("n2"), 22):
        first = clusterprep(lab, "apply", *words(lab), "--partial", inventory=inventory)
    assert first.code == 3
    assert pairs(lab) == [NEW, OLD, NEW, NEW]
    again = apply(lab, "--retry-failed", first.report["run"])
    assert again.code == 0
    assert [node["name"] for node in again.report["nodes"]] == ["n2"]
    equal(lab, NEW)
    assert apply(lab, "--retry-failed", again.report["run"]).code == 2
    assert apply(lab, "--retry-failed", "20000101-000000-0000").code == 2
