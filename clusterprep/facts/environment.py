"""The environment of the job's user on each launch path, and where each variable is set.

Each launch path is asked by itself, and a path that could not be asked is unknown alone (the fact
env.paths), while env.effective exists only where all are known. Checks compare these values with
what apply would write, so `nccl` knows nothing of checks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, user_of_job
from clusterprep.facts.runtime import shell_runtime_reads
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote.agent import launched

LIMIT = 14.0  # seconds; a shell that hangs costs four of them, and there are at most three
CONF = "/etc/nccl.conf"
CUT = 1023  # bytes of a value that NCCL takes from its files
# Launch paths into containers that are started on the node.
ENGINES = ("podman", "enroot", "docker")
OTHERS = (*ENGINES, "cron")  # launch paths that are there without a job that takes them


class Setting(Struct, frozen=True):
    """A variable on a launch path; `file` and `line` are None where they are not known."""

    name: str
    value: str
    file: str | None = None
    line: int | None = None


class Reader(Struct, frozen=True):
    """Whether a launch path reads what apply writes, None where that is not known; `why` not."""

    reads: bool | None
    why: str = ""


Paths = Mapping[str, "tuple[Setting, ...] | Absent"]
Row = tuple[str, int, str]  # file, line, its text

# An assignment of a shell, of /etc/environment or of csh and fish: the name, and the word behind
# it.
_WORD = r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s;&|"'\\])*)"""
_ASSIGNED = re.compile(
    rf"(?:^|[\s;&|(])(?:setenv\s+(\w+)\s+|set\s+(?:-\w+\s+)+(\w+)\s+|(\w+)=){_WORD}"
)


def parse_paths(answer: Mapping[str, Any], inside: Mapping[str, Any] | None = None) -> Paths:
    """Return the launch paths of jobs with their settings, or why they are unknown.

    Cron and the engines are told by themselves: that they are installed does not say that jobs
    start so.
    """
    paths = parse_every_path(answer, inside)
    return {path: value for path, value in paths.items() if path not in OTHERS}


def parse_other_paths(answer: Mapping[str, Any]) -> Paths:
    """Return the launch paths that are there without a job that is known to take them."""
    return {path: value for path, value in parse_every_path(answer).items() if path in OTHERS}


def parse_every_path(answer: Mapping[str, Any], inside: Mapping[str, Any] | None = None) -> Paths:
    """Return every launch path of the node with its settings, or why they are unknown.

    `inside` is what the job's runtime gives, where one is declared; it is a launch path too.
    """
    rows = _rows(answer["files"])
    # A shell that runs one command reads profile files only where ~/.bashrc includes them, so those
    # come last.
    profiles_last = sorted(rows, key=_is_no_profile)
    paths: dict[str, tuple[Setting, ...] | Absent] = {}
    for path, session in answer["sessions"].items():
        order = rows if path == "login shell" else profiles_last
        paths[path] = _settings_of_session(session, order)
    for path in ("systemd", "slurm"):
        if answer[path] is not None:
            paths[path] = settings_of_service(_rows(answer[path]))
    for path in ENGINES:  # recordings of earlier releases do not have them, nor cron
        if answer.get(path) is not None:
            paths[path] = settings_of_service(_rows(answer[path]))
    cron = answer.get("cron")
    if cron is not None:
        paths["cron"] = _settings_of_session(cron["session"], _rows(cron["files"]))
    if answer["container"] is not None:
        paths["container"] = _settings_of_session(answer["container"], [])
    if inside is not None:
        runtime = _settings_of_runtime(inside, paths.get("login shell", ()), rows)
        paths = {"runtime": runtime, **paths}
    paths["nccl"] = settings_of_nccl(answer["conf"], answer["home"], paths)
    return paths


def parse_readers(answer: Mapping[str, Any]) -> Mapping[str, Reader]:
    """Return whether sshd and cron read /etc/environment, and whether declared units exist.

    "systemd" is there only if one of `env_units` does not exist.
    """
    readers = {}
    for path, (reads, why) in answer.get("pam", {}).items():
        if reads not in (True, False, None):
            raise ValueError(f"expected true, false or null, seen {reads!r}")
        readers[path] = Reader(reads, _text(why))
    missing = [_text(unit) for unit in answer.get("missing_units", ())]
    if missing:
        readers["systemd"] = Reader(False, f"there is no {' and no '.join(missing)}")
    return readers


