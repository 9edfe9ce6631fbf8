"""The machine itself: rights of this user, processors, bootable kernels, and interrupts."""

import os
import time

from clusterprep.remote.agent.readers import (
    NoAnswer,
    is_guest_by_dmi,
    matching_paths,
    names_in,
    offer,
    read_file,
    run,
)

WINDOW = 0.3  # seconds between the two looks at /proc/interrupts; slept, not worked
CPU = "/sys/devices/system/cpu/"
NET = "/sys/class/net/"
NVIDIA_DRIVER = "/sys/bus/pci/drivers/nvidia/"
KERNEL_NAMES = ("vmlinuz-", "vmlinux-", "Image-")
MOST_KERNELS = 256
MOST_INTERRUPTS = 2048  # of one device: the table of MSI-X has no more
# Bytes of the first processor: all of /proc/cpuinfo would be 300 KB and more on two large sockets.
CPUINFO = 8192


def read_rights():
    """Return who this process is, and for others than root how `sudo -n true` ended.

    "sudo" is None if there is no sudo.
    """
    if is_root():
        return {
            "uid": 0,
            "user": "root",
            "sudo": None,
        }
    import pwd

    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = "#%d" % uid  # as sudoers writes a user without a name
    try:
        code = run(["sudo", "-n", "true"])["code"]
    except NoAnswer:
        code = None
    return {
        "uid": uid,
        "user": user,
        "sudo": code,
    }


def is_root():
    return os.geteuid() == 0


def read_account(user):
    """Return user and group id of a name or, without a name, of this process.

    None for an unknown name.
    """
    if user is None:
        return {
            "uid": os.getuid(),
            "gid": os.getgid(),
        }
    local = _local(user)
    if local:
        return local
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
    }


def _local(user):
    """Return the same from /etc/passwd alone, which asks no directory service."""
    try:
        lines = read_file("/etc/passwd").split("\n")
    except (OSError, NoAnswer):
        return None
    for line in lines:
        fields = line.split(":")
        if fields[0] == user and len(fields) > 3:
            return {
                "uid": int(fields[2]),
                "gid": int(fields[3]),
            }
    return None


def is_local(user):
    """Return whether no directory service has to be asked for a user."""
    return user is None or _local(user) is not None


def read_kernels():
    """Return the releases of the kernels that this machine could boot."""
    releases = set()
    for name in names_in("/boot"):
        if name.startswith(KERNEL_NAMES):
            releases.add(name.split("-", 1)[1])
    for name in names_in("/lib/modules"):
        if os.path.exists("/lib/modules/%s/vmlinuz" % name):
            releases.add(name)
    if len(releases) > MOST_KERNELS:
        raise NoAnswer("truncated", "there are more than %d kernels" % MOST_KERNELS)
    return sorted(releases)


def read_cpus():
    """Return the first processor of /proc/cpuinfo, and the sockets, cores and processors online.

    "guest" is whether the firmware names a virtual machine.
    """
    with open("/proc/cpuinfo", "rb") as source:
        text = source.read(CPUINFO).decode("utf-8", "replace")
    first, end, _ = text.partition("\n\n")
    if not end and len(text) >= CPUINFO:
        raise NoAnswer("truncated", "a processor has more than %d bytes" % CPUINFO)
    sockets = set()
    cores = set()
    count = 0
    for folder in matching_paths(CPU + "*/topology"):
        try:
            sockets.add(read_file(folder + "/physical_package_id").strip())
            cores.add(read_file(folder + "/thread_siblings_list").strip())
            count += 1
        except OSError:
            continue
    return {
        "cpuinfo": first,
        "guest": is_guest_by_dmi(),
        "sockets": len(sockets),
        "cores": len(cores),
        "cpus": count,
    }


def read_governors():
    """Return [driver, governor, preference, number of policies, first policy] of the clocks."""
    policies_of = {}
    for path in matching_paths(CPU + "cpufreq/*/scaling_governor"):
        folder = os.path.dirname(path)
        driver = _text_of(folder + "/scaling_driver")
        governor = _text_of(path)
        preference = None
        # The preference comes from a register of that very CPU, and the governor performance
        # overrules it.
        if governor != "performance":
            preference = _text_of(folder + "/energy_performance_preference")
        policies = policies_of.setdefault((driver, governor, preference), [])
        policies.append(os.path.basename(folder))
    rows = []
    for row, policies in sorted(policies_of.items(), key=str):
        rows.append(list(row) + [len(policies), policies[0]])
    return rows


