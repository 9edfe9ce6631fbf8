"""What services, slurmd and containers are given, and which variables matter: read from files.

Only variables that matter are sent to the controller, and none that may be a secret.
"""

import os

from clusterprep.remote.agent.readers import NoAnswer, matching_paths, read_file

# How the names of variables begin that matter to a job.
STARTS = (
    "NCCL_", "TORCH", "PYTORCH_", "GLOO_", "TP_SOCKET", "CUDA_", "NVIDIA_", "LD_", "MASTER_",
    "PET_", "OMP_", "PYTHON", "UCX_", "FI_", "OFI_", "RANK", "LOCAL_RANK", "NODE_RANK",
    "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "NNODES",
    "NPROC_PER_NODE", "COMPUTE_PROFILE", "OPENCL_PROFILE", "NSIGHT_CUDA_DEBUGGER",
)  # fmt: skip
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")
# Words of shells before a name; behind the last four it comes as a word of its own.
SETTERS = ("export", "setenv", "set", "-gx", "-x", "-Ux")
NAME_FOLLOWS = ("setenv", "-gx", "-x", "-Ux")
# A unit that sets one of these is meant for jobs, whatever it is called.
JOBS = ("NCCL_", "TORCH_", "GLOO_", "MASTER_", "UCX_", "FI_")
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
BOOTED = "/run/systemd/system"  # sd_booted(3)
SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
SLURMD = ("/usr/sbin/slurmd", "/usr/local/sbin/slurmd")
UNITS = ("/usr/lib/systemd/", "/run/systemd/", "/etc/systemd/")  # a later one has priority
ENVIRONMENT_KEYS = ("Environment", "DefaultEnvironment")
NOT_FOR_JOBS = ("slurmd.service", ".service", "user@.service")  # read elsewhere
MAX_UNITS = 4096
MAX_ENVIRONMENT = 1 << 20  # bytes of the first process of a container
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")


def wanted(name):
    """Return whether a variable matters to a job and cannot be a secret."""
    return name.startswith(STARTS) and not _is_secret(name)


def _is_secret(name):
    upper = name.upper()
    return any(secret in upper for secret in SECRETS)


def variable_names(line):
    """Return the names before each `=` of a line, also those of `setenv NAME value`.

    csh and fish write them that way.
    """
    names = []
    for part in line.split("=")[:-1]:
        start = len(part)
        while start and part[start - 1] in LETTERS:
            start -= 1
        names.append(part[start:])
    previous = None
    for word in line.split():
        if previous in NAME_FOLLOWS:
            names.append(word)
        previous = word
    return names


def line_without_secrets(line):
    """Return a line without values that may be secrets; None if it sets nothing that matters."""
    names = variable_names(line)
    if not any(wanted(name) for name in names):
        return None
    if any(_is_secret(name) for name in names):
        return _cut_secrets(line)
    return line


def _cut_secrets(line):
    """Return a line without secret names and the words behind them.

    All words up to the next name that matters are cut: a value may hold blanks.
    """
    words, hidden = [], False
    for word in line.split(" "):
        names = variable_names(word) or [word]
        if any(_is_secret(name) for name in names):
            hidden = True
        elif wanted(names[0]):
            hidden = False
        if not hidden or word in SETTERS:
            words.append(word)
    return " ".join(words)


def kept(variables, wants=wanted):
    """Return the variables that matter, by what `wants` says of their names."""
    return dict((name, value) for name, value in variables.items() if wants(name))


def text_of(path):
    """Return the text of a file, None if this process may not read it.

    Raises NoAnswer for one that is too long: to take it for missing would be a guess.
    """
    try:
        return read_file(path)
    except OSError:
        return None


def lines_of(text, end=None):
    """Return the lines that set what matters, as [number, text].

    `end` separates the lines; without it they end as for str.splitlines.
    """
    if not any(start in text for start in STARTS):
        return []
    lines = text.split(end) if end else text.splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        shown = line_without_secrets(line)
        if shown is not None:
            rows.append([number, shown])
    return rows


def _lines_of_files(files):
    """Return [path, lines] of the files that set what matters."""
    rows = []
    for path in files:
        lines = lines_of(text_of(path) or "")
        if lines:
            rows.append([path, lines])
    return rows


# ---------------------------------------------------------------- systemd


def _unit_files(name):
    """Return drop-ins of that name in the order of systemd.unit(5).

    They are sorted by file name; one in /etc replaces one in /run, which replaces one in /usr/lib.
    """
    by_name = {}
    for folder in UNITS:
        for path in matching_paths(folder + name + "/*"):
            if path.endswith(".conf"):
                by_name[os.path.basename(path)] = path
    return [by_name[key] for key in sorted(by_name)]


