"""The part of the agent that looks at the TCP sockets of the ranks when a trial hangs, as the kernel shows them.

A connection that nobody answers, or data that nobody acknowledges, tells which way is broken while every rank only
waits. /proc/PID/net is that of the rank's own network, also where the job's python is a wrapper that gives it one.
"""

import os
import struct
import time

from clusterprep.remote.agent.light import socket

ESTABLISHED, SYN_SENT, SYN_RECV, LISTEN = 1, 2, 3, 10  # include/net/tcp_states.h
BACK_OFF = 2  # times that data was sent again in a row; a packet lost once is none
MOST = 256  # sockets that are told of, and addresses
LIMIT = 1.0  # seconds of looking; the sockets of all others of the node are in the same list


def look(ranks):
    """Of {rank: pid}: {"rows": [[rank, state, address, port, peer, port, times sent again], …], "own", "cut"}.

    Rows are what a healthy job does not have: connections under way or with data that is sent again and again, and
    with rank None those that a peer has begun and not completed. `own` are the addresses that the ranks use.
    """
    end = time.monotonic() + LIMIT
    rows, own, cut = [], set(), False
    for rank, pid in sorted(ranks.items()):
        mine = inodes(pid)
        found, whole = _sockets(pid, end)
        ports = {row[2] for row in found if row[0] == LISTEN and row[6] in mine}
        for state, address, port, peer, peer_port, again, inode in found:
            if inode in mine:
                own.add(address)
            if inode in mine and (state == SYN_SENT or (state != LISTEN and again >= BACK_OFF)):
                rows.append([rank, state, address, port, peer, peer_port, again])
            elif state == SYN_RECV and port in ports:
                rows.append([None, state, address, port, peer, peer_port, again])
        cut = cut or not whole
    return {
        "rows": rows[:MOST],
        "own": sorted(own)[:MOST],
        "cut": cut or max(len(rows), len(own)) > MOST,
    }


def inodes(pid):
    """Numbers of the sockets that a process has open; none of one that is gone or somebody else's."""
    folder, found = "/proc/%d/fd" % pid, set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink("%s/%s" % (folder, name))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _sockets(pid, end):
    """Every TCP socket of a process's network, as far as the time allows, and whether it did."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/%d/net/%s" % (pid, name), "rb") as lines:
                next(lines, None)  # the head
                for line in lines:
                    found.append(parse(line.decode("ascii")))
                    if time.monotonic() > end:
                        return found, False
        except OSError:  # without IPv6, or a process that is gone
            continue
    return found, True


def parse(line):
    """(state, address, port, peer, port, times sent again, inode) of one line of /proc/net/tcp or tcp6."""
    fields = line.split()
    return (
        (int(fields[3], 16),)
        + _place(fields[1])
        + _place(fields[2])
        + (int(fields[6], 16), fields[9])
    )


def _place(text):
    """Address and port of «0200000A:1F90»: words of 32 bits in the machine's own order."""
    digits, _, port = text.partition(":")
    words = [struct.pack("=I", int(digits[i : i + 8], 16)) for i in range(0, len(digits), 8)]
    raw = b"".join(words)
    if raw[:12] == b"\0" * 10 + b"\xff\xff":  # an IPv4 address in a socket for both
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(
        port, 16
    )
