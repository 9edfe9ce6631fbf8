"""A budget is kept whatever hangs on the node, and what did answer is judged.

Deep checks come from the store.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.errors import InputError, OutOfTime
from clusterprep.model import Node, Read
from clusterprep.remote.transports.link import open_link
from clusterprep.remote.transports.local import LocalTransport
from clusterprep.runtime.budget import LEAST, Budget, budget_of
from clusterprep.runtime.deadline import Deadline
from tests.support.asked import answered
from tests.support.command import CLI, Answer, answer, clusterprep
from tests.support.lab import Lab, faults
from tests.support.lab.faults import together
from tests.support.lab.fixtures import require_lab
from tests.support.lab.rooms import Host

STORE = "/var/lib/clusterprep/deep.json"
CONF = "/etc/nccl.conf"
BLANK = " NCCL_SET_THREAD_NAME=1\n"  # env.nccl_conf: an error, and deep
# The agent's interpreter may be another one than that which the command runs with.
APART = (sys._base_executable, "-m", "clusterprep")
LIBRARIES = {"PYTHONPATH": ":".join(word for word in sys.path if word)}
INVENTORY = "nodes: [{name: n1, address: 127.0.0.1, transport: local%s}]\n"


@pytest.fixture(scope="module")
def lab1() -> Iterator[Lab]:
    require_lab()
    with Lab(1) as lab:
        yield lab


@pytest.fixture(scope="module")
def host(lab1: Lab) -> Host:
    return lab1.hosts[0]


@pytest.fixture(scope="module")
def kept(host: Host) -> str:
    """What a node keeps where env.nccl_conf failed."""
    with faults.written(host, CONF, BLANK):
        check(host, "--deep", "--store", "--only", "env.")
    return host.read(STORE)


@pytest.fixture
def frozen(host: Host) -> Iterator[str]:
    """A group whose members the kernel keeps, whatever signal they get.

    Its name is the whole machine's.
    """
    place, name = "/sys/fs/cgroup", f"lab-{uuid.uuid4().hex}"
    make = (
        'mount -t tmpfs none "$0" && mkdir "$0/f" && mount -t cgroup -o freezer none "$0/f"'
        ' && mkdir "$0/f/$1"'
    )
    host.run(["sh", "-c", make, place, name])
    group = f"{place}/f/{name}"
    host.run(["sh", "-c", 'echo FROZEN > "$0/freezer.state"', group])
    yield group
    thaw = (
        'echo THAWED > "$0/freezer.state"; until [ -z "$(cat "$0/tasks")" ]; do sleep 0.05; done;'
        ' rmdir "$0"'
    )
    host.run(["sh", "-c", thaw, group])
    host.run(["umount", f"{place}/f", place])


@pytest.fixture(autouse=True)
def nothing_stored(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "host" in request.fixturenames:
        request.getfixturevalue("host").run(["rm", "-rf", STORE, "/srv/node"])


def check(
    host: Host, *words: str, cli: tuple[str, ...] = CLI, target: str = "--local", **options: Any
) -> Answer:
    argv = [*cli, "check", target, "--format", "json", *words]
    return answer(host.run(argv, check=False, timeout=90, **options))


def timed(host: Host, seconds: float, **options: Any) -> Answer:
    """A check with a budget, which has to be kept.

    From a shell, so that our own start counts and pytest's does not.
    """
    started = time.monotonic()
    seen = check(host, "--budget", str(seconds), **options)
    assert time.monotonic() - started < seconds
    return seen


def verdicts(seen: Answer) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in seen.report["findings"]:
        found.setdefault(finding["check"], set()).add(finding["verdict"])
    return found


def late(seen: Answer) -> set[str]:
    return {
        finding["check"]
        for finding in seen.report["findings"]
        if finding["reason"] == "the budget ended"
    }


# ---------------------------------------------------------------- the time


@pytest.mark.parametrize("seconds", [LEAST, 4.0, 8.0, 60.0])
def test_every_part_has_its_share(seconds: float) -> None:
    budget = Budget(seconds, began=100.0)
    assert (
        100.0 + seconds / 2
        <= budget.reads
        < budget.answers
        < budget.closing
        < budget.end
        == 100.0 + seconds
    )
    assert budget.end - budget.reads <= 2.0


def test_the_start_of_the_process_counts() -> None:
    code = (
        "import time; time.sleep(1); from clusterprep.runtime.budget import budget_of as b;"
        " print(b(10).left(b(10).end))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) < 9.1


@pytest.mark.slow
def test_an_old_process_that_became_the_command_has_half_of_the_budget() -> None:
    code = "from clusterprep.runtime.budget import budget_of as b; print(b(2).left(b(2).end))"
    words = ["sh", "-c", 'sleep 1.5; exec "$0" -c "$1"', sys.executable, code]
    assert (
        0.5
        < float(
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        )
        <= 1.0
    )


def test_a_budget_in_which_nothing_fits_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        budget_of(0.5)
    assert budget_of(None) is None


def test_the_last_resort_is_a_deadline() -> None:
    budget = Budget(2.0, time.monotonic() - 1.9)
    with Deadline.of(60.0, budget) as deadline:
        time.sleep(0.1)
        with pytest.raises(OutOfTime, match="--budget of 2 s reached"):
            deadline.check()
    with Deadline.of(0.05, Budget(60.0, time.monotonic())) as deadline:
        time.sleep(0.05)
        with pytest.raises(OutOfTime, match=r"--timeout of 0\.05 s reached"):
            deadline.check()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--store",), "add --deep"),
        (("--deep", "--budget", "8"), "give one of them"),
        (("--budget", "soon"), "--budget"),
        (("--budget", "1"), "at least 2"),
    ],
    ids=" ".join,
)
def test_words_that_contradict_each_other(words: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [*CLI, "check", "--local", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert told in done.stderr


# ---------------------------------------------------------------- what hangs


@pytest.mark.machine
def test_many_that_hang_are_given_up_at_once() -> None:
    """Each in a child of its own: none of them keeps what does answer, and none is left."""
    hanging = [Read("command", ("sleep", f"4711.{number}"), limit=100.0) for number in range(12)]
    quick = Read("file", ("/proc/sys/kernel/osrelease",))
    link = open_link(LocalTransport(), Node("n1", "127.0.0.1", 0), ("look",), lambda node: None)
    budget = Budget(2.4, time.monotonic())
    answers = answered(link, [*hanging, quick], budget=budget)
    assert time.monotonic() < budget.answers
    assert answers[-1][0] == "ok"
    assert {answer[1] for answer in answers[:-1]} == {"the budget ended"}
    link.close()
    assert (
        subprocess.run(
            ["pgrep", "-f", r"^sleep 4711\."], capture_output=True, check=False
        ).returncode
        == 1
    )


def test_a_read_that_hangs_does_not_hold_up_its_lane() -> None:
    link = open_link(LocalTransport(), Node("n1", "127.0.0.1", 0), ("look",), lambda node: None)
    asked = [
        Read("command", ("sleep", "4712"), 100.0),
        *(Read("command", ("echo", str(n))) for n in range(40)),
    ]
    answers = answered(link, asked, budget=Budget(3.0, time.monotonic()))
    link.close()
    assert [answer[1]["out"] for answer in answers[1:]] == [f"{n}\n" for n in range(40)]


@pytest.mark.hosts
def test_a_hung_mount_leaves_open_what_needs_it_alone(host: Host) -> None:
    well = verdicts(timed(host, 6))
    with faults.hung_mount(host, "/boot"):
        seen = timed(host, 6)
    assert "kernel.version" in late(seen)
    # Where the machine is busy, the time may also be too short for the two seconds that a mount
    # gets to answer.
    slow = {"kernel.version", "fs.mount", "fs.space", "shm.size"}
    assert late(seen) <= slow
    assert seen.blamed("fs.mount") == ["n1"] or seen.blamed("fs.mount", "unknown") == ["n1"]
    assert seen.code == (1 if seen.blamed("fs.mount") else 3)
    changed = {name for name, said in verdicts(seen).items() if said != well[name]}
    assert changed <= slow | {"proc.load", "proc.dstate", "log.kernel"}


@pytest.mark.hosts
def test_a_driver_that_does_not_answer_is_not_known(host: Host) -> None:
    hanging = faults.gpus(
        host, [{"count": 2, "model": "h100"}], hangs=["nvmlDeviceGetHandleByIndex_v2"], bus=False
    )
    with hanging:
        seen = timed(
            host, 6
        )  # in three seconds a busy machine does not always start the command and the agent
    assert {"gpu.ecc_unc", "gpu.remap"} <= late(seen)
    assert seen.code == 3
    assert "pass" in verdicts(seen)["fs.ro"]


@pytest.mark.hosts
@pytest.mark.slow
def test_an_interpreter_that_does_not_start(host: Host) -> None:
    with faults.written(host, "/usr/bin/python3", "#!/bin/sh\nexec sleep 1000\n", 0o755):
        seen = timed(host, 4, cli=APART, env=LIBRARIES)
        assert host.processes("sleep 1000") == []
    assert seen.code == 3
    assert seen.blamed("ssh.reach", "unknown") == ["n1"]
    assert "budget" in seen.findings("ssh.reach", "unknown")[0]["message"]


@pytest.mark.hosts
@pytest.mark.slow
def test_tools_that_the_kernel_keeps_cost_no_more_than_others(host: Host, frozen: str) -> None:
    """Frozen processes do not die: no waiting for killed ones may add up.

    What is left dies when they thaw.
    """
    stuck = f"#!/bin/sh\necho $$ > {frozen}/tasks\nexec sleep 4713\n"
    tools = ("chronyc", "timedatectl", "systemctl", "nft", "iptables-save", "ip6tables-save")
    with together(
        *(faults.written(host, f"/usr/local/sbin/{tool}", stuck, 0o755) for tool in tools)
    ):
        seen = timed(host, 6)
    assert len(host.read(f"{frozen}/tasks").split()) >= 2
    assert {"time.daemon", "net.firewall"} & late(seen)
    assert verdicts(seen)["fs.ro"] == {"pass"}


@pytest.mark.hosts
@pytest.mark.slow
def test_a_store_that_hangs_costs_its_own_checks(host: Host) -> None:
    with faults.hung_mount(host, str(Path(STORE).parent)):
        seen = timed(host, 5)
    assert {"torch.version", "env.nccl_conf", "state.journal"} <= late(seen)
    assert "fs.ro" not in late(seen)
    assert {f["severity"] for f in seen.findings("torch.version", "unknown")} == {"warning"}


@pytest.mark.hosts
@pytest.mark.slow
def test_nodes_that_do_not_answer_in_time_are_as_if_they_were_off(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(4)
    with faults.drop_port(lab.host("n2"), 22), faults.stop_sshd(lab.host("n3")):
        seen = clusterprep(lab, "check", "--budget", "6")
    assert seen.report["seconds"] < 6
    assert (seen.code, seen.blamed("ssh.reach", "unknown")) == (3, ["n2", "n3"])
    assert seen.blamed("fs.ro", "pass") == ["n1", "n4"]
    stored = clusterprep(lab, "check", "--deep", "--store", "--limit", "n1,n4")
    assert [row["nodes"] for row in stored.report["changes"]] == [["n1"], ["n4"]]
    again = clusterprep(lab, "check", "--budget", "8")
    assert {
        f["age_s"] >= 0
        for f in again.findings("env.nccl_conf", "pass")
        if f["nodes"] != ["n2", "n3"]
    } == {True}
    assert again.blamed("env.nccl_conf", "unknown") == ["n2", "n3"]


@pytest.mark.hosts
@pytest.mark.slow
def test_a_check_without_a_budget_waits_as_before(host: Host) -> None:
    seen = check(host, "--only", "env.nccl_conf,time.")
    assert "env.nccl_conf" in verdicts(seen)
    assert "changes" not in seen.report


# ---------------------------------------------------------------- what is kept


@pytest.mark.hosts
def test_a_kept_failure_counts_with_its_age_until_it_is_looked_at_again(host: Host) -> None:
    with faults.written(host, CONF, BLANK):
        stored = check(host, "--deep", "--store")
    assert (stored.code, stored.outcomes()) == (1, {"done"})
    assert {f["check"] for f in stored.report["findings"]}.isdisjoint({"time.offset", "fs.ro"})
    time.sleep(1.2)
    seen = timed(host, 6)
    (bad,) = seen.findings("env.nccl_conf")
    assert (seen.code, bad["severity"]) == (1, "error")
    assert 1 <= bad["age_s"] < 60
    assert seen.findings("fs.ro", "pass")[0].get("age_s") is None
    assert any("as of" in notice for notice in seen.report["notices"])
    again = check(host, "--deep", "--store")
    assert (again.code, again.report["changes"][0]["action"]) == (0, "update")
    assert timed(host, 6).code == 0


@pytest.mark.hosts
@pytest.mark.slow
def test_a_selection_holds_for_what_is_kept(host: Host) -> None:
    check(host, "--deep", "--store")
    assert set(verdicts(check(host, "--budget", "6", "--only", "env.nccl_conf"))) == {
        "ssh.reach",
        "env.nccl_conf",
    }
    assert "env.nccl_conf" not in verdicts(check(host, "--budget", "6", "--skip", "env."))


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param('echo "{" > "$0"', "garbled", id="broken"),
        pytest.param('rm "$0"; mkfifo "$0"', "not_a_file", id="pipe", marks=pytest.mark.slow),
        pytest.param(
            'sed -i "s/\\"boot\\":\\"[^\\"]*/\\"boot\\":\\"b/" "$0"',
            "out of date",
            id="another-boot",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_store_that_cannot_be_trusted_is_not_known(
    host: Host, kept: str, spoil: str, reason: str
) -> None:
    host.write(STORE, kept)
    assert check(host, "--budget", "6", "--only", "env.nccl_conf").blamed("env.nccl_conf") == ["n1"]
    host.run(["sh", "-c", spoil, STORE])
    seen = check(host, "--budget", "6", "--only", "env.nccl_conf")
    (lacking,) = seen.findings("env.nccl_conf", "unknown")
    assert (lacking["reason"], lacking["severity"]) == (reason, "warning")
    assert seen.code == 0
    assert "Traceback" not in seen.stderr


@pytest.mark.hosts
@pytest.mark.slow
def test_the_store_lies_below_the_root_and_belongs_to_one_set_of_settings(host: Host) -> None:
    host.write("/srv/node/etc/nccl.conf", BLANK)
    host.write("/root/node.yaml", INVENTORY % ", root: /srv/node")
    stored = check(host, "--deep", "--store", "--only", "env.", target="/root/node.yaml")
    assert stored.report["changes"][0]["target"] == f"/srv/node{STORE}"
    assert timed(host, 6, target="/root/node.yaml").blamed("env.nccl_conf") == ["n1"]
    host.write("/root/node.yaml", INVENTORY % ', root: /srv/node, python: "/opt/other"')
    assert (
        timed(host, 6, target="/root/node.yaml").findings("env.nccl_conf", "unknown")[0]["reason"]
        == "out of date"
    )


@pytest.mark.hosts
def test_what_cannot_be_kept_is_a_change_that_failed(host: Host) -> None:
    with faults.tmpfs(host, str(Path(STORE).parent), "ro,mode=755"):
        seen = check(host, "--deep", "--store", "--only", "env.nccl_conf")
    assert (seen.code, seen.outcomes()) == (1, {"failed"})
    assert "read_only" in seen.report["changes"][0]["detail"]
