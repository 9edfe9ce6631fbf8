"""The main job on four real hosts.

What is written, what is read back, and which node every fault is blamed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import CLI, clusterprep, finished, started
from tests.support.lab import Lab, faults
from tests.support.lab.rooms import Host

pytestmark = pytest.mark.hosts

PROFILE, CONF = "/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf"
FOREIGN = "# ours, not yours\nNCCL_IB_TC=106\nno newline at the end"


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """The module's lab, with nothing of ours left on it before and after each test."""
    _clean(lab4)
    yield lab4
    _clean(lab4)


def _clean(lab: Lab) -> None:
    for host in lab.hosts:
        host.run(["rm", "-rf", PROFILE, CONF, "/etc/clusterprep", "/var/lib/clusterprep"])
        assert host.processes("clusterprep") == [], f"{host.name} still runs something of ours"


def contents(lab: Lab, path: str) -> set[str | None]:
    return {
        host.run(["cat", path], check=False).stdout if exists(host, path) else None
        for host in lab.hosts
    }


def exists(host: object, path: str) -> bool:
    return host.run(["test", "-e", path], check=False).returncode == 0  # type: ignore[attr-defined,no-any-return]


def quiet(lab: Lab) -> None:
    """Nothing of ours runs on any host; an agent that is ending gets a moment for it."""
    end = time.monotonic() + 60
    while any(host.processes("clusterprep|-ISB") for host in lab.hosts) and time.monotonic() < end:
        time.sleep(0.05)
    assert {host.name: host.processes("clusterprep|-ISB") for host in lab.hosts} == {
        h.name: [] for h in lab.hosts
    }


# ---------------------------------------------------------------- the healthy run


def test_apply_writes_one_environment_everywhere_and_a_second_apply_changes_nothing(
    lab: Lab,
) -> None:
    lab.host("n2").write(CONF, FOREIGN)
    first = clusterprep(lab, "apply", "--nproc-per-node", "2")
    assert first.code == 0, first.report
    assert first.failed() == {}
    assert first.report["verify"]["verdict"] == "pass"
    assert first.report["verify"]["world_size"] == 8
    assert all(row["wrong"] == 0 for row in first.report["verify"]["collectives"])
    assert sorted(rank["node"] for rank in first.report["verify"]["ranks"]) == [
        "n1",
        "n1",
        "n2",
        "n2",
        "n3",
        "n3",
        "n4",
        "n4",
    ]
    assert first.outcomes() == {"done"}
    assert len(contents(lab, PROFILE)) == 1
    assert lab.host("n2").read(CONF).endswith(FOREIGN)
    assert lab.host("n2").read(CONF).replace(FOREIGN, "") == lab.host("n1").read(CONF)
    quiet(lab)

    for host in lab.hosts:
        shown = lab.controller.run(lab.ssh(host, "bash", "-lc", "env")).stdout.splitlines()
        assert "NCCL_SOCKET_IFNAME=eth0" in shown
        assert "NPROC_PER_NODE=2" in shown

    second = clusterprep(lab, "apply", "--nproc-per-node", "2", "--no-verify")
    assert second.code == 0
    assert second.outcomes() == {"unchanged"}

    back = clusterprep(lab, "rollback")
    assert back.code == 0
    assert back.outcomes() == {"undone"}
    assert contents(lab, PROFILE) == {None}
    assert lab.host("n2").read(CONF) == FOREIGN
    assert not exists(lab.host("n1"), CONF)
    again = clusterprep(lab, "rollback")
    assert (again.code, again.report["changes"]) == (0, [])
    quiet(lab)


def test_plan_predicts_the_change_and_writes_nothing(lab: Lab) -> None:
    planned = clusterprep(lab, "plan", "--detailed-exitcode")
    assert planned.code == 5
    assert planned.outcomes() == {"planned"}
    assert contents(lab, PROFILE) == {None}
    assert clusterprep(lab, "apply", "--dry-run").code == 0
    assert contents(lab, PROFILE) == {None}
    applied = clusterprep(lab, "apply", "--no-verify")
    diffs = [
        [(c["target"], c["diff"]) for c in answer.report["changes"]]
        for answer in (planned, applied)
    ]
    assert diffs[0] == diffs[1]
    assert clusterprep(lab, "plan", "--detailed-exitcode").code == 0