def _unit_lines(files, only_for_jobs=False):
    """Return the lines of a unit's files that set variables, as [path, [[number, text]]].

    The lines of files that EnvironmentFile= names come last, as systemd applies them.
    """
    rows, named_files = [], []
    for path in files:
        lines = []
        for number, line in _joined(text_of(path) or ""):
            key, _, value = line.partition("=")
            if key in ENVIRONMENT_KEYS:
                shown = _environment_line(line, value, only_for_jobs)
                if shown is not None:
                    lines.append([number, shown])
            elif key == "EnvironmentFile":
                _add_named_file(named_files, value)
        if lines:
            rows.append([path, lines])
    for path, all_lines in _lines_of_files(named_files):
        lines = _for_jobs(all_lines) if only_for_jobs else all_lines
        if lines:
            rows.append([path, lines])
    return rows


def _for_jobs(lines):
    return [row for row in lines if row[1].lstrip().startswith(JOBS)]


def _environment_line(line, value, only_for_jobs):
    """Return an Environment= line without secrets, None if it sets nothing that matters.

    `value` is what the line has behind the first `=`. An empty one matters: it clears the earlier
    ones. With `only_for_jobs` nothing but variables of jobs matters.
    """
    shown = line_without_secrets(line) if value.strip() else line
    if only_for_jobs and not any(name.startswith(JOBS) for name in variable_names(line)):
        return None
    return shown


def _add_named_file(named_files, value):
    """Note what EnvironmentFile= names; an empty one clears the earlier ones."""
    path = value.lstrip("-")  # «-» says that the file may be missing
    if not value.strip():
        del named_files[:]
    elif path.startswith("/"):
        named_files.append(path.strip())


def _joined(text):
    """Return lines with their numbers, a line that ends with a backslash joined with the next."""
    rows, start, joined = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if joined:
            joined += " " + line.strip()
        else:
            start, joined = number, line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1].rstrip()
            continue
        rows.append((start, joined))
        joined = ""
    return rows


def _first_existing(files):
    """Return a list of the first file that exists, empty if none does."""
    for path in files:
        if os.path.exists(path):
            return [path]
    return []


def manager_files():
    """Return the files that set the defaults of systemd's manager, in the order it reads them."""
    main = _first_existing(("/etc/systemd/system.conf", "/usr/lib/systemd/system.conf"))
    return main + _unit_files("system.conf.d")


def systemd():
    """Return what services get, as two lists of rows [path, lines].

    The first has the manager's defaults and environment.d, the second what all services share and
    the units meant for jobs. systemd reads a user's own environment.d (`own_environment`) between
    both. None if systemd does not start the services.
    """
    if not os.path.isdir(BOOTED):
        return None
    before, after = _shared()
    for files in _units().values():
        after += _unit_lines(files, only_for_jobs=True)
    return before, after


def services():
    """Return {unit: two lists of rows as `systemd` has them} of each unit that is meant for jobs.

    What all services get comes before its own lines.
    """
    rows_by_unit = {}
    if not os.path.isdir(BOOTED):
        return rows_by_unit
    for name, files in units_for_jobs().items():
        before, after = _shared()
        rows_by_unit[name] = before, after + _unit_lines(files)
    return rows_by_unit


def own_environment(home):
    """Return the rows of what a user's manager gives to the user's services."""
    return _lines_of_files(matching_paths(home.rstrip("/") + "/.config/environment.d/*"))


def units_for_jobs():
    """Return {unit: its files, drop-ins last} of each unit that is meant for jobs."""
    units = {}
    for name, files in _units().items():
        if _unit_lines(files, only_for_jobs=True):
            units[name] = files
    return units


def _shared():
    """Return what all services get, the rows before and after a user's own environment.d."""
    before = _unit_lines(manager_files())
    before += _lines_of_files(matching_paths("/etc/environment.d/*"))
    drop_ins = _unit_files("system/service.d") + _unit_files("system/user@.service.d")
    return before, _unit_lines(drop_ins)


def _units():
    """Return {name: its files, drop-ins last} of the units of this machine's own."""
    places = []
    for folder in UNITS[1:]:
        for path in matching_paths(folder + "system/*"):
            if ".service" in path:
                places.append(path)
    by_name = {}
    if len(places) > MAX_UNITS:
        raise NoAnswer("truncated", "there are more than %d units" % MAX_UNITS)
    for path in places:
        stem, _, _ = os.path.basename(path).partition(".service")
        name = stem + ".service"
        if name not in NOT_FOR_JOBS:
            files = by_name.setdefault(name, [])
            files += _drop_ins(path) if os.path.isdir(path) else [path]
    units = {}
    for name in sorted(by_name):
        units[name] = sorted(by_name[name], key=_is_drop_in)
    return units


