"""PCI and RDMA devices as /sys shows them, who may open them, and the routes of RoCE rails.

Few files of few devices are read: a server has hundreds of PCI functions, of which GPUs, network
cards and the bridges above them are looked at. Attributes that ask the card's firmware are left
to the reads that need them.
"""

import os
import struct

from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.readers import (
    NoAnswer,
    is_guest_by_dmi,
    names_in,
    offer,
    read_file,
    run,
)

PCI = "/sys/bus/pci/devices/"
RDMA = "/sys/class/infiniband/"
LINK = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
NVIDIA, MELLANOX = "0x10de", "0x15b3"  # PCI vendors
INFINIBAND = "0x0207"  # how the PCI class of an InfiniBand controller begins
DISPLAY, NETWORK = "0x03", "0x02"  # how the PCI class of a display or network controller begins
GPUS = ("0x0300", "0x0302")  # VGA and 3D controllers
NVSWITCH_DRIVER = "/sys/bus/pci/drivers/nvidia-nvswitch"
LLDP = ("lldpcli", "-f", "json0", "show", "neighbors")
# Where NCCL looks if no variable names a file (src/graph/topo.cc).
TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
MAX_FUNCTIONS = 4096  # PCI functions and RDMA devices looked at
MAX_GIDS = 256  # entries of a port's table of addresses
MAX_SMALL = 8192  # bytes; the kernel's own attributes have 4096 at most
GAP = 8  # this many empty entries in a row are the end of the table
ACS = 0x000D  # PCI Express extended capability «Access Control Services»
PCI_EXPRESS = 0x10  # PCI capability «PCI Express»
HAS_CAPABILITIES = 0x10  # PCI_STATUS_CAP_LIST of linux/pci_regs.h
EXTENDED = 0x100  # where the list of extended capabilities begins in the configuration space
VPD_BYTES = 1024  # of the vital product data, which holds the field for NVSwitches near its start
MAX_CAPABILITIES = 64  # of that list: each read is a transaction on the bus
# linux/dcbnl.h
RTM_GETDCB, DCB_CMD_IEEE_GET = 78, 21
DCB_ATTR_IFNAME, DCB_ATTR_IEEE = 1, 13
DCB_ATTR_IEEE_PFC, DCB_ATTR_IEEE_APP_TABLE, DCB_ATTR_IEEE_APP = 2, 3, 1
DSCP_SELECTOR = 5
# linux/rtnetlink.h
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_VIA = 1, 2, 4, 5, 18
RTM_F_FIB_MATCH = 0x2000
GLOBAL_SCOPE = 0  # RT_SCOPE_UNIVERSE


def read_small(path):
    """Return at most MAX_SMALL bytes of a small file; None if it cannot be read.

    The speed of a link that is down, for example, answers EINVAL.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(fd, MAX_SMALL).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def read_all_small(folder, keys):
    """Return {key: text of the file of that name}."""
    row = {}
    for key in keys:
        row[key] = read_small(folder + "/" + key)
    return row


def target(path):
    """Return the last part of what a link points to, None if there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


# ---------------------------------------------------------------- PCI


def read_pci_tree():
    """Return NVIDIA's GPUs and all network controllers, and the bridges above them."""
    devices, bridges = [], {}
    for address in _few(PCI, sorted(os.listdir(PCI))):
        row = _device(address)
        if row is not None:
            devices.append(row)
    _mark_nvswitch_managers(devices)
    for row in devices:
        for address in row["above"]:
            if address not in bridges:
                bridges[address] = _bridge(address)
    answer = {
        "devices": devices,
        "bridges": bridges,
    }
    answer["virtual"] = _virtual()
    answer["iommu"] = names_in("/sys/class/iommu")
    return answer


def _mark_nvswitch_managers(rows):
    """Set `sw_mng` of ConnectX functions that share a card with other InfiniBand functions.

    On HGX B200 and B300 the NVSwitches are reached through such functions, whose vital product data
    says SW_MNG (NVIDIA, Fabric Manager User Guide: «limited physical functions»). None where that
    data cannot be read: root alone may. It is read word by word from the card, which may take
    milliseconds, so only beside GPUs and where no NVSwitch is on the bus itself.
    """
    has_gpu = any(row["class"].startswith(DISPLAY) for row in rows)
    has_switch = any(":" in name for name in names_in(NVSWITCH_DRIVER))
    if has_switch or not has_gpu:
        return
    cards = {}
    for row in rows:
        if row["vendor"] == MELLANOX and row["class"][:6] == INFINIBAND and not row["physfn"]:
            card = row["at"].rpartition(".")[0]
            cards.setdefault(card, []).append(row)
    for functions in cards.values():
        if len(functions) < 2:
            continue
        for row in functions:
            row["sw_mng"] = _says_sw_mng(PCI + row["at"] + "/vpd")


