"""Causes of connections: packets that a filter drops, and ports that are taken."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.dialled import NEEDLES, THIS_HOST, dialled
from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.remedies import shell_line

_EXPLAINED_BY = frozenset(
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

_STORE_UNREACHED = re.compile(
    r"client socket has timed out after \d+ ?m?s while trying to connect to "
    r"(?:\((?P<peer>[^,]+), ?\d+\)|(?P<plain>[\w.-]+):\d+)"
    r"|connect\(\) timed out\. Original timeout",
    re.IGNORECASE,
)
_RETRY = re.compile(
    r"call to connect (?:to (?P<peer>[\w.:%-]+)<\d+> )?(?:returned|failed|timeout)\W+(?:with )?"
    r"(?P<how>Connection timed out|No route|Connection refused)"
    r"|returned (?P<other>Connection refused), retrying",
    re.IGNORECASE,
)
_GIVEN_UP = re.compile(
    r"connect(?:ing)? to (?P<peer>[\w.:%-]+?)<\d+> .*Software caused connection abort",
    re.IGNORECASE,
)
# c10d asks a store that refuses again and again until its own limit.
_STORE_REFUSED = re.compile(r"client socket has failed to connect to .*errno: 111 ", re.IGNORECASE)
_REMOTE_HOST = re.compile(r"^\s*Remote host: +(?P<peer>[\w.:-]+)", re.IGNORECASE)
_LINES_TO_HOST = 4  # from Open MPI's complaint to the host it is about
_REFUSED = "«refused» comes from a host whose process has ended or listens elsewhere"


def detect_unreached(log: LogFile) -> Iterator[Evidence]:
    """Yield connections that were tried again and not made, and a store that never answered."""
    yield from _retries(log)
    yield from _given_up(log)
    yield from _unreached_daemons(log)
    # A store that other ranks had reached and lost has ended, which no packet filter does.
    if not log.lines_with("got 0 bytes"):
        yield from _unreached_stores(log)


def _retries(log: LogFile) -> Iterator[Evidence]:
    """Yield connections that NCCL tried again; not those before a host was ready after all."""
    ready = {line.host: line.order for line in log.lines_with("init complete")}
    for line in log.lines_with("call to connect", "retrying"):
        match = _RETRY.search(line.message)
        ready_at = ready.get(line.host, -1)
        if match is None or ready_at >= line.order:
            continue
        how = match["how"] or match["other"]
        is_refused = "refused" in how.lower()
        weight = Weight.SYMPTOM if is_refused else Weight.LIKELY
        culprits = _peer(match["peer"])
        if not culprits and line.host and not is_refused:
            culprits = (("host", line.host),)
        yield Evidence("firewall_blocked_port", line, weight, culprits)


def _unreached_daemons(log: LogFile) -> Iterator[Evidence]:
    """Yield hosts that a daemon of Open MPI could not connect to, told some lines below that."""
    complaints = log.lines_with("unable to complete a tcp connection")
    for line in log.lines_with("remote host:"):
        match = _REMOTE_HOST.search(line.message)
        if match is None:
            continue
        for complaint in complaints:
            distance = line.number - complaint.number
            if line.file == complaint.file and 0 < distance <= _LINES_TO_HOST:
                culprits = _peer(match["peer"])
                yield Evidence("firewall_blocked_port", complaint, Weight.LIKELY, culprits)


def _given_up(log: LogFile) -> Iterator[Evidence]:
    """Yield both ends of connections that NCCL gave up without saying why.

    The peer alone is not to blame, so it is named only together with the host that says so.
    """
    for line in log.lines_with("caused connection abort"):
        match = _GIVEN_UP.search(line.message)
        if match and line.host:
            yield Evidence("firewall_blocked_port", line, Weight.SYMPTOM, _peer(match["peer"]))


def _unreached_stores(log: LogFile) -> Iterator[Evidence]:
    """Yield stores that were not reached: not opened where a host refused, else filtered."""
    refusals = _refusals(log)
    for line in log.lines_with("client socket has timed out", "connect() timed out"):
        match = _STORE_UNREACHED.search(line.message)
        if match is None:
            continue
        peer = match["peer"] or match["plain"]
        if peer and THIS_HOST.fullmatch(peer):
            note = "the store was to be on this very host, and no process opened it"
            yield Evidence("rendezvous_incomplete", line, Weight.LIKELY, note=note)
        elif peer in refusals:
            refused = refusals[peer]
            note = (
                f"{peer} refused: it is there, and no process of it listens on that port, so the "
                "master has not started, has ended, or has another address or port"
            )
            yield Evidence("rendezvous_incomplete", refused, Weight.LIKELY, _peer(peer), note)
        else:
            yield Evidence("firewall_blocked_port", line, Weight.SYMPTOM, _peer(peer))


def _refusals(log: LogFile) -> dict[str, LogLine]:
    """Return stores that refused a connection, with the line that says so."""
    refusals: dict[str, LogLine] = {}
    for target in dialled(log):
        if _STORE_REFUSED.search(target.line.message):
            refusals.setdefault(target.address, target.line)
    return refusals


def _peer(name: str | None) -> Culprits:
    return (("peer", name),) if name else ()


FIREWALL = Cause(
    "firewall_blocked_port",
    "fatal",
    title="A port is filtered",
    message=(
        "A host is there and its port does not answer: a packet filter or a security group stands "
        "between."
    ),
    looks=(
        "«No route to host» or «Connection timed out» on connect to a host that can be pinged, "
        "from NCCL, gloo or c10d."
    ),
    unlike=(
        "«Connection refused» comes from a host whose program has ended or has not begun; an "
        "address of docker or loopback means the wrong interface."
    ),
    remedy=shell_line(
        "clusterprep check INVENTORY --only net.   # open the ephemeral ports "
        "(net.ipv4.ip_local_port_range) between the nodes"
    ),
    check="net.ports",
    signs=(
        Sign(
            "connect",
            r"connect(?:ing)?(?: to)? \[?(?P<peer>[\w.:%-]+?)\]?(?:<|\]?:)\d+>? (?:returned"
            r"|failed).{0,24}?(?:timed out|no route to)(?!.*invalid argument)",
            "n4:51:52 [1] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to "
            "10.9.0.7<41001> returned 113(No route to host) errno 115(Operation now in progress)",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connection abort",
            r"connect(?:ing)? to (?P<peer>[\w.:%-]+?)<\d+> (?:returned"
            r"|failed).{0,24}?Software caused connection abort",
            "n4:51:52 [1] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to "
            "10.9.0.7<41001> failed : Software caused connection abort",
            Weight.SYMPTOM,
            note=(
                "NCCL up to 2.23 says this where a port refused or did not answer "
                "and it tried again: an address that the peer does not share, a peer that has "
                "ended, or a filter"
            ),
        ),
        Sign(
            "exceeded error retry count",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> returned "
            r"(?!Connection refused)[^,]+, exceeded error retry count",
            "n4:51:52 [1] os/linux.cc:288 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> "
            "returned Connection timed out, exceeded error retry count after 35 attempts",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "errno: 11",
            r"failed to connect to \[?(?P<peer>[\w.:%-]+?)\]?:\d+ \(errno: (?:113|110) ",
            "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n1]:29500 "
            "(errno: 113 - No route to host).",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connect",
            r"connect \[(?P<peer>[\w.:%-]+)\]:\d+: (?:Connection timed out|No route to host)"
            r"|connect timeout \[(?P<other>[\w.:]+)\]",
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] "
            "timed out connecting: connect [10.9.0.7]:40100: Connection timed out",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "ssh: connect to host",
            r"ssh: connect to host (?P<peer>[\w.-]+) port \d+: (?:Connection timed out"
            r"|No route to host)",
            "ssh: connect to host n1 port 22: Connection timed out",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connect to all addresses",
            r"failed to connect to all addresses.{0,200}?ipv[46]:"
            r"(?P<peer>[\w.:\[\]%-]{1,60}?):\d+: "
            r".{0,80}?(?:Connection timed out|No route to host)",
            "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: "
            "ipv4:10.9.0.1:13305: Failed to connect to remote host: No route to host",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connectfullmesh failed",
            r"connectFullMesh failed with (?!.*connection (?:closed|reset))",
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] "
            "no error",
            Weight.SYMPTOM,
        ),
        Sign(
            "dpt=",
            r"\b(?:UFW BLOCK|nft|iptables|DROP|REJECT|DENY)\S*.*\bSRC=(?P<peer>[\d.]+).*\bDPT=\d+",
            "[ 1234.567890] [UFW BLOCK] IN=eth0 OUT= SRC=10.9.0.7 DST=10.9.0.1 LEN=60 PROTO=TCP "
            "SPT=51000 DPT=41001 SYN",
            culprit="peer {peer}",
        ),
        Sign(
            "any network address",
            r"client socket has failed to connect to any network address of \("
            r"(?P<peer>[^,]+), ?\w+\)",
            "RuntimeError: The client socket has failed to connect to any network address of "
            "(10.9.0.1, 29500).",
            Weight.SYMPTOM,
        ),
        Sign(
            "so_error",
            r"remote=\[(?P<peer>[\w.:]+)\]:\S*?,? error=SO_ERROR: (?:No route to host"
            r"|Connection timed out)",
            "ERROR failed to connect, willRetry=1, retry=1, retryLimit=3, rank=2, size=4, "
            "local=[10.9.0.3]:1, remote=[10.9.0.2]:2$2, error=SO_ERROR: No route to host, "
            "remote=[10.9.0.2]:2",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "no route to host",
            r"^(?!.*ibv_)(?:.*?\b(?:from|to) \[?(?P<peer>[\w.:%-]+?)\]?(?:<|:)\d+>?\s)?.*?"
            r"no route to host(?!.*proxy)",
            "n4:51:52 [1] misc/socket.cc:49 NCCL WARN Call to recv from 10.9.0.7<43211> failed : "
            "No route to host",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "connection timed out",
            r"^(?!.*ibv_).*(?:\wError\b|errno \d|NCCL|gloo).*connection timed out",
            "TimeoutError: [Errno 110] Connection timed out",
            Weight.SYMPTOM,
        ),
        Sign(
            "exceeded error retry count",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> returned Connection refused, exceeded error "
            r"retry count",
            "n4:51:52 [1] os/linux.cc:288 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> "
            "returned Connection refused, exceeded error retry count after 35 attempts",
            Weight.SYMPTOM,
            "peer {peer}",
            note=_REFUSED,
        ),
        Sign(
            "refused",
            r"connect to (?P<peer>[\w.:%-]+)<\d+> failed : Connection refused",
            "n4:51:52 [1] include/socket.h:395 NCCL WARN Net : Connect to 10.9.0.7<41001> failed "
            ": Connection refused",
            Weight.SYMPTOM,
            "peer {peer}",
            note=_REFUSED,
        ),
        Sign(
            "failed : ",
            r"connect to (?P<peer>[\d.]+)<\d+> failed : (?:Network is unreachable"
            r"|Permission denied|Operation not permitted)",
            "n4:51:52 [1] os/linux.cc:302 NCCL WARN socketPollConnect: connect to 10.9.0.7<41001> "
            "failed : Network is unreachable",
            Weight.LIKELY,
            "peer {peer}",
        ),
    ),
    detect=detect_unreached,
    doubt=(
        "A connection between two hosts was not made. Either a packet filter or a security group "
        "stands between, or the address is that of a network that both do not share."
    ),
    needles=(
        *NEEDLES,
        "unable to complete a tcp connection",
        "remote host:",
        "call to connect",
        "retrying",
        "init complete",
        "client socket has timed out",
        "connect() timed out",
        "got 0 bytes",
    ),
    yields_to=_EXPLAINED_BY,
)
PORT = Cause(
    "port_in_use",
    "fatal",
    title="The port is taken",
    message="The port for the rendezvous belongs to another process.",
    looks=(
        "EADDRINUSE, «Address already in use» or errno 98 when the store or the rendezvous begins "
        "to listen."
    ),
    unlike="The same for NCCL's monitoring port 28028 (RAS) is harmless.",
    remedy=shell_line(
        "ss -ltnp 'sport = :PORT'   # end what is left of an older job, "
        "or give this one another --master-port"
    ),
    check="net.ports",
    finds="a rendezvous port that is taken",
    signs=(
        Sign(
            "address already in use",
            r"^(?!.*\bRAS\b).*?(?::|<|port: ?)(?P<port>\d{2,5})\b.{0,80}?address already in use",
            "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29555 (errno: "
            "98 - Address already in use).",
            culprit="port {port} on {host}|port {port}",
        ),
        Sign(
            "errno: 98",
            r"failed to bind to \S*?:(?P<port>\d{2,5}) \(errno: 98",
            "address. The server socket has failed to bind to [::]:29555 (errno: 98 - Address",
            culprit="port {port} on {host}|port {port}",
        ),
        Sign(
            "eaddrinuse",
            r"port: ?(?P<port>\d+).{0,120}EADDRINUSE",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29555, useIpv6: false, code: -98, name: EADDRINUSE, "
            "message: address already in use",
            culprit="port {port} on {host}|port {port}",
        ),
        Sign(
            "eaddrinuse",
            r"EADDRINUSE(?:.{0,80}:(?P<port>\d{4,5})\b)?",
            "RuntimeError: listen failed: EADDRINUSE 0.0.0.0:29555",
            culprit="port {port} on {host}|port {port}",
        ),
        Sign(
            "ping failed",
            r"to host \S+:(?P<port>\d{2,5}) .*Ping failed, invalid value returned from server",
            "[c10d] TCP client failed to connect/validate to host n1:29555 - retrying (try=0, "
            "timeout=600000ms, delay=385ms): Ping failed, invalid value returned from server. "
            "Expected: 1, Got: 2",
            Weight.LIKELY,
            "port {port} on {host}|port {port}",
            note="what listens there is no store of this job",
        ),
        Sign(
            "already ",
            r"\bport[ :=]*(?P<port>\d{2,5}) is already (?:in use|allocated|occupied)",
            "RuntimeError: port 29555 is already in use",
            culprit="port {port} on {host}|port {port}",
        ),
        Sign(
            "already in use",
            r"^(?!.*\bRAS\b).*address already in use",
            "RuntimeError: Address already in use",
        ),
    ),
)
