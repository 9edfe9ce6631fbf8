"""The commands over `transport: slurm` on four real nodes of Slurm, and how its failures look."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.inventory.load import load_inventory
from tests.support.command import CLI, Answer, answer, finished
from tests.support.lab import Host
from tests.support.lab.slurm import Slurm

pytestmark = pytest.mark.hosts

NAMES = ["n1", "n2", "n3", "n4"]
FILES = ("/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf")
LIMITS = {"memlock": "8MiB", "lim.nofile": "16384", "shm": "1GiB"}


@pytest.fixture
def inventory(slurm4: Slurm, tmp_path: Path) -> Path:
    """One that has no address and no login in it."""
    words: dict[str, Any] = {
        "ssh": None,
        "transport": "slurm",
        "nodes": [{"name": "n[1-4]"}],
        "require": LIMITS,
    }
    return slurm4.lab.inventory(
        tmp_path / "inventory.yaml", **words, verify={"sizes": ["8", "1K"], "timeout": 30}
    )


@pytest.fixture(autouse=True)
def _idle_again(slurm4: Slurm) -> Iterator[None]:
    """Whatever a test did, the next begins with idle nodes, and nothing of ours is left on them."""
    yield
    for host in slurm4.lab.hosts:
        wait_for(lambda host=host: not host.processes("python"))
    slurm4.wait_state("idle", *NAMES, timeout=60)


def wait_for(true: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def run(slurm: Slurm, inventory: Path, command: str, *words: str, **options: Any) -> Answer:
    argv = [*CLI, command, inventory, "--format", "json", *words]
    return answer(slurm.run(*argv, timeout=120, **options))


def started(slurm: Slurm, inventory: Path, command: str, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return slurm.popen(
        *CLI, command, inventory, "--format", "json", *words, stdin=pipe, stdout=pipe, stderr=pipe
    )


def jobs(slurm: Slurm) -> list[str]:
    """Every job that Slurm remembers, by name."""
    said = slurm.run("scontrol", "--oneliner", "show", "jobs").stdout
    return [
        line.split("JobName=")[1].split()[0] for line in said.splitlines() if "JobName=" in line
    ]


def reasons(answered: Answer) -> dict[str, str]:
    """What is said of every node that was not reached."""
    return {
        node: f["message"]
        for f in answered.report["findings"]
        if f["check"] == "ssh.reach"
        for node in f["nodes"]
        if f["verdict"] != "pass"
    }


# ---------------------------------------------------------------- the four commands


def test_check_apply_verify_and_rollback_each_in_one_step(slurm4: Slurm, inventory: Path) -> None:
    before = len(jobs(slurm4))
    checked = run(slurm4, inventory, "check", "--only", "ssh.,time.,kernel.,host.")
    assert (checked.code, checked.failed()) == (0, {}), checked.stderr
    assert [node["reached"] for node in checked.report["nodes"]] == [True] * 4
    offsets = [node["facts"]["clock.offset"] for node in checked.report["nodes"]]
    assert max(offset["bound"] for offset in offsets) < 0.05

    applied = run(slurm4, inventory, "apply")
    assert (applied.code, applied.outcomes()) == (0, {"done"}), applied.stderr
    assert applied.report["verify"]["verdict"] == "pass"
    assert applied.report["verify"]["world_size"] == 4
    texts = {tuple(host.read(path) for path in FILES) for host in slurm4.lab.hosts}
    assert len(texts) == 1
    assert "NCCL_SOCKET_IFNAME=eth0" in texts.pop()[0]

    undone = run(slurm4, inventory, "rollback")
    assert (undone.code, undone.outcomes()) == (0, {"undone"})
    assert [host.run(["ls", *FILES], check=False).stdout for host in slurm4.lab.hosts] == [""] * 4
    names = [name for name in jobs(slurm4) if name.startswith("clusterprep-")]
    assert len(names) == len(set(names))
    assert len(jobs(slurm4)) - before == 3


def test_sudo_and_several_steps_within_an_allocation(
    slurm4: Slurm, inventory: Path, tmp_path: Path
) -> None:
    """It runs beside the user's own step, only on the job's nodes.

    The agent of `become` starts by sudo.
    """
    content = json.loads(inventory.read_text()) | {"ssh": {"become": True}}
    (tmp_path / "sudo.yaml").write_text(json.dumps(content))
    slurm4.run("salloc", "--quiet", "--no-shell", "--exclusive", "--nodelist=n1,n2,n3", check=True)
    job = slurm4.run("squeue", "--noheader", "--format=%i").stdout.strip()
    own = slurm4.popen(
        "srun", f"--jobid={job}", "--nodes=3", "--exclusive", "--quiet", "sleep", "60"
    )
    try:
        seen = run(
            slurm4, tmp_path / "sudo.yaml", "check", "--only", "host.", env={"SLURM_JOB_ID": job}
        )
        assert own.poll() is None
    finally:
        slurm4.run("scancel", job)
        own.wait(20)
    assert seen.code == 3
    assert [node["reached"] for node in seen.report["nodes"]] == [True, True, True, False]
    assert (
        f"n4 is not part of the allocation that this runs in: job {job} has n[1-3]"
        in reasons(seen)["n4"]
    )


def test_a_password_for_sudo_does_not_enter_a_step(
    slurm4: Slurm, inventory: Path, tmp_path: Path
) -> None:
    content = json.loads(inventory.read_text()) | {"ssh": {"become": True}}
    (tmp_path / "sudo.yaml").write_text(json.dumps(content))
    before = len(jobs(slurm4))
    secret = {"CLUSTERPREP_BECOME_PASSWORD": "open sesame"}
    refused = run(slurm4, tmp_path / "sudo.yaml", "check", "--only", "host.", env=secret)
    assert refused.code == 2
    assert "no password for sudo goes to n[1-4] through Slurm" in refused.report["error"]["message"]
    assert len(jobs(slurm4)) == before


def test_slurm_s_files_and_states_as_nodes_have_them(slurm4: Slurm, tmp_path: Path) -> None:
    """n2 is drained and n3 has a gres.conf of its own; what slurmd sees of n1 is what we see."""
    lab = slurm4.lab
    drained, other, first = (lab.host(name) for name in ("n2", "n3", "n1"))
    inventory = lab.inventory(tmp_path / "ssh.yaml")
    other.write("/etc/slurm/gres.conf", "NodeName=n9 Name=gpu File=/dev/null\n")
    slurm4.run("scontrol", "update", f"NodeName={drained.name}", "State=DRAIN", "Reason=a fan")
    try:
        seen = run(slurm4, inventory, "check", "--only", "slurm.,cpu.model,mem.size")
    finally:
        slurm4.run("scontrol", "update", f"NodeName={drained.name}", "State=RESUME")
        other.run(["rm", "/etc/slurm/gres.conf"])
    told = {
        (found["check"], node): (found["verdict"], found["seen"])
        for found in seen.report["findings"]
        for node in found["nodes"]
    }
    assert told["slurm.state", "n2"] == ("fail", "IDLE+DRAIN: a fan")
    assert told["slurm.state", "n1"] == ("pass", "IDLE")
    verdict, text = told["slurm.gres", "n3"]
    assert (verdict, text.startswith("gres.conf: no such file on n[1-2,4]; ")) == ("fail", True)
    assert told["slurm.gres", "n1"] == ("pass", "4 CPUs, 1000 MiB")
    facts = seen.report["nodes"][0]["facts"]
    printed = dict(word.split("=") for word in first.run(["slurmd", "-C"]).stdout.split())
    assert int(printed["CPUs"]) == facts["cpu.processors"]["cpus"]
    assert int(printed["RealMemory"]) == facts["mem.total"] >> 20


def test_init_finds_the_nodes_of_slurm(slurm4: Slurm, tmp_path: Path) -> None:
    """The node that is down is left out with Slurm's reason.

    The others are read over SSH, as init does.
    """
    slurm4.set_down("n4", "lost its disk")
    lab, target = slurm4.lab, tmp_path / "found.yaml"
    login = [
        "--user",
        "root",
        "-i",
        lab.key,
        "--known-hosts",
        lab.known_hosts,
        "--python",
        sys.executable,
    ]
    try:
        done = slurm4.run(*CLI, "init", "--from-slurm", *login, "--output", target, timeout=120)
    finally:
        slurm4.run("scontrol", "update", "node=n4", "state=resume", check=True)
    assert done.returncode == 3, done.stderr  # one is left out
    found = load_inventory(target)
    assert [(node.name, node.address) for node in found.nodes] == [
        (h.name, h.address) for h in lab.hosts[:3]
    ]
    assert dict(found.groups) == {"main": ("n1", "n2", "n3")}
    assert "Slurm says DOWN: lost its disk" in target.read_text()


# ---------------------------------------------------------------- hostile nodes

# In place of /bin/sh: for a task of ours it says where it is, and that its relay is another node's.
EVIL_SHELL = """\
#!/usr/bin/dash
case "$2" in *SLURMD_NODENAME*)
  export SLURMD_NODENAME=n2
  for word in $2; do [ ${#word} = 16 ] && break; done
  printf '%s at n1\\n' "$word"
  printf '%s 0 %s;\\n' "$word" "$(printf 'h 0 n2' | base64)"
  exec python3 /root/evil.py ;;
esac
exec /usr/bin/dash "$@"
"""
# The relay itself, which has said who it is and says it no more.
EVIL_RELAY = """\
import binascii, os, sys, zlib
def take(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
start, _, packed = take(int(take(9))).partition(b"~")
here = {"__name__": "__main__"}
exec(zlib.decompress(binascii.a2b_base64(packed)), here)
relay = sys.modules["clusterprep.remote.agent.relay"]
begin, emit = relay.Relay.__init__, relay.Relay.emit
def begun(self, *args, **more):
    begin(self, *args, **more)
    self._number = 1
def emitted(self, kind, channel, data=b""):
    if kind != "h":
        emit(self, kind, channel, data)
relay.Relay.__init__, relay.Relay.emit = begun, emitted
exec(start, here)
"""


def test_a_node_that_speaks_for_another_one_is_not_heard(
    slurm4: Slurm, inventory: Path, tmp_path: Path
) -> None:
    """Neither its answers nor files come where the name of the other stands."""
    liar, other = slurm4.lab.hosts[:2]
    playbook = tmp_path / "playbook.yaml"
    playbook.write_text('- nodes: n2\n  file: {path: /etc/of-n2.conf, content: "for n2\\n"}\n')
    liar.write("/root/evil.py", EVIL_RELAY)
    liar.write("/usr/bin/evil.sh", EVIL_SHELL, 0o755)
    liar.run(["sh", "-c", "ln -s evil.sh /usr/bin/next && mv -T /usr/bin/next /usr/bin/sh"])
    try:
        seen = run(slurm4, inventory, "check", "--only", "ssh.reach,host.identity")
        words = ("--playbook", str(playbook), "--no-verify", "--only", "ssh.", "--partial")
        applied = run(slurm4, inventory, "apply", *words, "--limit", "n[1-2]")
    finally:
        liar.run(["dash", "-c", "ln -s dash /usr/bin/next && mv -T /usr/bin/next /usr/bin/sh"])
    nodes = {node["name"]: node for node in seen.report["nodes"]}
    assert nodes["n2"]["facts"]["host.machine_id"] == other.read("/etc/machine-id").strip()
    assert [nodes[name]["reached"] for name in NAMES] == [False, True, True, True]
    assert nodes["n1"]["reason"] == "garbled"
    assert "Slurm runs task 0 on n1, and the task says that it runs on 'n2'" in reasons(seen)["n1"]
    assert applied.outcomes() == {"done"}, applied.report
    assert other.read("/etc/of-n2.conf") == "for n2\n"
    assert liar.run(["test", "-e", "/etc/of-n2.conf"], check=False).returncode == 1
    other.run(["rm", "/etc/of-n2.conf"])


# ---------------------------------------------------------------- failures


def test_a_drained_node_is_unknown_and_the_others_are_looked_at(
    slurm4: Slurm, inventory: Path
) -> None:
    slurm4.run("scontrol", "update", "node=n2", "state=drain", "reason=bad cable", check=True)
    try:
        seen = run(slurm4, inventory, "check", "--only", "kernel.version")
    finally:
        slurm4.run("scontrol", "update", "node=n2", "state=resume", check=True)
    assert seen.code == 3
    assert [node["reached"] for node in seen.report["nodes"]] == [True, False, True, True]
    assert "Slurm says IDLE+DRAIN: bad cable" in reasons(seen)["n2"]


def test_without_srun_the_report_says_so(slurm4: Slurm, inventory: Path, tmp_path: Path) -> None:
    argv = ["env", f"PATH={tmp_path}", *CLI, "check", inventory, "--format", "json"]
    seen = answer(slurm4.run(*argv))
    assert seen.code == 3
    assert {node["reason"] for node in seen.report["nodes"]} == {"missing_tool"}
    assert "there is no srun on this machine" in reasons(seen)["n1"]


PROGRAMS = Path(__file__).parents[1] / "jobs" / "launch" / "programs"


def test_a_job_is_launched_in_one_step_and_the_rank_that_ended_it_is_named(
    slurm4: Slurm, inventory: Path
) -> None:
    before = jobs(slurm4)
    seen = run(
        slurm4, inventory, "launch", "--direct", "--", str(PROGRAMS / "ends.py"), "exit", "2"
    )
    launched = seen.report["launch"]
    assert seen.code == 1
    assert [(row["kind"], row["nodes"], row["rank"]) for row in launched["culprits"]] == [
        ("rank", ["n3"], 2)
    ]
    assert [row["ended"] for row in launched["ranks"]] == [
        "with-others",
        "with-others",
        "failed",
        "with-others",
    ]
    assert "[n3 rank 2] rank 2 has had enough" in seen.stderr
    assert len(jobs(slurm4)) - len(before) == 1


def test_an_interrupted_job_leaves_nothing_behind(slurm4: Slurm, inventory: Path) -> None:
    process = started(
        slurm4, inventory, "launch", "--direct", "--", str(PROGRAMS / "ends.py"), "stubborn", "9"
    )
    wait_for(lambda: all(host.processes("programs/ends.py") for host in slurm4.lab.hosts))
    process.send_signal(signal.SIGINT)
    seen = finished(process)
    assert seen.code == 130
    for host in slurm4.lab.hosts:
        wait_for(lambda host=host: not host.processes("ends.py|time.sleep"), 6.0)


def ranks(host: Host) -> str:
    """Processes on a host that carry the mark of a trial's ranks."""
    return host.run(
        ["sh", "-c", "grep -sl CLUSTERPREP_TRIAL /proc/[0-9]*/environ"], check=False
    ).stdout


def in_verify(slurm: Slurm, inventory: Path) -> subprocess.Popen[str]:
    """A verify whose ranks have begun on every node."""
    process = started(slurm, inventory, "verify")
    wait_for(lambda: all(map(ranks, slurm.lab.hosts)) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def test_a_step_that_is_cancelled_ends_the_command_and_all_ranks(
    slurm4: Slurm, inventory: Path
) -> None:
    process = in_verify(slurm4, inventory)
    job = slurm4.run("squeue", "--noheader", "--format=%i").stdout.strip()
    slurm4.run("scancel", job, check=True)
    seen = finished(process)
    assert seen.code in (1, 3)
    assert "the Slurm step was cancelled" in json.dumps(seen.report)


def test_nothing_is_left_on_the_nodes_when_the_command_is_killed(
    slurm4: Slurm, inventory: Path
) -> None:
    process = in_verify(slurm4, inventory)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    for host in slurm4.lab.hosts:
        wait_for(lambda host=host: not host.processes("python"), 6.0)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["slurmstepd", "agent"])
def test_a_node_that_is_lost_in_a_trial_is_named(
    slurm4: Slurm, inventory: Path, victim: str
) -> None:
    """srun says nothing when slurmstepd of a node is killed: five seconds of silence tell it."""
    process = in_verify(slurm4, inventory)
    host = slurm4.lab.host("n3")
    if victim == "slurmstepd":
        host.run(["pkill", "-KILL", "slurmstepd"])
    else:
        oldest = host.processes("g=lambda n:")[:2]
        host.run(["kill", "-KILL", str(oldest[-1])])
    seen = finished(process)
    assert seen.code in (1, 3)
    assert [culprit["nodes"] for culprit in seen.report["verify"]["culprits"]] == [["n3"]]


@pytest.mark.slow
def test_slurmd_that_is_killed_meanwhile_changes_nothing(slurm4: Slurm, inventory: Path) -> None:
    process = in_verify(slurm4, inventory)
    host = slurm4.lab.host("n2")
    slurm4.stop_slurmd(host)
    try:
        seen = finished(process)
    finally:
        slurm4.start_slurmd(host)
    assert (seen.code, seen.report["verify"]["verdict"]) == (0, "pass")


def test_a_job_leaves_out_the_nodes_that_a_check_excludes(slurm4: Slurm, tmp_path: Path) -> None:
    """Also with a list in which there is none: an empty option excludes no node."""
    for bad, expected in (("n[2-3]", ["n1", "n4"]), ("", NAMES)):
        groups = {"old": {"nodes": bad, "require": {"kernel": ">=999"}}} if bad else {}
        words: dict[str, Any] = {"ssh": None, "transport": "slurm", "nodes": [{"name": "n[1-4]"}]}
        path = slurm4.lab.inventory(tmp_path / "inventory.yaml", **words, groups=groups)
        lists = tmp_path / "lists"
        found = run(slurm4, path, "check", "--only", "kernel.version", "--write-lists", str(lists))
        assert found.code == (1 if bad else 0)
        excluded = (lists / "exclude.txt").read_text().removesuffix("\n")  # as $(cat FILE)
        assert excluded == bad
        started_on = slurm4.run("srun", "--nodes=1-4", f"--exclude={excluded}", "hostname")
        assert sorted(started_on.stdout.split()) == expected, started_on.stderr
