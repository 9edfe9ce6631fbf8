"""What a node's driver libraries and local disks look like, without a call of the driver."""

import os

from clusterprep.remote.agent.readers import NoAnswer, names_in, offer, read_file, run

CACHE = "/etc/ld.so.cache"
CACHE_BYTES = 16 << 20  # more is no cache of a loader
# Libraries of the driver's user part, by the names that programs load.
DRIVER_LIBRARIES = frozenset(
    (
        "libcuda.so.1",
        "libcudadebugger.so.1",
        "libnvidia-cfg.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-opencl.so.1",
        "libnvidia-ptxjitcompiler.so.1",
    )
)
MOST_LIBRARIES = 256
NVME = "/sys/class/nvme"
MOST_DISKS = 64
NVME_FILES = ("model", "serial", "firmware_rev", "state", "transport")


def read_driver_libraries():
    """Return [path, bytes, file name] of each driver library that the loader's cache names.

    Bytes and name are those of the file behind the links, None where it does not exist.
    """
    try:
        with open(CACHE, "rb") as source:
            cache = source.read(CACHE_BYTES)
    except OSError:
        return []
    if not any(name.encode("ascii") in cache for name in DRIVER_LIBRARIES):
        return []  # no driver: a cache has a thousand entries
    paths = set()
    for entry in cache.split(b"\0"):
        if entry.startswith(b"/"):
            path = entry.decode("utf-8", "replace")
            if os.path.basename(path) in DRIVER_LIBRARIES:
                paths.add(path)
    if len(paths) > MOST_LIBRARIES:
        raise NoAnswer("truncated", "%s names %d driver libraries" % (CACHE, len(paths)))
    return [_library(path) for path in sorted(paths)]


def _library(path):
    try:
        size = os.stat(path).st_size
    except OSError:
        return [path, None, None]
    return [path, size, os.path.basename(os.path.realpath(path))]


def read_nvme():
    """Return the NVMe controllers, and what a tool says of the health of each.

    {"disks": {name: {file of sysfs: text}}, "tool": nvme, smartctl or None, "health": {name: ["ok",
    answer of the command] or ["no", reason, why]}}. Only root may ask a disk.
    """
    disks = {}
    names = names_in(NVME)
    if len(names) > MOST_DISKS:
        raise NoAnswer("truncated", "there are more than %d NVMe disks" % MOST_DISKS)
    for name in names:
        disks[name] = {}
        for key in NVME_FILES:
            try:
                disks[name][key] = read_file("%s/%s/%s" % (NVME, name, key)).strip()
            except OSError:
                disks[name][key] = None
    tool, health = _health(names)
    return {
        "disks": disks,
        "tool": tool,
        "health": health,
    }


def _health(names):
    """Return the first tool that is installed, and its answer for each disk."""
    for tool, argv in (
        ("nvme", ["nvme", "smart-log", "-o", "json"]),
        ("smartctl", ["smartctl", "-j", "-A"]),
    ):
        health = {}
        try:
            for name in names:
                health[name] = ["ok", run(argv + ["/dev/" + name])]
        except NoAnswer as no:
            if no.reason == "missing_tool":
                continue
            health[name] = ["no", no.reason, no.why]
        return tool, health
    return None, {}


def _has_no_disk():
    """Return whether there is no NVMe disk, so that no tool is asked."""
    return not names_in(NVME)


def install(agent):
    """Register the readers of this part; disks have a child of their own, as they may be slow."""
    offer({"driver_libraries": read_driver_libraries}, "files")
    offer({"nvme": read_nvme}, instant=_has_no_disk)
