"""What happens to the jobs whose logs are recorded, one function per play."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.jobs.diagnose.stage import SCRIPT, Stage
from tests.support.lab import faults, processes
from tests.support.lab.faults import machine_pids
from tests.support.lab.layout import HOST_ENVIRONMENT
from tests.support.real_nccl import RELEASES, library

ABSENT = "10.77.0.99"
REJECT, DATA = "reject with icmpx admin-prohibited", "1024-29399, 29501-65535"
Scenario = Callable[[Stage, ExitStack], None]


@dataclass(frozen=True)
class Play:
    name: str
    job: str
    act: Scenario
    after: Callable[[Stage], None] | None = None  # what is fetched when it is over


def both(stage: Stage, undo: ExitStack, flags: tuple[str, ...] = (), **env: str) -> None:
    stage.static("n1", "n2", flags=flags, env=env)


def both_elastic(stage: Stage, undo: ExitStack, **env: str) -> None:
    stage.elastic("n1", "n2", env=env)


def hit_in_step(
    stage: Stage, undo: ExitStack, host: str, local: int, signum: str, flags: tuple[str, ...] = ()
) -> None:
    """A signal to one rank when all have done some steps."""
    both(stage, undo, flags, LIMIT="10")
    if "--redirects" in flags:
        time.sleep(8)  # nothing is said where we could see it
    else:
        stage.wait_for(host, "step 5")
    stage.signal(host, stage.rank(host, local), signum)


def hit_before_init(stage: Stage, undo: ExitStack) -> None:
    stage.static("n1", "n2", env={"LOAD3": "40", "LIMIT": "12"})
    stage.wait_for("n2", "[rank 3] loading")
    time.sleep(4)
    stage.signal("n2", stage.rank("n2", 1), "KILL")


def hit_in_rendezvous(stage: Stage, undo: ExitStack) -> None:
    """Rank 0 dies while the others wait in init_process_group, in the store that it serves."""
    for number, name in enumerate(("n1", "n2")):
        for local in (0, 1):
            rank = 2 * number + local
            env = _environment(stage, rank, 4, "n1") | {
                "LOCAL_RANK": str(local),
                "LOAD3": "60",
                "LIMIT": "30",
            }
            stage.plain(name, env, f"rank{rank}")
    stage.wait_for("rank2", "loading")
    time.sleep(8)
    stage.signal("n1", stage.host("n1").processes("train.py")[0], "KILL")


def hit_agent(stage: Stage, undo: ExitStack, signum: str) -> None:
    stage.elastic("n1", "n2")
    stage.wait_for("n2", "step 4")
    stage.signal("n2", stage.agent("n2"), signum)


def _environment(
    stage: Stage, rank: int, world: int, master: str, port: int = 29500
) -> dict[str, str]:
    address = stage.host(master).address
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def port_taken(stage: Stage, undo: ExitStack) -> None:
    undo.enter_context(faults.occupy(stage.host("n1"), 29500))
    stage.plain("n1", _environment(stage, 0, 2, "n1") | {"LIMIT": "12"}, "rank0")
    stage.plain("n2", _environment(stage, 1, 2, "n1") | {"LIMIT": "12"}, "rank1")


def endpoint_taken(stage: Stage, undo: ExitStack) -> None:
    undo.enter_context(faults.occupy(stage.host("n1"), 29400))
    stage.elastic("n1", "n2")


def static_port_taken(stage: Stage, undo: ExitStack) -> None:
    undo.enter_context(faults.occupy(stage.host("n1"), 29500))
    stage.static("n1", "n2")


def master(stage: Stage, undo: ExitStack, name: str) -> None:
    """All ranks are told a master that none of them is."""
    for number, host in enumerate(("n1", "n2")):
        place = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        stage.torchrun(
            host,
            *place,
            "--master-addr",
            name,
            "--master-port",
            "29500",
            "--rdzv-conf",
            "timeout=12",
        )


def other_masters(stage: Stage, undo: ExitStack) -> None:
    """The second node is told a host on which no process serves the store."""
    for number, (host, head) in enumerate((("n1", "n1"), ("n2", "n3"))):
        env = _environment(stage, number, 2, head)
        stage.plain(host, env | {"LIMIT": "12"}, f"rank{number}")


def blocked(stage: Stage, undo: ExitStack, host: str, ports: str, act: str = "drop") -> None:
    """A firewall of this host drops or rejects what comes for these ports, but not from itself."""
    there = stage.host(host)
    rules = f'iifname "eth0" tcp dport {{ {ports} }} ct state new {act};'
    there.run(
        ["nft", "-f", "-"],
        input=f"table inet fw {{ chain i {{ type filter hook input priority 0; {rules} }}; }}\n",
    )
    undo.callback(there.run, ["nft", "delete", "table", "inet", "fw"])
    (stage.elastic if ports == "29400" else stage.static)("n1", "n2", env={"LIMIT": "12"})


def one_of_two(stage: Stage, undo: ExitStack) -> None:
    flags = [
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--nproc-per-node",
        "2",
        "--master-addr",
        stage.host("n1").address,
    ]
    stage.torchrun(
        "n1", *flags, "--master-port", "29500", "--rdzv-conf", "timeout=12", env={"LIMIT": "12"}
    )


def two_of_three(stage: Stage, undo: ExitStack) -> None:
    stage.elastic("n1", "n2", nnodes="3", join=12)


def ranks_missing(stage: Stage, undo: ExitStack) -> None:
    """Four are declared, three are started."""
    for rank, name in enumerate(("n1", "n1", "n2")):
        stage.plain(name, _environment(stage, rank, 4, "n1") | {"LIMIT": "12"}, f"rank{rank}")


def rank_too_high(stage: Stage, undo: ExitStack) -> None:
    """Ranks are counted from 1."""
    for rank, name in ((1, "n1"), (2, "n2")):
        stage.plain(name, _environment(stage, rank, 2, "n1") | {"LIMIT": "12"}, f"rank{rank}")


def worlds_differ(stage: Stage, undo: ExitStack) -> None:
    """The second node counts itself twice."""
    for rank, world, name in ((0, 2, "n1"), (1, 2, "n1"), (2, 4, "n2"), (3, 4, "n2")):
        stage.plain(name, _environment(stage, rank, world, "n1") | {"LIMIT": "12"}, f"rank{rank}")


def same_node_rank(stage: Stage, undo: ExitStack) -> None:
    for name in ("n1", "n2"):
        where = [
            "--master-addr",
            stage.host("n1").address,
            "--master-port",
            "29500",
            "--rdzv-conf",
            "timeout=12",
        ]
        stage.torchrun(
            name,
            "--nnodes",
            "2",
            "--node-rank",
            "0",
            "--nproc-per-node",
            "2",
            *where,
            env={"LIMIT": "12"},
        )


def other_ids(stage: Stage, undo: ExitStack) -> None:
    stage.join("n1", "n1", "2", "7001", 12)
    stage.join("n2", "n1", "2", "7002", 12)


def no_environment(stage: Stage, undo: ExitStack) -> None:
    stage.plain("n1", {"RANK": "0", "WORLD_SIZE": "2"}, "rank0")


def absent_interface(stage: Stage, undo: ExitStack) -> None:
    for number, name in enumerate(("n1", "n2")):
        flags = [
            "--nnodes",
            "2",
            "--node-rank",
            str(number),
            "--nproc-per-node",
            "2",
            "--master-port",
            "29500",
        ]
        card = "eth0" if name == "n1" else "ens5f0"
        env = {"GLOO_SOCKET_IFNAME": card, "LIMIT": "12"}
        stage.torchrun(name, *flags, "--master-addr", stage.host("n1").address, env=env)


def loopback(stage: Stage, undo: ExitStack) -> None:
    for host in stage.lab.hosts[:2]:
        undo.enter_context(faults.loopback_name(host))
    stage.static("n1", "n2", env={"LIMIT": "12"})


def few_files(stage: Stage, undo: ExitStack) -> None:
    stage.static("n1", "n2", before=["ulimit -n 256"])


def tiny_shm(stage: Stage, undo: ExitStack) -> None:
    undo.enter_context(faults.tmpfs(stage.host("n2"), "/dev/shm", "mode=1777,size=16m"))
    stage.static("n1", "n2")


def out_of_memory(stage: Stage, undo: ExitStack) -> None:
    """A limit for the second host's job; the kernel says what it did about it."""
    group = Path("/sys/fs/cgroup/memory/lab-job")
    group.mkdir(exist_ok=True)
    undo.callback(group.rmdir)
    undo.callback(stage.end)  # before that, as a group with processes in it stays
    (group / "memory.limit_in_bytes").write_text(str(1200 << 20))
    before = set(machine_pids(stage.host("n2")))
    stage.static("n1", "n2")
    time.sleep(1)
    for pid in set(machine_pids(stage.host("n2"))) - before:
        (group / "cgroup.procs").write_text(str(pid))