def missing_units(names):
    """Return the services of these names that have no file, where systemd starts the services.

    An instance has the file of its template. A name that ends with «-» stands for all that begin
    with it, such as run-.service, and needs none.
    """
    if not os.path.isdir(BOOTED):
        return []
    missing = []
    for name in names:
        stem = name[: -len(".service")]
        template, sign, _ = stem.partition("@")
        files = [name] + ([template + "@.service"] if sign else [])
        places = [folder + "system/" + file for folder in UNITS for file in files]
        places += ["/lib/systemd/system/" + file for file in files]
        places += ["/run/systemd/generator/" + file for file in files]
        if not stem.endswith("-") and not _first_existing(places):
            missing.append(name)
    return missing


def _drop_ins(folder):
    return [path for path in matching_paths(folder + "/*") if _is_drop_in(path)]


def _is_drop_in(path):
    return path.endswith(".conf")


# ---------------------------------------------------------------- Slurm


def slurm():
    """Return the rows of what tasks get of slurmd, None if there is no slurmd.

    TaskProlog comes behind it: slurmstepd runs it as the job's user, see `printed_by`.
    """
    places = [folder + "system/slurmd.service" for folder in reversed(UNITS)]
    places.append("/lib/systemd/system/slurmd.service")
    units = _first_existing(places)
    if not units and not _first_existing(SLURMD):
        return None
    files = manager_files() + _unit_files("system/service.d")
    files += units + _unit_files("system/slurmd.service.d")
    rows = _unit_lines(files)
    if not units:
        rows += _lines_of_files(["/etc/default/slurmd", "/etc/sysconfig/slurmd"])
    return rows


def printed_by(path):
    """Return the rows of a TaskProlog (None: there is none), by lines that print `export NAME=…`.

    They are given as lines of an environment file.
    """
    if path is None:
        return []
    rows = []
    text = text_of(path) or ""
    for number, line in enumerate(text.splitlines(), 1):
        printed = _printed(line)
        if printed is not None:
            rows.append([number, printed])
    return [[path, rows]]


def task_prolog():
    """Return the path of TaskProlog= in slurm.conf; None if there is none."""
    for line in _slurm_conf().splitlines():
        setting, _, _ = line.partition("#")
        key, _, value = setting.partition("=")
        path = value.strip()
        if key.strip().lower() == "taskprolog" and path.startswith("/"):
            return path
    return None


def _slurm_conf():
    for path in SLURM_CONF:
        text = text_of(path)
        if text is not None:
            return text
    return ""


def _printed(line):
    """Return NAME='value' of a line such as `echo "export NAME=value"`.

    None for any other line, and for a secret.
    """
    before, export, text = line.partition("export ")
    if not export or line.lstrip().startswith("#"):
        return None
    if not before.strip().startswith(("echo", "prin")):
        return None
    quote = before.rstrip()[-1]
    if quote in "\"'" and quote in text:
        text, _, _ = text.rpartition(quote)
    else:
        text = text.rstrip()
    name, sign, value = text.partition("=")
    if not sign or "$" in value:
        return None
    if not wanted(name) or not set(name) <= LETTERS:
        return None
    escaped = value.replace("'", "'\\''")
    return "%s='%s'" % (name, escaped)


# ---------------------------------------------------------------- variables out of such lines


def service(rows):
    """Return {name: (value, file, line)} of lines that come as (file, line, text).

    Environment= as in systemd.exec(5), where an empty one clears the earlier, and NAME=value of
    environment files.
    """
    variables = {}
    for path, number, text in rows:
        if text.lstrip().startswith(("#", ";")):
            continue
        head, sign, rest = text.partition("=")
        is_unit = bool(sign) and head.strip() in ENVIRONMENT_KEYS
        if is_unit and not rest.strip():
            variables.clear()
        for word in _words(rest if is_unit else text):
            name, sign, value = word.partition("=")
            if is_unit:
                value = value.replace("%%", "%")
            if sign:
                variables[name] = (value, path, number)
    return variables


def _words(text):
    import shlex  # seldom needed, and it imports what takes longer than all else here

    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


# ---------------------------------------------------------------- containers


def container():
    """Return what the first process of a container was given; None on a host."""
    if not _first_existing(CONTAINER_FILES):
        return None
    try:
        with open("/proc/1/environ", "rb") as source:
            data = source.read(MAX_ENVIRONMENT + 1)
    except OSError:
        return ["no", "denied", "/proc/1/environ of this container belongs to another user"]
    if len(data) > MAX_ENVIRONMENT:
        return ["no", "truncated", "/proc/1/environ has more than %d bytes" % MAX_ENVIRONMENT]
    rows = data.split(b"\0")
    variables = {}
    for row in rows:
        name, _, value = row.decode("utf-8", "replace").partition("=")
        variables[name] = value
    return ["ok", kept(variables)]