def test_env_prints_what_apply_writes(lab: Lab) -> None:
    clusterprep(lab, "apply", "--no-verify")
    for target, path in (("profile.d", PROFILE), ("nccl.conf", CONF)):
        argv = [*CLI, "env", str(lab.inventory()), "--target", target, "--node", "n3"]
        assert lab.controller.run(argv).stdout == lab.host("n3").read(path)


def test_env_of_an_earlier_run_needs_no_node(lab: Lab) -> None:
    applied = clusterprep(lab, "apply", "--no-verify")
    written = {path: lab.host("n3").read(path) for path in (PROFILE, CONF)}
    assert clusterprep(lab, "rollback").code == 0
    run = applied.report["run"]
    with contextlib.ExitStack() as undo:
        for host in lab.hosts:
            undo.enter_context(faults.stop_sshd(host))
        again = clusterprep(lab, "env", "--from-run", run)
        for target, path in (("profile.d", PROFILE), ("nccl.conf", CONF)):
            argv = [
                *CLI,
                "env",
                str(lab.inventory()),
                "--target",
                target,
                "--node",
                "n3",
                "--from-run",
                run,
            ]
            assert lab.controller.run(argv).stdout == written[path]
    assert (again.code, again.report["run"], again.report["env"]) == (0, run, applied.report["env"])
    assert "nodes" not in again.report


def test_a_playbook_with_a_file_writes_it_on_all_nodes(lab: Lab, tmp_path: Path) -> None:
    book = tmp_path / "motd.yaml"
    book.write_text("- file: {path: /etc/clusterprep/hello, content: 'on: 2.10', mode: '0640'}\n")
    assert clusterprep(lab, "apply", "--playbook", str(book), "--no-verify").code == 0
    assert contents(lab, "/etc/clusterprep/hello") == {"on: 2.10"}
    assert (
        lab.host("n1").run(["stat", "-c", "%a", "/etc/clusterprep/hello"]).stdout.strip() == "640"
    )
    assert clusterprep(lab, "rollback").code == 0
    assert not exists(lab.host("n1"), "/etc/clusterprep")


# ---------------------------------------------------------------- faults that a check names


def test_a_clock_and_an_mtu_are_named_with_their_nodes(lab: Lab) -> None:
    with faults.clock(lab.host("n3"), 5), faults.mtu(lab.host("n2"), 1400):
        found = clusterprep(lab, "check")
    assert found.code == 1
    assert found.failed() == {"time.offset": ["n3"], "eth.path_mtu": ["n2"]}
    assert found.blamed("eth.mtu") == ["n2"]
    assert found.findings("time.offset")[0]["seen"].startswith(("+5.0", "+4.99")), (
        "to a few milliseconds"
    )
    assert clusterprep(lab, "check").code == 0


def test_a_changed_host_key_is_refused_and_the_others_are_complete(lab: Lab) -> None:
    with faults.new_host_key(lab.host("n4")):
        found = clusterprep(lab, "check")
    assert found.code == 1
    assert found.failed() == {"ssh.reach": ["n4"]}
    assert found.findings("ssh.reach")[0]["reason"] == "host_key_changed"
    assert "SHA256:" in found.findings("ssh.reach")[0]["message"]
    assert found.blamed("torch.version", "pass") == ["n1", "n2", "n3"]


def test_a_node_that_gives_no_answer_is_unknown_and_stops_the_writing(lab: Lab) -> None:
    with faults.drop_port(lab.host("n2"), 22):
        words = {"ssh": {**lab.inventory_content()["ssh"], "connect_timeout": 2}}
        inventory = lab.inventory(**words)
        found = clusterprep(lab, "apply", inventory=inventory)
        assert found.code == 3
        assert found.findings("ssh.reach", "unknown")[0]["reason"] == "timed_out"
        assert contents(lab, PROFILE) == {None}
        partial = clusterprep(lab, "apply", "--partial", inventory=inventory)
    assert partial.code == 3
    assert [exists(host, PROFILE) for host in lab.hosts] == [True, False, True, True]
    assert (partial.report["verify"]["verdict"], partial.report["verify"]["world_size"]) == (
        "pass",
        3,
    )
    (notice,) = [text for text in partial.report["notices"] if "n2 was not reached" in text]
    later = clusterprep(lab, "apply", "--no-verify", "--retry-failed", notice.split()[-1])
    assert (later.code, later.outcomes()) == (0, {"done"})
    assert len(contents(lab, PROFILE)) == 1
    lab.inventory()


