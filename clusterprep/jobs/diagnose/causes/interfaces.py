"""The interface that NCCL or gloo takes is missing, or is one that no peer can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, LogLine, Sign, Weight
from clusterprep.jobs.diagnose.trouble import no_connection

_SET = re.compile(r"NCCL_SOCKET_IFNAME set (?:by environment )?to (?P<iface>\S+)", re.IGNORECASE)
_NONE = re.compile(
    r"no socket interface found|NET/Socket : no interface found|with family \d+ is neither",
    re.IGNORECASE,
)
_USING = re.compile(
    r"(?:Bootstrap|NET/Socket|NET)\s*: Using (?:interface )?(?P<list>.*)", re.IGNORECASE
)
_ENTRY = re.compile(
    r"(?:\[\d+\])?(?P<iface>[\w.@-]+(?::(?![0-9a-f]*:)[a-z]\w*)?):(?P<address>\[?[0-9a-fA-F.:]+)(?:%[\w.-]+)?\]?<\d+>"
)
_VIRTUAL = re.compile(
    r"(?:docker|veth|virbr|br-[0-9a-f]|cni|flannel|cali|tun|tap|vmnet|lxc|lxd|kube|tailscale|wg|zt|podman|vboxnet|"
    r"weave|cilium|vxlan|nerdctl|dummy|ovs|genev)",
)
_LINK_LOCAL = re.compile(r"fe80:|169\.254\.")
_SCOPED = re.compile(r"connect\S*(?: to)? \[?fe80:[0-9a-f:]+%(?P<iface>[\w.-]+)", re.IGNORECASE)
_UNROUTED = re.compile(
    r"connect\S*(?: to)? \[?(?P<address>169\.254\.\d+\.\d+)", re.IGNORECASE
)  # no router passes it on
_BRIDGE = re.compile(
    r"172\.(?:1[7-9]|2[0-9]|3[01])\.0\.|192\.168\.122\."
)  # what docker, compose and libvirt give out
_CONTAINER = re.compile(
    r"[0-9a-f]{12}"
)  # what docker calls a container that has no name of its own
_DIALLED = re.compile(
    r"connect\S*(?: to)? \[?(?P<address>172\.(?:1[7-9]|2\d|3[01])\.0\.\d+|192\.168\.122\.\d+)",
    re.IGNORECASE,
)


def missing(log: LogFile) -> Iterator[Evidence]:
    """No interface was left: by the name that was set, where the log has one; else there may have been none at all."""
    named = {
        line.host: found["iface"]
        for line in log.saying("nccl_socket_ifname set")
        if (found := _SET.search(line.said))
    }
    talks = any(line.source == "nccl" and line.level == "INFO" for line in log.lines)
    for line in log.saying("interface found", "with family"):
        if not _NONE.search(line.said):
            continue
        iface = named.get(line.host) or (next(iter(named.values())) if named else None)
        culprits = (("interface", iface.strip("=^")),) if iface else ()
        sure = bool(iface) and not line.said.lower().startswith("ncclsocketinit")
        weight = Weight.PLAIN if sure else Weight.LIKELY
        if iface or not talks:
            yield Evidence("socket_ifname_not_found", line, weight, culprits)
        bare = Weight.PLAIN if talks and not iface else Weight.SYMPTOM
        if not iface and line.said.lower().find("family") < 0:
            yield Evidence("no_usable_ip_interface", line, bare)


def chosen(log: LogFile) -> Iterator[tuple[LogLine, str, str]]:
    """Interfaces with their addresses that NCCL says it uses."""
    for line in log.saying(": using "):
        if found := _USING.search(line.said):
            for entry in _ENTRY.finditer(found["list"]):
                yield line, entry["iface"], entry["address"].lstrip("[")


def virtual(log: LogFile) -> Iterator[Evidence]:
    """A virtual or link-local interface in use, and connections that fail."""
    failing = no_connection(log)
    for line, iface, address in chosen(log):
        if (_VIRTUAL.match(iface) or _LINK_LOCAL.match(address)) and (
            failing or f"[0]{iface}" in line.said
        ):
            weight = Weight.PLAIN if failing else Weight.LIKELY
            yield Evidence("virtual_interface_selected", line, weight, (("interface", iface),))
    if not failing:
        return
    for line in log.saying("connect"):
        if scoped := _SCOPED.search(line.said):
            yield Evidence(
                "virtual_interface_selected", line, Weight.LIKELY, (("interface", scoped["iface"]),)
            )
        if unrouted := _UNROUTED.search(line.said):
            yield Evidence(
                "virtual_interface_selected", line, Weight.PLAIN, (("peer", unrouted["address"]),)
            )
        found = _DIALLED.search(line.said)
        if found and found["address"].endswith(".1"):
            weight = Weight.LIKELY
            yield Evidence(
                "virtual_interface_selected", line, weight, (("peer", found["address"]),)
            )


def bridged(log: LogFile) -> Iterator[Evidence]:
    """An ordinary name with an address that docker gives out, and connections that fail."""
    if not no_connection(log):
        return
    for line, iface, address in chosen(log):
        if _BRIDGE.match(address) and re.match(r"eth\d+$", iface) and not address.endswith(".0.1"):
            sure = address.startswith("172.17.") or _CONTAINER.fullmatch(line.host or "")
            weight = Weight.PLAIN if sure else Weight.SYMPTOM
            yield Evidence(
                "container_bridge_network", line, weight, (("interface", f"{iface} ({address})"),)
            )
    for line in log.saying("connect"):
        found = _DIALLED.search(line.said)
        if found and not found["address"].endswith(".1"):
            yield Evidence(
                "container_bridge_network", line, Weight.PLAIN, (("peer", found["address"]),)
            )


SOCKET_IFNAME = Cause(
    "socket_ifname_not_found",
    "fatal",
    "No interface by that name",
    "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME matches no interface of the host.",
    "NCCL says «no socket interface found» or a connect with an address family that is garbage; gloo says «Unable to "
    "find address for».",
    "Where no name was set and NCCL finds nothing, the container has no interface at all: no_usable_ip_interface.",
    "ip -br addr   # on that host; set NCCL_SOCKET_IFNAME to a name or prefix that every node has, or unset it",
    "nccl.iface",
    signs=(
        Sign(
            "unable to find ",
            r"unable to find (?:address|interface) for: *(?P<iface>[\w.@^=,:-]+)",
            "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9",
            culprit="interface {iface}",
        ),
        Sign(
            "nccl_oob_net_ifname",
            r"no device found (?:matching|after excluding) (?:exactly )?(?P<iface>[\w.,:^=-]+?),? verify "
            r"NCCL_OOB_NET_IFNAME",
            "n1:40:41 [0] bootstrap.cc:577 NCCL WARN no device found matching eth9, verify NCCL_OOB_NET_IFNAME",
            culprit="interface {iface}",
        ),
        Sign(
            "failed to look up the ip address",
            r"failed to look up the ip address for interface (?P<iface>[\w.@-]+)",
            "[W tensorpipe_agent.cpp:178] Failed to look up the IP address for interface eth9 (EADDRNOTAVAIL: address "
            "not available), defaulting to 127.0.0.1",
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
            "no ip interface found",
            r"NET/IB : No IP interface found",
            "n1:40:41 [0] transport/net_ib.cc:307 NCCL WARN NET/IB : No IP interface found.",
            Weight.LIKELY,
        ),
    ),
    of_host=True,
    look=missing,
    needles=(
        "nccl_socket_ifname set",
        "no socket interface found",
        "net/socket : no interface",
        "with family",
    ),
)
NO_INTERFACE = Cause(
    "no_usable_ip_interface",
    "fatal",
    "No interface with an address",
    "NCCL found no interface that it could use, and none was asked for by name.",
    "«no socket interface found» in a log where NCCL_SOCKET_IFNAME is not mentioned.",
    "With a name set the name is wrong: socket_ifname_not_found.",
    "ip -br addr   # inside the container; start it with --network host, or give it a network",
    "nccl.iface",
    signs=(
        Sign(
            "socket creation failed",
            r"Socket creation failed ?: Address family not supported",
            "n1:40:41 [0] include/socket.h:311 WARN Socket creation failed : Address family not supported by protocol",
            Weight.LIKELY,
            note="an address of no family at all comes from a list of interfaces that is empty",
        ),
    ),
    of_host=True,
)
VIRTUAL = Cause(
    "virtual_interface_selected",
    "fatal",
    "A virtual interface is used between hosts",
    "Ranks use an interface of docker, libvirt, a tunnel or a link-local address, which other hosts cannot reach.",
    "NCCL's «Using» line names docker0, virbr0, veth… or a link-local address, and connections fail.",
    "With a usable interface in that line, something drops the packets: firewall_blocked_port.",
    "NCCL_SOCKET_IFNAME=NAME GLOO_SOCKET_IFNAME=NAME   # the interface of the training network; clusterprep env says "
    "which",
    "eth.iface_choice",
    look=virtual,
    needles=(": using ", "connect"),
)
BRIDGED = Cause(
    "container_bridge_network",
    "fatal",
    "Containers on a bridge of their host",
    "Ranks publish addresses of a container bridge, which exist on one host only.",
    "eth0 with 172.17.0.x or a network of compose, and connections to such addresses fail.",
    "docker0 itself in the «Using» line is the host's own interface: virtual_interface_selected.",
    "docker run --network host …   # or an overlay network, or hostNetwork: true in a pod",
    "eth.iface_choice",
    look=bridged,
)
