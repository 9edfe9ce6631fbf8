"""What the NVIDIA driver shows without being asked: device nodes, bound devices, libraries, the fabric manager."""

import os
import stat

from clusterprep.remote.agent.readers import NoAnswer, names, offer, read_pci, run

SWITCH = "0x0680"  # PCI class of an NVSwitch: bridge, other


def read_gpu_nodes():
    """What /dev/nvidiaN answer to access(2), and the devices that the driver has bound.

    access(2) asks the device cgroup as open(2) does, and no driver: opening would wake an idle GPU.
    """
    found = {}
    for name in names("/dev"):
        if name.startswith("nvidia") and name[6:].isdigit():
            path = "/dev/" + name
            state = os.stat(path)
            if os.access(path, os.R_OK | os.W_OK):
                found[name[6:]] = "open"
            elif os.geteuid() == 0 or stat.S_IMODE(state.st_mode) & 0o006 == 0o006:
                found[name[6:]] = "hidden"  # its mode would let us
            else:
                found[name[6:]] = "denied"
    return {"nodes": found, "bound": names("/proc/driver/nvidia/gpus")}


def read_nvml_libraries():
    """Every libnvidia-ml.so.1 in the loader's own folders, with the file that it leads to."""
    folders = ["/usr/lib", "/usr/lib64", "/lib64"]
    folders.append(
        "/usr/lib/%s-linux-gnu" % os.uname()[4]
    )  # not those of other architectures beside it
    found = {}
    for folder in folders:
        path = os.path.realpath(folder + "/libnvidia-ml.so.1")
        if os.path.exists(path):
            found[folder + "/libnvidia-ml.so.1"] = os.path.basename(path)
    return found


def read_fabric_manager():
    """State and version of the fabric manager; None where no NVSwitch is on the bus."""
    if not any(row["class"].startswith(SWITCH) for row in read_pci("0x10de")):
        return None
    properties = "--property=LoadState,ActiveState,SubState"
    state = run(["systemctl", "show", "nvidia-fabricmanager.service", properties])["out"]
    version = ""
    if "ActiveState=active" not in state:  # then it is asked whether it fits the driver
        try:
            version = run(["nv-fabricmanager", "--version"])["out"]
        except NoAnswer:
            pass
    return {"state": state, "version": version}


def install(agent):
    """Register the readers of this part."""
    offer({"gpu_nodes": read_gpu_nodes, "nvml_libraries": read_nvml_libraries}, lane="files")
    offer({"fabric_manager": read_fabric_manager}, lane="tools")
