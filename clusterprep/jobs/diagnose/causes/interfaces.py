"""Causes of interfaces that NCCL or gloo takes: missing, or out of reach for the peers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.dialled import NEEDLES, dialled, kind_of
from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.jobs.diagnose.trouble import no_connection
from clusterprep.remedies import shell_line

_SET = re.compile(r"NCCL_SOCKET_IFNAME set (?:by environment )?to (?P<iface>\S+)", re.IGNORECASE)
_NONE = re.compile(
    r"no socket interface found|NET/Socket : no interface found|with family \d+ is neither",
    re.IGNORECASE,
)
_USING = re.compile(
    r"(?:Bootstrap|NET/Socket|NET)\s*: Using (?:interface )?(?P<list>.*)", re.IGNORECASE
)
_ENTRY = re.compile(
    r"(?:\[\d+\])?(?P<iface>[\w.@-]+(?::(?![0-9a-f]*:)[a-z]\w*)?):"
    r"(?P<address>\[?[0-9a-fA-F.:x*]+)(?:%[\w.-]+)?\]?<\d+>"  # addresses left out are x.x.x.x
)
_VIRTUAL = re.compile(
    r"(?:docker|veth|virbr|br-[0-9a-f]|cni|flannel|cali|tun|tap|vmnet|lxc|lxd|kube|tailscale|wg|zt"
    r"|podman|vboxnet|weave|cilium|vxlan|nerdctl|dummy|ovs|genev|azv|nodelocal|cloudbr"
    r"|ip6tnl|gre|sit\d|wwan|zerotier|utun|CloudflareWARP|warp)"
    # the name that avahi gives a link-local address of an interface
    r"|.*:avahi$",
)
_LINK_LOCAL = re.compile(r"fe80:|169\.254\.")
_SCOPED = re.compile(r"connect\S*(?: to)? \[?fe80:[0-9a-f:]+%(?P<iface>[\w.-]+)", re.IGNORECASE)
# IPv4 link-local addresses, which no router forwards.
_UNROUTED = re.compile(r"connect\S*(?: to)? \[?(?P<address>169\.254\.\d+\.\d+)", re.IGNORECASE)
_DOCKER_NETWORK = "172.17."  # of docker's own bridge, without compose
_ORDINARY_NAME = re.compile(r"eth\d+$")
_GLOO_PATTERN = re.compile(r"unable to find address for: *(?P<pattern>[\^=]\S*)", re.IGNORECASE)
# The host name that docker gives a container without a name of its own.
_CONTAINER_HOST = re.compile(r"[0-9a-f]{12}")


def detect_missing(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence that NCCL found no interface.

    If the log has the name that was set, the name is wrong. If not, there may be no interface.
    """
    yield from detect_gloos_pattern(log)
    names: dict[str | None, str] = {}  # by host
    for line in log.lines_with("nccl_socket_ifname set"):
        match = _SET.search(line.message)
        if match:
            names[line.host] = match["iface"]
    any_name = next(iter(names.values()), None)
    has_info = any(line.source == "nccl" and line.level == "INFO" for line in log.lines)
    for line in log.lines_with("interface found", "with family"):
        if not _NONE.search(line.message):
            continue
        name = names.get(line.host) or any_name
        if name:
            yield _wrong_name(line, name)
        else:
            yield from _no_name_known(line, has_info=has_info)


def _wrong_name(line: LogLine, name: str) -> Evidence:
    # A wrong address family has other reasons too.
    tells_family = line.message.lower().startswith("ncclsocketinit")
    weight = Weight.LIKELY if tells_family else Weight.PLAIN
    culprits = (("interface", name.strip("=^")),)
    return Evidence("socket_ifname_not_found", line, weight, culprits)


def _no_name_known(line: LogLine, *, has_info: bool) -> Iterator[Evidence]:
    """Without NCCL's INFO lines a name may have been set; with them there was none."""
    if not has_info:
        yield Evidence("socket_ifname_not_found", line, Weight.LIKELY)
    if "family" not in line.message.lower():
        weight = Weight.PLAIN if has_info else Weight.SYMPTOM
        yield Evidence("no_usable_ip_interface", line, weight)


def _interfaces_in_use(log: LogFile) -> Iterator[tuple[LogLine, str, str]]:
    """Yield the interfaces that NCCL says it uses: (line, name, address)."""
    for line in log.lines_with(": using "):
        match = _USING.search(line.message)
        if match is None:
            continue
        for entry in _ENTRY.finditer(match["list"]):
            address = entry["address"].lstrip("[")
            yield line, entry["iface"], address


