"""Launch on real hosts over real OpenSSH: what is started and shown, and that nothing is left."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.jobs.launch import PROGRAMS, tables
from tests.support import training
from tests.support.command import CLI, Answer, answer
from tests.support.lab import Host, Lab, faults
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts
ENDS = str(PROGRAMS / "ends.py")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lab]:
    require_lab()
    with Lab(2) as two:
        yield two


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    """Without a process of ours, and without a file of it, before and after each test."""
    before = [files(host) for host in hosts.hosts]
    yield hosts
    assert all(processes(host) == [] for host in hosts.hosts)
    assert [files(host) for host in hosts.hosts] == before


def files(host: Host) -> set[str]:
    """torch itself makes a folder for what it compiles; that is the script's."""
    return {
        name for name in host.run(["ls", "-A", "/tmp"]).stdout.split() if "inductor" not in name
    }


def processes(host: Host) -> list[int]:
    return host.processes("launch/programs") + host.processes("torch.distributed.run")


def launched(
    lab: Lab, *words: str, inventory: dict[str, Any] | None = None
) -> subprocess.Popen[str]:
    path = lab.inventory(**{"nproc_per_node": 2, **(inventory or {})})
    pipe = subprocess.PIPE
    argv = [*CLI, "launch", str(path), "--format", "json", *words]
    return lab.controller.popen(argv, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)


def ended(process: subprocess.Popen[str], timeout: float = 110) -> Answer:
    out, err = process.communicate(timeout=timeout)
    return answer(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def launch(lab: Lab, *words: str, **more: Any) -> Answer:
    return ended(launched(lab, *words, **more))


def culprits(found: Answer) -> list[tuple[str, list[str], int | None]]:
    return [(row["kind"], row["nodes"], row["rank"]) for row in found.report["launch"]["culprits"]]


def how(found: Answer) -> list[str]:
    return [row["ended"] for row in found.report["launch"]["ranks"]]


def all_wait(lab: Lab) -> Callable[[], bool]:
    return lambda: all(len(host.processes("programs/ends.py")) >= 2 for host in lab.hosts)


def wait_for(condition: Callable[[], bool], limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


# ---------------------------------------------------------------- ranks


WHERE = [("0", "0", "0", "n1"), ("1", "1", "0", "n1"), ("2", "0", "1", "n2"), ("3", "1", "1", "n2")]


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["torchrun", pytest.param("direct", marks=pytest.mark.slow)])
def test_a_plain_script_of_torch_trains_with_the_right_ranks(lab: Lab, mode: str) -> None:
    words = ["--direct"] if mode == "direct" else []
    found = launch(
        lab, *words, "--env", "WORD=it's $HOME", "--seed", "7", "--", str(PROGRAMS / "ddp.py")
    )
    ended_well = (found.code, found.report["launch"]["mode"], how(found))
    assert ended_well == (0, mode, ["finished"] * 4), found.stderr[-4000:]
    rows = tables(found)
    assert [(r["RANK"], r["LOCAL_RANK"], r["NODE_RANK"], r["node"]) for r in rows] == WHERE
    alike = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.77.0.2",
        "MASTER_PORT": "29500",
    }
    assert all({name: row[name] for name in alike} == alike for row in rows)
    assert {(row["NCCL_DEBUG"], row["WORD"]) for row in rows} == {("WARN", "it's $HOME")}
    assert all(
        f"[{row['node']} rank {row['RANK']}] sum of ranks 6\n" in found.stderr for row in rows
    )


FRAMEWORKS = {
    "lightning_ddp.py": ("torchrun", "steps 3"),
    "accelerate_gpt2.py": ("direct", "steps 4"),
}


@pytest.mark.torch
@pytest.mark.timeout(120 + training.LIMIT)  # the first time they are fetched
@pytest.mark.parametrize(
    "script",
    [pytest.param("lightning_ddp.py", marks=pytest.mark.slow), "accelerate_gpt2.py"],
)
def test_frameworks_train_as_they_are(lab: Lab, script: str) -> None:
    python, (mode, last) = training.required(), FRAMEWORKS[script]
    words = ["--direct"] if mode == "direct" else []
    found = launch(
        lab, "--fold", *words, "--", str(PROGRAMS / script), inventory={"python": python}
    )
    assert (found.code, how(found)) == (0, ["finished"] * 4), found.stderr[-4000:]
    rows = tables(found)
    assert [
        (str(r["RANK"]), str(r["LOCAL_RANK"]), r.get("NODE_RANK"), r["node"]) for r in rows
    ] == [
        (rank, local, int(position) if "NODE_RANK" in rows[0] else None, node)
        for rank, local, position, node in WHERE
    ]
    assert {row["WORLD_SIZE"] for row in rows} == {4}
    assert f"[all ranks] {last}\n" in found.stderr


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("guarded", [True, False])
def test_uneven_data_stops_at_the_guard_and_is_told_without_it(lab: Lab, guarded: bool) -> None:
    found = launch(lab, "--", str(PROGRAMS / "uneven.py"), *(["guarded"] if guarded else []))
    waited = [float(seconds) for seconds in re.findall(r"waited (\d+\.\d) s", found.stderr)]
    assert found.code == 1
    assert "trained" not in found.stderr
    if guarded:
        assert len(waited) == 4
        assert max(waited) < 5
        assert "'batches' is not the same on all ranks; rank 2 differs from most" in found.stderr
    else:
        assert max(waited) >= 8  # the limit of its process group
        assert [row["cause"] for row in found.report["launch"]["causes"]][:1] == [
            "rank_desync_control_flow"
        ]
        assert found.report["launch"]["causes"][0]["culprit"] == "rank 2 on n2"


