"""What services, slurmd and containers are given, and which variables matter at all: read from files.

Only names that matter travel home, and none that may be a secret.
"""

import os

from clusterprep.remote.agent.readers import NoAnswer, paths, read_file

STARTS = (
    "NCCL_", "TORCH", "PYTORCH_", "GLOO_", "TP_SOCKET", "CUDA_", "NVIDIA_", "LD_", "MASTER_", "PET_", "OMP_", "PYTHON",
    "UCX_", "FI_", "OFI_", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "COMPUTE_PROFILE", "OPENCL_PROFILE", "NSIGHT_CUDA_DEBUGGER",
)  # fmt: skip
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")
SETTERS = ("export", "setenv", "set", "-gx", "-x", "-Ux")
JOBS = (
    "NCCL_",
    "TORCH_",
    "GLOO_",
    "MASTER_",
    "UCX_",
    "FI_",
)  # names that a unit sets for jobs, whatever it is called
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
BOOTED = "/run/systemd/system"  # sd_booted(3)
SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
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
    found += [
        words[at + 1] for at in range(len(words) - 1) if words[at] in ("setenv", "-gx", "-x", "-Ux")
    ]
    return found


def told(line):
    """A line without words that may be secrets; None where it sets nothing that matters."""
    names = named(line)
    if not any(wanted(name) for name in names):
        return None
    if any(word in name.upper() for name in names for word in SECRETS):
        line = without_secrets(line)
    return line


def without_secrets(line):
    """A line without secret names and all behind them up to the next name that matters: a value may hold blanks."""
    found, hidden = [], False
    for word in line.split(" "):
        names = named(word) or [word]
        if any(secret in name.upper() for name in names for secret in SECRETS):
            hidden = True
        elif wanted(names[0]):
            hidden = False
        if not hidden or word in SETTERS:
            found.append(word)
    return " ".join(found)


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
    rows = [
        [number, told(line)]
        for number, line in enumerate(text.split(end) if end else text.splitlines(), 1)
    ]
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
    """Lines of a unit's files that set variables, and behind them, as systemd has it, those of the files they name.

    `jobs`: only those meant for jobs.
    """
    rows, named_files = [], []
    for path in files:
        mine = []
        for number, line in _joined(text_of(path) or ""):
            key, _, value = line.partition("=")
            if key in ("Environment", "DefaultEnvironment"):
                kept_line = told(line) if value.strip() else line
                if kept_line is not None and (
                    not jobs or any(name.startswith(JOBS) for name in named(line))
                ):
                    mine.append([number, kept_line])
            elif key == "EnvironmentFile" and not value.strip():
                named_files = []
            elif key == "EnvironmentFile" and value.lstrip("-")[:1] == "/":
                named_files.append(value.lstrip("-").strip())
        if mine:
            rows.append([path, mine])
    for path in named_files:
        lines = [
            row
            for row in lines_of(text_of(path) or "")
            if not jobs or row[1].lstrip().startswith(JOBS)
        ]
        rows += [[path, lines]] if lines else []
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
    main = [
        path
        for path in ("/etc/systemd/system.conf", "/usr/lib/systemd/system.conf")
        if os.path.exists(path)
    ][:1]
    return main + _unit_files("system.conf.d")


def systemd(home):
    """What services get: the manager's defaults, what all services share, users' own, and units meant for jobs.

    None where systemd does not start the services.
    """
    if not os.path.isdir(BOOTED):
        return None
    return _shared(home) + [row for files in _units().values() for row in _service(files, True)]


def services(home):
    """{unit: lines} of each unit that is meant for jobs, with what all services get before its own lines."""
    if not os.path.isdir(BOOTED):
        return {}
    meant = dict((name, files) for name, files in _units().items() if _service(files, True))
    return dict((name, _shared(home) + _service(files)) for name, files in meant.items())


