"""What the NVIDIA driver shows without being called.

Device nodes, bound devices, libraries, and the fabric manager.
"""

import os
import stat

from clusterprep.remote.agent.readers import NoAnswer, names_in, offer, read_pci, run

SWITCH = "0x0680"  # PCI class of an NVSwitch: bridge, other


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
    """Return state and version of the fabric manager; None if no NVSwitch is on the bus."""
    if not any(row["class"].startswith(SWITCH) for row in read_pci("0x10de")):
        return None
    properties = "--property=LoadState,ActiveState,SubState"
    state = run(["systemctl", "show", "nvidia-fabricmanager.service", properties])["out"]
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


def install(agent):
    """Register the readers of this part."""
    offer(
        {
            "gpu_nodes": read_gpu_nodes,
            "nvml_libraries": read_nvml_libraries,
        },
        lane="files",
    )
    offer({"fabric_manager": read_fabric_manager}, lane="tools")
