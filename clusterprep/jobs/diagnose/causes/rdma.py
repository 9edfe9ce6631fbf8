"""InfiniBand and RoCE between hosts."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, LogLine, Sign, Weight

_GIDS = re.compile(
    r"(?:on dev (?P<dev>[\w.-]+(?::\d+)?).*?)?local ?GID(?: index \d+, "
    r"local ?GID)? ?(?P<local>[0-9a-fA-F:.]+).*?remote "
    r"GIDs? ?"
    r"(?P<remote>[0-9a-fA-F:.]+)",
    re.IGNORECASE,
)
_HCA = re.compile(r"\bhca (?P<hca>[\w.-]+)", re.IGNORECASE)
_RETRY = re.compile(
    r"ibv_modify_qp failed with (?:error )?(?:110|Connection timed out)|Got completion.*(?:error 12|"
    r"status=(?:\w+\()?12|"
    r"IBV_WC_RETRY_EXC_ERR)",
    re.IGNORECASE,
)
_MTU = re.compile(r"\bqpn \d+ mtu (?P<mtu>\d)|active_mtu:\s*\d+ \((?P<active>\d)\)", re.IGNORECASE)
_BYTES = {"1": 256, "2": 512, "3": 1024, "4": 2048, "5": 4096}
_PEER = re.compile(r"from peer (?P<peer>[\w.:%-]+?)<", re.IGNORECASE)


def unanswered(log: LogFile) -> Iterator[Evidence]:
    """Packets of a queue pair that nobody acknowledges; what the two GIDs say tells some causes apart."""
    for line in log.saying("ibv_modify_qp failed", "got completion"):
        if not _RETRY.search(line.said):
            continue
        name, weight, culprits = _told_by_gids(line)
        yield Evidence(name, line, weight, culprits)


def _told_by_gids(line: LogLine) -> tuple[str, Weight, tuple[tuple[str, str], ...]]:
    found = _GIDS.search(line.said)
    hca = (found and found["dev"]) or ((h := _HCA.search(line.said)) and h["hca"]) or None
    hca = hca and hca.partition(":")[0]
    blamed = (("HCA", hca),) if hca else ()
    if found is None:
        return "ib_fabric_unreachable", Weight.LIKELY, blamed or _peer(line)
    local, remote = _address(found["local"]), _address(found["remote"])
    if local is None or remote is None:
        return "ib_fabric_unreachable", Weight.LIKELY, blamed
    if local.version != remote.version or _useless(local) or _useless(remote):
        return "roce_gid_index", Weight.LIKELY, blamed
    if local.version == 4 and local.packed[:3] != remote.packed[:3]:
        return (
            "rail_cross_nic",
            Weight.PLAIN,
            (("HCA", f"{hca} to remote GID {found['remote']}"),) if hca else (),
        )
    return "ib_fabric_unreachable", Weight.LIKELY, blamed


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.rstrip(".,"))
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _useless(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Link-local with MAC inside (RoCE v1), or all zeroes. fe80::GUID is what InfiniBand itself has."""
    return int(address) == 0 or (address.is_link_local and address.packed[-5:-3] == b"\xff\xfe")


def _peer(line: LogLine) -> tuple[tuple[str, str], ...]:
    found = _PEER.search(line.said)
    return (("peer", found["peer"]),) if found else ()


def unequal_mtu(log: LogFile) -> Iterator[Evidence]:
    """NCCL says the path MTU of each queue pair; the ends of one job should have one."""
    seen: dict[str, list[LogLine]] = {}
    for line in log.saying(" mtu ", "active_mtu"):
        if found := _MTU.search(line.said):
            seen.setdefault(found["mtu"] or found["active"], []).append(line)
    failing = log.saying("ibv_modify_qp failed", "got completion")
    if len(seen) < 2 or not failing:
        return
    usual = Counter(
        {mtu: len({line.host for line in lines}) for mtu, lines in seen.items()}
    ).most_common(2)
    sure = usual[0][1] > usual[1][1]
    told = ", ".join(
        f"{_BYTES.get(mtu, mtu)} on {lines[0].host or lines[0].file}" for mtu, lines in seen.items()
    )
    for mtu, lines in seen.items():
        for line in lines[:4]:
            blamed = (("host", line.host),) if sure and mtu != usual[0][0] and line.host else ()
            yield Evidence("mtu_mismatch", line, Weight.PLAIN, blamed, note=told)