def _shared(home):
    plain = paths("/etc/environment.d/*") + paths(home.rstrip("/") + "/.config/environment.d/*")
    rows = _service(_defaults()) + _lines_of_files(plain)
    return rows + _service(_unit_files("system/service.d") + _unit_files("system/user@.service.d"))


def _units():
    """{name: its files, drop-ins last} of the units of this machine's own."""
    places = [
        path for folder in UNITS[1:] for path in paths(folder + "system/*") if ".service" in path
    ]
    found = {}
    for path in places[:512]:
        name = os.path.basename(path).partition(".service")[0] + ".service"
        if name not in ("slurmd.service", ".service", "user@.service"):
            within = (
                [one for one in paths(path + "/*") if one.endswith(".conf")]
                if os.path.isdir(path)
                else [path]
            )
            found.setdefault(name, []).extend(within)
    return dict((name, sorted(found[name], key=_is_drop_in)) for name in sorted(found))


def _is_drop_in(path):
    return path.endswith(".conf")


def _lines_of_files(files):
    return [
        [path, lines]
        for path, lines in ((path, lines_of(text_of(path) or "")) for path in files)
        if lines
    ]


def slurm():
    """What tasks get of slurmd and of TaskProlog, which comes last; None where there is no slurmd."""
    units = [folder + "system/slurmd.service" for folder in UNITS[::-1]] + [
        "/lib/systemd/system/slurmd.service"
    ]
    units = [path for path in units if os.path.exists(path)][:1]
    if not units and not any(
        os.path.exists(folder + "/slurmd") for folder in ("/usr/sbin", "/usr/local/sbin")
    ):
        return None
    rows = _service(
        _defaults()
        + _unit_files("system/service.d")
        + units
        + _unit_files("system/slurmd.service.d")
    )
    plain = [] if units else ["/etc/default/slurmd", "/etc/sysconfig/slurmd"]
    return rows + _lines_of_files(plain) + _prolog()


def _prolog():
    """Lines of the script in TaskProlog= that print `export NAME=value`, as lines of an environment file."""
    conf = next((text for text in map(text_of, SLURM_CONF) if text is not None), "")
    for line in conf.splitlines():
        key, _, path = line.partition("#")[0].partition("=")
        if key.strip().lower() == "taskprolog" and path.strip()[:1] == "/":
            lines = enumerate((text_of(path.strip()) or "").splitlines(), 1)
            rows = [[number, _printed(line)] for number, line in lines]
            return [[path.strip(), [row for row in rows if row[1] is not None]]]
    return []


def _printed(line):
    """NAME='value' of a line such as `echo "export NAME=value"`; None for any other, and for a secret."""
    before, word, text = line.partition("export ")
    if not word or line.lstrip()[:1] == "#" or before.strip()[:4] not in ("echo", "prin"):
        return None
    quote = before.rstrip()[-1]
    text = text.rpartition(quote)[0] if quote in "\"'" and quote in text else text.rstrip()
    name, sign, value = text.partition("=")
    if not sign or "$" in value or not wanted(name) or not set(name) <= LETTERS:
        return None
    return "%s='%s'" % (name, value.replace("'", "'\\''"))


def service(rows):
    """{name: (value, file, line)} of such lines, which come as (file, line, text).

    Environment= as in systemd.exec(5), where an empty one forgets the earlier, and NAME=value of environment files.
    """
    found = {}
    for path, number, text in rows:
        if text.lstrip().startswith(("#", ";")):
            continue
        head, sign, rest = text.partition("=")
        unit = bool(sign) and head.strip() in ("Environment", "DefaultEnvironment")
        if unit and not rest.strip():
            found.clear()
        for word in _words(rest if unit else text):
            name, sign, value = word.partition("=")
            if sign:
                found[name] = (value.replace("%%", "%") if unit else value, path, number)
    return found


def _words(text):
    import shlex  # seldom needed, and it imports what takes longer than all else here

    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


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
