"""What the NVIDIA driver shows without being called.

Device nodes, bound devices, libraries, and the fabric manager.
"""

import os
import stat

from clusterprep.remote.agent.readers import (
    NoAnswer,
    names_in,
    offer,
    read_file,
    read_pci,
    run,
)

SWITCH = "0x0680"  # PCI class of an NVSwitch: bridge, other
# PCI device ids of GPUs on an HGX board whose NVSwitches are no PCI devices of NVIDIA's, although
# their fabric manager runs on this host: B200, B200 168G, B300.
SWITCHES_APART = ("2901", "2909", "3182")
IMEX = "/usr/bin/nvidia-imex-ctl"
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
UNIT = "--property=LoadState,ActiveState,SubState"


def read_gpu_nodes():
    """Return what /dev/nvidiaN answer to access(2), and the devices that the driver has bound.

    access(2) asks the device cgroup as open(2) does, and no driver: opening would wake an idle GPU.
    """
    nodes = {}
    for name in names_in("/dev"):
        number = name[6:]
        if name.startswith("nvidia") and number.isdigit():
            nodes[number] = _access("/dev/" + name)
    return {
        "nodes": nodes,
        "bound": names_in("/proc/driver/nvidia/gpus"),
    }


def _access(path):
    state = os.stat(path)
    if os.access(path, os.R_OK | os.W_OK):
        return "open"
    mode_allows = os.geteuid() == 0 or stat.S_IMODE(state.st_mode) & 0o006 == 0o006
    return "hidden" if mode_allows else "denied"


def read_nvml_libraries():
    """Return every libnvidia-ml.so.1 in the loader's own folders, with the file it leads to."""
    # The folder of this architecture only, not those of others beside it.
    native = "/usr/lib/%s-linux-gnu" % os.uname()[4]
    libraries = {}
    for folder in ("/usr/lib", "/usr/lib64", "/lib64", native):
        library = folder + "/libnvidia-ml.so.1"
        path = os.path.realpath(library)
        if os.path.exists(path):
            libraries[library] = os.path.basename(path)
    return libraries


def read_fabric_manager():
    """Return state and version of the fabric manager; None if this host has no NVSwitches.

    Where the switches are not on the bus, only a service that is installed counts: in a virtual
    machine its host may run it.
    """
    functions = read_pci("0x10de")
    on_bus = any(row["class"].startswith(SWITCH) for row in functions)
    if not on_bus and not has_switches_apart(functions):
        return None
    state = run(["systemctl", "show", "nvidia-fabricmanager.service", UNIT])["out"]
    if not on_bus and "LoadState=loaded" not in state:
        return None
    version = ""
    if "ActiveState=active" not in state:  # then the question is whether it fits the driver
        try:
            version = run(["nv-fabricmanager", "--version"])["out"]
        except NoAnswer:
            pass
    return {
        "state": state,
        "version": version,
    }


def has_switches_apart(functions):
    """Return whether GPUs are among these functions whose NVSwitches are none of them.

    The first configuration word is the vendor's and the device's number, low byte first.
    """
    for row in functions:
        config = row["config"] or ""
        if config[6:8] + config[4:6] in SWITCHES_APART:
            return True
    return False


def read_imex(control=IMEX, nodes=IMEX_NODES, systemctl="systemctl"):
    """Return the state of the IMEX service and what it says of its domain; None without IMEX.

    `nodes` is how many lines of its node file name an address, None without the file.
    """
    if not os.path.exists(control):
        return None
    state = run([systemctl, "show", "nvidia-imex.service", UNIT])["out"]
    domain = None
    if "ActiveState=active" in state:
        domain = run([control, "-N", "-j"])["out"]
    return {
        "state": state,
        "domain": domain,
        "nodes": _count_addresses(nodes),
    }


def _count_addresses(path):
    try:
        lines = read_file(path).splitlines()
    except OSError:
        return None
    addresses = [line.strip() for line in lines]
    return len([address for address in addresses if address and not address.startswith("#")])


def install(agent):
    """Register the readers of this part."""
    offer(
        {
            "gpu_nodes": read_gpu_nodes,
            "nvml_libraries": read_nvml_libraries,
        },
        lane="files",
    )
    offer({"fabric_manager": read_fabric_manager, "imex": read_imex}, lane="tools")