def _says_sw_mng(path):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return b"SW_MNG" in os.read(fd, VPD_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def _few(folder, names):
    """Return the names, or raise NoAnswer if there are too many to look at."""
    if len(names) > MAX_FUNCTIONS:
        raise NoAnswer("truncated", "%s has more than %d devices" % (folder, MAX_FUNCTIONS))
    return names


def _device(address):
    """Return the row of a GPU or a network controller, None for any other PCI function."""
    found = _class_and_vendor(address)
    if found is None:
        return None
    kind, vendor = found
    row = _function(address, kind, vendor)
    if kind[:4] == NETWORK:
        row["devctl"] = _device_control(PCI + address + "/config")
    return row


def _class_and_vendor(address):
    """Return PCI class and vendor of a GPU or a network controller, None for another function."""
    folder = PCI + address
    kind = read_small(folder + "/class") or ""
    if kind[:4] not in (DISPLAY, NETWORK):
        return None
    vendor = read_small(folder + "/vendor")
    if vendor is None:
        return None
    is_gpu = vendor == NVIDIA and kind[:6] in GPUS
    if kind[:4] != NETWORK and not is_gpu:
        return None
    return kind, vendor


def _bridge(address):
    row = read_all_small(PCI + address, LINK)
    row["acs"] = _acs(PCI + address + "/config")
    return row


def _function(address, kind, vendor):
    """Return the row of one PCI function: `kind` is its class, `above` the bridges on the way."""
    folder = PCI + address
    row = read_all_small(folder, LINK)
    row.update(at=address, vendor=vendor)
    row["class"] = kind
    for key in ("device", "subsystem_vendor", "subsystem_device", "numa_node"):
        row[key] = read_small(folder + "/" + key)
    row["root"], row["above"] = _above(address)
    row["physfn"] = target(folder + "/physfn")
    row["driver"] = target(folder + "/driver")
    row["iommu"] = None
    group = target(folder + "/iommu_group")
    if group is not None:
        row["iommu"] = read_small("/sys/kernel/iommu_groups/%s/type" % group) or ""
    return row


def _above(address):
    """Return the root of the bus, and the bridges from there down to a function."""
    root, bridges = None, []
    for part in os.readlink(PCI + address).split("/")[:-1]:
        if part.startswith("pci"):
            root = part
        elif part.count(":") == 2 and "." in part:
            bridges.append(part)
    return root, bridges


def _device_control(path):
    """Return the word «Device Control» of a function, None if it is no PCI Express function.

    «denied» for users who may read no more than the first 64 bytes, and for a function that left
    the bus: it reads all ones.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return "denied"
    try:
        return _express_control(fd)
    except (OSError, struct.error):
        return "denied"
    finally:
        os.close(fd)


def _express_control(fd):
    """Return «Device Control» from a configuration space, None without it, or "denied".

    Word by word along the list of capabilities: each word comes from the device itself, and 64 of
    them take a virtual machine 1 ms.
    """
    command, status = struct.unpack("<HH", os.pread(fd, 4, 4))
    if command == status == 0xFFFF:
        return "denied"
    if not status & HAS_CAPABILITIES:
        return None
    offset = ord(os.pread(fd, 1, 52) or b"\0") & 0xFC
    for _ in range(MAX_CAPABILITIES):
        if offset == 0:
            return None
        kind, following = struct.unpack("<BB", os.pread(fd, 2, offset))
        if kind == PCI_EXPRESS:
            (control,) = struct.unpack("<H", os.pread(fd, 2, offset + 8))
            return control
        offset = following & 0xFC
    return None


def read_pci_errors():
    """Return the errors that the kernel counted for GPUs, network cards and the bridges above.

    By address and kind, the text of aer_dev_* without the lines of zeros. Functions whose errors
    the kernel does not count are left out.
    """
    addresses = []
    for address in _few(PCI, sorted(os.listdir(PCI))):
        if _class_and_vendor(address) is not None:
            addresses += _above(address)[1] + [address]
    errors = {}
    for address in dict.fromkeys(addresses):
        for kind in ("fatal", "nonfatal", "correctable"):
            text = read_small(PCI + address + "/aer_dev_" + kind)
            if text is None:
                continue
            lines = [line for line in text.split("\n") if not line.endswith(" 0")]
            errors.setdefault(address, {})[kind] = "\n".join(lines)
    return errors


def _acs(path):
    """Return the ACS control word of a bridge, None if it has none.

    «denied» for users who may read no more than the first 64 bytes of it, and for a bridge that
    left the bus: it reads all ones.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return "denied"
    try:
        if os.fstat(fd).st_size == 256:  # no extended configuration space
            return None
        return _acs_control(fd)
    except (OSError, struct.error):
        return "denied"
    finally:
        os.close(fd)


def _acs_control(fd):
    """Return the ACS control register of a function, None if it has no ACS, or "denied"."""
    offset = EXTENDED
    for _ in range(MAX_CAPABILITIES):
        data = os.pread(fd, 4, offset)
        if len(data) < 4:
            return "denied"
        (header,) = struct.unpack("<I", data)
        if header == 0xFFFFFFFF:
            return "denied"
        if header & 0xFFFF == ACS:
            control = os.pread(fd, 2, offset + 6)
            return struct.unpack("<H", control)[0]
        offset = header >> 20
        if offset < EXTENDED:
            break
    return None


def _virtual():
    """Return whether this is a virtual machine, by the flags of the first x86 processor.

    Without flags, as on Arm, the firmware's name decides; None if it says nothing either.
    """
    text = read_small("/proc/cpuinfo") or ""
    lines = text.split("\n")
    if len(text) > MAX_SMALL // 2:
        lines.pop()  # the last one may be cut
    for line in lines:
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return is_guest_by_dmi()


# ---------------------------------------------------------------- RDMA


def read_rdma_tree():
    """Return RDMA devices by name: card, firmware, and of each port what its state files lack."""
    devices = {}
    for name in _few(RDMA, names_in(RDMA)):
        devices[name] = _rdma_device(RDMA + name)
    return devices


def _rdma_device(folder):
    row = read_all_small(folder, ("fw_ver", "board_id", "hca_type", "node_type"))
    row["pci"] = target(folder + "/device")
    row["net"] = names_in(folder + "/device/net")
    row["ports"] = ports = {}
    for port in names_in(folder + "/ports"):
        ports[port] = _rdma_port(folder + "/ports/" + port)
    return row


def _rdma_port(folder):
    if read_small(folder + "/link_layer") == "InfiniBand":
        return {
            "lid": read_small(folder + "/lid"),
            "gids": [],
        }
    return {
        "lid": None,
        "gids": _gids(folder),
    }


def _gids(folder):
    """Return the table of addresses of a RoCE port as [index, gid, type, interface]."""
    rows, empty = [], 0
    for index in range(MAX_GIDS):
        gid = read_small("%s/gids/%d" % (folder, index))
        if gid is None:
            break
        if gid.strip("0:"):
            empty = 0
            kind = read_small("%s/gid_attrs/types/%d" % (folder, index))
            interface = read_small("%s/gid_attrs/ndevs/%d" % (folder, index))
            rows.append([index, gid, kind, interface])
            continue
        empty += 1
        if empty == GAP:
            break
    else:
        raise NoAnswer("truncated", "%s has more than %d addresses" % (folder, MAX_GIDS))
    return rows


def read_verbs(user):
    """Return the verbs' character devices with mode and owner, and the ids of `user`.

    With a user of None the ids of this process.
    """
    rows = []
    for name in names_in("/dev/infiniband"):
        if not name.startswith("uverbs"):
            continue
        state = os.stat("/dev/infiniband/" + name)
        device = read_small("/sys/class/infiniband_verbs/%s/ibdev" % name)
        row = {
            "name": name,
            "device": device,
            "mode": state.st_mode,
        }
        row["uid"] = state.st_uid
        row["gid"] = state.st_gid
        rows.append(row)
    uid, groups = _ids(user)
    return {
        "devices": rows,
        "uid": uid,
        "groups": groups,
    }


def _ids(user):
    """Return the user id and the group ids of a user, by default of this process."""
    if user is None:
        groups = set(os.getgroups())
        groups.add(os.getegid())
        return os.geteuid(), sorted(groups)
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise NoAnswer("no_user", "there is no user %s" % user)
    groups = set(os.getgrouplist(user, entry.pw_gid))
    return entry.pw_uid, sorted(groups)


# ---------------------------------------------------------------- routes of rails


def read_rail_routes():
    """Return by which device the kernel leaves for the network of each RoCE address.

    Empty rails where only one address could be meant.
    """
    rails = []
    for name in _rail_names():
        if _settings(name)["rp_filter"] is not None:
            rails.append(name)
    held = _global_addresses(rails) if len(rails) > 1 else []
    if len(set(name for name, _, _ in held)) < 2:
        return {"rails": []}
    rows = []
    for name, address, prefix in held:
        row = {"name": name, "address": address, "prefix": prefix}
        if "." in address:
            row.update(_settings(name))
        row["leaves"] = _leaves(address, prefix)
        row["router"] = _router(name, address, prefix, held)
        rows.append(row)
    return {
        "rails": rows,
        "all": _settings("all"),
    }


def _rail_names():
    """Return the interfaces of RDMA devices, or the bonds that these belong to."""
    rails = set()
    for device in names_in(RDMA):
        for name in names_in(RDMA + device + "/device/net"):
            master = target("/sys/class/net/%s/master" % name)
            rails.add(master or name)
    return sorted(rails)


def _settings(name):
    """Return the settings of IPv4; IPv6 has none of these."""
    folder = "/proc/sys/net/ipv4/conf/" + name
    return read_all_small(folder, ("rp_filter", "arp_ignore", "arp_announce"))


def _global_addresses(wanted):
    """Return (interface, address, prefix) of the addresses of these interfaces.

    All of IPv4, and those of IPv6 that have global scope: others hold on one cable only. One that
    another machine has is none.
    """
    from clusterprep.remote.agent.readers import _addresses

    by_index = {}
    for name in wanted:
        index = read_small("/sys/class/net/%s/ifindex" % name)
        by_index[int(index or 0)] = name
    rows = []
    for index, addresses in _addresses().items():
        if index not in by_index:
            continue
        for row in addresses:
            address, prefix = row["address"], row["prefix"]
            if ":" in address:
                if row["scope"] != GLOBAL_SCOPE or row.get("duplicate"):
                    continue
                prefix = _prefix_on_link(address, prefix, index)
            rows.append((by_index[index], address, prefix))
    return sorted(rows)


def _prefix_on_link(address, prefix, index):
    """Return the length of the prefix that an IPv6 address is in.

    DHCPv6 gives a single address, of 128 bits; what else is on the cable is announced by routers
    (RFC 5942), and so is in the table of routes alone.
    """
    if prefix < 128:
        return prefix
    packed = _packed(address)
    beside = packed[:-1] + bytes([packed[-1] ^ 1])
    length, route = _route_and_length(beside, packed, index, RTM_F_FIB_MATCH)
    if route is None or RTA_GATEWAY in route or _device_of(route) != index:
        return prefix
    return length


def _packed(address):
    """Return the bytes of an address, 4 of IPv4 and 16 of IPv6."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)


def _neighbour(address, prefix):
    """Return the first other address of a network, None if it has none."""
    packed = _packed(address)
    host_bits = 8 * len(packed) - prefix
    if host_bits < 2:
        return None
    own = int.from_bytes(packed, "big")
    first = (own >> host_bits << host_bits) + 1
    if first == own:
        first += 1
    return first.to_bytes(len(packed), "big")


def _network(address, prefix):
    """Return what two addresses of one network have in common."""
    packed = _packed(address)
    host_bits = 8 * len(packed) - prefix
    return len(packed), prefix, int.from_bytes(packed, "big") >> host_bits


def _leaves(address, prefix):
    """Return the interface by which a packet from `address` to a neighbour would leave.

    "" if there is no route, None if there is no neighbour.
    """
    neighbour = _neighbour(address, prefix)
    if neighbour is None:
        return None
    index = _device_of(_route(neighbour, _packed(address)))
    return socket.if_indextoname(index) if index else ""


def _device_of(route):
    """Return the index of the interface that a route leaves by, 0 if there is no route."""
    if not route or not route.get(RTA_OIF):
        return 0
    (index,) = struct.unpack("=I", route[RTA_OIF])
    return index


def _router(name, address, prefix, held):
    """Return whether a router leads from this rail to a network of another one.

    None if all share one network, or if it cannot be known. RDMA asks for a route by its own
    interface. With IPv4 the kernel then takes for reachable on the cable what it has no route to
    (ip_route_output_key_hash_rcu), with IPv6 it may answer with a route by another interface
    (rt6_score_route): so only a route with a gateway, by this interface, leads to the others.
    """
    own = _network(address, prefix)
    others = {}
    for _, other_address, other_prefix in held:
        network = _network(other_address, other_prefix)
        if network != own and network[0] == own[0]:
            others[network] = _neighbour(other_address, other_prefix)
    if not others or _neighbour(address, prefix) is None or None in others.values():
        return None
    index = socket.if_nametoindex(name)
    for other in others.values():
        route = _route(other, _packed(address), index) or {}
        if _device_of(route) == index and (RTA_GATEWAY in route or RTA_VIA in route):
            return True
    return False


def _route(destination, source, index=None):
    """Return the attributes of the kernel's route by their numbers, None if it has no route."""
    _, route = _route_and_length(destination, source, index)
    return route


def _route_and_length(destination, source, index=None, flags=0):
    """Return the length of the answer's prefix, and the attributes of the kernel's route.

    The length is that of the address, or with RTM_F_FIB_MATCH that of the route in the table.
    Where there is no route the attributes are None. Addresses are bytes.
    """
    family = socket.AF_INET if len(destination) == 4 else socket.AF_INET6
    bits = 8 * len(destination)
    # struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
    body = struct.pack(
        "=BBBBBBBBI",
        family,
        bits,
        bits,
        0,
        0,
        0,
        0,
        0,
        flags,
    )
    for kind, value in ((RTA_DST, destination), (RTA_SRC, source)):
        body += struct.pack("=HH", 4 + len(value), kind) + value
    if index is not None:
        body += struct.pack("=HHI", 8, RTA_OIF, index)
    # struct nlmsghdr: length, type, flags (NLM_F_REQUEST), sequence, port
    header = struct.pack(
        "=IHHII",
        16 + len(body),
        RTM_GETROUTE,
        1,
        1,
        0,
    )
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        sock.settimeout(2.0)
        sock.send(header + body)
        answer = sock.recv(1 << 16)
    finally:
        sock.close()
    return answer[17], _attributes(answer)


def _attributes(answer):
    """Return the attributes of the kernel's answer by their numbers, None if it is no route."""
    end, kind = struct.unpack_from("=IH", answer)
    if kind != RTM_NEWROUTE:
        return None
    attributes, offset = {}, 28  # behind struct nlmsghdr and struct rtmsg
    while offset + 4 <= end:
        length, kind = struct.unpack_from("=HH", answer, offset)
        attributes[kind] = answer[offset + 4 : offset + length]
        aligned = (length + 3) & ~3
        offset += max(aligned, 4)  # a length of 0 would not end the loop
    return attributes


# ---------------------------------------------------------------- quality of service of RoCE


def read_roce_qos():
    """Return what each interface of an RDMA device does with priorities.

    `pfc` is a mask of the priorities with flow control and `dscp` has [DSCP, priority] pairs, both
    None where the driver has no such settings; `np` and `rp` say for each priority whether the
    card reports marked packets and slows down for such reports; `tclass` is the traffic class that
    the driver puts on all packets of a device.
    """
    rows = []
    for device in _few(RDMA, names_in(RDMA)):
        tclass = read_small(RDMA + device + "/tc/1/traffic_class")
        for name in names_in(RDMA + device + "/device/net"):
            row = _dcb(name) or {"pfc": None, "dscp": None}
            row.update(device=device, name=name, tclass=tclass)
            row["trust"] = read_small("/sys/class/net/%s/qos/trust" % name)
            for side in ("np", "rp"):
                folder = "/sys/class/net/%s/ecn/roce_%s/enable" % (name, side)
                row[side] = dict((key, read_small(folder + "/" + key)) for key in names_in(folder))
            rows.append(row)
    return rows


def _dcb(name):
    """Return {"pfc": mask, "dscp": pairs} of an interface from the kernel, None if it has none."""
    text = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(text), DCB_ATTR_IFNAME) + text
    attribute += b"\0" * (-len(attribute) % 4)
    # struct dcbmsg: family, command, padding
    body = struct.pack("=BBH", 0, DCB_CMD_IEEE_GET, 0) + attribute
    # struct nlmsghdr: length, type, flags (NLM_F_REQUEST), sequence, port
    header = struct.pack("=IHHII", 16 + len(body), RTM_GETDCB, 1, 1, 0)
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        sock.settimeout(2.0)
        sock.send(header + body)
        return dcb_settings(sock.recv(1 << 16))
    finally:
        sock.close()


