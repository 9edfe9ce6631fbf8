"""Causes of names: without an address, with the wrong one, or with one of an unusable family."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.dialled import kind_of
from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.jobs.diagnose.trouble import no_connection, waits
from clusterprep.remedies import shell_line

_NO_ADDRESS = re.compile(
    r"The (?P<family>IPv[46]) network addresses of \((?P<name>[^,)]+), ?\d+\) cannot be retrieved "
    r"\(gai error: (?P<code>-?\d+)",
    re.IGNORECASE,
)
_NO_ADDRESS_OF_FAMILY = "-9"  # EAI_ADDRFAMILY: the name has addresses of the other family
_LOOPBACK_USED = re.compile(
    r"(?:Bootstrap|NET/Socket|NET)\s*: Using (?:interface )?(?:\[0\])?(?P<iface>lo\d*):"
    r"(?P<address>127\.[\d.]+)",
    re.IGNORECASE,
)
# A connection that was closed had been made, so there loopback led to the right place.
_LOOPBACK_DIALLED = re.compile(
    r"connect(?!ion (?:closed|reset)).{0,80}?[\[( ](?P<address>127\.0\.\d+\.\d+)[\]<:, )]|"
    r"\[?(?P<other>127\.0\.1\.1)\]?[:<,]",
    re.IGNORECASE,
)
# Loopback was what the user asked for.
_LOOPBACK_ASKED_FOR = re.compile(
    r"trying to connect to \((?:127\.0\.0\.1|localhost),|connect worker 127\."
    r"|connect/validate to host 127\.",
    re.IGNORECASE,
)
# The peer was reachable before.
_CONNECTION_LOST = re.compile(r"(?:closed|reset) by (?:remote )?peer|broken pipe", re.IGNORECASE)
# gloo's line about a connection that failed: what the rank itself is known as.
_LOOPBACK_TOLD = re.compile(r"\brank=(?P<rank>\d+), size=\d+, local=\[127\.", re.IGNORECASE)
_UNKNOWN_NAME = re.compile(
    r"can't (?:resolve|find) '?(?P<name>[\w-][\w.-]*)'?: (?:Name does not resolve|NXDOMAIN"
    r"|No answer|Name or service)|bad address '(?P<bad>[\w-][\w.-]*)'",
    re.IGNORECASE,
)
_FAILURE = re.compile(r"Traceback \(most recent call last\)|Error\b", re.IGNORECASE)
_INVALID = re.compile(
    r"failed to connect to \[?(?P<name>[\w.-]+)\]?:\d+ \(errno: 22 ", re.IGNORECASE
)
_NO_INTERFACE = re.compile(
    r"unable to find interface for: *\[(?P<address>[\w.:%-]+)\]", re.IGNORECASE
)
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


def detect_unresolved(log: LogFile) -> Iterator[Evidence]:
    """Yield names without an address.

    torch asks for IPv6 first, so one such message proves nothing as long as the job goes on.
    """
    asked: list[tuple[LogLine, re.Match[str]]] = []
    families: set[str] = set()
    for line in log.lines_with("cannot be retrieved"):
        match = _NO_ADDRESS.search(line.message)
        if match:
            asked.append((line, match))
            families.add(match["family"].lower())
    yield from _looked_up_in_vain(log)
    yield from _without_interface(log)
    has_failed = waits(log) or _nothing_worked(log, "network address") or _ends_asking(log, asked)
    yield from _refused_by_kernel(log, has_failed=has_failed)
    for line, match in asked:
        if match["code"] == _NO_ADDRESS_OF_FAMILY and "ipv4" not in families:
            cause = "ipv6_ipv4_mismatch" if has_failed else "benign_ipv6_fallback"
            yield Evidence(cause, line, Weight.LIKELY)
        elif "ipv4" in families:
            culprits = (("name", match["name"]),)
            yield Evidence("hostname_unresolvable", line, Weight.PLAIN, culprits)
        elif match["name"].startswith("["):
            note = "the brackets around the address make it a name, and no name has them"
            culprits = (("name", match["name"]),)
            yield Evidence("hostname_unresolvable", line, Weight.PLAIN, culprits, note)
        elif has_failed:
            culprits = (("name", match["name"]),)
            yield Evidence("hostname_unresolvable", line, Weight.LIKELY, culprits)
        else:
            yield Evidence("benign_ipv6_fallback", line, Weight.PLAIN)


def _refused_by_kernel(log: LogFile, *, has_failed: bool) -> Iterator[Evidence]:
    """Yield names whose address the kernel refuses, as it does with link-local IPv6 addresses.

    torch goes on with IPv4, so this is harmless unless the log ends or fails with it.
    """
    for line in log.lines_with("errno: 22 "):
        match = _INVALID.search(line.message)
        if match is None:
            continue
        culprits: Culprits = (("name", match["name"]),)
        note = f"the kernel refuses the address that {match['name']} gives"
        is_last = line.number == log.files.get(line.file)
        if has_failed or is_last:
            weight = Weight.LIKELY if has_failed else Weight.SYMPTOM
            yield Evidence("hostname_unresolvable", line, weight, culprits, note)
        else:
            yield Evidence("benign_ipv6_fallback", line, Weight.PLAIN)


def _looked_up_in_vain(log: LogFile) -> Iterator[Evidence]:
    """Yield names that nslookup or wget did not find, if the same file fails afterwards.

    Containers wait in a loop for the name of the master, which is there some seconds later.
    """
    failed_at: dict[str, int] = {}  # by file, the last line that tells of a failure
    for line in log.lines_with("traceback (most", "error"):
        if _FAILURE.search(line.message):
            failed_at[line.file] = line.number
    for line in log.lines_with("can't resolve", "can't find", "bad address"):
        match = _UNKNOWN_NAME.search(line.message)
        if match and failed_at.get(line.file, 0) > line.number:
            culprits: Culprits = (("name", match["name"] or match["bad"]),)
            yield Evidence("hostname_unresolvable", line, Weight.LIKELY, culprits)


def _without_interface(log: LogFile) -> Iterator[Evidence]:
    """Yield addresses that gloo got for the host's own name and that no interface has."""
    for line in log.lines_with("unable to find interface"):
        match = _NO_INTERFACE.search(line.message)
        if match is None:
            continue
        address = match["address"]
        note = f"the host's own name gives {address}, which no interface of it has"
        if kind_of(address) == "number":
            note = f"the host's own name is a number and is read as the address {address}"
        culprits: Culprits = (("address", address),)
        yield Evidence("hostname_unresolvable", line, Weight.LIKELY, culprits, note)