def kernel_log(stage: Stage) -> None:
    said = processes.run(
        ["dmesg"], timeout=10, check=True, env=HOST_ENVIRONMENT
    ).stdout.splitlines()
    found = [i for i, line in enumerate(said) if "invoked oom-killer" in line]
    lines = said[found[-1] :][:110] if found else []
    (stage.folder / "dmesg.log").write_text("\n".join([*lines, ""]))


def files_of_ranks(stage: Stage) -> None:
    for name in ("n1", "n2"):
        for local in (0, 1):
            for stream in ("stdout", "stderr"):
                stage.fetch(
                    name, f"/tmp/logs/*/attempt_0/{local}/{stream}.log", f"{name}.{local}.{stream}"
                )
        stage.host(name).run(["rm", "-rf", "/tmp/logs"])


def nccl(
    stage: Stage,
    undo: ExitStack,
    release: str,
    *words: str,
    before: tuple[str, ...] = (),
    **env: str,
) -> None:
    """NCCL itself, of this release, on the first host."""
    argv = [*before, sys.executable, SCRIPT, str(library(release)), *words]
    stage.command("n1", argv, {"NCCL_DEBUG": "INFO"} | env)


def unresolved(stage: Stage, undo: ExitStack, release: str) -> None:
    nccl(stage, undo, release, NCCL_COMM_ID="head-node.cluster.internal:29501")


