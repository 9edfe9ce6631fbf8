"""What services, slurmd and containers are given, and which variables matter at all: read from files.

Only names that matter travel home, and none that may be a secret.
"""

import os

from clusterprep.remote.readers import NoAnswer, paths, read_file

STARTS = (
    "NCCL_", "TORCH", "PYTORCH_", "GLOO_", "TP_SOCKET", "CUDA_", "NVIDIA_", "LD_", "MASTER_", "PET_", "OMP_", "PYTHON",
    "UCX_", "FI_", "OFI_", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "COMPUTE_PROFILE", "OPENCL_PROFILE", "NSIGHT_CUDA_DEBUGGER",
)  # fmt: skip
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")
JOBS = ("NCCL_", "TORCH_", "GLOO_", "MASTER_", "UCX_", "FI_")  # names that a unit sets for jobs, whatever it is called
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
UNITS = ("/usr/lib/systemd/", "/run/systemd/", "/etc/systemd/")


def wanted(name):
    """Whether a variable matters to a job and cannot be a secret."""
    return name.startswith(STARTS) and not any(word in name.upper() for word in SECRETS)


def named(line):
    """The names before each `=` of a line, also such as `setenv NAME value` of csh and fish."""
    found = []
    for part in line.split("=")[:-1]:
        at = len(part)
        while at and part[at - 1] in LETTERS:
            at -= 1
        found.append(part[at:])
    words = line.split()
    found += [words[at + 1] for at in range(len(words) - 1) if words[at] in ("setenv", "-gx", "-x", "-Ux")]
    return found


def told(line):
    """A line without words that may be secrets; None where it sets nothing that matters."""
    names = named(line)
    if not any(wanted(name) for name in names):
        return None
    if any(word in name.upper() for name in names for word in SECRETS):
        line = " ".join(
            word for word in line.split(" ") if not any(s in word.partition("=")[0].upper() for s in SECRETS)
        )
    return line


def kept(variables):
    """Those that matter."""
    return dict((name, value) for name, value in variables.items() if wanted(name))


def text_of(path):
    """Text of a file as this process may read it, None where it may not."""
    try:
        return read_file(path)
    except (OSError, NoAnswer):
        return None


def lines_of(text, end=None):
    """The lines that set what matters, as [number, text]."""
    if not any(start in text for start in STARTS):
        return []
    rows = [[number, told(line)] for number, line in enumerate(text.split(end) if end else text.splitlines(), 1)]
    return [row for row in rows if row[1] is not None]


def _unit_files(name):
    """Drop-ins of that name in the order of systemd.unit(5): by file name, /etc over /run over /usr/lib."""
    found = {}
    for folder in UNITS:
        for path in paths(folder + name + "/*"):
            if path.endswith(".conf"):
                found[os.path.basename(path)] = path
    return [found[key] for key in sorted(found)]


def _service(files, jobs=False):
    """Lines of unit files that set variables, and of the files that they name; `jobs`: only those meant for jobs."""
    rows = []
    for path in files:
        text = text_of(path)
        mine = []
        for number, line in _joined(text or ""):
            key, _, value = line.partition("=")
            if key in ("Environment", "DefaultEnvironment"):
                kept_line = told(line) if value.strip() else line
                if kept_line is not None and (not jobs or any(name.startswith(JOBS) for name in named(line))):
                    mine.append([number, kept_line])
            elif key == "EnvironmentFile" and value.lstrip("-")[:1] == "/":
                more = text_of(value.lstrip("-").strip())
                if more is not None:
                    kept = [row for row in lines_of(more) if not jobs or row[1].lstrip().startswith(JOBS)]
                    rows += [[value.lstrip("-").strip(), kept]]
        if mine:
            rows.append([path, mine])
    return rows


def _joined(text):
    """Lines with their numbers, a line that ends with a backslash joined with the next."""
    rows, start, whole = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start, whole = (start, whole + " " + line.strip()) if whole else (number, line.strip())
        if whole.endswith("\\"):
            whole = whole[:-1].rstrip()
            continue
        rows.append((start, whole))
        whole = ""
    return rows


def _defaults():
    main = [path for path in ("/etc/systemd/system.conf", "/usr/lib/systemd/system.conf") if os.path.exists(path)][:1]
    return main + _unit_files("system.conf.d")


def systemd(home):
    """What services get: the manager's defaults, what all services share, users' own, and units meant for jobs."""
    plain = paths("/etc/environment.d/*") + paths(home.rstrip("/") + "/.config/environment.d/*")
    rows = _service(_defaults())
    rows += [[path, lines] for path, lines in ((path, lines_of(text_of(path) or "")) for path in plain) if lines]
    rows += _service(_unit_files("system/service.d") + _unit_files("system/user@.service.d"))
    units = [path for folder in UNITS[1:] for path in paths(folder + "system/*") if ".service" in path]
    units = [path for path in units if not os.path.basename(path).startswith(("slurmd.", "service.d", "user@."))]
    files = [path for path in units if not os.path.isdir(path)]
    files += [path for unit in units if os.path.isdir(unit) for path in paths(unit + "/*") if path.endswith(".conf")]
    return rows + _service(files[:512], True)


def slurm():
    """What slurmd gets; None where there is no slurmd."""
    units = [folder + "system/slurmd.service" for folder in UNITS[::-1]] + ["/lib/systemd/system/slurmd.service"]
    units = [path for path in units if os.path.exists(path)][:1]
    if not units and not any(os.path.exists(folder + "/slurmd") for folder in ("/usr/sbin", "/usr/local/sbin")):
        return None
    rows = _service(_defaults() + _unit_files("system/service.d") + units + _unit_files("system/slurmd.service.d"))
    plain = [] if units else ["/etc/default/slurmd", "/etc/sysconfig/slurmd"]
    return rows + [[path, lines] for path, lines in ((path, lines_of(text_of(path) or "")) for path in plain) if lines]


def container():
    """What the first process of a container was given; None on a host."""
    if not any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv")):
        if not os.path.exists("/var/run/secrets/kubernetes.io"):
            return None
    try:
        with open("/proc/1/environ", "rb") as source:
            rows = source.read(1 << 20).split(b"\0")
    except OSError:
        return ["no", "denied", "/proc/1/environ belongs to somebody else"]
    pairs = [row.decode("utf-8", "replace").partition("=") for row in rows]
    return ["ok", kept(dict((name, value) for name, _, value in pairs))]
