"""Causes of InfiniBand and RoCE between hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.jobs.diagnose.queue_pairs import NEEDLES, detect_queue_pairs
from clusterprep.remedies import shell_line

_MTU = re.compile(r"\bqpn \d+ mtu (?P<mtu>\d)|active_mtu:\s*\d+ \((?P<active>\d)\)", re.IGNORECASE)
_BYTES = {"1": 256, "2": 512, "3": 1024, "4": 2048, "5": 4096}  # by number of enum ibv_mtu
_LINK = re.compile(
    r"(?P<card>mlx\d_core .*?(?P<iface>ib\w+|en\w+|eth\w+)?): link (?P<state>down|up)",
    re.IGNORECASE,
)
_NO_CABLE = re.compile(r"port module event.*(?:unplugged|error)", re.IGNORECASE)
_CHANGED = re.compile(
    r"NET/IB : (?:(?P<hca>[\w.-]+?):\d+ )?(?:Got .{0,20}async event ?: )?GID table change",
    re.IGNORECASE,
)
_MOST_LINES = 4  # of each MTU that are shown as evidence


def detect_fabric(log: LogFile) -> Iterator[Evidence]:
    """Yield queue pairs that fail, and events of cards that can be the reason."""
    yield from detect_queue_pairs(log)
    yield from _links(log)


def _links(log: LogFile) -> Iterator[Evidence]:
    """Yield links that went down and cables that are missing.

    By themselves they say little: links go down and up as a host starts, and ports may be unused.
    """
    fails = _rdma_fails(log)
    last_event: dict[str, tuple[str, LogLine]] = {}  # by card and interface
    for line in log.lines_with("link down", "link up"):
        match = _LINK.search(line.message)
        if match is None:
            continue
        last_event[match["card"]] = (match["state"].lower(), line)
        if fails and match["state"].lower() == "down":
            yield Evidence("ib_fabric_unreachable", line, Weight.LIKELY, _interface(match))
    if not fails:
        for state, line in last_event.values():
            match = _LINK.search(line.message)
            if match and state == "down":
                yield Evidence("ib_fabric_unreachable", line, Weight.SYMPTOM, _interface(match))
        return
    for line in log.lines_with("port module event"):
        if _NO_CABLE.search(line.message):
            yield Evidence("ib_fabric_unreachable", line, Weight.SYMPTOM)


def _interface(match: re.Match[str]) -> Culprits:
    return (("interface", match["iface"]),) if match["iface"] else ()


def detect_changed_gids(log: LogFile) -> Iterator[Evidence]:
    """Yield changes of a card's GIDs where RDMA fails too; NCCL goes on after them as a rule."""
    if not _rdma_fails(log):
        return
    for line in log.lines_with("gid table change"):
        match = _CHANGED.search(line.message)
        if match:
            culprits: Culprits = (("HCA", match["hca"]),) if match["hca"] else ()
            yield Evidence("roce_gid_index", line, Weight.SYMPTOM, culprits)


def _rdma_fails(log: LogFile) -> bool:
    return bool(log.lines_with("ibv_modify_qp", "got completion", "retry count exceeded"))


def detect_unequal_mtu(log: LogFile) -> Iterator[Evidence]:
    """Yield lines with the path MTU of queue pairs if it differs in one job and RDMA fails."""
    lines_by_mtu: dict[str, list[LogLine]] = {}
    for line in log.lines_with(" mtu ", "active_mtu"):
        match = _MTU.search(line.message)
        if match:
            mtu = match["mtu"] or match["active"]
            lines_by_mtu.setdefault(mtu, []).append(line)
    fails = log.lines_with("ibv_modify_qp failed", "got completion")
    if len(lines_by_mtu) < 2 or not fails:
        return
    usual = _usual_mtu(lines_by_mtu)
    parts: list[str] = []
    for mtu, lines in lines_by_mtu.items():
        size = _BYTES.get(mtu, mtu)
        where = lines[0].host or lines[0].file
        parts.append(f"{size} on {where}")
    note = ", ".join(parts)
    for mtu, lines in lines_by_mtu.items():
        is_unusual = usual is not None and mtu != usual
        for line in lines[:_MOST_LINES]:
            culprits: Culprits = ()
            if is_unusual and line.host:
                culprits = (("host", line.host),)
            yield Evidence(
                "mtu_mismatch",
                line,
                Weight.PLAIN,
                culprits,
                note=note,
            )


def _usual_mtu(lines_by_mtu: dict[str, list[LogLine]]) -> str | None:
    """Return the MTU that most hosts have, or None if two have equally many."""
    counts: Counter[str] = Counter()
    for mtu, lines in lines_by_mtu.items():
        hosts = {line.host for line in lines}
        counts[mtu] = len(hosts)
    (usual, most), (_, second) = counts.most_common(2)
    return usual if most > second else None


