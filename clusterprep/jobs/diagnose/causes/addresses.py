"""A name has no address, the wrong one, or one of a family that the host cannot use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, LogLine, Sign, Weight
from clusterprep.jobs.diagnose.trouble import no_connection, waits

_NO_ADDRESS = re.compile(
    r"The (?P<family>IPv[46]) network addresses of \((?P<name>[^,)]+), ?\d+\) cannot be retrieved \(gai error: "
    r"(?P<code>-?\d+)",
    re.IGNORECASE,
)
_LOOPBACK_USED = re.compile(
    r"(?:Bootstrap|NET/Socket|NET)\s*: Using (?:interface )?(?:\[0\])?lo\d*:(?P<address>127\.[\d.]+)",
    re.IGNORECASE,
)
# A connection that was closed had been made, so there loopback led to the right place.
_LOOPBACK_DIALLED = re.compile(
    r"connect(?!ion (?:closed|reset)).{0,80}?[\[( ](?P<address>127\.0\.\d+\.\d+)[\]<:, )]|"
    r"\[?(?P<other>127\.0\.1\.1)\]?[:<,]",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    r"trying to connect to \((?:127\.0\.0\.1|localhost),|connect worker 127\.", re.IGNORECASE
)  # as it was told to
_WAS_THERE = re.compile(
    r"(?:closed|reset) by (?:remote )?peer|broken pipe", re.IGNORECASE
)  # so it was reachable
_FALLBACK = re.compile(
    r"using the loopback address as fallback|for the hostname .*defaulting to 127", re.IGNORECASE
)
_FAMILY = re.compile(
    r"\(errno: (?:97|99) - [^)]*\)|\[[0-9a-f:]*:[0-9a-f:]*\]:\d+ .*errno: 101|\(gai error: -9",
    re.IGNORECASE,
)
_NOTHING_WORKED = re.compile(
    r"failed to (?:connect to any network address|listen on any local network address)",
    re.IGNORECASE,
)


def unresolved(log: LogFile) -> Iterator[Evidence]:
    """torch asks for IPv6 first, so that once alone proves nothing as long as the job goes on."""
    asked = [
        (line, found)
        for line in log.saying("cannot be retrieved")
        if (found := _NO_ADDRESS.search(line.said))
    ]
    families = {found["family"].lower() for _, found in asked}
    stuck = (
        waits(log)
        or any(_NOTHING_WORKED.search(line.said) for line in log.saying("network address"))
        or _asked_to_the_end(
            log, [(line, found["name"]) for line, found in asked if found["code"] != "-9"]
        )
    )
    for line, found in asked:
        if found["code"] == "-9" and "ipv4" not in families:
            yield Evidence(
                "ipv6_ipv4_mismatch" if stuck else "benign_ipv6_fallback", line, Weight.LIKELY
            )
        elif "ipv4" in families:
            yield Evidence("hostname_unresolvable", line, Weight.PLAIN, (("name", found["name"]),))
        elif stuck:
            yield Evidence("hostname_unresolvable", line, Weight.LIKELY)
        else:
            yield Evidence("benign_ipv6_fallback", line, Weight.PLAIN)


def _asked_to_the_end(log: LogFile, asked: list[tuple[LogLine, str]]) -> bool:
    """Since 1.13 torch asks again instead of going on with IPv4, and an IPv4 address would have served for IPv6 too."""
    again = len(asked) > len({name for _, name in asked})
    return again and asked[-1][0].number == log.files.get(asked[-1][0].file)


def loopback(log: LogFile) -> Iterator[Evidence]:
    """Loopback is published or dialled, and connections fail. One host alone may well talk over it."""
    if not no_connection(log):
        return
    for line in log.saying(": using ", "as fallback", "defaulting to 127", "connect", "127.0.1.1"):
        if found := _LOOPBACK_USED.search(line.said):
            yield Evidence(
                "loopback_hostname_resolution", line, Weight.PLAIN, (("address", found["address"]),)
            )
        elif _FALLBACK.search(line.said):
            yield Evidence("loopback_hostname_resolution", line, Weight.PLAIN, _host(line.host))
        elif _LITERAL.search(line.said) or _WAS_THERE.search(line.said):
            continue
        elif found := _LOOPBACK_DIALLED.search(line.said):
            address = found["address"] or found["other"]
            weight = Weight.PLAIN if address == "127.0.1.1" else Weight.LIKELY
            yield Evidence("loopback_hostname_resolution", line, weight, (("address", address),))


def _host(name: str | None) -> tuple[tuple[str, str], ...]:
    return (("host", name),) if name else ()


def families(log: LogFile) -> Iterator[Evidence]:
    """IPv6 that does not work is harmless as long as IPv4 does."""
    nothing = any(
        _NOTHING_WORKED.search(line.said)
        for line in log.saying("network address", "cannot be initialized")
    )
    for line in log.saying("errno: ", "gai error"):
        if _FAMILY.search(line.said) and not _NO_ADDRESS.search(line.said):
            if nothing:
                yield Evidence("ipv6_ipv4_mismatch", line, Weight.LIKELY)
            else:
                yield Evidence("benign_ipv6_fallback", line, Weight.PLAIN)


LOOPBACK = Cause(
    "loopback_hostname_resolution",
    "fatal",
    "Its own name is loopback",
    "A host takes its own name, or that of the master, for 127.0.0.1 or 127.0.1.1 and gives this address to its peers.",
    "Connections to 127.0.1.1, NCCL or gloo using lo, or gloo's fall-back to loopback, and then no connection.",
    "On one host alone loopback works; a refused connection to localhost there is a port without a server.",
    'getent hosts "$(hostname)"   # take the 127.0.1.1 line out of /etc/hosts, and set GLOO_SOCKET_IFNAME',
    "name.resolve",
    look=loopback,
    needles=("address as fallback", "defaulting to 127", "connect", "timed out", "timeout"),
)
UNRESOLVED = Cause(
    "hostname_unresolvable",
    "fatal",
    "A name without an address",
    "A host name, often that of the master, cannot be resolved on this node.",
    "«Name or service not known», «Temporary failure in name resolution», or a gai error for both families, or again "
    "and again.",
    "A gai error for IPv6 alone while the job goes on is harmless: benign_ipv6_fallback.",
    "getent hosts NAME   # on every node; add it to /etc/hosts or DNS, or use the address",
    "name.resolve",
    signs=(
        Sign(
            "resolve host",
            r"could not resolve host(?:name)?:? (?P<name>[\w.-]+)",
            "ssh: Could not resolve hostname gpu-n9: Name or service not known",
            culprit="name {name}",
        ),
        Sign(
            "gaierror",
            r"socket\.gaierror: \[Errno -(?:2|3|5)\]",
            "socket.gaierror: [Errno -2] Name or service not known",
        ),
        Sign(
            "getting address info",
            r"error encountered when getting address info",
            "n1:40:41 [0] misc/socket.cc:257 NCCL WARN Net : error encountered when getting address info : Name or "
            "service not known",
        ),
        Sign(
            "system error: 10049",
            r"failed to connect to \[(?P<name>[\w.-]+)\]:\d+ \(system error: 10049",
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to [host.docker.internal]:29500 (system "
            "error: "
            "10049 - The requested address is not valid in its context.).",
            Weight.LIKELY,
            "name {name}",
        ),
        Sign(
            "connect to",
            r"connect to (?:any network address of \()?\[?(?:::ffff:)?(?P<address>0\.(?!0\.0\.0\b)\d+\.\d+\.\d+)\b",
            "[W socket.cpp:697] [c10d] The client socket has failed to connect to [::ffff:0.12.34.5]:29500 (errno: 110 "
            "- Connection timed out).",
            culprit="address {address}",
            note="a name of digits alone is read as a number, which is no address of a host",
        ),
        Sign(
            "errno: 22",
            r"failed to connect to \[?(?P<name>[\w.-]+)\]?:\d+ \(errno: 22 ",
            "[W socket.cpp:767] [c10d] The client socket has failed to connect to [n1.internal]:29500 (errno: 22 - "
            "Invalid argument).",
            Weight.LIKELY,
            "name {name}",
            note="the kernel refuses the address that the name gives",
        ),
        Sign(
            "failure in name resolution",
            r"temporary failure in name resolution",
            "RuntimeError: Temporary failure in name resolution",
        ),
        Sign(
            "name or service not known",
            r"^(?!.*network addresses of).*name or service not known",
            "RuntimeError: [gloo] getaddrinfo: Name or service not known",
            Weight.LIKELY,
        ),
    ),
    of_host=True,
    look=unresolved,
    needles=("cannot be retrieved",),
)
FAMILY = Cause(
    "ipv6_ipv4_mismatch",
    "fatal",
    "Address families that do not meet",
    "The name gives addresses of one family, and the host or its peer can only use the other.",
    "Address family errors for all addresses, and then «any network address»; or NCCL connecting to an IPv6 address "
    "that "
    "is link-local or unreachable.",
    "The same errors for IPv6 before a good IPv4 connection are harmless: benign_ipv6_fallback.",
    "NCCL_SOCKET_FAMILY=AF_INET   # and an IPv4 address in MASTER_ADDR",
    "name.resolve",
    signs=(
        Sign(
            "failed :",
            r"connect to \S*[0-9a-f]*:[0-9a-f]*:\S*<\d+> failed : (?:Invalid argument|Network is unreachable)",
            "n1:40:41 [0] os/linux.cc:302 NCCL WARN socketPollConnect: connect to fe80::1:2%eth0<40001> failed : "
            "Invalid "
            "argument",
            Weight.LIKELY,
        ),
        Sign(
            "address family",
            r"(?:RuntimeError|OSError|socket\.error).*address family (?:not supported|for "
            r"hostname not supported)",
            "OSError: [Errno 97] Address family not supported by protocol",
        ),
    ),
    look=families,
    needles=("errno: 9", "errno: 101", "gai error", "network address", "cannot be initialized"),
)
