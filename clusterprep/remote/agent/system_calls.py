"""The system call in which a thread waits, and the file that it waits for."""

import os
import struct

# asm/unistd_64.h of x86, and asm-generic/unistd.h, which arm64 has.
X86 = {
    0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
    17: "pread", 18: "pwrite", 19: "readv", 20: "writev", 23: "select", 24: "sched_yield",
    34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg",
    61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 128: "sigtimedwait",
    202: "futex", 217: "getdents", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
    257: "openat", 262: "stat", 270: "select", 271: "poll", 281: "epoll_wait", 288: "accept",
    332: "statx", 441: "epoll_wait", 449: "futex",
}  # fmt: skip
ARM = {
    22: "epoll_wait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 61: "getdents",
    63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread", 68: "pwrite", 72: "select",
    73: "poll", 79: "stat", 80: "fstat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex",
    101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 137: "sigtimedwait",
    202: "accept", 203: "connect", 207: "recvfrom", 212: "recvmsg", 242: "accept", 260: "wait4",
    291: "statx", 441: "epoll_wait", 449: "futex",
}  # fmt: skip
OF_MACHINE = {"x86_64": X86, "aarch64": ARM}
# Calls whose first argument is an open file.
OF_FILE = (
    "read", "write", "ioctl", "pread", "pwrite", "readv", "writev", "connect", "accept", "recvfrom",
    "recvmsg", "fcntl", "flock", "fsync", "fdatasync", "fstat", "getdents",
)  # fmt: skip
MOST_POLLED = 4
LONGEST = 200  # characters of a path


def call_of(pid, folder):
    """Return [name of the call, [what its files are]] of a thread.

    The name is "running" while it runs in the program, "" where it is not shown.
    """
    try:
        with open(folder + "/syscall", "r") as source:
            fields = source.read().split()
    except OSError:
        return ["", []]
    if not fields or fields[0] == "running":
        return ["running" if fields else "", []]
    number = int(fields[0])
    if number < 0 or len(fields) < 3:
        return ["", []]
    name = OF_MACHINE.get(os.uname()[4], {}).get(number, "call %d" % number)
    first, second = int(fields[1], 16), int(fields[2], 16)
    descriptors = []
    if name in OF_FILE:
        descriptors = [first]
    elif name == "poll":
        descriptors = _polled(pid, first, second)
    files = [_file(pid, descriptor) for descriptor in descriptors]
    return [name, [each for each in files if each]]


def _polled(pid, address, count):
    """Return the descriptors of an array of struct pollfd in the memory of a process."""
    count = min(count, MOST_POLLED)
    if not count or not 0 < address < 1 << 62:
        return []
    try:
        memory = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
    except OSError:
        return []
    try:
        data = os.pread(memory, 8 * count, address)
    except OSError:
        data = b""
    finally:
        os.close(memory)
    found = []
    for start in range(0, len(data) - 7, 8):
        found.append(struct.unpack_from("=i", data, start)[0])
    return found


def _file(pid, descriptor):
    """Return what an open file is: a path, «pipe», «socket»; empty if that is not shown."""
    if not 0 <= descriptor < 1 << 20:
        return ""
    try:
        target = os.readlink("/proc/%d/fd/%d" % (pid, descriptor))
    except OSError:
        return ""
    for kind in ("pipe", "socket"):
        if target.startswith(kind + ":["):
            return kind
    return target[:LONGEST]