def detect_virtual(log: LogFile) -> Iterator[Evidence]:
    """Yield virtual and link-local interfaces in use while connections fail."""
    fails = no_connection(log)
    for line, name, address in _interfaces_in_use(log):
        if not _VIRTUAL.match(name) and not _LINK_LOCAL.match(address):
            continue
        is_first = f"[0]{name}" in line.message
        if fails or is_first:
            weight = Weight.PLAIN if fails else Weight.LIKELY
            yield _virtual(line, weight, "interface", name)
    if fails:
        yield from _connections_without_route(log)
        yield from _bridges_dialled(log)


def _connections_without_route(log: LogFile) -> Iterator[Evidence]:
    """Yield connections by addresses that have a meaning on one host alone."""
    for line in log.lines_with("connect"):
        if scoped := _SCOPED.search(line.message):
            yield _virtual(line, Weight.LIKELY, "interface", scoped["iface"])
        if unrouted := _UNROUTED.search(line.message):
            yield _virtual(line, Weight.PLAIN, "peer", unrouted["address"])


def _bridges_dialled(log: LogFile) -> Iterator[Evidence]:
    """Yield addresses of docker0 and of other bridges of hosts that were dialled."""
    for target in dialled(log):
        if target.kind == "docker0":  # every host that runs docker has this very address
            name = f"docker0 ({target.address})"
            yield _virtual(target.line, Weight.PLAIN, "interface", name)
        elif target.kind == "bridge" and _is_gateway(target.address):
            yield _virtual(target.line, Weight.LIKELY, "peer", target.address)


def _virtual(line: LogLine, weight: Weight, kind: str, name: str) -> Evidence:
    return Evidence("virtual_interface_selected", line, weight, ((kind, name),))


def detect_bridged(log: LogFile) -> Iterator[Evidence]:
    """Yield ordinary interface names with addresses of container bridges while connections fail."""
    if not no_connection(log):
        return
    for line, name, address in _interfaces_in_use(log):
        if not _ORDINARY_NAME.match(name) or not _is_container_address(address):
            continue
        host = line.host or ""
        is_docker = address.startswith(_DOCKER_NETWORK) or _CONTAINER_HOST.fullmatch(host)
        weight = Weight.PLAIN if is_docker else Weight.SYMPTOM
        culprits: Culprits = (("interface", f"{name} ({address})"),)
        yield Evidence("container_bridge_network", line, weight, culprits)
    for target in dialled(log):
        if target.kind == "bridge" and not _is_gateway(target.address):
            culprits = (("peer", target.address),)
            yield Evidence("container_bridge_network", target.line, Weight.PLAIN, culprits)


def _is_container_address(address: str) -> bool:
    """Return whether a bridge gives this address to containers."""
    return kind_of(address) == "bridge" and not _is_gateway(address)


def _is_gateway(address: str) -> bool:
    """Return whether this is the address of the bridge itself, on the host."""
    return address.endswith(".1")


def detect_gloos_pattern(log: LogFile) -> Iterator[Evidence]:
    """Yield gloo's complaints of a name that is a pattern, which only NCCL understands."""
    for line in log.lines_with("unable to find address"):
        match = _GLOO_PATTERN.search(line.message)
        if match is None:
            continue
        note = (
            f"gloo was given «{match['pattern']}»: it takes names of interfaces and no patterns, "
            "unlike NCCL"
        )
        culprits: Culprits = (("variable", "GLOO_SOCKET_IFNAME"),)
        yield Evidence("socket_ifname_not_found", line, Weight.PLAIN, culprits, note)


