"""Which limits a job gets by each way of launching it, and the CPUs and memory of a session."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, Needs, user_of_job
from clusterprep.model import Inventory, Node, Read

ITEMS = ("memlock", "nofile", "stack", "nproc")
LABELS = {  # /proc/PID/limits
    "memlock": "Max locked memory",
    "nofile": "Max open files",
    "stack": "Max stack size",
    "nproc": "Max processes",
}
KIB = ("memlock", "stack")  # limits.conf(5) counts these in KiB
DOCKER = "/etc/docker/daemon.json"
# Names of limits in containers.conf(5) and Docker's daemon.json, as in limits.conf, in bytes.
_ULIMIT = re.compile(r"[\"']([a-z]+)=(-?\d+|unlimited)(?::(-?\d+|unlimited))?[\"']")
# What services get if neither their unit nor the manager's file says otherwise. systemd's NEWS:
# since 240 a soft limit of 1024 files; since 250 8 MiB of locked memory, before it 64 KiB.
SERVICES = {"memlock": float(8 << 20), "nofile": 1024.0}
# systemd.exec(5), «Process Properties»: factors of sizes are powers of 1024.
FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
LOGIN, CRON = "login shell", "cron"
# cgroup v1 has LONG_MAX in whole pages for no limit; no machine has a part of that.
NO_MEMORY_LIMIT = 1 << 60
NEEDS = Needs("root", "with hidepid users do not see daemons; some files are root's", partly=True)


class Limit(Struct, frozen=True):
    """A limit that jobs get by one way of launching them.

    `value` is in bytes or a number, math.inf for unlimited, None if it is not known for the
    `reason`. `source` says what sets it. `ceiling`: it is the most that a job may have, and what it
    has is decided elsewhere. `per_job`: each launch can ask for more.
    """

    path: str
    value: float | None
    source: str
    reason: str = ""
    ceiling: bool = False
    per_job: bool = False


Launches = Mapping[str, tuple[Limit, ...]]
"""The limits of all ways of launching a job that are there, by the names of ITEMS."""


def parse_launches(answer: Mapping[str, Any]) -> Launches:
    """Return the limits by name. Ways that are not there on the node have none."""
    limits: dict[str, list[Limit]] = {item: [] for item in ITEMS}
    if answer["daemons"] is None:
        hidden = Limit("daemons", None, "/proc hides the processes of others (hidepid)", "denied")
        limits = {item: [hidden] for item in ITEMS}
    for make in (_slurm, _docker, _containerd, _crio, _podman, _services, _login, _cron):
        for item in ITEMS:
            limits[item].extend(make(answer, item))
    return {item: tuple(found) for item, found in limits.items()}


# ---------------------------------------------------------------- daemons


def _process_limit(text: str, item: str) -> tuple[float, float]:
    """Return the soft and the hard limit of a line of /proc/PID/limits."""
    for line in text.splitlines():
        if line.startswith(LABELS[item]):
            soft, hard = line[len(LABELS[item]) :].split()[:2]
            return _kernel_number(soft), _kernel_number(hard)
    raise ValueError(f"no {LABELS[item]} among the limits of a process")


def _kernel_number(word: str) -> float:
    if word == "unlimited":
        return math.inf
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"{word!r:.40} is no limit")
    return float(word)


def _of_daemon(answer: Mapping[str, Any], name: str, path: str, item: str) -> Limit | None:
    """Return the soft limit of a daemon, which its children inherit; None if it does not run."""
    daemon = (answer["daemons"] or {}).get(name)
    if daemon is None:
        return None
    source = f"{name}, pid {int(daemon['pid'])}"
    if daemon["limits"] is None:
        return Limit(path, None, source, "denied")
    soft, _ = _process_limit(daemon["limits"], item)
    return Limit(path, soft, name)


def _slurm(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what tasks of Slurm get.

    Of the limits that are propagated a task has the soft limit of the session that submitted it,
    at most the hard limit of slurmd (set_user_limits of slurmstepd). Of the others it has slurmd's.
    """
    inherited = _of_daemon(answer, "slurmd", "slurmd", item)
    if inherited is None:
        return
    if inherited.value is None:
        yield inherited
        return
    texts = [text for path, text in answer["files"].items() if _is_slurms(path)]
    if None in texts:
        yield Limit("slurmd", None, "slurm.conf is not readable", "denied")
        return
    if not _is_propagated(texts, item):
        yield Limit("slurmd", inherited.value, "slurmd, not propagated")
        return
    _, hard = _process_limit(answer["daemons"]["slurmd"]["limits"], item)
    yield Limit("slurmd", hard, "slurmd, hard limit", ceiling=True)