def dcb_settings(answer):
    """Return the settings of the kernel's answer to DCB_CMD_IEEE_GET, None if it is an error."""
    end, kind = struct.unpack_from("=IH", answer)
    if kind != RTM_GETDCB:
        return None
    settings = {"pfc": None, "dscp": None}
    nested = _nested(answer[20:end]).get(DCB_ATTR_IEEE)  # behind struct nlmsghdr and struct dcbmsg
    if not nested:
        return settings
    ieee = _nested(nested[0])
    if DCB_ATTR_IEEE_PFC in ieee:
        settings["pfc"] = struct.unpack_from("=BB", ieee[DCB_ATTR_IEEE_PFC][0])[1]
    if DCB_ATTR_IEEE_APP_TABLE in ieee:
        settings["dscp"] = pairs = []
        for app in _nested(ieee[DCB_ATTR_IEEE_APP_TABLE][0]).get(DCB_ATTR_IEEE_APP, []):
            selector, priority, protocol = struct.unpack_from("=BBH", app)
            if selector == DSCP_SELECTOR:
                pairs.append([protocol, priority])
    return settings


def _nested(data):
    """Return the values of netlink attributes by their numbers; several may have one number."""
    found, offset = {}, 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        found.setdefault(kind & 0x3FFF, []).append(data[offset + 4 : offset + length])
        offset += (length + 3) & ~3
    return found