SOCKET_IFNAME = Cause(
    "socket_ifname_not_found",
    "fatal",
    title="No interface by that name",
    message="NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME matches no interface of the host.",
    looks=(
        "NCCL says «no socket interface found» or a connect with an address family that is "
        "garbage; gloo says «Unable to find address for»."
    ),
    unlike=(
        "Where no name was set and NCCL finds nothing, the container has no interface at all: "
        "no_usable_ip_interface."
    ),
    remedy=shell_line(
        "ip -br addr   # on that host; set NCCL_SOCKET_IFNAME to a name or prefix that every node "
        "has, or unset it"
    ),
    check="nccl.iface",
    signs=(
        Sign(
            "unable to find ",
            r"unable to find (?:address|interface) for: *(?P<iface>[\w.@][\w.@^=,:-]*)",
            "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address "
            "for: eth9",
            culprit="interface {iface}",
        ),
        Sign(
            "nccl_oob_net_ifname",
            r"no device found (?:matching|after excluding) (?:exactly )?"
            r"(?P<iface>[\w.,:^=-]+?),? verify NCCL_OOB_NET_IFNAME",
            "n1:40:41 [0] bootstrap.cc:577 NCCL WARN no device found matching eth9, verify "
            "NCCL_OOB_NET_IFNAME",
            culprit="interface {iface}",
        ),
        Sign(
            "failed to look up the ip address",
            r"failed to look up the ip address for interface (?P<iface>[\w.@-]+)",
            "[W tensorpipe_agent.cpp:178] Failed to look up the IP address for interface eth9 "
            "(EADDRNOTAVAIL: address not available), defaulting to 127.0.0.1",
            Weight.LIKELY,
            "interface {iface}",
        ),
        Sign(
            "errno 19",
            r"\[Errno 19\] No such device",
            "OSError: [Errno 19] No such device",
            Weight.SYMPTOM,
        ),
        Sign(
            "_tcp_if_include",
            r"invalid value was given for (?P<name>(?:btl|oob)_tcp_if_include)",
            "WARNING: An invalid value was given for btl_tcp_if_include.  This",
            Weight.SYMPTOM,
            note="the setting is Open MPI's {name}, which it ignores and goes on",
            severity="degraded",
        ),
        Sign(
            "no ip interface found",
            r"NET/IB : No IP interface found",
            "n1:40:41 [0] transport/net_ib.cc:307 NCCL WARN NET/IB : No IP interface found.",
            Weight.LIKELY,
        ),
    ),
    blames_host=True,
    detect=detect_missing,
    needles=(
        "nccl_socket_ifname set",
        "unable to find address",
        "no socket interface found",
        "net/socket : no interface",
        "with family",
    ),
)
NO_INTERFACE = Cause(
    "no_usable_ip_interface",
    "fatal",
    title="No interface with an address",
    message="NCCL found no interface that it could use, and none was asked for by name.",
    looks="«no socket interface found» in a log where NCCL_SOCKET_IFNAME is not mentioned.",
    unlike="With a name set the name is wrong: socket_ifname_not_found.",
    remedy=shell_line(
        "ip -br addr   # inside the container; start it with --network host, or give it a network"
    ),
    check="nccl.iface",
    signs=(
        Sign(
            "socket creation failed",
            r"Socket creation failed ?: Address family not supported",
            "n1:40:41 [0] include/socket.h:311 WARN Socket creation failed : Address family not "
            "supported by protocol",
            Weight.LIKELY,
            note="an address of no family at all comes from a list of interfaces that is empty",
        ),
    ),
    blames_host=True,
)
VIRTUAL = Cause(
    "virtual_interface_selected",
    "fatal",
    title="A virtual interface is used between hosts",
    message=(
        "Ranks use an interface of docker, libvirt, a tunnel or a link-local address, which other "
        "hosts cannot reach."
    ),
    looks=(
        "NCCL's «Using» line names docker0, virbr0, veth… or a link-local address, and "
        "connections fail."
    ),
    unlike=(
        "With a usable interface in that line, something drops the packets: firewall_blocked_port."
    ),
    remedy=shell_line(
        "NCCL_SOCKET_IFNAME=NAME GLOO_SOCKET_IFNAME=NAME   # the interface of the training "
        "network; clusterprep env says which"
    ),
    check="eth.iface_choice",
    signs=(
        Sign(
            "source ip of socket:",
            r"Source IP of socket: (?P<address>[\d.]+)",
            "  Source IP of socket: 10.249.5.171",
            Weight.LIKELY,
            "peer {address}",
            note=(
                "Open MPI got a connection from an address that its peer had not told; "
                "btl_tcp_if_include chooses one network for all"
            ),
        ),
    ),
    detect=detect_virtual,
    needles=(": using ", *NEEDLES),
    doubt=(
        "Ranks use an interface that other hosts may not reach: of docker, libvirt, a tunnel, with "
        "a link-local address, or of another network."
    ),
)
BRIDGED = Cause(
    "container_bridge_network",
    "fatal",
    title="Containers on a bridge of their host",
    message="Ranks publish addresses of a container bridge, which exist on one host only.",
    looks="eth0 with 172.17.0.x or a network of compose, and connections to such addresses fail.",
    unlike=(
        "docker0 itself in the «Using» line is the host's own interface: "
        "virtual_interface_selected."
    ),
    remedy=shell_line(
        "docker run --network host …   # or an overlay network, or hostNetwork: true in a pod"
    ),
    check="eth.iface_choice",
    finds="nodes that would use such an address",
    detect=detect_bridged,
    needles=NEEDLES,
)
