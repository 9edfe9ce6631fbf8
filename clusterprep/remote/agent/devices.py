"""PCI and RDMA devices as /sys shows them, who may open them, and the routes of RoCE rails.

Few files of few devices: a server has hundreds of PCI functions, of which GPUs, network cards and the bridges above
them are looked at. Attributes that ask the card's firmware are left to the reads that need them.
"""

import os
import struct

from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.readers import NoAnswer, names, offer

PCI = "/sys/bus/pci/devices/"
RDMA = "/sys/class/infiniband/"
LINK = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
MAX_FUNCTIONS = 4096  # PCI functions and RDMA devices looked at
MAX_GIDS, GAP = (
    64,
    8,
)  # entries of a port's table of addresses; this many empty ones in a row are its end
ACS = 0x000D  # PCI Express extended capability «Access Control Services»


def text(path):
    """At most 8 KiB of a small file; None where it cannot be read: a speed that is not known answers EINVAL."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(fd, 8192).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def target(path):
    """The last part of what a link points to, None where there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


# ---------------------------------------------------------------- PCI


def read_pci_tree():
    """NVIDIA's GPUs and all network controllers with their links, and the bridges above them."""
    devices, bridges = [], {}
    for at in sorted(os.listdir(PCI))[:MAX_FUNCTIONS]:
        kind = text(PCI + at + "/class") or ""
        vendor = text(PCI + at + "/vendor") if kind[:4] in ("0x02", "0x03") else None
        if vendor is not None and (
            kind[:4] == "0x02" or (vendor == "0x10de" and kind[:6] in ("0x0300", "0x0302"))
        ):
            devices.append(_function(at, kind, vendor))
    for row in devices:
        for at in row["above"]:
            if at not in bridges:
                bridges[at] = dict(_link(at), acs=_acs(PCI + at + "/config"))
    return {
        "devices": devices,
        "bridges": bridges,
        "virtual": _virtual(),
        "iommu": names("/sys/class/iommu"),
    }


def _function(at, kind, vendor):
    folder = PCI + at
    row = dict(_link(at), at=at, vendor=vendor, above=[], root=None)
    row["class"] = kind
    for key in ("device", "subsystem_vendor", "subsystem_device", "numa_node"):
        row[key] = text(folder + "/" + key)
    for part in os.readlink(folder).split("/")[:-1]:
        if part.startswith("pci"):
            row["root"] = part
        elif part.count(":") == 2 and "." in part:
            row["above"].append(part)
    row["physfn"] = target(folder + "/physfn")
    row["driver"] = target(folder + "/driver")
    group = target(folder + "/iommu_group")
    row["iommu"] = None if group is None else text("/sys/kernel/iommu_groups/%s/type" % group) or ""
    return row


def _link(at):
    return dict((key, text(PCI + at + "/" + key)) for key in LINK)