def test_a_taken_rendezvous_port_names_the_host_and_the_holder(lab: Lab) -> None:
    with faults.occupy(lab.host("n1"), 29500):
        found = clusterprep(lab, "apply")
    assert found.failed() == {"net.ports": ["n1"]}
    assert "pid" in found.findings("net.ports")[0]["seen"]
    assert "verify" not in found.report


def test_a_filtered_pair_names_both_ends_and_a_filtered_listener_alone(lab: Lab) -> None:
    with faults.drop_pair(lab.host("n1"), lab.host("n3")):
        assert clusterprep(lab, "check").failed() == {"net.ports": ["n1", "n3"]}
    with faults.drop_port(lab.host("n1"), 29500):
        assert clusterprep(lab, "check").failed() == {"net.ports": ["n1"]}


def test_a_docker_bridge_is_not_the_network(lab: Lab) -> None:
    with faults.docker0(lab.host("n1")), faults.docker0(lab.host("n2")):
        found = clusterprep(lab, "env")
    names = {row["name"]: row["value"] for row in found.report["env"]}
    assert names["NCCL_SOCKET_IFNAME"] == "eth0"
    assert found.code == 0


def test_an_own_name_on_loopback_is_named(lab: Lab) -> None:
    with faults.loopback_name(lab.host("n4")):
        assert clusterprep(lab, "check").failed() == {"name.resolve": ["n4"]}


def test_the_same_machine_listed_twice_stops_apply(lab: Lab) -> None:
    machine = lab.host("n2").read("/etc/machine-id")
    with faults.file_over(lab.host("n3"), "/etc/machine-id", machine):
        nodes = [{"name": "n[1-3]", "address": "10.77.0.[2-4]"}]
        found = clusterprep(lab, "apply", inventory=lab.inventory(nodes=nodes))
    assert found.code == 1
    assert found.failed() == {"host.identity": ["n2", "n3"]}
    assert contents(lab, PROFILE) == {None}
    lab.inventory()


def test_an_old_kernel_is_a_warning_and_an_error_where_it_is_required(lab: Lab) -> None:
    with faults.old_kernel(lab.host("n1")):
        assert clusterprep(lab, "check").code in (0, 1)
        required = clusterprep(lab, "check", inventory=lab.inventory(require={"kernel": ">=5.5"}))
    lab.inventory()
    assert required.findings("kernel.version", "pass") != []


# ---------------------------------------------------------------- all nodes or none


def test_one_node_that_cannot_write_stops_all(lab: Lab) -> None:
    with faults.read_only(lab.host("n3"), "/etc/profile.d"):
        found = clusterprep(lab, "apply", "--no-verify")
    assert found.code == 1
    outcomes = {
        node: change["outcome"] for change in found.report["changes"] for node in change["nodes"]
    }
    assert outcomes == {
        "n1": "not-started",
        "n2": "not-started",
        "n3": "failed",
        "n4": "not-started",
    }
    assert any("read_only" in change.get("detail", "") for change in found.report["changes"])
    assert contents(lab, PROFILE) == contents(lab, CONF) == {None}
    assert not any(
        ".clusterprep-nccl" in host.run(["ls", "-A", "/etc/profile.d"]).stdout for host in lab.hosts
    )


def test_a_link_at_the_target_is_never_followed(lab: Lab) -> None:
    lab.host("n2").run(["ln", "-s", "/etc/passwd", PROFILE])
    before = lab.host("n2").read("/etc/passwd")
    found = clusterprep(lab, "apply", "--no-verify")
    assert found.code != 0
    assert lab.host("n2").read("/etc/passwd") == before
    assert not exists(lab.host("n1"), PROFILE)


def test_a_file_that_changed_since_it_was_planned_is_not_overwritten(lab: Lab) -> None:
    process = started(lab, "apply", "--ask", "--no-verify")
    _wait_for(process, "Write this?")
    lab.host("n2").write(CONF, "NCCL_DEBUG=INFO\n")
    out, err = process.communicate("y\n", timeout=60)
    assert process.returncode == 4
    assert "NCCL_DEBUG=INFO" in err
    assert json.loads(out)["error"]["code"] == 4
    assert contents(lab, PROFILE) == {None}
    assert lab.host("n2").read(CONF) == "NCCL_DEBUG=INFO\n"