FILES = ("--log-dir", "/tmp/logs", "--redirects", "3")
TEED = ("--log-dir", "/tmp/logs", "--tee", "3")
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
PLAYS = (
    Play("healthy", "train", partial(both, STEPS="6", REST="0")),
    Play(
        "healthy-elastic-info",
        "train",
        partial(
            both_elastic,
            STEPS="4",
            REST="0",
            TORCH_DISTRIBUTED_DEBUG="INFO",
            TORCH_CPP_LOG_LEVEL="INFO",
        ),
    ),
    Play("rank-killed", "train", partial(hit_in_step, host="n2", local=1, signum="KILL")),
    Play(
        "rank-killed-tee",
        "train",
        partial(hit_in_step, host="n1", local=1, signum="KILL", flags=TEED),
    ),
    Play(
        "rank-killed-files",
        "train",
        partial(hit_in_step, host="n2", local=0, signum="KILL", flags=FILES),
        files_of_ranks,
    ),
    Play("rank-killed-at-start", "train", hit_before_init),
    Play("rank-killed-in-rendezvous", "train", hit_in_rendezvous),
    Play("rank-terminated", "train", partial(hit_in_step, host="n2", local=0, signum="TERM")),
    Play("rank-stopped", "train", partial(hit_in_step, host="n1", local=1, signum="STOP")),
    Play("agent-terminated", "train", partial(hit_agent, signum="TERM")),
    Play("agent-hung-up", "train", partial(hit_agent, signum="HUP")),
    Play("port-taken", "train", port_taken),
    Play("port-taken-static", "train", static_port_taken),
    Play("endpoint-taken", "train", endpoint_taken),
    Play("master-unserved", "train", partial(master, name=ABSENT)),
    Play("master-unresolvable", "train", partial(master, name="head-node.cluster.internal")),
    Play("master-refused", "train", other_masters),
    Play("store-port-dropped", "train", partial(blocked, host="n1", ports="29500")),
    Play("store-port-rejected", "train", partial(blocked, host="n1", ports="29500", act=REJECT)),
    Play("endpoint-dropped", "train", partial(blocked, host="n1", ports="29400")),
    Play("data-ports-dropped", "train", partial(blocked, host="n1", ports=DATA)),
    Play("data-ports-rejected", "train", partial(blocked, host="n1", ports=DATA, act=REJECT)),
    Play("node-never-came", "train", one_of_two),
    Play("node-never-came-elastic", "train", two_of_three),
    Play("ranks-missing", "train", ranks_missing),
    Play("rank-too-high", "train", rank_too_high),
    Play("worlds-differ", "train", worlds_differ),
    Play("same-node-rank", "train", same_node_rank),
    Play("other-rdzv-ids", "train", other_ids),
    Play("no-environment", "train", no_environment),
    Play("absent-interface", "train", absent_interface),
    Play("loopback-name", "train", loopback),
    Play("uneven-data", "uneven", both),
    Play("uneven-data-leaves", "leaves", both),
    Play("other-collective-detail", "branch", partial(both, **DETAIL)),
    Play("other-collective", "branch", both),
    Play("other-shape-detail", "shapes", partial(both, **DETAIL)),
    Play("other-shape", "shapes", both),
    Play("slow-tokenizer", "tokenize", partial(both, flags=TEED)),
    Play("slow-checkpoint", "monitored", both),
    Play("script-broken", "broken", both),
    Play("script-crash", "crash", both_elastic),
    Play("out-of-memory", "memory", out_of_memory, kernel_log),
    Play("few-files", "shards", few_files),
    Play("tiny-shm", "workers", tiny_shm),
    Play("no-nccl", "gpus", partial(both, BACKEND="nccl")),
    Play("no-cuda", "gpus", both),
    *(
        Play(f"nccl-ifname-{r}", "nccl", partial(nccl, release=r, NCCL_SOCKET_IFNAME="ens5f0"))
        for r in RELEASES
    ),
    *(Play(f"nccl-comm-id-name-{r}", "nccl", partial(unresolved, release=r)) for r in RELEASES),
    Play(
        "nccl-comm-id-elsewhere",
        "nccl",
        partial(nccl, release="2.21.5", NCCL_COMM_ID="192.168.50.4:29501"),
    ),
    Play("nccl-no-network", "nccl", partial(nccl, release="2.27.5", before=("unshare", "--net"))),
    Play("nccl-no-driver", "nccl", lambda stage, undo: nccl(stage, undo, "2.32.3", "0")),
    Play("nccl-healthy", "nccl", partial(nccl, release="2.21.5")),
)