FABRIC = Cause(
    "ib_fabric_unreachable",
    "fatal",
    "The RDMA path is dead",
    "Packets over InfiniBand or RoCE were not answered until the retries ran out: a link, cable, switch or HCA.",
    "Completions with error 12 (retry exceeded), asynchronous port errors, «vendor err 129».",
    "With wrong GIDs it is roce_gid_index, between rails rail_cross_nic, with too little locked memory memlock_limit; "
    "a "
    "peer that died first looks the same.",
    "ibstat; rdma link; mlxlink -d DEV   # port active at both ends? then cable and switch port; RoCE: PFC and ECN",
    "ib.state",
    signs=(
        Sign(
            "async",
            r"(?:NET/IB : (?P<hca>[\w.-]+?):\d+ )?(?:async fatal event|Got async (?:error )?event ?: "
            r"(?:port error|local catastrophic|device fatal))",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 async fatal event: port error",
            culprit="HCA {hca}",
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
            "link down",
            r"mlx\d_core .*?(?P<iface>ib\w+|en\w+|eth\w+)?: link down",
            "[ 77.000000] mlx5_core 0000:3b:00.0 ib0: Link down",
            Weight.LIKELY,
        ),
        Sign(
            "port module event",
            r"port module event.*(?:unplugged|error)",
            "[ 77.000000] mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
            Weight.LIKELY,
        ),
        Sign(
            "exceeded",
            r"(?:Error on (?P<own>\w+):\d+ QP .*)?transport retry count(?:er)? exceeded(?: on (?P<hca>\w+):\d+)?",
            "[n1:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15)",
            Weight.LIKELY,
            "HCA {hca} on {host}|HCA {own} on {host}|HCA {hca}",
        ),
        Sign(
            "ibv_create_ah(",
            r"ibv_create_ah\(.*?\)(?: for .*? on (?P<hca>\w+))? failed",
            "ib_device.c:1171 UCX  ERROR ibv_create_ah(dlid=49152 port=1) for RC DEVX QP connect on mlx5_0 failed: "
            "Connection timed out",
            Weight.LIKELY,
            "HCA {hca} on {host}|HCA {hca}",
        ),
        Sign(
            "modify",
            r"UCX +ERROR +(?:ibv_modify_qp\(|mlx5dv_devx_(?:obj|qp)_modify\(|modify QP).*failed",
            "[n1:39047:0] dc_mlx5.c:456  UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Invalid argument",
            Weight.LIKELY,
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
            "n1:1:2 [0] NCCL WARN NET/IB: Got CQE with error (devIndex=1, req=0x7f, comm=0x7f (send), wr_id=1, "
            "qp_num=9)",
            Weight.LIKELY,
        ),
        Sign(
            "net/ib: fatal error",
            r"NET/IB: Fatal error\. Detected \d+ failed devices",
            "n1:1:2 [0] NCCL WARN NET/IB: Fatal error. Detected 1 failed devices",
            Weight.LIKELY,
        ),
        Sign(
            "got completion with error:",
            r"mlx\d: (?P<host>[\w.-]+): got completion with error:",
            "mlx5: n1: got completion with error:",
            Weight.LIKELY,
        ),
        Sign(
            "ibv_po",
            r"ibv_(?:post_send|post_recv|poll_cq)\(\) (?:failed|returned)",
            "n1:1:2 [0] NCCL WARN ibv_post_send() failed with error Invalid argument, Bad WR 1, First WR 1",
            Weight.LIKELY,
        ),
        Sign(
            "got completion",
            r"Got completion.*(?:error 13|status=(?:\w+\()?13|IBV_WC_RNR_RETRY_EXC_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with error 13, opcode 0, len 0, "
            "vendor err 135",
            Weight.LIKELY,
        ),
        Sign(
            "got completion",
            r"Got completion (?:from peer (?P<peer>[\w.:%-]+?)<\d+> )?with (?:error |status=(?:\w+\()?)"
            r"(?:[235678]|1[4-9]|2[0-2])\b",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with error 5, opcode 0, len 0, "
            "vendor err 249",
            Weight.SYMPTOM,
            "peer {peer}|host {host}",
            note="5 is what was under way when its queue pair had failed already",
        ),
    ),
    look=unanswered,
    needles=("ibv_modify_qp failed", "got completion"),
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
    "The wrong GID of a RoCE port",
    "A RoCE port was used with a GID that the peer cannot reach: link-local, of another RoCE version, or an empty "
    "slot.",
    "ibv_modify_qp fails with «Invalid argument», GIDs that are link-local or of different families, a GID table that "
    "changed.",
    "Good GIDs in different subnets are rail_cross_nic, in one subnet a dead path: ib_fabric_unreachable.",
    "show_gids   # leave NCCL_IB_GID_INDEX unset from NCCL 2.21 on; before it the index of RoCE v2 with the IPv4 "
    "address",
    "roce.gid",
    of_host=True,
    signs=(
        Sign(
            "ibv_modify_qp",
            r"ibv_modify_qp(?:\([^)]*\))? failed(?: with|:)? ?(?:error )?(?:\(errno )?(?:(?:22|19|61|101|113)\)? |)"
            r"(?:\(Ib failure: )?(?:Invalid argument|No data available|No "
            r"such device|"
            r"Network is unreachable|No route)(?:,? on dev (?P<hca>[\w.-]+))?",
            "n1:1:2 [0] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev "
            "mlx5_0:1",
            Weight.PLAIN,
            "HCA {hca}",
        ),
        Sign(
            "gid table change",
            r"NET/IB : (?:(?P<hca>[\w.-]+?):\d+ )?(?:Got .{0,20}async event ?: )?GID table change",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 GID table changed",
            Weight.SYMPTOM,
            "HCA {hca}",
        ),
        Sign(
            "ibv_query_gid",
            r"ibv_query_gid\w* failed",
            "n1:1:2 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_query_gid failed with error No data available",
            Weight.LIKELY,
        ),
    ),
)
RAIL = Cause(
    "rail_cross_nic",
    "fatal",
    "Rails that do not reach each other",
    "A card was to talk to a card of another rail, and the fabric has no way between rails.",
    "A queue pair between GIDs of different subnets that times out, or port numbers that differ between the ends.",
    "Within one subnet the path itself is dead: ib_fabric_unreachable.",
    "NCCL_CROSS_NIC=0   # or routes between the rails; NCCL_IB_HCA in the same order on all nodes",
    "net.rail",
)
MTU = Cause(
    "mtu_mismatch",
    "fatal",
    "Ends with different MTUs",
    "The two ends of an RDMA connection use different MTUs.",
    "Different «mtu» in NCCL's lines about queue pairs, local length errors, «Message too long».",
    "Equal MTUs and no answer are a dead path: ib_fabric_unreachable.",
    "ibv_devinfo | grep -E 'hca_id|active_mtu'   # the same on all nodes and switches; RoCE: ip link set IFACE mtu "
    "9000",
    "eth.path_mtu",
    signs=(
        Sign(
            "local access violation",
            r"(?:NET/IB : (?P<hca>[\w.-]+?):\d+ )?(?:Got )?(?:async|non-fatal).{0,20}event ?: local access violation",
            "n1:1:2 [0] NCCL WARN NET/IB : mlx5_1:1 Got async event : local access violation work queue error",
            Weight.SYMPTOM,
            "HCA {hca}|host {host}",
            note="a peer wrote where this end did not expect it; ends of different MTUs do that since NCCL 2.20",
        ),
        Sign(
            "got completion",
            r"Got completion.*(?:error 1\b|status=(?:\w+\()?1\)?[ ,(]|IBV_WC_LOC_LEN_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with status=IBV_WC_LOC_LEN_ERR(1) "
            "opcode=128",
            Weight.LIKELY,
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
            Weight.LIKELY,
        ),
    ),
    look=unequal_mtu,
    needles=(" mtu ", "active_mtu"),
)