# ---------------------------------------------------------------- switches


def read_rail_neighbours():
    """Return what the switch at the other end of each RDMA port says of itself.

    `lldp` is what lldpd heard, as lldpcli prints it, and None where it does not run. `ib` has the
    answer of the InfiniBand switch, one hop away, by device and port; None where it cannot be
    asked, which takes smpquery and root.
    """
    answer = {"lldp": None, "ib": {}}
    for device in _few(RDMA, names_in(RDMA)):
        for port in names_in(RDMA + device + "/ports"):
            folder = RDMA + device + "/ports/" + port
            layer = read_small(folder + "/link_layer")
            if layer == "Ethernet" and answer["lldp"] is None:
                answer["lldp"] = _output(LLDP) or ""
            elif layer == "InfiniBand" and "ACTIVE" in (read_small(folder + "/state") or ""):
                answer["ib"][device + ":" + port] = _leaf(device, port, answer["ib"])
    answer["lldp"] = answer["lldp"] or None
    return answer


def _leaf(device, port, known):
    """Return the answer of the switch at a port; None without a question if another had none."""
    if None in known.values():
        return None
    query = ["smpquery", "-C", device, "-P", port, "-t", "100", "-D", "nodeinfo", "0," + port]
    return _output(query)


def _output(argv):
    """Return what a tool prints, None where it is not there or fails."""
    try:
        result = run(argv)
    except NoAnswer:
        return None
    return result["out"] if result["code"] == 0 else None


