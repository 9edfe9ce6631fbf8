"""Three fleets that every format shows: a healthy one, one with an odd node, a half dead one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from msgspec.structs import replace

from clusterprep.facts.pairs import Dial
from clusterprep.model import (
    Absent,
    Because,
    ChangeRow,
    CollectiveResult,
    Culprit,
    EnvPath,
    EnvValue,
    Finding,
    NodeGroup,
    NodeSnapshot,
    PairSpeed,
    RankGpu,
    RankRow,
    Report,
    Stage,
    VerifyResult,
)
from clusterprep.remedies import shell_line

from .situations import CONF, DIFF, PROFILE, WELL, clock, environment, passes, reached, report, skip

EIGHT = tuple(f"gpu{number:02}" for number in range(1, 9))
ODD = "gpu05"
SIZES = (8, 1 << 10, 1 << 20, 64 << 20, 1 << 30)
STAGES = ("start", "rendezvous", "first collective", "bandwidth", "correctness")


def healthy_fleet() -> Report:
    """Eight nodes with two GPUs each: everything is well, written and verified."""
    return report(
        "apply",
        seconds=48.2,
        nodes=_seen(),
        findings=(
            *passes(EIGHT, *WELL, "gpu.count", "ib.state", "nccl.hang", "net.tcp_bw"),
            skip("pcie.link", EIGHT, "at_rest"),
        ),
        env=(
            *environment(EIGHT),
            EnvValue(
                "NCCL_IB_HCA",
                "mlx5_0,mlx5_1",
                EIGHT,
                "active RDMA devices, one for each GPU's rail",
            ),
        ),
        env_paths=(
            EnvPath("login shell", ("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"), EIGHT),
            EnvPath("systemd", (), EIGHT, "EnvironmentFile=/etc/clusterprep/nccl.env"),
        ),
        changes=(
            ChangeRow(EIGHT[:6], "env", PROFILE, "create", "done", DIFF),
            ChangeRow(EIGHT[6:], "env", PROFILE, "none", "unchanged"),
            ChangeRow(EIGHT, "env", CONF, "none", "unchanged"),
        ),
        verify=VerifyResult(
            "pass",
            "nccl",
            16,
            2,
            "10.77.0.2:29500",
            tuple(
                Stage(
                    name, 0.5 + place, "pass", tuple(range(16)), limit=60.0, after=_after(range(16))
                )
                for place, name in enumerate(STAGES)
            ),
            _collectives(),
            _ranks(),
            pairs=_pairs(),
        ),
    )


def one_odd_node() -> Report:
    """The same fleet; one node has a small MTU and a fast clock, and the all-reduce hangs on it."""
    rest = tuple(name for name in EIGHT if name != ODD)
    late = (8, 9)
    came = tuple(rank for rank in range(16) if rank not in late)
    mtu = Finding(
        "eth.mtu",
        "fail",
        "error",
        (ODD,),
        "Full-size packets of the other nodes are lost here; "
        "large transfers stall, small ones pass.",
        "1500 on gpu05; 9000 on gpu[01-04,06-08]",
        "9000",
        shell_line("ssh gpu05 sudo ip link set dev eth0 mtu 9000"),
    )
    hang = Finding(
        "nccl.hang",
        "fail",
        "error",
        (ODD,),
        "bandwidth: all_reduce 1 MiB did not finish",
        "14 of 16 ranks after 60 s",
        "every rank finishes",
        shell_line("clusterprep check INVENTORY --limit gpu05"),
        because=(Because("eth.mtu", (ODD,)),),
    )
    return report(
        "verify",
        groups=(NodeGroup("rack1", EIGHT[:4]), NodeGroup("rack2", EIGHT[4:])),
        verdict="fail",
        code=1,
        seconds=71.9,
        nodes=_seen(slow=ODD),
        findings=(
            *passes(EIGHT, *(check for check in WELL if check not in ("time.offset", "eth.mtu"))),
            *passes(rest, "time.offset", "eth.mtu"),
            clock(ODD, "+5.001 s ± 0.4 ms"),
            mtu,
            hang,
            Finding(
                "lim.nofile",
                "fail",
                "warning",
                EIGHT[:2],
                "Few open files.",
                "1024",
                "≥ 65536",
                silenced="ticket 4711",
            ),
            Finding(
                "gpu.nvml",
                "unknown",
                "warning",
                EIGHT[6:],
                "the driver does not answer",
                reason="hung",
            ),
        ),
        verify=VerifyResult(
            "fail",
            "nccl",
            16,
            2,
            "10.77.0.2:29500",
            (
                Stage("start", 4.1, "pass", tuple(range(16)), limit=60.0, after=_after(range(16))),
                Stage(
                    "rendezvous", 0.2, "pass", tuple(range(16)), limit=60.0, after=_after(range(16))
                ),
                Stage("bandwidth", 60.0, "fail", came, late, 60.0, _after(came)),
            ),
            _collectives()[:2],
            tuple(
                replace(row, last_event="in all_reduce 1 KiB") if row.node == ODD else row
                for row in _ranks()
            ),
            (
                Culprit(
                    "node",
                    (ODD,),
                    0.93,
                    "its ranks left all_reduce 1 KiB and never entered all_reduce 1 MiB",
                    (
                        "both ranks wait in the kernel for a socket",
                        "packets over 1500 bytes vanish on the way to it",
                    ),
                ),
            ),
            "bandwidth: all_reduce 1 MiB did not finish: "
            "14 of 16 ranks had arrived, rank 8-9 on gpu05 had not",
            pairs=_pairs(slow=ODD),
        ),
    )


def half_dead() -> Report:
    """Of eight nodes four are not reached, each in its own way, so that nothing was written."""
    up, down = EIGHT[:4], EIGHT[4:]
    reasons = ("timed_out", "timed_out", "no_banner", "auth_refused")
    lost = tuple(
        NodeSnapshot(
            name,
            f"10.77.0.{6 + at}",
            reached=False,
            reason=why,
            detail=why,
            answered=why == "auth_refused",
        )
        for at, (name, why) in enumerate(zip(down, reasons, strict=True))
    )
    return report(
        "apply",
        verdict="fail",
        code=1,
        seconds=13.1,
        nodes=(*_seen()[:4], *lost),
        notices=(
            "nothing was started: gpu[05-08] were not reached (`--partial` goes on without them)",
        ),
        held_by=down,
        findings=(
            *passes(up, *WELL),
            Finding(
                "ssh.reach",
                "unknown",
                "error",
                down[:2],
                "port 22 did not answer within 10 s.",
                "no TCP connection",
                remedy=shell_line("ping -c1 10.77.0.6; ssh -v root@10.77.0.6 true"),
                reason="timed_out",
            ),
            Finding(
                "ssh.reach",
                "unknown",
                "error",
                down[2:3],
                "it accepts and says nothing",
                reason="no_banner",
            ),
            Finding(
                "ssh.reach",
                "fail",
                "error",
                down[3:],
                "none of our keys is accepted",
                "tried id_ed25519",
                "a login as root",
                shell_line("ssh-copy-id -i ~/.ssh/id_ed25519.pub root@10.77.0.9"),
                "auth_refused",
            ),
            Finding(
                "nccl.torch",
                "fail",
                "error",
                up[:1],
                "an older NCCL",
                "2.18.3",
                "2.21.5",
                shell_line("pip install -U torch"),
            ),
        ),
        env=environment(up),
        changes=(
            ChangeRow(
                up, "env", PROFILE, "create", "not-started", DIFF, "gpu[05-08] is not reached"
            ),
            ChangeRow(up, "env", CONF, "none", "unchanged"),
        ),
    )


FLEETS: dict[str, Callable[[], Report]] = {
    one.__name__: one for one in (healthy_fleet, one_odd_node, half_dead)
}


def _seen(slow: str = "") -> tuple[NodeSnapshot, ...]:
    """Nodes with a few facts, among them what they found when they dialled each other."""
    nodes = reached(
        EIGHT,
        {"torch": {"version": "2.6.0+cu124"}, "gpu.nvml": Absent("missing_tool", "no library")},
    )
    return tuple(
        replace(node, facts={**node.facts, "net.dials": _dials(node.node, slow)}) for node in nodes
    )


def _dials(dialer: str, slow: str) -> tuple[Dial, ...]:
    return tuple(
        Dial(dialer, other, "10.77.0.2", 40000, "timed_out")
        if slow in (dialer, other) and "gpu07" in (dialer, other)
        else Dial(
            dialer,
            other,
            "10.77.0.2",
            40000,
            "ok",
            0.0002 + 0.00001 * at + 0.004 * (slow == other),
            9000,
            9000,
        )
        for at, other in enumerate(EIGHT)
        if other != dialer
    )


def _pairs(slow: str = "") -> tuple[PairSpeed, ...]:
    return tuple(
        PairSpeed((a, b), "timed_out")
        if (a, b) == (slow, "gpu07")
        else PairSpeed(
            (a, b), "ok", 0.31 if slow == b else 11.2, 2.4 if slow == a else 10.9, 0.00008, 0
        )
        for a, b in itertools.combinations(EIGHT, 2)
    )


def _after(ranks: range | tuple[int, ...]) -> tuple[float, ...]:
    return tuple(round(0.004 + 0.003 * rank, 6) for rank in ranks)


def _ranks() -> tuple[RankRow, ...]:
    return tuple(
        RankRow(
            rank,
            rank % 2,
            EIGHT[rank // 2],
            RankGpu(f"GPU-{rank:08}", rank % 2, f"0000:{rank % 2}b:00.0", 0),
            "finished",
        )
        for rank in range(16)
    )


def _collectives() -> tuple[CollectiveResult, ...]:
    rates = (0.0006, 0.08, 12.5, 176.0, 341.0)
    rows = [
        CollectiveResult(op, size, size / rate / 1e9, rate, round(rate * factor, 4), 0, dtype)
        for op, dtype, factor in (("all_reduce", "float32", 1.875), ("all_reduce", "bfloat16", 1.8))
        for size, rate in zip(SIZES, rates, strict=True)
    ]
    rows += [
        CollectiveResult(op, 1 << 20, 1e-4, 10.5, 9.8, 0) for op in ("all_gather", "broadcast")
    ]
    return tuple(rows)