def _text_of(path):
    try:
        return read_file(path).strip()
    except OSError:
        return None


# ---------------------------------------------------------------- interrupts


def read_interrupts():
    """Return the interrupts within about 0.3 s by device, interrupt line and CPU."""
    devices = _net_devices() + _gpus()
    wanted = set()
    for device in devices:
        device["lines"] = {}
        wanted.update(irq.encode("ascii") for irq in device["irqs"])
    if not wanted:
        return {
            "seconds": WINDOW,
            "devices": devices,
            "lower": _lower(),
        }
    start = time.monotonic()
    _, before = _lines(wanted)
    time.sleep(WINDOW)
    cpus, after = _lines(wanted)
    seconds = time.monotonic() - start
    for device in devices:
        for irq in device["irqs"]:
            number = irq.encode("ascii")
            old = before.get(number)
            new = after.get(number)
            if old and new and old != new:
                device["lines"][irq] = _increase(old, new, cpus)
    return {
        "seconds": seconds,
        "devices": devices,
        "lower": _lower(),
    }


def _net_devices():
    """Return the interfaces of network cards, with their interrupts and receive queues."""
    devices = []
    for name in names_in(NET):
        folder = NET + name
        if not os.path.exists(folder + "/device"):
            continue
        place = os.path.realpath(folder + "/device")
        queues = [queue for queue in names_in(folder + "/queues") if queue.startswith("rx-")]
        irqs = _irqs(place)
        devices.append(
            {
                "name": name,
                "gpu": False,
                "irqs": irqs,
                "queues": len(queues),
            }
        )
    return devices


def _gpus():
    devices = []
    for name in names_in(NVIDIA_DRIVER):
        folder = NVIDIA_DRIVER + name
        device_class = _text_of(folder + "/class") or ""
        # NVSwitches have this driver too, and are no display controllers.
        if device_class.startswith(("0x0300", "0x0302")):
            irqs = _irqs(os.path.realpath(folder))
            devices.append(
                {
                    "name": name,
                    "gpu": True,
                    "irqs": irqs,
                    "queues": 1,
                }
            )
    return devices


def _irqs(place):
    """Return the interrupts of a device; those of virtio belong to the PCI function above it."""
    for folder in (place, os.path.dirname(place)):
        numbers = names_in(folder + "/msi_irqs")
        if len(numbers) > MOST_INTERRUPTS:
            why = "%s has more than %d interrupts" % (folder, MOST_INTERRUPTS)
            raise NoAnswer("truncated", why)
        if numbers:
            return numbers
    line = _text_of(place + "/irq")
    return [line] if line and line != "0" else []


def _lower():
    """Return {interface: interfaces below it} of bonds, bridges and VLANs."""
    lower = {}
    for name in names_in(NET):
        below = [link[6:] for link in names_in(NET + name) if link.startswith("lower_")]
        if below:
            lower[name] = below
    return lower


def _lines(wanted):
    """Return the CPUs by column, and the wanted lines of /proc/interrupts by number."""
    with open("/proc/interrupts", "rb") as source:
        cpus = source.readline().decode("ascii", "replace").split()
        lines = {}
        for line in source:
            number = line.split(b":", 1)[0].strip()
            if number in wanted:
                lines[number] = line
    return cpus, lines


def _increase(old, new, cpus):
    """Return the interrupts by CPU between two looks at one line.

    The kernel counts in 32 bits; a line that is set up anew starts at 0.
    """
    counts = {}
    for cpu, first, last in zip(cpus, old.split()[1:], new.split()[1:]):
        if first == last:
            continue
        count = (int(last) - int(first)) % (1 << 32)
        if count < 1 << 31:
            counts[cpu] = count
    return counts


def install(agent):
    """Register the readers of this part; interrupts have a lane of their own, as they wait."""
    offer({"rights": read_rights}, "tools", is_root)
    offer({"account": read_account}, "account", is_local)
    offer(
        {
            "kernels": read_kernels,
            "cpus": read_cpus,
            "governors": read_governors,
        },
        "files",
    )
    offer({"interrupts": read_interrupts}, "waits")
