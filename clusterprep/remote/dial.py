"""The part of the agent that tries ports: it listens where a job would, and dials where others listen."""

import errno
import os
import select
import time

from clusterprep.remote.light import socket
from clusterprep.remote.readers import names, paths, read_file


def listen(agent, request):
    """Operation listen: hold a port until the command ends, so that the other nodes can dial it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("", request["port"]))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        in_use = error.errno == errno.EADDRINUSE
        return {"no": "in_use" if in_use else "denied", "why": error.strerror, "owner": _owner(request["port"])}

    sock.setblocking(False)
    handle = sock.fileno()

    def poll(now):
        try:
            while True:
                os.close(sock._accept()[0])  # noqa: SLF001 - light.socket has no other
        except OSError:  # nobody is waiting, or the port was given back
            pass

    agent.polls.append(poll)
    _listening[handle] = (sock, poll)
    return {"port": sock.getsockname()[1], "handle": handle}


def unlisten(agent, request):
    """Operation unlisten: give the port back."""
    sock, poll = _listening.pop(request["handle"])
    agent.polls.remove(poll)
    sock.close()
    return {}


# handle -> socket and the poll that empties its queue
_listening = {}  # type: dict[int, tuple[object, object]]


def _owner(port):
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_file(path).splitlines()[1:] if os.path.exists(path) else []:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add("socket:[%s]" % fields[9])
    for pid in filter(str.isdigit, names("/proc")):
        if any(target in inodes for target in open_files(pid)):
            return {"pid": int(pid), "name": read_file("/proc/%s/comm" % pid).strip()}
    return None


def open_files(pid):
    """What the descriptors of a process lead to; nothing for one that is gone or somebody else's."""
    found = []
    for link in paths("/proc/%s/fd/*" % pid):
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found


def dial(agent, request):
    """Operation dial: {"targets": [[address, port], …], "limit": s} → one word each, such as ok or refused."""
    left = {}
    words = [None] * len(request["targets"])
    end = time.monotonic() + request["limit"]
    for index, (address, port) in enumerate(request["targets"]):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            left[index] = (sock, (address, port))
        except OSError as error:
            words[index] = _dial_word(getattr(error, "errno", 0))

    def poll(now):
        for index, (sock, target) in list(left.items()):
            word = _dial_word(sock.connect_ex(target))
            if word is None and now > end:
                word = "timed_out"
            if word is not None:
                words[index] = word
                sock.close()
                del left[index]
        if not left:
            agent.polls.remove(poll)
            agent.answer(request, words=words)

    agent.polls.append(poll)
    for sock, target in left.values():
        sock.connect_ex(target)
    # Neighbours answer within a millisecond: waiting here saves a turn of the loop.
    select.select([], [sock for sock, _ in left.values()], [], 0.02)
    poll(time.monotonic())


def _dial_word(code):
    if code in (0, errno.EISCONN):
        return "ok"
    if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
        return None
    return {
        errno.ECONNREFUSED: "refused",
        errno.ETIMEDOUT: "timed_out",
        errno.EHOSTUNREACH: "no_route",
        errno.ENETUNREACH: "no_route",
    }.get(code, "error %s" % errno.errorcode.get(code, code))


def install(agent):
    """Register the operations of this part."""
    agent.ops.update(listen=listen, unlisten=unlisten, dial=dial)