def parse_effective(
    answer: Mapping[str, Any], inside: Mapping[str, Any] | None = None
) -> Mapping[str, tuple[Setting, ...]] | Absent:
    """Return the settings of all launch paths, or the reason why those of one are not known.

    A container whose first process belongs to another user is left out: few users may look into it.
    """
    settings: dict[str, tuple[Setting, ...]] = {}
    for path, value in parse_paths(answer, inside).items():
        if not isinstance(value, Absent):
            settings[path] = value
        elif path != "container":
            return value
    return settings


def parse_conf(answer: Mapping[str, Any]) -> Mapping[str, tuple[Row, ...]]:
    """Return NCCL's own files that exist, each with the lines that set something."""
    files = {}
    for path, lines in answer["conf"].items():
        if lines is not None:
            files[path] = tuple(_file_rows(path, lines))
    return files


def parse_libraries(
    answer: Mapping[str, Any], inside: Mapping[str, Any] | None = None
) -> Mapping[str, tuple[str, ...]] | Absent:
    """Return the folders of LD_LIBRARY_PATH, each with its libraries of NCCL and of the driver.

    They are not known of a node whose runtime cannot be entered.
    """
    folders = dict(answer["libraries"])
    if inside is not None:
        if "failed" in inside:
            return _not_entered(inside)
        folders.update(inside["libraries"])
    libraries = {}
    for folder, names in folders.items():
        libraries[folder] = tuple(map(_text, names))
    return libraries


def _not_entered(inside: Mapping[str, Any]) -> Absent:
    """Return why a runtime was not entered."""
    reason, why = inside["failed"]
    return Absent(_text(reason), _text(why))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r}")  # noqa: TRY004 - as every parse
    return value


def _rows(files: Iterable[Sequence[Any]]) -> list[Row]:
    """Return the lines of several files: [[path, [[number, text], …]], …]."""
    rows = []
    for path, lines in files:
        rows += _file_rows(path, lines)
    return rows


def _file_rows(path: object, lines: Iterable[Sequence[Any]]) -> list[Row]:
    rows = []
    for number, text in lines:
        if not isinstance(number, int):
            raise ValueError("a line without a number")  # noqa: TRY004 - as every parse
        rows.append((_text(path), number, _text(text)))
    return rows


# ---------------------------------------------------------------- sessions


def _settings_of_session(
    answer: Sequence[Any], rows: Sequence[Row]
) -> tuple[Setting, ...] | Absent:
    """Return the settings of a session, sorted by name, each with its place in `rows` if known.

    The answer is ["ok", {name: value}] or ["no", reason, detail].
    """
    if answer[0] != "ok":
        return Absent(_text(answer[1]), _text(answer[2]))
    places = find_assignments(rows)
    settings = []
    unknown_place = (None, None)
    for name, value in sorted(answer[1].items()):
        file, line = places.get((name, _text(value)), unknown_place)
        settings.append(Setting(name, value, file, line))
    return tuple(settings)


def _settings_of_runtime(
    inside: Mapping[str, Any], login: tuple[Setting, ...] | Absent, rows: Sequence[Row]
) -> tuple[Setting, ...] | Absent:
    """Return what a job has that enters the runtime from a login shell, by the names of variables.

    `rows` are the lines of the user's start-up files. Files of modules have a language of their
    own, so of these only the file is told.
    """
    if "failed" in inside:
        return _not_entered(inside)
    if isinstance(login, Absent):
        return login
    own_rows = [*rows, *_rows(inside["files"])]
    places: dict[str, str] = {}
    for path, names in inside["modules"].items():
        places.update(dict.fromkeys(map(_text, names), path))
    settings = _settings_of_session(["ok", inside["env"]], own_rows)
    if isinstance(settings, Absent):
        return settings
    merged = {setting.name: setting for setting in login if setting.name not in inside["unset"]}
    for setting in settings:
        before = merged.get(setting.name)
        if before is not None and before.value == setting.value:
            continue
        if setting.file is None and setting.name in places:
            merged[setting.name] = Setting(setting.name, setting.value, places[setting.name])
        else:
            merged[setting.name] = setting
    return tuple(merged[name] for name in sorted(merged))


