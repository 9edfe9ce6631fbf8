"""Packets that something drops, and ports that somebody else has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight

_BETTER = frozenset(
    {
        "virtual_interface_selected",
        "container_bridge_network",
        "loopback_hostname_resolution",
        "socket_ifname_not_found",
        "world_size_mismatch",
        "rank_gpu_oom",
        "host_oom_kill",
        "port_in_use",
        "hostname_unresolvable",
        "ipv6_ipv4_mismatch",
        "rendezvous_misconfigured",
    }
)

_UNREACHED = re.compile(
    r"client socket has timed out after \d+ ?m?s while trying to connect to (?:\((?P<peer>[^,]+), ?\d+\)|"
    r"(?P<plain>[\w.-]+):\d+)"
    r"|connect\(\) timed out\. Original timeout",
    re.IGNORECASE,
)


_RETRY = re.compile(
    r"call to connect (?:to (?P<peer>[\w.:%-]+)<\d+> )?(?:returned|failed|timeout)\W+(?:with )?"
    r"(?P<how>Connection timed out|No route|Connection refused)|returned (?P<other>Connection refused), retrying",
    re.IGNORECASE,
)
_OWN = re.compile(r"localhost|127\.0\.0\.1|::1", re.IGNORECASE)


def unreached(log: LogFile) -> Iterator[Evidence]:
    """Connections that were tried again, unless they came about; and a store that never answered.

    A store that others had reached and lost has ended, which no filter does.
    """
    ready = {line.host: line.order for line in log.saying("init complete")}
    for line in log.saying("call to connect", "retrying"):
        found = _RETRY.search(line.said)
        if found and ready.get(line.host, -1) < line.order:
            refused = "refused" in (found["how"] or found["other"]).lower()
            blamed = (("peer", found["peer"]),) if found["peer"] else ()
            yield Evidence(
                "firewall_blocked_port", line, Weight.SYMPTOM if refused else Weight.LIKELY, blamed
            )
    if log.saying("got 0 bytes"):
        return
    for line in log.saying("client socket has timed out", "connect() timed out"):
        if found := _UNREACHED.search(line.said):
            peer = found["peer"] or found["plain"]
            if peer and _OWN.fullmatch(peer):
                note = "the store was to be on this very host, and nobody opened it"
                yield Evidence("rendezvous_incomplete", line, Weight.LIKELY, note=note)
                continue
            yield Evidence(
                "firewall_blocked_port", line, Weight.SYMPTOM, (("peer", peer),) if peer else ()
            )


FIREWALL = Cause(
    "firewall_blocked_port",
    "fatal",
    "A port is filtered",
    "A host is there and its port does not answer: a packet filter or a security group stands between.",
    "«No route to host» or «Connection timed out» on connect to a host that can be pinged, from NCCL, gloo or c10d.",
    "«Connection refused» comes from a host whose program has ended or has not begun; an address of docker or loopback "
    "means the wrong interface.",
    "clusterprep check INVENTORY --only net.   # open the ephemeral ports (net.ipv4.ip_local_port_range) between the "
    "nodes",
    "net.ports",
    signs=(
        Sign(
            "connect",
            r"connect(?:ing)?(?: to)? \[?(?P<peer>[\w.:%-]+?)\]?(?:<|\]?:)\d+>? (?:returned|failed).{0,24}?"
            r"(?:timed out|no route to host)(?!.*invalid argument)",
            "n4:51:52 [1] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.9.0.7<41001> returned 113(No "
            "route "
            "to host) errno 115(Operation now in progress)",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connection abort",
            r"connect(?:ing)? to (?P<peer>[\w.:%-]+?)<\d+> (?:returned|failed).{0,24}?Software caused connection abort",
            "n4:51:52 [1] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.9.0.7<41001> failed : "
            "Software caused connection abort",
            Weight.LIKELY,
            "peer {peer}",
            note="NCCL up to 2.23 says this where a port refused or did not answer and it tried again",
        ),
        Sign(
            "exceeded error retry count",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> returned (?!Connection refused)[^,]+, exceeded error retry count",
            "n4:51:52 [1] os/linux.cc:288 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> returned Connection "
            "timed out, exceeded error retry count after 35 attempts",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "errno: 11",
            r"failed to connect to \[?(?P<peer>[\w.:%-]+?)\]?:\d+ \(errno: (?:113|110) ",
            "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 113 - No route to "
            "host).",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connect",
            r"connect \[(?P<peer>[\w.:%-]+)\]:\d+: (?:Connection timed out|No route to host)|connect timeout "
            r"\[(?P<other>[\w.:]+)\]",
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] timed out connecting: "
            "connect [10.9.0.7]:40100: Connection timed out",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connectfullmesh failed",
            r"connectFullMesh failed with (?!.*connection (?:closed|reset))",
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
            Weight.SYMPTOM,
        ),
        Sign(
            "dpt=",
            r"\b(?:UFW BLOCK|nft|iptables|DROP|REJECT|DENY)\S*.*\bSRC=(?P<peer>[\d.]+).*\bDPT=\d+",
            "[ 1234.567890] [UFW BLOCK] IN=eth0 OUT= SRC=10.9.0.7 DST=10.9.0.1 LEN=60 PROTO=TCP SPT=51000 DPT=41001 "
            "SYN",
            culprit="peer {peer}",
        ),
        Sign(
            "any network address",
            r"client socket has failed to connect to any network address of \((?P<peer>[^,]+), ?\w+\)",
            "RuntimeError: The client socket has failed to connect to any network address of (10.9.0.1, 29500).",
            Weight.SYMPTOM,
        ),
        Sign(
            "so_error",
            r"remote=\[(?P<peer>[\w.:]+)\]:\S*?,? error=SO_ERROR: (?:No route to host|Connection timed out)",
            "ERROR failed to connect, willRetry=1, retry=1, retryLimit=3, rank=2, size=4, local=[10.9.0.3]:1, "
            "remote=[10.9.0.2]:2$2, error=SO_ERROR: No route to host, remote=[10.9.0.2]:2",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "no route to host",
            r"no route to host",
            "OSError: [Errno 113] No route to host",
            Weight.LIKELY,
        ),
        Sign(
            "connection timed out",
            r"^(?!.*ibv_).*(?:\w+Error\b|errno \d|NCCL|gloo).*connection timed out",
            "TimeoutError: [Errno 110] Connection timed out",
            Weight.SYMPTOM,
        ),
        Sign(
            "exceeded error retry count",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> returned Connection refused, exceeded error retry count",
            "n4:51:52 [1] os/linux.cc:288 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> returned Connection "
            "refused, exceeded error retry count after 35 attempts",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "refused",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> failed : Connection refused",
            "n4:51:52 [1] include/socket.h:395 NCCL WARN Net : Connect to 10.9.0.7<41001> failed : Connection refused",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "failed : ",
            r"connect to (?P<peer>[\d.]+)<\d+> failed : (?:Network is unreachable|Permission denied|Operation not "
            r"permitted)",
            "n4:51:52 [1] os/linux.cc:302 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> failed : Network is "
            "unreachable",
            Weight.LIKELY,
            "peer {peer}",
        ),
    ),
    look=unreached,
    needles=(
        "call to connect",
        "retrying",
        "init complete",
        "client socket has timed out",
        "connect() timed out",
        "got 0 bytes",
    ),
    yields_to=_BETTER,
)
PORT = Cause(
    "port_in_use",
    "fatal",
    "The port is taken",
    "The port for the rendezvous belongs to another process.",
    "EADDRINUSE, «Address already in use» or errno 98 when the store or the rendezvous begins to listen.",
    "The same for NCCL's monitoring port 28028 (RAS) is harmless.",
    "ss -ltnp 'sport = :PORT'   # end what is left of an older job, or give this one another --master-port",
    "net.ports",
    signs=(
        Sign(
            "address already in use",
            r"^(?!.*\bRAS\b).*?(?::|port: ?)(?P<port>\d{2,5})\b.{0,80}?address already in use",
            "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29555 (errno: 98 - Address already "
            "in use).",
            culprit="port {port}",
        ),
        Sign(
            "eaddrinuse",
            r"port: ?(?P<port>\d+).{0,120}EADDRINUSE",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: "
            "29555, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            culprit="port {port}",
        ),
        Sign(
            "eaddrinuse",
            r"EADDRINUSE(?:.{0,80}:(?P<port>\d{4,5})\b)?",
            "RuntimeError: listen failed: EADDRINUSE 0.0.0.0:29555",
            culprit="port {port}",
        ),
        Sign(
            "already ",
            r"\bport[ :=]*(?P<port>\d{2,5}) is already (?:in use|allocated|occupied)",
            "RuntimeError: port 29555 is already in use",
            culprit="port {port}",
        ),
        Sign(
            "already in use",
            r"^(?!.*\bRAS\b).*address already in use",
            "RuntimeError: Address already in use",
        ),
    ),
)