FABRIC = Cause(
    "ib_fabric_unreachable",
    "fatal",
    title="The RDMA path is dead",
    message=(
        "Packets over InfiniBand or RoCE were not answered until the retries ran out: a link, "
        "cable, switch or HCA."
    ),
    doubt=(
        "A request over InfiniBand or RoCE failed: because of the path, of a card, or of the "
        "process at its other end."
    ),
    looks="Completions with error 12 (retry exceeded), asynchronous port errors, «vendor err 129».",
    unlike=(
        "With wrong GIDs it is roce_gid_index, between rails rail_cross_nic, with too little "
        "locked memory memlock_limit; a peer that died first looks the same."
    ),
    remedy=shell_line(
        "ibstat; rdma link; mlxlink -d DEV   # port active at both ends? then cable and switch "
        "port; RoCE: PFC and ECN"
    ),
    check="ib.state",
    finds="ports that are down",
    signs=(
        Sign(
            "async",
            r"(?:NET/IB : (?P<hca>[\w.-]+?):\d+ )?(?:async fatal event: |Got async "
            r"(?:error )?event ?: (?:port error|local catastrophic|device fatal))",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 async fatal event: port error",
            culprit="HCA {hca}|host {host}",
        ),
        Sign(
            "async fatal event on",
            r"NET/IB : (?P<hca>[\w.-]+?):\d+ async fatal event on (?:QP|CQ|SRQ)",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): "
            "invalid request local work queue error",
            Weight.SYMPTOM,
            "HCA {hca} on {host}|HCA {hca}",
        ),
        Sign(
            "local access violation",
            r"event ?: local access violation",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 Got async event : local access violation work "
            "queue error",
            Weight.SYMPTOM,
            "host {host}",
            note="a peer wrote where this end did not expect it",
        ),
        Sign(
            "marked as failed",
            r"NET/IB: Device \d+ marked as failed\. Initiating recovery\? Yes",
            "n1:1:2 [0] NCCL WARN NET/IB: Device 1 marked as failed. Initiating recovery? Yes "
            "(send comm=0x7f, outstandingRecovery=1)",
            Weight.LIKELY,
            "host {host}",
            note="NCCL went on over another port, which is slower",
            severity="degraded",
        ),
        Sign(
            "marked as failed",
            r"NET/IB: Device \d+ marked as failed",
            "n1:1:2 [0] NCCL WARN NET/IB: Device 1 marked as failed. Initiating recovery? No "
            "(send comm=0x7f, outstandingRecovery=0)",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "net/ib: the error is fatal",
            r"NET/IB: The error is fatal",
            "n1:1:2 [0] NCCL WARN NET/IB: The error is fatal (no functional device). Cannot "
            "continue.",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "maximum number of probing attempts",
            r"Maximum number of probing attempts",
            "n1:1:2 [0] NCCL WARN NET/IB: Maximum number of probing attempts (3) reached for "
            "request 0x7f (id=1). Cannot post another probe.",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "non-fatal async event",
            r"NET/IB : (?P<hca>[\w.-]+?):\d+ Got non-fatal async event: "
            r"(?!GID table|SM |LID |P_?Key|client|port active)",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)",
            Weight.LIKELY,
            "HCA {hca}",
        ),
        Sign(
            "exceeded",
            r"(?:Error on (?P<own>\w+):\d+ QP .*)?transport retry count(?:er)? exceeded(?: on "
            r"(?P<hca>\w+):\d+)?",
            "[n1:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on "
            "mlx5_0:1/RoCE (synd 0x15)",
            Weight.LIKELY,
            "HCA {hca} on {host}|HCA {own} on {host}|HCA {hca}",
        ),
        Sign(
            "(synd 0x0",
            # Texts of UCX's ib_mlx5_log.c; «WR flushed» follows from another one.
            r"(?:Remote (?:access|QP|side aborted)|Invalid request|Bad response|Local (?:length"
            r"|QP operation|protection|access)|Receive-no-ready retry count exceeded) on "
            r"(?P<hca>\w+):\d+/\w+ \(synd 0x\d",
            "[n1:19546:0:19546] ib_mlx5_log.c:177  Remote access on mlx5_0:1/IB (synd 0x13 vend "
            "0x88 hw_synd 0/0)",
            Weight.SYMPTOM,
            "HCA {hca} on {host}|HCA {hca}",
        ),
        Sign(
            "ibv_create_ah(",
            r"ibv_create_ah\(.*?\)(?: for .*? on (?P<hca>\w+))? failed",
            "ib_device.c:1171 UCX  ERROR ibv_create_ah(dlid=49152 port=1) for RC DEVX QP connect "
            "on mlx5_0 failed: Connection timed out",
            Weight.LIKELY,
            "HCA {hca} on {host}|HCA {hca}",
        ),
        Sign(
            "modify",
            r"UCX +ERROR +(?:ibv_modify_qp\(|mlx5dv_devx_(?:obj|qp)_modify\(|modify QP)"
            r".*failed.*timed out",
            "[n1:39047:0] dc_mlx5.c:456  UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Connection "
            "timed out",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "modify",
            r"UCX +ERROR +(?:ibv_modify_qp\(|mlx5dv_devx_(?:obj|qp)_modify\(|modify QP).*failed",
            "[n1:39047:0] dc_mlx5.c:456  UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Invalid "
            "argument",
            Weight.SYMPTOM,
            "host {host}",
        ),
        Sign(
            "failed to modify qp",
            r"failed to modify QP (?:\S+ )?to RTR",
            "Failed to modify QP to RTR: Connection timed out",
            Weight.LIKELY,
        ),
        Sign(
            "got cqe with error",
            r"NET/IB: Got CQE with error",
            "n1:1:2 [0] NCCL WARN NET/IB: Got CQE with error (devIndex=1, req=0x7f, comm=0x7f "
            "(send), wr_id=1, qp_num=9)",
            Weight.LIKELY,
        ),
        Sign(
            "net/ib: fatal error",
            r"NET/IB: Fatal error\. Detected \d+ failed devices",
            "n1:1:2 [0] NCCL WARN NET/IB: Fatal error. Detected 1 failed devices",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "got completion with error:",
            r"mlx\d: (?P<host>[\w.-]+): got completion with error:",
            "mlx5: n1: got completion with error:",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "ibv_po",
            r"ibv_(?:post_send|post_recv|poll_cq)\(\) (?:failed|returned)",
            "n1:1:2 [0] NCCL WARN ibv_post_send() failed with error Invalid argument, Bad WR 1, "
            "First WR 1",
            Weight.LIKELY,
        ),
    ),
    detect=detect_fabric,
    needles=(*NEEDLES, "link down", "link up", "port module event"),
    yields_to=frozenset(
        {
            "memlock_limit",
            "roce_gid_index",
            "rail_cross_nic",
            "mtu_mismatch",
            "gpudirect_rdma_missing",
            "host_oom_kill",
        }
        | {"gpu_hardware_fault", "rank_gpu_oom"}
    ),
)
GID = Cause(
    "roce_gid_index",
    "fatal",
    title="The wrong GID of a RoCE port",
    message=(
        "A RoCE port was used with a GID that the peer cannot reach: link-local, of another RoCE "
        "version, or an empty slot."
    ),
    doubt=(
        "A RoCE port did not connect. The GID that it used may be one that the peer cannot reach: "
        "link-local, of another RoCE version, of an interface that is not there, or an empty slot."
    ),
    looks=(
        "ibv_modify_qp fails with «Invalid argument», GIDs that are link-local or of different "
        "families, a GID table that changed."
    ),
    unlike=(
        "Good GIDs in different subnets are rail_cross_nic, in one subnet a dead path: "
        "ib_fabric_unreachable."
    ),
    remedy=shell_line(
        "show_gids   # leave NCCL_IB_GID_INDEX unset from NCCL 2.21 on; before it the index of "
        "RoCE v2 with the IPv4 address"
    ),
    check="roce.gid",
    blames_host=True,
    signs=(
        Sign(
            "ibv_query_gid",
            r"ibv_query_gid\w* failed",
            "n1:1:2 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_query_gid failed with error No "
            "data available",
            Weight.LIKELY,
        ),
    ),
    detect=detect_changed_gids,
    needles=("gid table change",),
)
RAIL = Cause(
    "rail_cross_nic",
    "fatal",
    title="Rails that do not reach each other",
    message=(
        "A card was to talk to a card of another rail, and the fabric has no way between rails."
    ),
    looks=(
        "A queue pair between GIDs of different subnets that times out, or port numbers that "
        "differ between the ends."
    ),
    unlike="Within one subnet the path itself is dead: ib_fabric_unreachable.",
    remedy=shell_line(
        "NCCL_CROSS_NIC=0   # or routes between the rails; NCCL_IB_HCA in the same order on all "
        "nodes"
    ),
    check="net.rail",
    finds="ports at the switch of another rail",
)
MTU = Cause(
    "mtu_mismatch",
    "fatal",
    title="Ends with different MTUs",
    message="The two ends of an RDMA connection use different MTUs.",
    looks=(
        "Different «mtu» in NCCL's lines about queue pairs, local length errors, «Message too "
        "long»."
    ),
    unlike="Equal MTUs and no answer are a dead path: ib_fabric_unreachable.",
    remedy=shell_line(
        "ibv_devinfo | grep -E 'hca_id|active_mtu'   # the same on all nodes and switches; "
        "RoCE: ip link set IFACE mtu 9000"
    ),
    check="eth.path_mtu",
    finds="Ethernet paths that drop large packets",
    signs=(
        Sign(
            "got completion",
            r"Got completion(?: from peer (?P<peer>[\w.:%-]+)<\d+>)?.*"
            r"(?:error 1\b|status=(?:\w+\()?1\)?[ ,(]|IBV_WC_LOC_LEN_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with "
            "status=IBV_WC_LOC_LEN_ERR(1) opcode=128",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "mtu",
            r"(?:error|fail|mismatch|differ|WARN).*\bmtu\b|"
            r"\bmtu\b.*(?:mismatch|differ|error|fail|does not match|higher than active mtu)",
            "Requested mtu is higher than active mtu",
            Weight.LIKELY,
        ),
        Sign(
            "message too long",
            r"Message too long",
            "RuntimeError: sendmsg failed: Message too long",
            Weight.SYMPTOM,
        ),
    ),
    detect=detect_unequal_mtu,
    needles=(" mtu ", "active_mtu"),
)
