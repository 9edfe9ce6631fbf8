"""File systems that do not answer, are too small or full, and what jobs leave in shared memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.support import shared_folder
from tests.support.lab import processes
from tests.support.lab.faults.fault import Fault
from tests.support.lab.rooms import Host

# A FUSE server that greets the kernel and then never answers again, as an NFS server that went
# away. The mount's end is the server's: the kernel then fails all that waits (linux/fuse.h:
# FUSE_INIT is 26, version 7.31).
_SILENT = r"""
import ctypes, os, struct, sys, time
fd = os.open("/dev/fuse", os.O_RDWR)
data = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fd
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse.silent", 0, data):
    raise OSError(ctypes.get_errno(), "mount")
number = struct.unpack_from("=IIQ", os.read(fd, 1 << 17))[2]
body = struct.pack("=IIIIHHIIHHI", 7, 31, 65536, 0, 12, 9, 4096, 1, 1, 0, 0) + b"\0" * 28
os.write(fd, struct.pack("=IiQ", 16 + len(body), 0, number) + body)
print(flush=True)
time.sleep(1e6)
"""
# Waits for that file system as a job in the kernel does: a signal that came meanwhile makes it
# sleep uninterruptibly.
_WAITING = r"""
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05)
print(flush=True)
os.statvfs(sys.argv[1])
"""
_HOLDING = r"""
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
held = mmap.mmap(fd, 4096)
os.close(fd)
print(flush=True)
time.sleep(1e6)
"""


# Loop devices are the whole machine's, and a host has only the device nodes that it makes. Another
# lab may be faster.
_DISK = """
[ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
mkdir -p "$1" && truncate --size 8M "$0" && mke2fs -q -t ext4 "$0" || exit 1
for try in 1 2 3 4 5; do
    number=$(losetup --find | sed 's/[^0-9]*//')
    [ -e /dev/loop$number ] || mknod /dev/loop$number b 7 $number
    mount -o "$2" "$0" "$1" && exit 0
done
exit 1
"""


def hung_mount(host: Host, folder: str) -> Fault:
    """A mounted file system that never answers. Its readers wait until the fault is undone."""
    host.run(
        ["sh", "-c", '[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229; mkdir -p "$0"', folder]
    )
    server = _started(host, _SILENT, folder)

    def undo() -> None:
        _ended(server)
        host.run(["umount", "--lazy", folder])

    return Fault(undo)


def export(host: Host, folder: str, way: str) -> Fault:
    """A folder of a file server, as `tests/support/shared_folder.py` serves it in this way."""
    host.run(
        ["sh", "-c", '[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229; mkdir -p "$0"', folder]
    )
    server = _ready(host, [sys.executable, shared_folder.__file__, folder, way])

    def undo() -> None:
        _ended(server)
        host.run(["umount", "--lazy", folder])

    return Fault(undo)


def stuck_task(host: Host, folder: str = "/mnt/silent") -> Fault:
    """A process in uninterruptible sleep, for as long as a file system does not answer."""
    mount = hung_mount(host, folder)
    task = _started(host, _WAITING, folder)
    host.run(["sh", "-c", "until grep -q '^State:.D' /proc/[0-9]*/status; do sleep 0.01; done"])

    def undo() -> None:
        processes.kill_group(task)
        mount.undo()
        _ended(task)

    return Fault(undo)


def tmpfs(host: Host, folder: str, options: str = "mode=1777") -> Fault:
    """A file system in memory at this folder, such as one of size=512m or nr_inodes=100."""
    host.run(["mkdir", "-p", folder])
    host.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])
    return Fault(lambda: host.run(["umount", "--lazy", folder]))


def resized(host: Host, folder: str, size: str, after: str = "50%") -> Fault:
    """Another size of a file system in memory, and the size it gets back."""
    host.run(["mount", "-o", f"remount,size={size}", folder])
    return Fault(lambda: host.run(["mount", "-o", f"remount,size={after}", folder]))


def unmounted(host: Host, folder: str, again: Callable[[], Fault]) -> Fault:
    """Nothing is mounted there; `again` mounts it."""
    host.run(["umount", folder])
    return Fault(again)


def filled(host: Host, folder: str) -> Fault:
    """A file that takes all the space of a file system."""
    path = f"{folder}/filler"
    host.run(["sh", "-c", 'cat /dev/zero > "$0" 2>/dev/null', path], check=False)
    return Fault(lambda: host.run(["rm", "-f", path]))


def no_inodes(host: Host, folder: str) -> Fault:
    """So many files that no other can be made, though there is space."""
    place = f"{folder}/many"
    fill = 'mkdir "$0"; cd "$0"; i=0; while : > $i; do i=$((i+1)); done'
    host.run(["sh", "-c", f"({fill}) 2>/dev/null", place], check=False)
    return Fault(lambda: host.run(["rm", "-rf", place]))


def disk(host: Host, folder: str, options: str = "errors=remount-ro") -> Fault:
    """A disk of 8 MiB with ext4, mounted at this folder."""
    image = f"/var/tmp/{folder.strip('/').replace('/', '-')}.img"
    host.run(["sh", "-c", _DISK, image, folder, f"loop,{options}"])

    def undo() -> None:
        host.run(["umount", folder])
        host.run(["rm", image])

    return Fault(undo)


def remounted_read_only(host: Host, folder: str) -> Fault:
    """A file system that the kernel turned read-only, as after an error of its disk."""
    host.run(["mount", "-o", "remount,ro", folder])
    return Fault(lambda: host.run(["mount", "-o", "remount,rw", folder]))


def segment(host: Host, name: str = "nccl-kq3Vz8", minutes: int = 90) -> Fault:
    """Shared memory of an NCCL job that ended without cleaning up, so old."""
    path = f"/dev/shm/{name}"
    host.run(["truncate", "--size", "9637892", path])
    host.run(["touch", "--date", f"{minutes} minutes ago", path])
    return Fault(lambda: host.run(["rm", "-f", path]))


def held_segment(host: Host, name: str = "nccl-Xw7hTa") -> Fault:
    """The same, of a job that still runs."""
    left = segment(host, name)
    process = _started(host, _HOLDING, f"/dev/shm/{name}")

    def undo() -> None:
        _ended(process)
        left.undo()

    return Fault(undo)


def _started(host: Host, script: str, path: str) -> subprocess.Popen[str]:
    """A script that runs on, once it has said that it is ready."""
    return _ready(host, [sys.executable, "-c", script, path])


def _ready(host: Host, argv: list[str]) -> subprocess.Popen[str]:
    """A program that runs on, once it has printed a line."""
    process = host.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if process.stdout is None or process.stdout.readline() == "":
        message = f"{argv} on {host.name}: {process.communicate()[1]}"
        raise RuntimeError(message)
    return process


def _ended(process: subprocess.Popen[str]) -> None:
    processes.kill_group(process)
    process.communicate()