def _wait_for(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    seen = ""
    while text not in seen:
        letter = process.stderr.read(1)
        assert letter, seen
        seen += letter
    return seen


def test_a_no_to_the_question_writes_nothing(lab: Lab) -> None:
    process = started(lab, "apply", "--ask", "--no-verify")
    done = finished(process, "n\n")
    assert done.code == 0
    assert done.outcomes() == {"not-started"}
    assert contents(lab, PROFILE) == {None}


def test_a_lock_held_by_another_run_is_respected(lab: Lab) -> None:
    host = lab.host("n2")
    host.run(["mkdir", "-p", "/var/lib/clusterprep"])
    holder = host.popen(["flock", "/var/lib/clusterprep/lock", "sleep", "600"])
    free = ["flock", "--nonblock", "/var/lib/clusterprep/lock", "true"]
    try:
        while host.run(free, check=False).returncode == 0:
            time.sleep(0.02)
        found = clusterprep(lab, "apply", "--no-verify")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert found.code == 4
    assert found.report["verdict"] == "refused"
    assert contents(lab, PROFILE) == {None}
    assert clusterprep(lab, "apply", "--no-verify").code == 0


def test_rollback_refuses_to_destroy_a_later_edit_unless_forced(lab: Lab) -> None:
    clusterprep(lab, "apply", "--no-verify")
    lab.host("n1").write(PROFILE, "export NCCL_DEBUG=INFO\n")
    refused = clusterprep(lab, "rollback")
    assert refused.code == 4
    assert f"n1: {PROFILE} was edited after run" in refused.report["error"]["message"]
    assert "+export NCCL_DEBUG=INFO" in refused.stderr
    assert lab.host("n1").read(PROFILE) == "export NCCL_DEBUG=INFO\n"
    assert exists(lab.host("n2"), PROFILE)
    assert clusterprep(lab, "rollback", "--force").code == 0
    assert contents(lab, PROFILE) == {None}


def test_rollback_gives_back_bytes_modes_and_owners_and_twice_is_harmless(lab: Lab) -> None:
    texts = {"n1": "# no newline", "n2": "\ufeffNCCL_DEBUG=WARN\r\n", "n3": "", "n4": FOREIGN}
    for number, (name, text) in enumerate(texts.items()):
        lab.host(name).write(CONF, text, mode=0o600 + 8 * number)
        lab.host(name).run(["chown", f"{1000 + number}:{2000 + number}", CONF])
    before = {host.name: print_of(host) for host in lab.hosts}
    words = (
        "apply",
        "--no-verify",
        "--skip",
        "env.nccl_conf",
    )  # a BOM and CRLF are errors, and not what this is about
    assert clusterprep(lab, *words, inventory=lab.inventory(env_targets=list(TARGETS))).code == 0
    assert all(exists(host, path) for host in lab.hosts for path in TARGETS.values())
    changed = {host.name: print_of(host) for host in lab.hosts}
    assert all(changed[name] != before[name] for name in texts)
    assert clusterprep(lab, "rollback").code == 0
    assert {host.name: print_of(host) for host in lab.hosts} == before
    again = clusterprep(lab, "rollback")
    assert (again.code, again.report["changes"]) == (0, [])
    (said,) = again.report["notices"]
    assert said.startswith("there is nothing to undo: run ")
    assert "was undone before" in said
    assert {host.name: print_of(host) for host in lab.hosts} == before
    lab.inventory()


TARGETS = {
    "profile.d": PROFILE,
    "nccl.conf": CONF,
    "env-file": "/etc/clusterprep/nccl.env",
    "slurm-task-prolog": "/etc/clusterprep/task_prolog.sh",
}


def print_of(host: Host) -> str:
    """Names, modes, owners and bytes of all that apply may touch."""
    what = "find /etc/profile.d /etc/nccl.conf /etc/clusterprep -printf '%p %M %U %G\\n'"
    what += " 2>/dev/null | sort; "
    return host.run(["sh", "-c", f"{what} sha256sum /etc/nccl.conf"]).stdout


def test_rollback_goes_one_run_at_a_time_and_a_named_run_needs_to_be_the_newest(lab: Lab) -> None:
    first = clusterprep(lab, "apply", "--no-verify").report["run"]
    clusterprep(lab, "apply", "--no-verify", inventory=lab.inventory(env={"NCCL_DEBUG": "INFO"}))
    lab.inventory()
    assert clusterprep(lab, "rollback", "--run", first).code == 4
    assert clusterprep(lab, "rollback").code == 0
    assert "NCCL_DEBUG=WARN" in lab.host("n1").read(CONF)
    assert clusterprep(lab, "rollback", "--run", first).code == 0
    assert contents(lab, CONF) == {None}
    assert clusterprep(lab, "rollback", "--run", "20000101-000000-dead").code == 2


def test_a_limited_apply_must_fit_what_the_others_were_given(lab: Lab) -> None:
    assert clusterprep(lab, "apply", "--no-verify").code == 0
    loud = lab.inventory(env={"NCCL_ALGO": "Ring"})
    refused = clusterprep(lab, "apply", "--no-verify", "--limit", "n[1-2]", inventory=loud)
    assert refused.code == 4
    assert "n[3-4]" in refused.report["error"]["message"]
    lab.inventory()
    fine = clusterprep(lab, "apply", "--no-verify", "--limit", "n[1-2]")
    assert (fine.code, fine.outcomes()) == (0, {"unchanged"})
    assert [node["name"] for node in fine.report["nodes"]] == ["n1", "n2"]
    assert any("limited" in notice for notice in fine.report["notices"])


def test_a_limited_apply_needs_to_know_what_the_others_have(lab: Lab) -> None:
    """After a rollback, and where nothing was ever written, nothing is known of them."""
    fresh = lab.inventory(cluster="without a history")
    first = clusterprep(lab, "apply", "--no-verify", inventory=fresh)
    assert (first.code, clusterprep(lab, "rollback", inventory=fresh).code) == (0, 0)
    words = ("--no-verify", "--limit", "n2")
    refused = clusterprep(lab, "apply", *words, inventory=fresh)
    assert (refused.code, contents(lab, CONF)) == (4, {None})
    assert "which values n[1,3-4] have is not known" in refused.report["error"]["message"]
    (notice,) = [
        text
        for text in clusterprep(lab, "plan", "--limit", "n2", inventory=fresh).report["notices"]
        if "apply will refuse this" in text
    ]
    assert "n[1,3-4]" in notice
    partial = clusterprep(lab, "apply", *words, "--partial", inventory=fresh)
    assert partial.code == 0
    assert any("which values n[1,3-4] have is not known" in n for n in partial.report["notices"])
    assert [exists(host, CONF) for host in lab.hosts] == [False, True, False, False]
    assert clusterprep(lab, "rollback", inventory=fresh).code == 0
    lab.inventory()


# ---------------------------------------------------------------- interruption


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name
)
def test_a_signal_during_verify_puts_all_nodes_back(lab: Lab, signum: signal.Signals) -> None:
    process = started(lab, "apply")
    _wait_until_ranks(lab)
    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["verdict"] == "interrupted"
    assert contents(lab, PROFILE) == {None}
    quiet(lab)


