"""What decides the limits of a job, by how it is launched, and the CPUs and memory of a session.

Only files of /proc, /sys and /etc are read. Of configuration only the lines that set limits are
sent: other lines may hold secrets.
"""

import grp
import os
import pwd

from clusterprep.remote.agent.launched import BOOTED, SLURM_CONF, manager_files, units_for_jobs
from clusterprep.remote.agent.light import loads
from clusterprep.remote.agent.readers import NoAnswer, matching_paths, offer, read_file

# Daemons whose children are jobs, by the name of the process. They run as root.
DAEMONS = ("slurmd", "dockerd", "containerd", "crio", "cron", "crond")
CHILDREN = "/proc/1/task/1/children"  # there with CONFIG_PROC_CHILDREN
PAM = ("login", "cron", "crond", "common-session*", "system-auth", "password-auth", "system-login")
LIMITS_CONF = ("/etc/security/limits.conf", "/etc/security/limits.d/*")
ULIMITS = ("/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*")
CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
DOCKER = "/etc/docker/daemon.json"
MOST = 400  # lines with limits that are sent of one file
CGROUPS = "/sys/fs/cgroup"
# Files of a cgroup that limit it, by the controller of version 1; version 2 has one tree for all.
CONTROLS = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "cpuset": ("cpuset.effective_cpus",),
    "memory": ("memory.limit_in_bytes",),
    "": ("cpu.max", "cpuset.cpus.effective", "memory.max", "memory.high"),
}


def read_launch_limits(user):
    """Return the evidence of the limits of each way in which a job may be launched here.

    {"user": {"name", "uid", "groups": [[number, name], …]} or None if there is no such user,
    "daemons": {name: {"pid", "limits": text of /proc/PID/limits or None, "cpus": its CPUs or None,
    "conf": what its command line names as configuration or None}}, or None where processes are
    hidden, "files": {path: the lines that set limits, None where the file may not be read},
    "units": {name: {path: lines}} of the units that are meant for jobs}.
    """
    files = {}
    daemons = _daemons()
    _add_files(files, ["/etc/pam.d/" + name for name in PAM], _pam_line)
    _add_files(files, LIMITS_CONF, _any_line)
    conf = _slurm_conf(daemons)
    _add_files(files, [conf] if conf else [], _slurm_line)
    if conf:
        _add_files(files, [os.path.dirname(conf) + "/*.conf"], _slurm_line)
    _add_texts(files, ULIMITS + CRIO, _default_ulimits)
    _add_texts(files, (DOCKER,), _docker_ulimits)
    units = {}
    if os.path.isdir(BOOTED):
        _add_files(files, manager_files(), _default_line)
        for name, paths in units_for_jobs().items():
            units[name] = {}
            _add_files(units[name], paths, _unit_line)
    return {"user": _account(user), "daemons": daemons, "files": files, "units": units}


def _account(user):
    """Return name, number and groups of a user, by default of this process; None if unknown."""
    try:
        entry = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        return None
    groups = []
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            groups.append([number, grp.getgrgid(number).gr_name])
        except KeyError:
            groups.append([number, ""])
    return {"name": entry.pw_name, "uid": entry.pw_uid, "groups": groups}


# ---------------------------------------------------------------- daemons


def _daemons():
    """Return the daemons that launch jobs, None where the processes of others are hidden.

    A daemon is a child of the first process: those of the same name within containers are not.
    """
    if not _text("/proc/1/stat"):
        return None
    found = {}
    for pid in _children_of_init():
        name = _text("/proc/%s/comm" % pid).strip()
        if name not in DAEMONS or name in found:
            continue
        try:
            if os.stat("/proc/" + pid).st_uid != 0:
                continue
        except OSError:
            continue
        found[name] = {
            "pid": int(pid),
            "limits": _text("/proc/%s/limits" % pid) or None,
            "cpus": _cpus(pid),
            "conf": _conf_of(pid) if name == "slurmd" else None,
        }
    return found


def _children_of_init():
    """Return the pids of the children of the first process.

    Where the kernel does not list them, all processes are asked for their parent.
    """
    try:
        return read_file(CHILDREN).split()
    except OSError:
        pass
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _text("/proc/%s/stat" % name).rpartition(")")[2].split()
            if len(fields) > 1 and fields[1] == "1":
                pids.append(name)
    return pids


def _cpus(pid):
    """Return the CPUs that a process may run on, such as «0-63»; None if that is not shown."""
    for line in _text("/proc/%s/status" % pid).split("\n"):
        label, _, value = line.partition(":")
        if label == "Cpus_allowed_list":
            return value.strip()
    return None