# ---------------------------------------------------------------- ends


@pytest.mark.torch
def test_the_code_of_a_rank_under_torchrun_is_told(lab: Lab) -> None:
    found = launch(lab, "--", ENDS, "exit", "3")
    assert (found.code, culprits(found)) == (1, [("rank", ["n2"], 3)])
    (culprit,) = found.report["launch"]["culprits"]
    assert culprit["cause"] == "rank 3 on n2 ended with exit code 3"
    assert culprit["evidence"] == ["one", "two", "rank 3 has had enough"]
    rows = found.report["launch"]["ranks"]
    assert [(row["ended"], row["code"]) for row in rows] == [("with-others", None)] * 3 + [
        ("failed", 3)
    ]
    assert (
        f"{ENDS} FAILED" in found.stderr
    )  # torchrun's summary names the user's program and nothing of ours


@pytest.mark.torch
def test_a_rank_that_is_killed_ends_all(lab: Lab) -> None:
    found = launch(lab, "--fold", "--", ENDS, "kill", "1")
    assert (found.code, culprits(found)) == (1, [("rank", ["n1"], 1)])
    assert found.report["launch"]["ranks"][1]["signal"] == "SIGKILL"
    assert [(row["cause"], row["culprit"]) for row in found.report["launch"]["causes"]] == [
        ("host_oom_kill", "rank 1 on n1")
    ]
    assert "[all ranks] two\n" in found.stderr
    assert "[n1 rank 1] rank 1 has had enough\n" in found.stderr


def test_ranks_that_do_not_listen_are_gone_all_the_same(lab: Lab) -> None:
    """They ignore SIGTERM and have children in sessions of their own."""
    process = launched(lab, "--direct", "--", ENDS, "stubborn", "9")
    wait_for(all_wait(lab))
    process.send_signal(signal.SIGINT)
    found = ended(process)
    assert (found.code, found.report["verdict"]) == (130, "interrupted")
    assert "all processes on n1, n2 were ended" in found.stderr
    assert all(host.processes("time.sleep(600)") == [] for host in lab.hosts)


@pytest.mark.slow
@pytest.mark.torch
def test_ctrl_c_reaches_ranks_under_torchrun(lab: Lab) -> None:
    process = launched(lab, "--", ENDS, "wait", "9")
    wait_for(all_wait(lab))
    process.send_signal(signal.SIGINT)
    found = ended(process)
    assert found.code == 130
    assert "SignalException" not in found.stderr  # what torchrun says of being ended is in its log


def test_ranks_run_as_the_jobs_user(lab: Lab) -> None:
    """Their streams come home too, though the agent is root's."""
    with contextlib.ExitStack() as users:
        for host in lab.hosts:
            users.enter_context(faults.add_user(host, "trainer"))
        settings = {"job_user": "trainer"}
        found = launch(
            lab, "--chdir", "/home/trainer", "--", "/usr/bin/id", "-un", inventory=settings
        )
    assert (found.code, how(found)) == (0, ["finished"] * 4), found.failed()
    assert [f"[n{rank // 2 + 1} rank {rank}] trainer\n" in found.stderr for rank in range(4)] == [
        True
    ] * 4
    assert found.report["launch"]["folders"] == {"n1": "/home/trainer", "n2": "/home/trainer"}


@pytest.mark.parametrize(
    ("what", "words"),
    [("hang", "programs/ends.py line "), pytest.param("stop", "SIGSTOP", marks=pytest.mark.slow)],
)
def test_at_the_limit_the_rank_that_others_wait_for_is_named(
    lab: Lab, what: str, words: str
) -> None:
    found = launch(lab, "--direct", "--timeout", "5", "--", ENDS, what, "2")
    assert (found.code, culprits(found), how(found)) == (3, [("rank", ["n2"], 2)], ["hanging"] * 4)
    assert words in found.report["launch"]["culprits"][0]["cause"]


