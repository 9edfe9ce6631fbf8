"""The machine itself: our rights on it, its processors, kernels that wait for a reboot, who takes the interrupts."""

import os
import time

from clusterprep.remote.agent.readers import NoAnswer, names, offer, paths, read_file, run

WINDOW = 0.3  # seconds between the two looks at /proc/interrupts; slept, not worked
CPU = "/sys/devices/system/cpu/"
NET = "/sys/class/net/"


def read_rights():
    """Who this process is; where that is not root, how `sudo -n true` ended (None: there is no sudo)."""
    if is_root():
        return {"uid": 0, "user": "root", "sudo": None}
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = "#%d" % os.geteuid()  # as sudoers writes a user without a name
    try:
        code = run(["sudo", "-n", "true"])["code"]
    except NoAnswer:
        code = None
    return {"uid": os.geteuid(), "user": user, "sudo": code}


def is_root():
    return os.geteuid() == 0


def read_account(user):
    """User and group id of a name, None for a name that nobody has; without a name those of this process."""
    if user is None:
        return {"uid": os.getuid(), "gid": os.getgid()}
    local = _local(user)
    if local:
        return local
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return {"uid": entry.pw_uid, "gid": entry.pw_gid}


def _local(user):
    """The same from /etc/passwd alone, which asks no directory service."""
    try:
        rows = [line.split(":") for line in read_file("/etc/passwd").split("\n")]
    except (OSError, NoAnswer):
        return None
    found = [row for row in rows if row[0] == user and len(row) > 3]
    return {"uid": int(found[0][2]), "gid": int(found[0][3])} if found else None


def is_local(user):
    """Whether no directory service has to be asked for a user."""
    return user is None or _local(user) is not None


def read_kernels():
    """The kernels that this machine could boot, by release."""
    marks = ("vmlinuz-", "vmlinux-", "Image-")
    found = set(name.split("-", 1)[1] for name in names("/boot") if name.startswith(marks))
    found.update(
        name for name in names("/lib/modules") if os.path.exists("/lib/modules/%s/vmlinuz" % name)
    )
    return sorted(found)[:256]


def read_cpus():
    """The first processor of /proc/cpuinfo, and how many sockets, cores and processors are online."""
    with open(
        "/proc/cpuinfo", "rb"
    ) as source:  # all of it would be 300 KB and more on two large sockets
        first = source.read(8192).decode("utf-8", "replace").split("\n\n")[0]
    sockets, cores, count = set(), set(), 0
    for folder in paths(CPU + "*/topology"):
        try:
            sockets.add(read_file(folder + "/physical_package_id").strip())
            cores.add(read_file(folder + "/thread_siblings_list").strip())
            count += 1
        except OSError:
            continue
    return {"cpuinfo": first, "sockets": len(sockets), "cores": len(cores), "cpus": count}


def read_governors():
    """How the clocks are governed: [driver, governor, preference, how many policies, the first of them]."""
    found = {}
    for path in paths(CPU + "cpufreq/*/scaling_governor"):
        folder = os.path.dirname(path)
        governor = _word(path)
        # The preference comes from a register of that very CPU, and governor performance overrules it.
        preference = (
            None if governor == "performance" else _word(folder + "/energy_performance_preference")
        )
        row = (_word(folder + "/scaling_driver"), governor, preference)
        found.setdefault(row, []).append(os.path.basename(folder))
    return [
        list(row) + [len(policies), policies[0]] for row, policies in sorted(found.items(), key=str)
    ]


def _word(path):
    try:
        return read_file(path).strip()
    except OSError:
        return None


# ---------------------------------------------------------------- interrupts


def read_interrupts():
    """What came in about 0.3 s: by device and interrupt line, for each CPU that took any."""
    devices = _net_devices() + _gpus()
    wanted = set(irq.encode("ascii") for device in devices for irq in device["irqs"])
    for device in devices:
        device["lines"] = {}
    if not wanted:
        return {"seconds": WINDOW, "devices": devices, "lower": _lower()}
    start, before = time.monotonic(), _lines(wanted)[1]
    time.sleep(WINDOW)
    cpus, after = _lines(wanted)
    seconds = time.monotonic() - start
    for device in devices:
        for irq in device["irqs"]:
            old, new = before.get(irq.encode("ascii")), after.get(irq.encode("ascii"))
            if old and new and old != new:
                device["lines"][irq] = _grown(old, new, cpus)
    return {"seconds": seconds, "devices": devices, "lower": _lower()}


def _net_devices():
    """Interfaces with a card of their own, with its interrupts and how many queues receive."""
    found = []
    for name in names(NET):
        place = os.path.realpath(NET + name + "/device")
        if os.path.exists(NET + name + "/device"):
            queues = [queue for queue in names(NET + name + "/queues") if queue.startswith("rx-")]
            found.append({"name": name, "gpu": False, "irqs": _irqs(place), "queues": len(queues)})
    return found


def _gpus():
    driver = "/sys/bus/pci/drivers/nvidia/"
    found = []
    for name in names(driver):  # NVSwitches have this driver too, and are no display controllers
        if (_word(driver + name + "/class") or "").startswith(("0x0300", "0x0302")):
            found.append(
                {
                    "name": name,
                    "gpu": True,
                    "irqs": _irqs(os.path.realpath(driver + name)),
                    "queues": 1,
                }
            )
    return found


def _irqs(place):
    """Interrupts of a device; those of virtio belong to the PCI function above it."""
    for folder in (place, os.path.dirname(place)):
        found = names(folder + "/msi_irqs")
        if found:
            return found[:1024]
    line = _word(place + "/irq")
    return [line] if line and line != "0" else []


def _lower():
    """What bonds, bridges and VLANs stand on, by name."""
    found = {}
    for name in names(NET):
        below = [link[6:] for link in names(NET + name) if link.startswith("lower_")]
        if below:
            found[name] = below
    return found


def _lines(wanted):
    """CPUs in the order of columns, and the lines of /proc/interrupts that are wanted, by number."""
    with open("/proc/interrupts", "rb") as source:
        cpus = source.readline().decode("ascii", "replace").split()
        found = {}
        for line in source:
            number = line.split(b":", 1)[0].strip()
            if number in wanted:
                found[number] = line
    return cpus, found


def _grown(old, new, cpus):
    """Interrupts by CPU between two looks at one line. The kernel counts in 32 bits; a line set up anew starts at 0."""
    columns = zip(cpus, old.split()[1:], new.split()[1:])
    counts = (
        (cpu, (int(last) - int(first)) % (1 << 32)) for cpu, first, last in columns if first != last
    )
    return dict((cpu, count) for cpu, count in counts if count < 1 << 31)


def install(agent):
    """Register the readers of this part; interrupts have a child of their own, as they wait."""
    offer({"rights": read_rights}, "tools", is_root)
    offer({"account": read_account}, "account", is_local)
    offer({"kernels": read_kernels, "cpus": read_cpus, "governors": read_governors}, "files")
    offer({"interrupts": read_interrupts})