def _conf_of(pid):
    """Return the file behind -f on the command line of slurmd, None without one."""
    words = _text("/proc/%s/cmdline" % pid).split("\0")
    for number, word in enumerate(words):
        if word == "-f" and number + 1 < len(words):
            return words[number + 1]
        if word.startswith("-f/"):
            return word[2:]
    return None


def _slurm_conf(daemons):
    """Return the slurm.conf that slurmd reads, None where no slurmd runs or no file is there."""
    slurmd = (daemons or {}).get("slurmd")
    if slurmd is None:
        return None
    places = SLURM_CONF + ("/usr/local/etc/slurm.conf",)
    if slurmd["conf"]:
        places = (slurmd["conf"],)
    for path in places:
        if os.path.exists(path):
            return path
    return None


def _text(path):
    try:
        return read_file(path)
    except (OSError, NoAnswer):
        return ""


# ---------------------------------------------------------------- files


def _add_files(files, patterns, keeps):
    """Add the lines that `keeps` is true of, comments cut; None for a file that is not readable."""
    for path in _matching(patterns):
        try:
            text = read_file(path)
        except (OSError, NoAnswer):
            files[path] = None
            continue
        lines = []
        for raw in text.splitlines():
            line = raw.partition("#")[0].strip()
            if line and keeps(line):
                lines.append(line)
        if len(lines) > MOST:
            files[path] = None
        elif lines:
            files[path] = "\n".join(lines)


def _add_texts(files, patterns, part):
    """Add what `part` returns of the text of each file, if it is not empty."""
    for path in _matching(patterns):
        try:
            text = part(read_file(path))
        except (OSError, ValueError, NoAnswer):
            files[path] = None
            continue
        if text:
            files[path] = text


def _matching(patterns):
    paths = []
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        stem, star, _ = name.partition("*")
        matches = matching_paths(folder + "/*" if star else pattern)
        paths += [path for path in matches if os.path.basename(path).startswith(stem)]
    return [path for path in paths if os.path.isfile(path)]


def _any_line(line):
    return True


def _pam_line(line):
    return "pam_limits" in line or "include" in line or "substack" in line


def _slurm_line(line):
    return line.lower().startswith("propagateresourcelimits")


def _default_line(line):
    return line.startswith("DefaultLimit")


def _unit_line(line):
    return line.startswith("Limit")


def _default_ulimits(text):
    """Return «default_ulimits = [ … ]» of a configuration in TOML, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    plain = "\n".join(lines)
    begin = plain.find("default_ulimits")
    end = plain.find("]", begin)
    return plain[begin : end + 1] if 0 <= begin < end else ""


def _docker_ulimits(text):
    """Return «default-ulimits» of Docker's configuration."""
    settings = loads(text)
    return settings.get("default-ulimits") if isinstance(settings, dict) else None


# ---------------------------------------------------------------- CPUs and memory


def read_session_share(user):
    """Return which CPUs and how much memory this session, and one of the job's user, may use.

    {"cpus": the CPUs that this process may run on, "online": those of the machine, "slurm": whether
    this is a task of Slurm, "groups": [[folder of a cgroup, {file: text}], …] from the inmost
    outwards, "slice": the same for the slice of the user's sessions, where that is another}.
    """
    own = _text("/proc/self/cgroup")
    groups = []
    folders = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        folders += _folders(controllers, path)
    for folder, names in folders:
        _add_group(groups, folder, names)
    account = _account(user)
    slices = []
    if account is not None:
        name = "user-%d.slice" % account["uid"]
        if name not in own:
            _add_group(slices, "%s/user.slice/%s" % (CGROUPS, name), CONTROLS[""])
    return {
        "cpus": _cpus("self"),
        "online": _text("/sys/devices/system/cpu/online").strip(),
        "slurm": "/slurm" in own and "/step_" in own,
        "groups": groups,
        "slice": slices,
    }


def _folders(controllers, path):
    """Return [folder, names of its files] of a cgroup of /proc/self/cgroup and of those above."""
    rows = []
    for controller in controllers.split(","):
        names = CONTROLS.get(controller)
        if names is None:
            continue
        if controller:
            mount = "%s/%s" % (CGROUPS, controller)
        else:
            mount = CGROUPS
        while True:
            rows.append((mount + path.rstrip("/"), names))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return rows


def _add_group(groups, folder, names):
    """Add the files of a cgroup that limit something."""
    texts = {}
    for name in names:
        text = _text("%s/%s" % (folder, name)).strip()
        if text and not text.startswith("max"):
            texts[name] = text
    if texts:
        groups.append([folder, texts])


def install(agent):
    """Register the readers of this part."""
    readers = {"launch_limits": read_launch_limits, "session_share": read_session_share}
    offer(readers, lane="names")  # they look the user up
