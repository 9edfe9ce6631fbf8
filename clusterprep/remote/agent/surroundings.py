"""What a process sees around it: devices, limits, shared memory, networks, namespaces, libraries.

The agent looks at the host, and the job's interpreter runs the same source in the job's container.
So the two differ only where the container does. Every value is a text, a whole number, a list or a
mapping of these, or None for what is not there or not known.
"""

import fcntl
import os
import resource
import socket
import struct

LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}
NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
# Beginnings of the variables that matter to a job.
VARIABLES = ("NCCL_", "TORCH_", "CUDA_", "NVIDIA_", "UCX_", "FI_", "GLOO_", "OMP_", "LD_")
# Files of cgroups, version 2 and then 1, below the folder that a process sees as its own.
CGROUP_FILES = {
    "memory": ("memory.max", "memory/memory.limit_in_bytes"),
    "cpu": ("cpu.max", "cpu/cpu.cfs_quota_us"),
    "cpus": ("cpuset.cpus.effective", "cpuset/cpuset.cpus"),
    "pids": ("pids.max", "pids/pids.max"),
}
SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
IFA_F_DADFAILED = 0x08  # linux/if_addr.h: another machine has this address
MOST = 512  # devices, interfaces or variables that are returned
LONGEST = 4096  # characters of a value
CONF = "/etc/nccl.conf"
SHM = "/dev/shm"  # noqa: S108 - only its size is read


def look():
    """Return what this process sees around it."""
    return {
        "devices": devices(),
        "limits": limits(),
        "shm": shared_memory(),
        "namespaces": namespaces(),
        "interfaces": interfaces(),
        "ipv6": ipv6_addresses(),
        "rdma": names_in("/sys/class/infiniband"),
        "cgroup": cgroup_limits(),
        "cpus": len(os.sched_getaffinity(0)),
        "user": {"uid": os.geteuid(), "gid": os.getegid(), "groups": sorted(os.getgroups())},
        "variables": variables(),
        "conf": first_bytes(CONF),
        "libraries": libraries(),
    }


def devices():
    """Return {path: 1 if this process may use the device, else 0} of what jobs need."""
    paths = []
    for name in names_in("/dev", ("nvidia", "gdrdrv", "knem", "xpmem")):
        paths.append("/dev/" + name)
    for folder in ("/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"):
        paths += [folder + "/" + name for name in names_in(folder)]
    usable = {}
    for path in paths[:MOST]:
        if not os.path.isdir(path):
            usable[path] = int(os.access(path, os.R_OK | os.W_OK))
    return usable


def limits():
    """Return {name: [soft, hard]}; -1 is no limit."""
    return dict((name, list(resource.getrlimit(number))) for name, number in LIMITS.items())


def shared_memory():
    """Return size and free bytes of /dev/shm, and its device; None if it is not there."""
    try:
        space = os.statvfs(SHM)
        device = os.stat(SHM).st_dev
    except OSError:
        return None
    return {
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "device": device,
    }


def namespaces():
    """Return {kind: identity of the namespace}."""
    found = {}
    for kind in NAMESPACES:
        try:
            found[kind] = os.readlink("/proc/self/ns/" + kind)
        except OSError:
            found[kind] = None
    return found


def interfaces():
    """Return {name: [MTU, IPv4 address]} of the network interfaces."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        for _, name in socket.if_nameindex()[:MOST]:
            mtu = first_bytes("/sys/class/net/%s/mtu" % name)
            found[name] = [int(mtu) if mtu and mtu.strip().isdigit() else None]
            found[name].append(address_of(plain, name))
    return found


def address_of(plain, name):
    """Return the first IPv4 address of an interface, None if it has none."""
    request = struct.pack("256s", name.encode("utf-8", "surrogateescape")[:15])
    try:
        answer = fcntl.ioctl(plain.fileno(), SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def ipv6_addresses():
    """Return the global IPv6 addresses of all interfaces, 32 hexadecimal digits each."""
    found = []
    try:
        with open("/proc/net/if_inet6", "rb") as source:
            for line in source:
                # address, index, length of the prefix, scope (0 is global), flags, interface
                words = line.decode("ascii", "replace").split()
                if len(words) != 6 or int(words[3], 16) != 0 or len(found) == MOST:
                    continue
                if not int(words[4], 16) & IFA_F_DADFAILED:
                    found.append(words[0])
    except OSError:  # a kernel without IPv6
        return []
    return found


def cgroup_limits():
    """Return the limits of this process's cgroup as the kernel writes them."""
    found = {}
    for name, files in CGROUP_FILES.items():
        values = [first_bytes("/sys/fs/cgroup/" + path) for path in files]
        told = [value.strip() for value in values if value]
        found[name] = told[0] if told else None
    return found


def variables():
    """Return the variables of this process that matter to a job."""
    found = {}
    for name in sorted(os.environ):
        if name.startswith(VARIABLES) and len(found) < MOST:
            found[name] = os.environ[name][:LONGEST]
    return found


def libraries():
    """Return {name: real file} of libraries that the loader would find, None for one that is not.

    They are looked for in LD_LIBRARY_PATH, the loader's cache and its default folders.
    """
    try:
        with open("/etc/ld.so.cache", "rb") as source:
            cache = source.read(16 << 20)
    except OSError:
        cache = b""
    machine = os.uname()[4] + "-linux-gnu"
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    default = ["/lib/" + machine, "/usr/lib/" + machine, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    found = {}
    for name in ("libnccl.so.2", "libcuda.so.1", "libnccl-net.so", "libibverbs.so.1"):
        places = [folder + "/" + name for folder in folders] + cached(cache, name)
        places += [folder + "/" + name for folder in default]
        there = [path for path in places if os.path.exists(path)]
        found[name] = os.path.realpath(there[0]) if there else None
    return found


def cached(cache, name):
    """Return the path of a library in the loader's cache, ld.so.cache(5), in a list."""
    end = cache.find(b"/" + name.encode("ascii") + b"\0")
    if end < 0:
        return []
    start = cache.rfind(b"\0", 0, end) + 1
    return [cache[start : cache.find(b"\0", end)].decode("utf-8", "replace")]


def names_in(folder, starts=("",)):
    """Return the sorted names in a folder that begin so; none if it cannot be read."""
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(starts))[:MOST]
    except OSError:
        return []


def first_bytes(path):
    """Return the begin of a file as text; None if it is not there, empty if it cannot be read."""
    try:
        with open(path, "rb") as source:
            return source.read(LONGEST).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def install(agent):
    """Register the reader of this part."""
    from clusterprep.remote.agent.readers import offer

    offer({"surroundings": look}, lane="files")