def _wait_until_ranks(lab: Lab) -> None:
    end = time.monotonic() + 60
    while not all(host.processes("clusterprep-rank") for host in lab.hosts):
        assert time.monotonic() < end, "no ranks appeared"
        time.sleep(0.05)


def test_a_timeout_during_verify_puts_all_nodes_back(lab: Lab) -> None:
    found = clusterprep(lab, "apply", "--timeout", "2")
    assert found.code in (1, 3)
    assert contents(lab, PROFILE) == {None}, (found.code, found.stderr, found.report)
    quiet(lab)


def test_a_killed_controller_leaves_no_process_and_no_half_file(lab: Lab) -> None:
    process = started(lab, "apply")
    _wait_until_ranks(lab)
    process.kill()
    process.communicate(timeout=60)
    quiet(lab)
    assert len(contents(lab, PROFILE)) == len(contents(lab, CONF)) == 1


# ---------------------------------------------------------------- sudo


def test_an_ordinary_user_with_sudo_applies_as_root(lab: Lab) -> None:
    for host in lab.hosts:
        faults.add_user(host, "alice", sudo="password", password="open sesame")
    inventory = lab.inventory(
        ssh={**lab.inventory_content()["ssh"], "user": "alice"}, job_user="alice"
    )
    try:
        secret = {"CLUSTERPREP_BECOME_PASSWORD": "open sesame"}
        done = clusterprep(lab, "apply", "--become", "--no-verify", inventory=inventory, env=secret)
        assert done.code == 0, done.report
        assert lab.host("n1").run(["stat", "-c", "%U %a", PROFILE]).stdout == "root 644\n"
        wrong = clusterprep(
            lab, "check", "-b", inventory=inventory, env={"CLUSTERPREP_BECOME_PASSWORD": "no"}
        )
        assert wrong.code == 1
        assert {f["reason"] for f in wrong.findings("ssh.reach")} == {"sudo_refused"}
        plain = clusterprep(lab, "check", inventory=inventory)
        assert plain.code == 0, plain.failed()
    finally:
        lab.inventory()