# ---------------------------------------------------------------- NCCL's topology file


def read_nccl_topology(declared, conf):
    """Return path and text of the topology file that NCCL reads, None if it would read none.

    That is the file that the inventory declares, or the first that NCCL's configuration names, or
    the one that virtual machines have by default. A named file that cannot be opened has no text.
    """
    path = declared or _setting_of(conf, "NCCL_TOPO_FILE")
    if path is None and not os.path.exists(TOPOLOGY):
        return None
    path = path or TOPOLOGY
    try:
        text = read_file(path)
    except OSError:
        text = None
    return {
        "path": path,
        "text": text,
    }


def _setting_of(conf, name):
    """Return the first value of a name in NCCL's configuration, None if it has none."""
    try:
        text = read_file(conf)
    except OSError:
        return None
    for line in text.split("\n"):
        if line.startswith(name + "="):
            return line[len(name) + 1 :].strip()
    return None


def _has_no_rdma():
    """Return whether there is no RDMA device, so that no switch is asked."""
    return not names_in(RDMA)


def install(agent):
    """Register the readers of this part."""
    readers = {
        "pci_tree": read_pci_tree,
        "pci_errors": read_pci_errors,
        "rdma_tree": read_rdma_tree,
    }
    readers["rail_routes"] = read_rail_routes
    readers["nccl_topology"] = read_nccl_topology
    readers["roce_qos"] = read_roce_qos
    offer(readers, lane="devices")
    # It waits for tools and switches.
    offer({"rail_neighbours": read_rail_neighbours}, instant=_has_no_rdma)
    offer({"verbs": read_verbs}, lane="names")  # it looks the user up
