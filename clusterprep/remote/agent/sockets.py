"""The part of the agent that reads the ranks' TCP sockets from the kernel when a trial hangs.

While every rank only waits, a connection that is not answered, or data that is not acknowledged,
shows which path is broken. /proc/PID/net is that of the rank's own network, also if the job's
python is a wrapper that gives it one.
"""

import os
import struct
import time

from clusterprep.remote.agent.light import socket

ESTABLISHED, SYN_SENT, SYN_RECV, LISTEN = 1, 2, 3, 10  # include/net/tcp_states.h
BACK_OFF = 2  # times that data was sent again in a row; a packet that is lost once proves nothing
MOST = 256  # sockets, and addresses, that are returned
LIMIT = 1.0  # seconds of looking; the sockets of all other processes are in the same list
IPV4_IN_IPV6 = b"\0" * 10 + b"\xff\xff"  # the first 12 bytes of such an address


def look(ranks):
    """Return {"rows", "own", "cut"} for {rank: pid}.

    A row is [rank, state, address, port, peer, port, times sent again]. Rows are what a healthy job
    does not have: connections under way or with data that is sent again and again, and with rank
    None those that a peer has begun and not completed. `own` are the addresses that the ranks use;
    `cut` says whether sockets are left out.
    """
    end = time.monotonic() + LIMIT
    rows = []
    own = set()
    cut = False
    for rank, pid in sorted(ranks.items()):
        rank_inodes = inodes(pid)
        sockets, is_complete = _sockets(pid, end)
        _add_rows(
            rank,
            sockets,
            rank_inodes,
            rows,
            own,
        )
        if not is_complete:
            cut = True
    if max(len(rows), len(own)) > MOST:
        cut = True
    return {
        "rows": rows[:MOST],
        "own": sorted(own)[:MOST],
        "cut": cut,
    }


def _add_rows(rank, sockets, rank_inodes, rows, own):
    """Add the rows and the addresses of one rank to `rows` and `own`."""
    listening = _listening_ports(sockets, rank_inodes)
    for state, address, port, peer, peer_port, again, inode in sockets:
        is_of_rank = inode in rank_inodes
        is_unhealthy = state == SYN_SENT or (state != LISTEN and again >= BACK_OFF)
        if is_of_rank:
            own.add(address)
        if is_of_rank and is_unhealthy:
            rows.append([rank, state, address, port, peer, peer_port, again])
        elif state == SYN_RECV and port in listening:
            rows.append([None, state, address, port, peer, peer_port, again])


def _listening_ports(sockets, rank_inodes):
    ports = set()
    for state, _, port, _, _, _, inode in sockets:
        if state == LISTEN and inode in rank_inodes:
            ports.add(port)
    return ports


def inodes(pid):
    """Return the inodes of the sockets that a process has open.

    None if it is gone or unreadable.
    """
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    open_sockets = set()
    for name in names:
        try:
            target = os.readlink("%s/%s" % (folder, name))
        except OSError:
            continue
        if target.startswith("socket:["):
            open_sockets.add(target[8:-1])
    return open_sockets


def _sockets(pid, end):
    """Return the TCP sockets of a process's network, and whether the time sufficed for all."""
    rows = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/%d/net/%s" % (pid, name), "rb") as lines:
                next(lines, None)  # the header
                for line in lines:
                    rows.append(parse(line.decode("ascii")))
                    if time.monotonic() > end:
                        return rows, False
        except OSError:  # without IPv6, or a process that is gone
            continue
    return rows, True


def parse(line):
    """Parse one line of /proc/net/tcp or tcp6.

    Returns (state, address, port, peer, port, times sent again, inode).
    """
    fields = line.split()
    address, port = endpoint(fields[1])
    peer, peer_port = endpoint(fields[2])
    state = int(fields[3], 16)
    again = int(fields[6], 16)
    return state, address, port, peer, peer_port, again, fields[9]


def endpoint(text):
    """Return address and port of «0200000A:1F90»: words of 32 bits in the machine's byte order."""
    digits, _, port = text.partition(":")
    raw = b""
    for start in range(0, len(digits), 8):
        word = int(digits[start : start + 8], 16)
        raw += struct.pack("=I", word)
    if raw.startswith(IPV4_IN_IPV6):
        raw = raw[len(IPV4_IN_IPV6) :]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)
