"""Reports worth looking at, one function per situation; the golden files carry their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterprep.model import (
    Absent,
    BisectResult,
    BisectRun,
    ChangeRow,
    CollectiveResult,
    CommandResult,
    Culprit,
    EnvValue,
    Finding,
    LaunchedRank,
    LaunchResult,
    NodeSnapshot,
    RankGpu,
    RankRow,
    Report,
    Stage,
    VerifyResult,
)
from clusterprep.remedies import shell_line

RUN = "20261121-093000-4f2a"
STARTED = "2026-11-21T09:30:00Z"
FOUR = ("n1", "n2", "n3", "n4")
PROFILE, CONF = "/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf"
WELL = (
    "ssh.reach",
    "ssh.sudo",
    "host.identity",
    "os.release",
    "kernel.version",
    "time.offset",
    "time.daemon",
    "name.resolve",
    "torch.version",
    "nccl.torch",
    "eth.mtu",
    "eth.iface_choice",
    "net.ports",
    "lim.memlock",
    "lim.nofile",
    "shm.size",
    "env.nccl_uniform",
    "env.nccl_conf",
    "env.shadow",
    "launch.nproc",
    "launch.ranks",
)
SEEN = {
    "kernel.version": "6.8.0-45-generic",
    "torch.version": "2.6.0+cu124",
    "eth.mtu": "9000",
    "lim.memlock": "unlimited",
}
DIFF = f"""--- {PROFILE} (absent)
+++ {PROFILE}
@@ -0,0 +1,3 @@
+export NCCL_SOCKET_IFNAME=eth0
+export NCCL_IB_DISABLE=1
+export NCCL_DEBUG=WARN
"""


def healthy_apply() -> Report:
    """Four nodes, everything well, the environment written and verified."""
    return report(
        "apply",
        nodes=reached(
            FOUR,
            {
                "torch": {"version": "2.6.0+cu124"},
                "gpu.count": Absent("missing_tool", "nvidia-smi"),
            },
        ),
        findings=(
            *passes(FOUR, *WELL),
            skip("pcie.link", FOUR, "at_rest"),
            skip("ib.state", FOUR, "not_applicable"),
        ),
        env=environment(FOUR),
        changes=(
            ChangeRow(FOUR, "env", PROFILE, "create", "done", DIFF),
            ChangeRow(FOUR, "env", CONF, "none", "unchanged"),
        ),
        verify=trial(FOUR),
    )


def clock_and_mtu() -> Report:
    """Sixteen nodes: one clock is off, two nodes have a small MTU, two values differ."""
    names = tuple(f"gpu{number:02}" for number in range(1, 17))
    rest = tuple(name for name in names if name not in ("gpu03", "gpu16"))
    return report(
        "check",
        verdict="fail",
        code=1,
        nodes=reached(names),
        findings=(
            *passes(names, *(check for check in WELL if check not in ("time.offset", "eth.mtu"))),
            *passes(tuple(name for name in names if name != "gpu03"), "time.offset"),
            *passes(rest, "eth.mtu"),
            Finding(
                "lim.nofile",
                "fail",
                "warning",
                rest,
                "Large jobs open one descriptor per peer and per data worker.",
                "1024",
                "≥ 65536",
                shell_line("clusterprep apply INVENTORY --playbook limits"),
            ),
            clock("gpu03", "+5.001 s ± 0.4 ms"),
            Finding(
                "eth.mtu",
                "fail",
                "error",
                ("gpu03", "gpu16"),
                "Full-size packets of the other nodes are lost here; "
                "large transfers stall, small ones pass.",
                "1500 on gpu[03,16]; 9000 on gpu[01-02,04-15]",
                "9000",
                shell_line("clush -w 'gpu[03,16]' ip link set dev eth0 mtu 9000"),
            ),
        ),
    )


def unreachable() -> Report:
    """One node gives no answer, one finding is accepted, one was cured by this run."""
    up = ("n1", "n2", "n3")
    lost = NodeSnapshot(
        "n4",
        "10.77.0.5",
        reached=False,
        reason="timed_out",
        detail="no TCP connection within 10 s",
        answered=False,
    )
    return report(
        "apply",
        verdict="unknown",
        code=3,
        notices=(
            "nothing was started: n4 was not reached (`--partial` goes on without it)",
            "limited to n[1-4] by --limit; 12 other nodes were not contacted",
        ),
        held_by=("n4",),
        nodes=(*reached(up), lost),
        findings=(
            *passes(up, *WELL[:8]),
            Finding(
                "ssh.reach",
                "unknown",
                "error",
                ("n4",),
                "10.77.0.5 port 22 did not answer within 10 s.",
                "no TCP connection",
                "",
                shell_line("ping -c1 10.77.0.5; ssh -v root@10.77.0.5 true"),
                "timed_out",
            ),
            Finding(
                "nv.pkg_hold",
                "unknown",
                "warning",
                up,
                "dpkg is not there to ask.",
                reason="missing_tool",
            ),
            Finding(
                "pcie.acs",
                "fail",
                "warning",
                ("n1", "n2"),
                "Peer traffic takes the detour over the root complex.",
                "ACS on",
                "off",
                shell_line("setpci …"),
                silenced="vendor ticket 4711",
            ),
            Finding(
                "env.nccl_conf",
                "fail",
                "error",
                up,
                "No file.",
                "absent",
                "as planned",
                shell_line("clusterprep apply"),
                fixed=True,
            ),
        ),
        env=(
            EnvValue(
                "NCCL_SOCKET_IFNAME",
                "eth0",
                ("n1", "n2"),
                "the only interface that reaches all nodes",
            ),
            EnvValue("NCCL_SOCKET_IFNAME", "ens34", ("n3",), "declared for node n3"),
        ),
        changes=(
            ChangeRow(
                up,
                "env",
                CONF,
                "create",
                "not-started",
                detail="n4 is not reached and --partial was not given",
            ),
        ),
    )


def launch_culprit() -> Report:
    """A rank of a job is killed; torchrun tells, and the kernel's word is in its log."""
    ended = ["with-others"] * 5 + ["killed", "with-others", "with-others"]
    return report(
        "launch",
        verdict="fail",
        code=1,
        seconds=731.5,
        nodes=reached(FOUR),
        findings=passes(FOUR, "ssh.reach", "torch.version", "net.ports"),
        launch=LaunchResult(
            "fail",
            "torchrun",
            8,
            2,
            "10.77.0.2:29500",
            folders=dict.fromkeys(FOUR, "/home/me/run"),
            logs="/home/me/.local/state/clusterprep/launch/20261121-093000-4f2a",
            ranks=tuple(
                LaunchedRank(
                    rank,
                    rank % 2,
                    FOUR[rank // 2],
                    how,
                    None,
                    "SIGKILL" if how == "killed" else None,
                )
                for rank, how in enumerate(ended)
            ),
            culprits=(
                Culprit(
                    "rank",
                    ("n3",),
                    0.95,
                    "rank 5 on n3 was killed by SIGKILL",
                    ("step 118", "step 119"),
                    rank=5,
                ),
            ),
            causes=(
                {
                    "cause": "host_oom_kill",
                    "severity": "fatal",
                    "confidence": 0.6,
                    "culprit": "rank 5 on n3",
                    "message": (
                        "A process was killed from outside, "
                        "as the kernel does when memory runs out."
                    ),
                    "remedy": "dmesg -T | grep -i 'out of memory'",
                },
            ),
            message="all other processes were ended",
        ),
    )


def bisect_culprits() -> Report:
    """A node with which a command fails, and two that are slow together, after ten runs."""
    ended = (
        ("failed", FOUR, "rank 2 on n3 ended with exit code 1"),
        ("passed", ("n1", "n2"), ""),
        ("failed", ("n1", "n3"), "rank 1 on n3 ended with exit code 1"),
        ("hung", ("n3", "n4"), "rank 0 on n3 hangs: it is stopped (state T)"),
        ("slow", ("n2", "n4"), ""),
    )
    return report(
        "bisect",
        verdict="fail",
        code=1,
        seconds=731.5,
        nodes=reached(FOUR),
        findings=passes(FOUR, "ssh.reach", "net.ports"),
        bisect=BisectResult(
            "fail",
            ("train.py", "--steps", "50"),
            27,
            runs=tuple(
                BisectRun(number, nodes, how, 12.5, cause)  # type: ignore[arg-type]
                for number, (how, nodes, cause) in enumerate(ended, 1)
            ),
            culprits=(
                Culprit(
                    "node",
                    ("n3",),
                    0.95,
                    "the command fails wherever n3 is among the nodes, and not without it",
                    (
                        "run 3 on n[1,3] failed after 12.5 s: rank 1 on n3 ended with exit code 1",
                        "run 2 on n[1-2] passed in 12.5 s",
                    ),
                ),
                Culprit("link", ("n2", "n4"), 0.95, "the command is slow where both run it"),
            ),
            message="there are too few nodes to tell which of them are slow",
            logs="/home/me/.local/state/clusterprep/bisect/20261121-093000-4f2a",
        ),
    )


def wrong_input() -> Report:
    """The inventory has two mistakes; nothing was contacted."""
    message = (
        'inventory.yaml:12: nodes[0].address: "10.0.0.300" is not an address '
        "(expected an address or a host name)\n"
        'inventory.yaml:20: reqiure: not a key of an inventory (did you mean "require"?)'
    )
    error = {
        "code": 2,
        "message": message,
        "file": "inventory.yaml",
        "line": 12,
        "key": "nodes[0].address",
    }
    return report("check", verdict="error", code=2, cluster="", run="", seconds=0.04, error=error)


def verify_culprit() -> Report:
    """A link drops large packets in one direction: ranks wait, the culprit is named."""
    base = trial(FOUR)
    return report(
        "verify",
        verdict="fail",
        code=1,
        seconds=64.2,
        nodes=reached(FOUR),
        findings=(
            *passes(FOUR, "torch.version", "net.ports"),
            Finding(
                "nccl.hang",
                "fail",
                "error",
                ("n2", "n3"),
                "The all-reduce of 1 MiB did not finish.",
                "4 of 8 ranks after 60 s",
                "all ranks",
                shell_line("ping -M do -s 8972 -c3 10.77.0.4"),
            ),
        ),
        verify=VerifyResult(
            "fail",
            "gloo",
            8,
            2,
            base.rendezvous,
            stages=(
                Stage("reach", 0.38, "pass", limit=10.0),
                Stage("start", 4.1, "pass", tuple(range(8)), limit=60.0),
                Stage("rendezvous", 0.21, "pass", tuple(range(8)), limit=60.0),
                Stage("first collective", 0.4, "pass", tuple(range(8)), limit=60.0),
                Stage("bandwidth", 60.0, "fail", (0, 1, 6, 7), (2, 3, 4, 5), 60.0),
            ),
            collectives=base.collectives[:2],
            ranks=tuple(
                RankRow(
                    row.rank,
                    row.local_rank,
                    row.node,
                    None,
                    "all_reduce 1 MiB" if 2 <= row.rank <= 5 else "waiting",
                )
                for row in base.ranks
            ),
            culprits=(
                Culprit(
                    "link",
                    ("n2", "n3"),
                    0.97,
                    "packets over 1500 bytes vanish on the way from n2 to n3",
                    (
                        "1 KiB passes in 0.2 ms, 1 MiB never",
                        "n3 to n2 carries 9000 bytes",
                        "n2 reaches n1 and n4 at full size",
                    ),
                    source="n2",
                    target="n3",
                ),
            ),
        ),
    )


def many_nodes() -> Report:
    """512 nodes that answer alike but for a clock, an MTU and a lost rack."""
    names = tuple(f"node{number:03}" for number in range(1, 513))
    up = tuple(name for name in names if name not in names[256:272])
    checks = [*WELL, *(f"gpu.thing_{number}" for number in range(60))]
    lost = tuple(
        NodeSnapshot(name, name, reached=False, reason="no_banner", answered=False)
        for name in names[256:272]
    )
    return report(
        "apply",
        verdict="fail",
        code=1,
        seconds=42.4,
        nodes=(*reached(up, {}), *lost),
        findings=(
            *passes(up, *(check for check in checks if check not in ("time.offset", "eth.mtu"))),
            *(clock(name, f"+5.0{number:02} s ± 0.4 ms") for number, name in enumerate(up[40:60])),
            Finding(
                "ssh.reach",
                "unknown",
                "error",
                names[256:272],
                "No SSH banner.",
                reason="no_banner",
            ),
            Finding(
                "eth.mtu",
                "fail",
                "error",
                up[7:40:3],
                "Small MTU.",
                "1500",
                "9000",
                shell_line("ip link set dev eth0 mtu 9000"),
            ),
        ),
        env=environment(up),
        changes=(
            ChangeRow(up, "env", PROFILE, "create", "done", DIFF),
            ChangeRow(up, "env", CONF, "none", "unchanged"),
        ),
        verify=trial(up, 8),
    )


def planned() -> Report:
    """What apply would write, as a diff; one file differs on one node."""
    changed = "--- a\n+++ b\n@@ -1 +1 @@\n-NCCL_IB_DISABLE=0\n+NCCL_IB_DISABLE=1\n"
    return report(
        "plan",
        nodes=reached(FOUR),
        findings=passes(FOUR, *WELL[:4]),
        env=environment(FOUR),
        changes=(
            ChangeRow(FOUR, "env", PROFILE, "create", "planned", DIFF),
            ChangeRow(("n4",), "env", CONF, "update", "planned", changed),
            ChangeRow(("n1", "n2", "n3"), "env", CONF, "none", "unchanged"),
        ),
    )


def command_failed() -> Report:
    """A command that ended well on two nodes, failed on one and was still running on one."""
    return report(
        "exec",
        verdict="fail",
        code=1,
        nodes=reached(FOUR),
        results=(
            CommandResult(FOUR[:2], 0, "6.8.0-49-generic\n", "", 0.2),
            CommandResult(FOUR[2:3], 3, "half of it\n", "no such `thing` <b>|</b>\n", 0.3),
            CommandResult(FOUR[3:], None, "", "", 9.0, "timed_out", 70_000),
        ),
    )


SITUATIONS: dict[str, Callable[[], Report]] = {
    situation.__name__: situation
    for situation in (
        healthy_apply,
        clock_and_mtu,
        unreachable,
        wrong_input,
        verify_culprit,
        launch_culprit,
        bisect_culprits,
        many_nodes,
        planned,
        command_failed,
    )
}


def report(command: str, **values: Any) -> Report:
    """A report with the values that do not matter to the situation filled in."""
    base = {
        "run": RUN,
        "cluster": "demo",
        "started": STARTED,
        "seconds": 3.2,
        "verdict": "pass",
        "code": 0,
    }
    return Report(command, **{**base, **values})


def reached(
    names: tuple[str, ...], facts: dict[str, Any] | None = None
) -> tuple[NodeSnapshot, ...]:
    """Nodes that answered."""
    return tuple(
        NodeSnapshot(name, f"10.77.0.{at + 2}", reached=True, facts=facts or {})
        for at, name in enumerate(names)
    )


def passes(names: tuple[str, ...], *checks: str) -> tuple[Finding, ...]:
    """One pass per check."""
    return tuple(
        Finding(check, "pass", "error", names, "", SEEN.get(check, "")) for check in checks
    )


def skip(check: str, names: tuple[str, ...], reason: str) -> Finding:
    """A check that was not judged."""
    return Finding(check, "skip", "warning", names, "", reason=reason)


def clock(name: str, seen: str) -> Finding:
    """A clock that is ahead."""
    words = "The clock is ahead of the other nodes; timeouts and log order cannot be trusted."
    return Finding(
        "time.offset",
        "fail",
        "error",
        (name,),
        words,
        seen,
        "≤ 50 ms",
        shell_line("ssh {name} sudo chronyc makestep", name=name),
    )


def environment(names: tuple[str, ...]) -> tuple[EnvValue, ...]:
    """What apply derives for nodes without RDMA."""
    return (
        EnvValue(
            "NCCL_SOCKET_IFNAME",
            "eth0",
            names,
            "the only interface whose network reaches all nodes",
        ),
        EnvValue("NCCL_IB_DISABLE", "1", names, "no node has an RDMA device"),
        EnvValue("NCCL_DEBUG", "WARN", names, "declared under env", declared=True),
    )


def trial(names: tuple[str, ...], per_node: int = 2) -> VerifyResult:
    """An all-reduce that went well."""
    world = per_node * len(names)
    sizes = ((8, 0.0003), (1024, 0.0002), (1 << 20, 0.0017), (64 << 20, 0.0971))
    factor = 2 * (world - 1) / world
    return VerifyResult(
        "pass",
        "gloo",
        world,
        per_node,
        "10.77.0.2:29500",
        stages=(
            Stage("start", 4.1, "pass", tuple(range(world)), limit=60.0),
            Stage("rendezvous", 0.21, "pass", tuple(range(world)), limit=60.0),
            Stage("bandwidth", 1.3, "pass", tuple(range(world)), limit=60.0),
        ),
        collectives=tuple(
            CollectiveResult(
                "all_reduce", size, time, size / time / 1e9, size / time / 1e9 * factor, 0
            )
            for size, time in sizes
        ),
        ranks=tuple(
            RankRow(
                rank,
                rank % per_node,
                names[rank // per_node],
                gpu(rank % per_node) if per_node > 4 else None,
                "finished",
            )
            for rank in range(world)
        ),
    )


def gpu(index: int) -> RankGpu:
    """The device of a rank."""
    return RankGpu(f"GPU-0000000{index}", index, f"0000:{0x17 + index:02x}:00.0", index // 4)
