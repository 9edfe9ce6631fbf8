"""The TCP sockets of the kernel with their counters: what passed, and when something last did.

`read_sockets` asks the kernel as `ss -ti` does, which any user may. Where it gives no answer, and
for processes in a network of their own, /proc/PID/net/tcp has the same without the counters.
"""

import os
import struct

from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.sockets import IPV4_IN_IPV6, endpoint

# linux/sock_diag.h, linux/netlink.h and linux/inet_diag.h
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_INFO = 2
HEADER_BYTES = 16  # struct nlmsghdr
MESSAGE_BYTES = 72  # struct inet_diag_msg
TCP = 6
LISTEN, TIME_WAIT = 10, 6  # include/net/tcp_states.h
ALL_BUT_THESE = 0xFFF & ~(1 << LISTEN) & ~(1 << TIME_WAIT)
PERSIST = 4  # the timer of a sender whose peer takes nothing: icsk_timer of inet_diag_fill
MOST = 20000  # sockets that are looked at
TIMEOUT = 1.0  # seconds for each message of the kernel


def read_sockets():
    """Return {inode: row} of the TCP sockets of this network, or None if the kernel does not say.

    A row is {"state", "address", "port", "peer", "peer_port", "sendq", "recvq", "again", "probing",
    "acked", "received", "sent_ago", "received_ago", "resent", "segments"}: bytes, times sent again
    in a row, whether the peer has no room, bytes in all, milliseconds since data was last sent and
    received, and how many segments were sent again, of how many in all.
    """
    rows = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            _ask(family, rows)
        except OSError:
            return None
    return rows


def _ask(family, rows):
    """Add the sockets of one family to `rows`. Raises OSError if the kernel refuses."""
    body = struct.pack("=BBBBI", family, TCP, 1 << (INET_DIAG_INFO - 1), 0, ALL_BUT_THESE)
    body += b"\0" * 48  # of any address
    head = struct.pack(
        "=IHHII",
        HEADER_BYTES + len(body),
        SOCK_DIAG_BY_FAMILY,
        NLM_F_REQUEST_DUMP,
        1,
        0,
    )
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    try:
        sock.settimeout(TIMEOUT)
        sock.send(head + body)
        while len(rows) < MOST:
            if not _take(sock.recv(1 << 17), rows):
                return
    finally:
        sock.close()


def _take(data, rows):
    """Add the sockets of one datagram to `rows`; return whether more follow."""
    while len(data) >= HEADER_BYTES:
        length, kind = struct.unpack_from("=IH", data)
        if kind == NLMSG_DONE:
            return False
        if kind == NLMSG_ERROR:
            raise OSError("the kernel refuses")
        inode, row = parse(data[HEADER_BYTES:length])
        if inode:
            rows[str(inode)] = row
        data = data[(length + 3) & ~3 :]
    return True


def parse(message):
    """Return inode and row of a struct inet_diag_msg with its attributes."""
    family, state, timer, again = struct.unpack_from("=BBBB", message)
    port, peer_port = struct.unpack_from("!HH", message, 4)
    row = {"state": state}
    row["address"] = _address(family, message[8:24])
    row["port"] = port
    row["peer"] = _address(family, message[24:40])
    row["peer_port"] = peer_port
    _, recvq, sendq, _, inode = struct.unpack_from("=IIIII", message, 52)
    row["sendq"], row["recvq"] = sendq, recvq
    row["again"] = again
    row["probing"] = timer == PERSIST
    row.update(_counters(_info(message)))
    return inode, row


def _address(family, raw):
    if family == socket.AF_INET:
        return socket.inet_ntop(family, raw[:4])
    if raw.startswith(IPV4_IN_IPV6):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(family, raw)


def _info(message):
    """Return the struct tcp_info of a message; empty if there is none."""
    start = MESSAGE_BYTES
    while start + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, start)
        if length < 4:
            break
        if kind == INET_DIAG_INFO:
            return message[start + 4 : start + length]
        start += (length + 3) & ~3
    return b""


def _counters(info):
    """Return what is counted; None for what a kernel before 4.2 does not count."""
    names = ("acked", "received", "sent_ago", "received_ago", "resent", "segments")
    counters = dict.fromkeys(names)
    if len(info) >= 60:
        counters["sent_ago"], _, counters["received_ago"] = struct.unpack_from("=III", info, 44)
    if len(info) >= 136:
        counters["acked"], counters["received"] = struct.unpack_from("=QQ", info, 120)
    if len(info) >= 140:
        (counters["resent"],) = struct.unpack_from("=I", info, 100)
        (counters["segments"],) = struct.unpack_from("=I", info, 136)
    return counters


def read_sockets_of(pid):
    """Return the same of the network of a process, without counters, from /proc/PID/net."""
    rows = {}
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/%d/net/%s" % (pid, name), "rb") as lines:
                next(lines, None)  # the header
                for line in lines:
                    inode, row = parse_line(line.decode("ascii"))
                    if row["state"] not in (LISTEN, TIME_WAIT):
                        rows[inode] = row
                    if len(rows) >= MOST:
                        break
        except OSError:  # without IPv6, or a process that is gone
            continue
    return rows


def parse_line(line):
    """Return inode and row of a line of /proc/net/tcp or tcp6."""
    fields = line.split()
    row = {"state": int(fields[3], 16)}
    row["address"], row["port"] = endpoint(fields[1])
    row["peer"], row["peer_port"] = endpoint(fields[2])
    sendq, _, recvq = fields[4].partition(":")
    row["sendq"], row["recvq"] = int(sendq, 16), int(recvq, 16)
    row["again"] = int(fields[6], 16)
    row["probing"] = fields[5].startswith("04:")
    row.update(_counters(b""))
    return fields[9], row


def network_of(pid):
    """Return the name of a process's network, None if it is not shown."""
    try:
        return os.readlink("/proc/%s/ns/net" % pid)
    except OSError:
        return None
