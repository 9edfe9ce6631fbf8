"""The kernel's tables of neighbours, of IPv4 (ARP) and of IPv6 (NDP), asked over netlink.

Files of /proc show it in the host's network namespace alone; netlink answers in every one, and
without root.
"""

import struct

from clusterprep.remote.agent.light import socket

# linux/netlink.h, linux/rtnetlink.h and linux/neighbour.h
NLMSG_ERROR, NLMSG_DONE, RTM_GETNEIGHTBL = 2, 3, 66
NLM_F_REQUEST_DUMP = 0x301
HEADER_BYTES, NDTMSG_BYTES = 16, 4
NDTA_THRESH3, NDTA_CONFIG, NDTA_STATS = 4, 5, 7
ENTRIES_OFFSET = 4  # of ndtc_entries in struct ndt_config
FULLS_OFFSET = 80  # of ndts_table_fulls in struct ndt_stats
LIMIT = 2.0  # seconds


def read_table(family=socket.AF_INET):
    """Return {"most", "entries", "refused"} of a family's table; None if the kernel does not say.

    `refused` counts since boot how often there was no place for an entry.
    """
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    except OSError:
        return None
    try:
        sock.settimeout(LIMIT)
        sock.send(_request(family))
        return _first_table(sock)
    except (OSError, struct.error):
        return None
    finally:
        sock.close()


def _request(family):
    size = HEADER_BYTES + NDTMSG_BYTES
    header = struct.pack("=IHHII", size, RTM_GETNEIGHTBL, NLM_F_REQUEST_DUMP, 1, 0)
    return header + struct.pack("=Bxxx", family)


def _first_table(sock):
    """Return the table of the first message that has one; the others are about interfaces."""
    while True:
        data = sock.recv(1 << 16)
        while len(data) >= HEADER_BYTES:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (NLMSG_ERROR, NLMSG_DONE) or length < HEADER_BYTES:
                return None
            table = table_of(data[HEADER_BYTES + NDTMSG_BYTES : length])
            if table is not None:
                return table
            data = data[(length + 3) & ~3 :]


def table_of(body):
    """Return the table of the attributes of one message, None for one without counts."""
    attributes = {}
    start = 0
    while start + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, start)
        if length < 4:
            break
        attributes[kind & 0x3FFF] = body[start + 4 : start + length]
        start += (length + 3) & ~3
    if any(kind not in attributes for kind in (NDTA_THRESH3, NDTA_CONFIG, NDTA_STATS)):
        return None
    (most,) = struct.unpack_from("=I", attributes[NDTA_THRESH3])
    (entries,) = struct.unpack_from("=I", attributes[NDTA_CONFIG], ENTRIES_OFFSET)
    (refused,) = struct.unpack_from("=Q", attributes[NDTA_STATS], FULLS_OFFSET)
    return {"most": most, "entries": entries, "refused": refused}
