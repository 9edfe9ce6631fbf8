"""Looks at a shared folder as a node would that has it mounted in some way, right or wrong.

Run as root: `python shared_folder.py FOLDER WAY SECONDS` gives itself a mount namespace, mounts
something on the folder, prints what `read_shared` tells of it as JSON, and ends with all its
mounts. Without SECONDS it mounts in the namespace that it is in, says so, and serves until it is
ended. The server of the folder is one of FUSE, by the kernel's own protocol (linux/fuse.h, 7.31).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import struct
import sys
import time

CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE, MS_REMOUNT, MS_BIND = (
    0x20000,
    0x1,
    0x4000,
    0x40000,
    0x20,
    0x1000,
)
LOOKUP, GETATTR, OPEN, READ, STATFS, INIT, OPENDIR, READDIR = 1, 3, 14, 15, 17, 26, 27, 28
RELEASE, FLUSH, RELEASEDIR = 18, 25, 29
SILENT = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET: nobody waits for an answer
HEADER = struct.Struct("=IIQQIIII")
FILE = b"beginning of a file\n" * 300
EXPORTS = {
    "right": [f"shard-{number:03}.tar" for number in range(40)],
    "changed": [f"shard-{number:03}.tar" for number in range(41)],
    "other": [f"old-{number:03}.tar" for number in range(40)],
    "stale": [],
}
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, folder: str, kind: str, flags: int = 0, data: str = "") -> None:
    words = [word.encode() for word in (source, folder, kind)]
    if libc.mount(*words, flags, data.encode()):
        raise OSError(ctypes.get_errno(), "mount", folder)


def attributes(node: int) -> bytes:
    """struct fuse_attr of the folder, node 1, or of a file in it."""
    folder = node == 1
    size = 4096 if folder else len(FILE)
    mode = (stat.S_IFDIR | 0o777) if folder else (stat.S_IFREG | 0o644)
    return struct.pack("=6Q10I", node, size, 16, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def listing(names: list[str], offset: int) -> bytes:
    """As many entries of the folder as fit into a page, from the one with this number."""
    rows = b""
    for number, name in enumerate(names[offset:], offset):
        word = name.encode()
        row = struct.pack("=QQII", number + 2, number + 1, len(word), 8) + word
        row += b"\0" * (-len(row) % 8)
        if len(rows) + len(row) > 4096:
            break
        rows += row
    return rows


def found(name: str, names: list[str]) -> bytes | int:
    """The answer to a look-up."""
    if name not in names:
        return errno.ENOENT
    node = names.index(name) + 2
    return struct.pack("=QQQQII", node, 0, 0, 0, 0, 0) + attributes(node)


def reply(operation: int, node: int, body: bytes, names: list[str]) -> bytes | int:
    """The body of an answer, or an error number."""
    if operation == LOOKUP:
        return found(body.rstrip(b"\0").decode(), names)
    if operation in (READ, READDIR):
        offset = struct.unpack_from("=QQ", body)[1]
        return listing(names, offset) if operation == READDIR else FILE[offset:]
    opened = struct.pack("=QII", 0, 0, 0)
    answers = {
        INIT: struct.pack("=IIIIHHIIHHI", 7, 31, 65536, 0, 12, 9, 4096, 1, 1, 0, 0) + b"\0" * 28,
        GETATTR: struct.pack("=QII", 0, 0, 0) + attributes(node),
        STATFS: struct.pack("=5Q4I24x", 1 << 30, 1 << 29, 1 << 29, 1000, 900, 4096, 255, 4096, 0),
        OPEN: opened,
        OPENDIR: opened,
        RELEASE: b"",
        FLUSH: b"",
        RELEASEDIR: b"",
    }
    return answers.get(operation, errno.ENOSYS)


def serve(channel: int, way: str) -> None:
    """Answer the kernel until the file system is unmounted."""
    while True:
        try:
            request = os.read(channel, 1 << 17)
        except OSError:
            return
        operation, number, node = HEADER.unpack_from(request)[1:4]
        if operation in SILENT:
            continue
        if way == "hung" and operation != INIT:
            time.sleep(1e6)
        body = request[HEADER.size :]
        names = EXPORTS.get(way, EXPORTS["right"])
        is_stale = way == "stale" and operation != INIT
        answer = errno.ESTALE if is_stale else reply(operation, node, body, names)
        error, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
        os.write(channel, struct.pack("=IiQ", 16 + len(data), error, number) + data)


def prepare(folder: str, way: str) -> int | None:
    """Mount what `way` says; return the process that serves it."""
    if way == "nothing":
        return None
    if way == "tmpfs":
        mount("tmpfs", folder, "tmpfs")
        return None
    channel = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"
    mount("server", folder, "fuse.export", MS_RDONLY if way == "read-only" else 0, options)
    pid = os.fork()
    if pid == 0:
        serve(channel, way)
        os._exit(0)
    os.close(channel)
    return pid


def main() -> None:
    folder, way = sys.argv[1:3]
    if len(sys.argv) == 3:
        prepare(folder, way)
        print(flush=True)
        time.sleep(1e6)
    # A server alone does not need it, and runs without this project's folder on its path.
    from clusterprep.remote.agent.shared import read_shared

    seconds = float(sys.argv[3])
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    server = prepare(folder, way)
    try:
        told = read_shared(None, seconds, folder)
    finally:
        if server is not None:
            os.kill(server, 9)  # the kernel then fails all that waits for it
            os.waitpid(server, 0)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