def _nothing_worked(log: LogFile, *needles: str) -> bool:
    return any(_NOTHING_WORKED.search(line.message) for line in log.lines_with(*needles))


def _ends_asking(log: LogFile, asked: list[tuple[LogLine, re.Match[str]]]) -> bool:
    """Whether a log ends with torch asking for the address of a name again.

    Since 1.13 torch asks again instead of going on with IPv4. An IPv4 address would have been an
    answer for IPv6 too.
    """
    names: set[str] = set()
    lines: list[LogLine] = []
    for line, match in asked:
        if match["code"] != _NO_ADDRESS_OF_FAMILY:
            names.add(match["name"])
            lines.append(line)
    if len(lines) <= len(names):
        return False
    last = lines[-1]
    return last.number == log.files.get(last.file)


def detect_loopback(log: LogFile) -> Iterator[Evidence]:
    """Yield loopback addresses that are published or dialled while connections fail.

    On one host alone, processes may well talk over loopback.
    """
    if not no_connection(log):
        return
    told = list(_loopback_told(log))
    yield from told
    for line in log.lines_with(
        ": using ", "as fallback", "defaulting to 127", "connect", "127.0.1.1"
    ):
        message = line.message
        culprits: Culprits = ()
        weight = Weight.PLAIN
        if used := _LOOPBACK_USED.search(message):
            culprits = (("interface", f"{used['iface']} ({used['address']})"),)
        elif _FALLBACK.search(message):
            if line.host:
                culprits = (("host", line.host),)
        elif _LOOPBACK_ASKED_FOR.search(message) or _CONNECTION_LOST.search(message):
            continue
        elif dialled := _LOOPBACK_DIALLED.search(message):
            address = dialled["address"] or dialled["other"]
            # Which rank is known by that address says more than the address.
            culprits = () if told else (("address", address),)
            # Debian and Ubuntu write 127.0.1.1 for the host's own name into /etc/hosts.
            weight = Weight.PLAIN if address == "127.0.1.1" else Weight.LIKELY
        else:
            continue
        yield Evidence("loopback_hostname_resolution", line, weight, culprits)


def _loopback_told(log: LogFile) -> Iterator[Evidence]:
    """Yield ranks that gloo knows by a loopback address."""
    for line in log.lines_with("local=["):
        match = _LOOPBACK_TOLD.search(line.message)
        if match:
            culprits: Culprits = (("rank", match["rank"]),)
            yield Evidence("loopback_hostname_resolution", line, Weight.LIKELY, culprits)


def detect_family_mismatch(log: LogFile) -> Iterator[Evidence]:
    """Yield errors of IPv6, which are harmless as long as IPv4 works."""
    has_failed = _nothing_worked(log, "network address", "cannot be initialized")
    for line in log.lines_with("errno: ", "gai error"):
        message = line.message
        if not _FAMILY.search(message) or _NO_ADDRESS.search(message):
            continue
        if has_failed:
            yield Evidence("ipv6_ipv4_mismatch", line, Weight.LIKELY)
        else:
            yield Evidence("benign_ipv6_fallback", line, Weight.PLAIN)