def _acs(path):
    """The ACS control word of a bridge, None when it has none, «denied» to those who see 64 bytes of it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return "denied"
    try:
        if os.fstat(fd).st_size == 256:  # no extended configuration space
            return None
        at = 0x100
        for _ in range(
            64
        ):  # each read is a transaction on the bus: the headers of the list, and no more
            header = os.pread(fd, 4, at)
            if len(header) < 4:
                return "denied"
            (header,) = struct.unpack("<I", header)
            if header & 0xFFFF == ACS:
                return struct.unpack("<H", os.pread(fd, 2, at + 6))[0]
            at = header >> 20
            if at < 0x100 or header == 0xFFFFFFFF:
                break
    except (OSError, struct.error):
        return "denied"
    finally:
        os.close(fd)
    return None


def _virtual():
    """Whether this is a virtual machine, by the flags of the first x86 processor; None where there are none."""
    for line in (text("/proc/cpuinfo") or "").split("\n"):
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return None


# ---------------------------------------------------------------- RDMA


def read_rdma_tree():
    """RDMA devices by name: card, firmware, and of each port what is not in its state files."""
    return dict((name, _rdma_device(RDMA + name)) for name in names(RDMA)[:MAX_FUNCTIONS])


def _rdma_device(folder):
    row = dict(
        (key, text(folder + "/" + key)) for key in ("fw_ver", "board_id", "hca_type", "node_type")
    )
    row["pci"] = target(folder + "/device")
    row["net"] = names(folder + "/device/net")
    row["ports"] = dict(
        (port, _rdma_port(folder + "/ports/" + port)) for port in names(folder + "/ports")
    )
    return row


def _rdma_port(folder):
    if text(folder + "/link_layer") == "InfiniBand":
        return {"lid": text(folder + "/lid"), "gids": []}
    return {"lid": None, "gids": _gids(folder)}


def _gids(folder):
    found, empty = [], 0
    for index in range(MAX_GIDS):
        gid = text("%s/gids/%d" % (folder, index))
        empty = 0 if gid and gid.strip("0:") else empty + 1
        if gid is None or empty == GAP:
            break
        if not empty:
            about = [
                text("%s/gid_attrs/%s/%d" % (folder, kind, index)) for kind in ("types", "ndevs")
            ]
            found.append([index, gid] + about)
    return found


def read_verbs(user):
    """Character devices of the verbs with mode and owner, and the ids of `user` (None: of this process)."""
    rows = []
    for name in names("/dev/infiniband"):
        if name.startswith("uverbs"):
            state = os.stat("/dev/infiniband/" + name)
            device = text("/sys/class/infiniband_verbs/%s/ibdev" % name)
            rows.append(
                {
                    "name": name,
                    "device": device,
                    "mode": state.st_mode,
                    "uid": state.st_uid,
                    "gid": state.st_gid,
                }
            )
    uid, groups = _ids(user)
    return {"devices": rows, "uid": uid, "groups": groups}


def _ids(user):
    if user is None:
        return os.geteuid(), sorted({os.getegid()} | set(os.getgroups()))
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise NoAnswer("no_user", "there is no user %s" % user)
    return entry.pw_uid, sorted(set(os.getgrouplist(user, entry.pw_gid)))


# ---------------------------------------------------------------- routes of rails


def read_rail_routes():
    """For each address of a RoCE device, where several have one: by which device the kernel leaves for its network."""
    rails = [name for name in _rail_names() if _settings(name)["rp_filter"] is not None]
    held = _ipv4(rails) if len(rails) > 1 else []
    if len(held) < 2:
        return {"rails": []}
    rows = [
        dict(
            _settings(name),
            name=name,
            address=a,
            prefix=p,
            leaves=_leaves(a, p),
            router=_router(name, a, p, held),
        )
        for name, a, p in held
    ]
    return {"rails": rows, "all": _settings("all")}


def _rail_names():
    found = set()
    for device in names(RDMA):
        for name in names(RDMA + device + "/device/net"):
            found.add(target("/sys/class/net/%s/master" % name) or name)
    return sorted(found)


def _settings(name):
    folder = "/proc/sys/net/ipv4/conf/%s/" % name
    return dict((key, text(folder + key)) for key in ("rp_filter", "arp_ignore", "arp_announce"))


def _ipv4(wanted):
    from clusterprep.remote.agent.readers import _addresses

    indices = dict((int(text("/sys/class/net/%s/ifindex" % name) or 0), name) for name in wanted)
    rows = [
        (indices[index], row)
        for index, found in _addresses().items()
        if index in indices
        for row in found
    ]
    return sorted(
        (name, row["address"], row["prefix"]) for name, row in rows if "." in row["address"]
    )


def _neighbour(address, prefix):
    """The first other address of a network, None where it has none."""
    if prefix > 30:
        return None
    own = struct.unpack("!I", socket.inet_aton(address))[0]
    first = (own >> (32 - prefix) << (32 - prefix)) + 1
    return struct.pack("!I", first + 1 if first == own else first)


def _leaves(address, prefix):
    """The interface by which a packet from `address` to a neighbour would leave, "" for none; None: no neighbour."""
    neighbour = _neighbour(address, prefix)
    if neighbour is None:
        return None
    index = (_route(neighbour, address) or {}).get(4)  # RTA_OIF
    return socket.if_indextoname(struct.unpack("=I", index)[0]) if index else ""


def _router(name, address, prefix, held):
    """Whether a router leads from this rail to a network of another one; None: all share one, or nobody can tell.

    RDMA asks for a route by its own interface, and the kernel then takes for reachable on the cable what it knows no
    way to (ip_route_output_key_hash_rcu): so a way to the others is one with a gateway.
    """
    own = [_neighbour(address, prefix)]
    others = [far for far in (_neighbour(a, p) for _, a, p in held) if far not in own]
    if not others or None in own + others:
        return None
    index = socket.if_nametoindex(name)
    return any(
        set(_route(far, address, index) or {}) & {5, 18} for far in others
    )  # RTA_GATEWAY, RTA_VIA


def _route(destination, address, index=None):
    """The attributes of the kernel's route by their numbers, None where it has none."""
    # RTM_GETROUTE: struct nlmsghdr, struct rtmsg (family, dst_len, src_len, …), RTA_DST, RTA_SRC, RTA_OIF
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    for kind, value in ((1, destination), (2, socket.inet_aton(address))):
        body += struct.pack("=HH", 8, kind) + value
    if index is not None:
        body += struct.pack("=HHI", 8, 4, index)
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        sock.settimeout(2.0)
        sock.send(struct.pack("=IHHII", 16 + len(body), 26, 1, 1, 0) + body)
        return _attributes(sock.recv(1 << 16))
    finally:
        sock.close()


def _attributes(data):
    if struct.unpack_from("=H", data, 4)[0] != 24:  # RTM_NEWROUTE; otherwise an error: no route
        return None
    found, at, end = {}, 28, struct.unpack_from("=I", data)[0]
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind] = data[at + 4 : at + length]
        at += max((length + 3) & ~3, 4)
    return found


def install(agent):
    """Register the readers of this part."""
    offer(
        {"pci_tree": read_pci_tree, "rdma_tree": read_rdma_tree, "rail_routes": read_rail_routes},
        lane="devices",
    )
    offer({"verbs": read_verbs}, lane="names")  # it looks the user up