def find_assignments(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[str, int]]:
    """Return the last place that assigns a value to a name, by name and value.

    A value that a shell computes is not found.
    """
    places: dict[tuple[str, str], tuple[str, int]] = {}
    for file, line, text in rows:
        if text.lstrip().startswith("#"):
            continue
        for match in _ASSIGNED.finditer(text):
            csh_name, fish_name, shell_name, value = match.groups()
            name = csh_name or fish_name or shell_name
            places[name, _unquoted(value)] = (file, line)
    return places


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)[:1])
    except ValueError:
        return word


def _is_no_profile(row: Row) -> bool:
    file = row[0]
    if file.startswith("/etc/profile"):
        return False
    return not file.endswith(("/.bash_profile", "/.bash_login", "/.profile"))


def settings_of_service(rows: Iterable[Row]) -> tuple[Setting, ...]:
    """Return what these lines of units and environment files give to a service, sorted by name."""
    settings = []
    for name, value_and_place in sorted(launched.service(rows).items()):
        settings.append(Setting(name, *value_and_place))
    return tuple(settings)


# ---------------------------------------------------------------- NCCL's own files


def settings_of_nccl(conf: Mapping[str, Any], home: str, sessions: Paths) -> tuple[Setting, ...]:
    """Return what NCCL takes from its files, sorted by name. `conf` has their lines by path.

    It reads the file of NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf. The first value
    counts.
    """
    user_file = f"{_text(home).rstrip('/')}/.nccl.conf"
    first = _conf_file(sessions) or user_file
    settings: dict[str, Setting] = {}
    for path in (first, CONF):
        # The node always answers for its two usual files, with None where one does not exist.
        lines = conf[path] if path in (user_file, CONF) else conf.get(path)
        if lines is None:
            continue
        for file, line, text in _file_rows(path, lines):
            name, sign, value = text.partition("=")
            if sign and not text.startswith("#") and name not in settings:
                settings[name] = Setting(name, _cut(value), file, line)
    return tuple(sorted(settings.values(), key=lambda setting: setting.name))


def _cut(value: str) -> str:
    """Return as many bytes of a value as NCCL takes."""
    return value.encode("utf-8", "replace")[:CUT].decode("utf-8", "replace")


def _conf_file(sessions: Paths) -> str | None:
    """Return the first NCCL_CONF_FILE of the sessions, None where none of them sets it."""
    for settings in sessions.values():
        if isinstance(settings, Absent):
            continue
        for setting in settings:
            if setting.name == "NCCL_CONF_FILE" and setting.value:
                return setting.value
    return None


def in_effect(paths: Paths, path: str) -> dict[str, Setting]:
    """Return the settings that NCCL has in a process of one launch path, by name.

    The environment of the process goes before NCCL's own files. A container that an engine starts
    has its own /etc/nccl.conf, and not the node's.
    """
    settings = {}
    for source in (path,) if path in ENGINES else ("nccl", path):
        values = paths.get(source, ())
        if isinstance(values, Absent):
            continue
        for setting in values:
            settings[setting.name] = setting
    return settings


def _environment_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the one read that brings all facts of this file.

    Only a process that sshd started is an ssh command itself, so the agent is told whether it is
    one.
    """
    by_ssh = node.transport == "ssh"
    arguments: tuple[Any, ...] = (user_of_job(node), by_ssh)
    if "systemd" in inventory.env_targets:
        arguments = (*arguments, inventory.env_units)
    return (Read("environment", arguments, limit=LIMIT),)


def _path_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the reads of all launch paths: those of the host, and the job's runtime."""
    return (*_environment_reads(node, inventory), *shell_runtime_reads(node, inventory))


PATHS = Fact("env.paths", _path_reads, parse_paths, deep=True, needs=JOB_USER)
OTHER_PATHS = Fact(
    "env.other_paths", _environment_reads, parse_other_paths, deep=True, needs=JOB_USER
)
READERS = Fact("env.readers", _environment_reads, parse_readers, deep=True, needs=JOB_USER)
EFFECTIVE = Fact("env.effective", _path_reads, parse_effective, deep=True, needs=JOB_USER)
CONF_LINES = Fact("env.conf_lines", _environment_reads, parse_conf, deep=True, needs=JOB_USER)
LIBRARIES = Fact("env.libraries", _path_reads, parse_libraries, deep=True, needs=JOB_USER)