def _is_slurms(path: str) -> bool:
    folders = path.split("/")
    return "slurm" in path and folders[-1].endswith(".conf")


def _is_propagated(texts: Iterable[str], item: str) -> bool:
    """Return whether slurm.conf propagates a limit; without a word of it all are propagated."""
    for text in texts:
        for line in text.splitlines():
            key, _, value = line.partition("=")
            words = value.strip().upper().replace(",", " ").split()
            names = {word.removeprefix("RLIMIT_") for word in words}
            key = key.strip().lower()
            if key == "propagateresourcelimits":
                return "ALL" in names or item.upper() in names
            if key == "propagateresourcelimitsexcept":
                return not ("ALL" in names or item.upper() in names)
    return True


# ---------------------------------------------------------------- containers


def _docker(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what containers of Docker get without --ulimit.

    They are children of containerd, and where it has no service of its own, of dockerd.
    """
    daemon = _of_daemon(answer, "dockerd", "docker", item)
    if daemon is None:
        return
    files = answer["files"]
    if DOCKER in files and files[DOCKER] is None:
        yield Limit("docker", None, f"{DOCKER} is not readable", "denied")
        return
    declared = _docker_default(files.get(DOCKER) or {}, item)
    if declared is not None:
        yield Limit("docker", declared, DOCKER, per_job=True)
        return
    parent = _of_daemon(answer, "containerd", "docker", item) or daemon
    yield _per_job(parent)


def _docker_default(ulimits: Mapping[str, Any], item: str) -> float | None:
    """Return the soft limit of «default-ulimits», None where there is none; -1 is unlimited."""
    for name, ulimit in ulimits.items():
        if str(ulimit.get("Name", name)) != item:
            continue
        soft = ulimit["Soft"]
        if isinstance(soft, bool) or not isinstance(soft, int):
            raise TypeError("a default-ulimit of Docker is no number")
        return math.inf if soft < 0 else float(soft)
    return None


def _per_job(limit: Limit) -> Limit:
    return Limit(limit.path, limit.value, limit.source, limit.reason, per_job=True)


def _containerd(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what pods get where containerd serves Kubernetes; its API cannot raise a limit."""
    if "dockerd" in (answer["daemons"] or {}):
        return
    daemon = _of_daemon(answer, "containerd", "containerd", item)
    if daemon is not None:
        yield daemon


def _crio(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    daemon = _of_daemon(answer, "crio", "cri-o", item)
    if daemon is not None:
        yield from _engine_default(answer, "/etc/crio/", "cri-o", item) or [daemon]


def _podman(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what containers.conf sets; else Podman's containers have the session's limits."""
    for limit in _engine_default(answer, "/etc/containers/", "podman", item):
        yield _per_job(limit)


def _engine_default(answer: Mapping[str, Any], folder: str, path: str, item: str) -> list[Limit]:
    """Return the last default_ulimits of an engine's files that names a limit, as a list."""
    found = []
    for file, text in sorted(answer["files"].items()):
        if not file.startswith(folder):
            continue
        if text is None:
            return [Limit(path, None, f"{file} is not readable", "denied")]
        for name, soft, _ in _ULIMIT.findall(text):
            if name == item:
                endless = soft in ("-1", "unlimited")
                found.append(Limit(path, math.inf if endless else float(soft), file))
    return found[-1:]


# ---------------------------------------------------------------- systemd


def _services(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what the manager's files give to services, and what units get that are meant for jobs.

    Without such a unit, and if no file says otherwise, services have systemd's own defaults: these
    matter to no job.
    """
    default, source = _last_setting(answer["files"], f"DefaultLimit{item.upper()}")
    if source and default is None:
        yield Limit("systemd", None, source, "denied")
    elif default is not None:
        yield Limit("systemd", default, source, per_job=True)
    for unit, files in sorted(answer["units"].items()):
        own, file = _last_setting(files, f"Limit{item.upper()}")
        if file:
            yield Limit(unit, own, file, "" if own is not None else "denied")
        elif default is not None:
            yield Limit(unit, default, source)
        elif item in SERVICES:
            yield Limit(unit, SERVICES[item], "systemd's default, at most")


def _last_setting(files: Mapping[str, str | None], key: str) -> tuple[float | None, str]:
    """Return the soft limit that the last file with a setting has, and what says it.

    None with a text for a file that is not readable, None with an empty one without a setting.
    """
    value, source = None, ""
    for path, text in files.items():
        if "/systemd/" not in path:
            continue
        if text is None:
            return None, f"{path} is not readable"
        for line in text.splitlines():
            name, sign, words = line.partition("=")
            if sign and name.strip() == key:
                value, source = _systemd_number(words.strip().partition(":")[0]), path
    return value, source


def _systemd_number(word: str) -> float:
    if word == "infinity":
        return math.inf
    match = re.fullmatch(r"(\d{1,18})([KMGTP]?)B?", word)
    if match is None:
        raise ValueError(f"{word!r:.40} is no limit of systemd")
    return float(int(match[1]) * FACTORS[match[2]])


# ---------------------------------------------------------------- PAM


def _login(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what pam_limits sets for login shells; it leaves what no line names as it was."""
    yield from _by_pam(answer, "login", LOGIN, item)


def _cron(answer: Mapping[str, Any], item: str) -> Iterable[Limit]:
    """Yield what jobs of cron get: what pam_limits sets, else the limit of the daemon."""
    for name in ("cron", "crond"):
        daemon = _of_daemon(answer, name, CRON, item)
        if daemon is not None:
            yield from list(_by_pam(answer, name, CRON, item)) or [daemon]
            return


def _by_pam(answer: Mapping[str, Any], service: str, path: str, item: str) -> Iterable[Limit]:
    files, user = answer["files"], answer["user"]
    if user is None or not _runs_pam_limits(files, service):
        return
    soft: tuple[int, float | None, str] | None = None
    hard: tuple[int, float | None, str] | None = None
    for file in _limits_files(files):
        text = files[file]
        if text is None:
            yield Limit(path, None, f"{file} is not readable", "denied")
            return
        for words in _entries(text, item):
            rank = _rank(words[0], user)
            if rank is None:
                continue
            entry = (rank, _pam_number(words[3], item), file)
            # Of two entries the one for fewer users counts, of equal ones the later.
            if words[1] in ("soft", "-") and (soft is None or rank <= soft[0]):
                soft = entry
            if words[1] in ("hard", "-") and (hard is None or rank <= hard[0]):
                hard = entry
    yield from _lower(path, soft, hard)


def _lower(
    path: str,
    soft: tuple[int, float | None, str] | None,
    hard: tuple[int, float | None, str] | None,
) -> Iterable[Limit]:
    """Yield the soft limit, which pam_limits lowers to the hard one."""
    if soft is None or soft[1] is None:
        return
    value, file = soft[1], soft[2]
    if hard is not None and hard[1] is not None and hard[1] < value:
        value, file = hard[1], hard[2]
    yield Limit(path, value, file)


def _runs_pam_limits(files: Mapping[str, Any], service: str, depth: int = 0) -> bool:
    """Return whether pam_limits is among the modules of a service, or in a file it includes."""
    text = files.get(f"/etc/pam.d/{service}")
    if text is None or depth > 8:
        return False
    for line in text.splitlines():
        words = line.split()
        if "pam_limits" in line:
            return True
        included = words[-1] if words[0] == "@include" or "include" in words[1:2] else ""
        if "substack" in words[1:2]:
            included = words[-1]
        if included and _runs_pam_limits(files, included, depth + 1):
            return True
    return False


def _limits_files(files: Mapping[str, Any]) -> list[str]:
    """Return limits.conf and then the files of limits.d by name, as pam_limits reads them."""
    folder = "/etc/security/limits.d/"
    first = [path for path in files if path == "/etc/security/limits.conf"]
    more = [path for path in files if path.startswith(folder) and path.endswith(".conf")]
    return first + sorted(more)


def _entries(text: str, item: str) -> Iterable[Sequence[str]]:
    """Yield the lines of limits.conf(5) about one item, as words."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] == item and words[1] in ("soft", "hard", "-"):
            yield words


def _rank(domain: str, user: Mapping[str, Any]) -> int | None:
    """Return how closely a domain of limits.conf(5) means a user, 0 for its name; None: not at all.

    Groups and wildcards do not mean root.
    """
    uid = int(user["uid"])
    if domain == user["name"] or _in_range(domain, uid):
        return 0
    if uid == 0:
        return None
    if domain.startswith("@"):
        for number, name in user["groups"]:
            if domain[1:] == name or _in_range(domain[1:], int(number)):
                return 1
        return None
    return 2 if domain == "*" else None


def _in_range(domain: str, number: int) -> bool:
    """Return whether «500:1000», «500:» or «:500», which is that number alone, has a number."""
    match = re.fullmatch(r"(\d*):(\d*)", domain)
    if match is None or not (match[1] or match[2]):
        return False
    if not match[1]:
        return number == int(match[2])
    return int(match[1]) <= number and (not match[2] or number <= int(match[2]))


def _pam_number(word: str, item: str) -> float | None:
    """Return a limit of limits.conf(5); None for a word that pam_limits skips."""
    if word in ("unlimited", "infinity", "-1"):
        return math.inf
    if not (word.isascii() and word.isdigit()):
        return None
    return float(word) * (1024 if item in KIB else 1)


# ---------------------------------------------------------------- CPUs and memory


class Share(Struct, frozen=True):
    """The CPUs that processes may run on, and what their cgroups allow besides.

    `quota` is in CPUs and `memory` in bytes, None without a limit. `source` names the cgroup that
    limits the CPUs, the quota or the memory most, by the name of the field. `slurm`: the process
    was a task of Slurm.
    """

    cpus: frozenset[int]
    online: frozenset[int]
    quota: float | None = None
    memory: int | None = None
    sources: tuple[tuple[str, str], ...] = ()
    slurm: bool = False

    def source(self, field: str) -> str:
        """Return the cgroup that limits a field, "" where none is known to."""
        return dict(self.sources).get(field, "")


MOST_CPUS = 8192  # NR_CPUS at most (Linux, arch/x86/Kconfig)


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers of «0-3,8»; raise ValueError for text that is no list of CPUs."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if not 0 <= low <= high < MOST_CPUS:
            raise ValueError(f"no list of CPUs: {text!r:.40}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return «0-3,8»."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ",".join(parts)


def parse_share(answer: Mapping[str, Any]) -> Share:
    """Return the share of the machine that a session has, by affinity and cgroups."""
    if answer["cpus"] is None:
        raise ValueError("/proc/self/status has no Cpus_allowed_list")
    online = parse_cpus(answer["online"])
    cpus = parse_cpus(answer["cpus"]) & online
    sources: dict[str, str] = {}
    quota: float | None = None
    memory: int | None = None
    for _, texts in answer["slice"]:
        cpus &= _cpuset(texts, online)
    for folder, texts in [*answer["groups"], *answer["slice"]]:
        allowed = _quota(texts)
        if allowed is not None and (quota is None or allowed < quota):
            quota = allowed
            sources["quota"] = folder
        limit = _memory(texts)
        if limit is not None and (memory is None or limit < memory):
            memory = limit
            sources["memory"] = folder
        if cpus < online and _cpuset(texts, online) == cpus:
            sources["cpus"] = folder  # the outmost that has no more of them
    return Share(
        cpus,
        online,
        quota,
        memory,
        tuple(sorted(sources.items())),
        bool(answer["slurm"]),
    )


def _cpuset(texts: Mapping[str, str], online: frozenset[int]) -> frozenset[int]:
    """Return the CPUs of a cgroup, all that are online where it has no list."""
    listed = texts.get("cpuset.cpus.effective") or texts.get("cpuset.effective_cpus")
    return parse_cpus(listed) & online if listed else online


def _quota(texts: Mapping[str, str]) -> float | None:
    """Return how many CPUs' time a cgroup may take: «800000 100000» of cpu.max are 8."""
    if "cpu.max" in texts:
        quota, period = texts["cpu.max"].split()
        return int(quota) / int(period)
    if "cpu.cfs_quota_us" not in texts:
        return None
    quota_us = int(texts["cpu.cfs_quota_us"])
    return None if quota_us < 0 else quota_us / int(texts["cpu.cfs_period_us"])


def _memory(texts: Mapping[str, str]) -> int | None:
    """Return the bytes that a cgroup may have, the lower of what throttles and what kills."""
    limits = []
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        if name in texts and int(texts[name]) < NO_MEMORY_LIMIT:
            limits.append(int(texts[name]))
    return min(limits, default=None)


def parse_daemon_cpus(answer: Mapping[str, Any]) -> tuple[tuple[str, frozenset[int]], ...]:
    """Return the CPUs that the daemons which launch jobs may run on, and so their children."""
    rows = []
    sets: dict[str, frozenset[int]] = {}  # daemons mostly may run on the same CPUs
    for name, daemon in sorted((answer["daemons"] or {}).items()):
        text = daemon["cpus"]
        if text is None:
            continue
        if text not in sets:
            sets[text] = parse_cpus(text)
        rows.append((name, sets[text]))
    return tuple(rows)


def _reads(kind: str) -> Callable[[Node, Inventory], tuple[Read, ...]]:
    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        return (Read(kind, (user_of_job(node),), limit=5.0),)

    return reads


LAUNCHES = Fact("lim.launches", _reads("launch_limits"), parse_launches, needs=NEEDS)
DAEMON_CPUS = Fact("lim.daemon_cpus", _reads("launch_limits"), parse_daemon_cpus, needs=NEEDS)
SHARE = Fact("lim.share", _reads("session_share"), parse_share)