def test_a_node_that_disappears_is_named(lab: Lab) -> None:
    process = launched(lab, "--direct", "--", ENDS, "wait", "9")
    wait_for(all_wait(lab))
    with contextlib.ExitStack() as stack:
        stack.enter_context(faults.link_down(lab.host("n2")))
        found = ended(process)
        # Its processes end by themselves.
        wait_for(lambda: not processes(lab.host("n2")), 60)
    assert (found.code, culprits(found)) == (1, [("node", ["n2"], None)])
    assert how(found) == ["with-others"] * 2 + ["lost"] * 2


def test_a_controller_that_is_killed_leaves_nothing(lab: Lab) -> None:
    process = launched(lab, "--direct", "--", ENDS, "wait", "9")
    wait_for(all_wait(lab))
    process.kill()
    process.communicate()
    wait_for(lambda: not any(processes(host) for host in lab.hosts), 60)


# ---------------------------------------------------------------- before the start


def test_what_is_in_the_way_is_told_and_nothing_starts(lab: Lab) -> None:
    with faults.drop_port(lab.host("n1"), 29500):
        found = launch(lab, "--", ENDS, "finish", "0")
    assert (found.code, found.report["launch"]["verdict"]) == (1, "fail")
    assert found.report["launch"]["message"] == "no process was started: net.ports"
    assert found.report["launch"]["ranks"] == []


def test_a_script_that_all_nodes_lack_is_told_and_makes_no_rank_guilty(lab: Lab) -> None:
    found = launch(lab, "--direct", "--", "no_such_train.py")
    told = found.report["launch"]
    assert (found.code, told["verdict"], told["culprits"]) == (1, "fail", [])
    assert told["message"].startswith("no process was started: no_such_train.py does not exist in")
    assert told["message"].endswith("on n[1-2]")


def test_a_folder_that_a_node_lacks_is_told(lab: Lab) -> None:
    lab.host("n1").run(["mkdir", "/opt/only-here"])
    try:
        found = launch(
            lab, "--no-preflight", "--direct", "--chdir", "/opt/only-here", "--", ENDS, "wait", "0"
        )
        assert (found.code, culprits(found)) == (1, [("node", ["n2"], None)])
        assert "cannot enter /opt/only-here" in found.report["launch"]["culprits"][0]["cause"]
    finally:
        lab.host("n1").run(["rmdir", "/opt/only-here"])


def test_nodes_that_would_start_different_numbers_are_told(lab: Lab) -> None:
    nodes = [
        {"name": h.name, "address": h.address, "nproc_per_node": n}
        for h, n in zip(lab.hosts, (2, 4), strict=True)
    ]
    found = launch(
        lab, "--", ENDS, "finish", "0", inventory={"nodes": nodes, "nproc_per_node": None}
    )
    assert (found.code, culprits(found)) == (1, [("node", ["n1", "n2"], None)])
    assert found.report["launch"]["culprits"][0]["cause"].endswith("2 on n1; 4 on n2")


# ---------------------------------------------------------------- as text


def printed(lab: Lab, form: str, *words: str) -> str:
    argv = [*CLI, "launch", str(lab.inventory(nproc_per_node=2)), "--print", form, "--", *words]
    done = lab.controller.run(argv, timeout=60)
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_the_printed_lines_are_what_launch_starts(lab: Lab) -> None:
    """Each line, typed on its node, and the ranks meet."""
    lines = [
        line
        for line in printed(lab, "torchrun", ENDS, "finish", "9").splitlines()
        if line[:1] not in ("", "#")
    ]
    started = [
        host.popen(["sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for host, line in zip(lab.hosts, lines, strict=True)
    ]
    said = [process.communicate(timeout=60)[0] for process in started]
    for host in lab.hosts:
        # What torchrun leaves unless it is told not to.
        host.run(["sh", "-c", "rm -r /tmp/torchelastic_*"])
    assert [process.returncode for process in started] == [0, 0], said
    # Whole lines: torch may warn of the network, a word that has «two» in it.
    assert [text.splitlines().count("two") for text in said] == [2, 2]


def test_a_script_for_slurm_and_a_hostfile(lab: Lab) -> None:
    script = printed(lab, "sbatch", ENDS, "finish", "9")
    done = subprocess.run(["bash", "-n"], input=script, text=True, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --nodes=2\n#SBATCH --nodelist=n[1-2]\n" in script
    assert printed(lab, "hostfile", ENDS) == "# n1\n10.77.0.2 slots=2\n# n2\n10.77.0.3 slots=2\n"
    assert sys.executable in script