LOOPBACK = Cause(
    "loopback_hostname_resolution",
    "fatal",
    title="Its own name is loopback",
    message=(
        "A host takes its own name, or that of the master, for 127.0.0.1 or 127.0.1.1 and gives "
        "this address to its peers."
    ),
    looks=(
        "Connections to 127.0.1.1, NCCL or gloo using lo, or gloo's fall-back to loopback, and "
        "then no connection."
    ),
    unlike=(
        "On one host alone loopback works; a refused connection to localhost there is a port "
        "without a server."
    ),
    remedy=shell_line(
        'getent hosts "$(hostname)"   # take the 127.0.1.1 line out of /etc/hosts, '
        "and set GLOO_SOCKET_IFNAME"
    ),
    check="name.resolve",
    doubt=(
        "Connections went to a loopback address: a host may take its own name, or that of the "
        "master, for 127.0.0.1."
    ),
    detect=detect_loopback,
    needles=(
        "address as fallback",
        "defaulting to 127",
        "connect",
        "local=[",
        "timed out",
        "timeout",
    ),
)
UNRESOLVED = Cause(
    "hostname_unresolvable",
    "fatal",
    title="A name without an address",
    message="A host name, often that of the master, cannot be resolved on this node.",
    looks=(
        "«Name or service not known», «Temporary failure in name resolution», or a gai error for "
        "both families, or again and again."
    ),
    unlike="A gai error for IPv6 alone while the job goes on is harmless: benign_ipv6_fallback.",
    remedy=shell_line(
        "getent hosts NAME   # on every node; add it to /etc/hosts or DNS, or use the address"
    ),
    check="name.resolve",
    signs=(
        Sign(
            "resolve host",
            r"could not resolve host(?:name)?:? (?P<name>[\w.-]+(?::\d+)?)",
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
            "n1:40:41 [0] misc/socket.cc:257 NCCL WARN Net : error encountered when getting "
            "address info : Name or service not known",
        ),
        Sign(
            "system error: 10049",
            r"failed to connect to \[(?P<name>[\w.-]+)\]:\d+ \(system error: 10049",
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to "
            "[host.docker.internal]:29500 (system error: 10049 - The requested address is not "
            "valid in its context.).",
            Weight.LIKELY,
            "name {name}",
        ),
        Sign(
            "hostname can't be empty",
            r"interface or hostname can't be empty",
            "RuntimeError: GlooDeviceFactory::makeUVDevice(): interface or hostname can't be empty",
            Weight.LIKELY,
            note="the host has no name, and gloo wants one or GLOO_SOCKET_IFNAME",
        ),
        Sign(
            "no such host",
            r"lookup (?P<name>[\w.-]+?)\.?(?: on [\w.:\[\]]+)?: no such host",
            "dial tcp: lookup job-master-0 on 10.96.0.10:53: no such host",
            Weight.LIKELY,
            "name {name}",
        ),
        Sign(
            "unknownhostexception",
            r"UnknownHostException: (?P<name>[\w.-]+)",
            "java.net.UnknownHostException: n1.cluster: Name or service not known",
            Weight.LIKELY,
            "name {name}",
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
    blames_host=True,
    detect=detect_unresolved,
    needles=(
        "cannot be retrieved",
        "can't resolve",
        "can't find",
        "bad address",
        "unable to find interface",
        "errno: 22 ",
        "traceback (most",
    ),
    doubt="A host name gives no address that works on this node.",
)
FAMILY = Cause(
    "ipv6_ipv4_mismatch",
    "fatal",
    title="Address families that do not meet",
    message=(
        "The name gives addresses of one family, and the host or its peer can only use the other."
    ),
    looks=(
        "Address family errors for all addresses, and then «any network address»; or NCCL "
        "connecting to an IPv6 address that is link-local or unreachable."
    ),
    unlike=(
        "The same errors for IPv6 before a good IPv4 connection are harmless: benign_ipv6_fallback."
    ),
    remedy=shell_line("NCCL_SOCKET_FAMILY=AF_INET   # and an IPv4 address in MASTER_ADDR"),
    check="name.resolve",
    signs=(
        Sign(
            "failed :",
            r"connect to \S*[0-9a-f]*:[0-9a-f]*:\S*<\d+> failed : (?:Invalid argument"
            r"|Network is unreachable)",
            "n1:40:41 [0] os/linux.cc:302 NCCL WARN socketPollConnect: connect to "
            "fe80::1:2%eth0<40001> failed : Invalid argument",
            Weight.LIKELY,
        ),
        Sign(
            "ss_family",
            r"ss_family == \w+\.ss_family\. (?P<a>\d+) vs (?P<b>\d+)",
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:276] "
            "ss1.ss_family == ss2.ss_family. 2 vs 10",
            note=(
                "gloo has an address of family {a} at one end and of {b} at the other; "
                "2 is IPv4 and 10 is IPv6"
            ),
        ),
        Sign(
            "address family",
            r"(?:RuntimeError|OSError|socket\.error).*address family (?:not supported|for "
            r"hostname not supported)",
            "OSError: [Errno 97] Address family not supported by protocol",
        ),
    ),
    detect=detect_family_mismatch,
    needles=("errno: 9", "errno: 101", "gai error", "network address", "cannot be initialized"),
)
