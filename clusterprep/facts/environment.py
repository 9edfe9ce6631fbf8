"""The effective environment: what each way to start a process would give to the job's user, and from which file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.facts import JOB_USER, Fact
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote.agent import launched
from clusterprep.runtime.lazy_dataclass import dataclass

LIMIT = 14.0  # seconds; a shell that hangs costs four of them, and there are at most three
CONF = "/etc/nccl.conf"
CUT = 1023  # bytes of a value that NCCL takes from its files


@dataclass(frozen=True)
class Setting:
    """A variable as a launch path has it; `file` and `line` are None where they cannot be told."""

    name: str
    value: str
    file: str | None = None
    line: int | None = None


Paths = Mapping[str, "tuple[Setting, ...] | Absent"]
Row = tuple[str, int, str]  # file, line, its text

# An assignment of a shell, of /etc/environment or of csh and fish: the name, and the word behind it.
_WORD = r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s;&|"'\\])*)"""
_ASSIGNED = re.compile(
    rf"(?:^|[\s;&|(])(?:setenv\s+(\w+)\s+|set\s+(?:-\w+\s+)+(\w+)\s+|(\w+)=){_WORD}"
)


def parse_paths(answer: Mapping[str, Any]) -> Paths:
    """Every launch path of the node with its settings, or with the reason why they are not known."""
    rows = _rows(answer["files"])
    found: dict[str, tuple[Setting, ...] | Absent] = {}
    for path, session in answer["sessions"].items():
        # A shell that runs one command reads profile files where ~/.bashrc takes them in, so those are named last.
        order = (
            rows if path == "login shell" else sorted(rows, key=lambda row: not _is_profile(row[0]))
        )
        found[path] = _session(session, order)
    for path in ("systemd", "slurm"):
        if answer[path] is not None:
            found[path] = service(_rows(answer[path]))
    if answer["container"] is not None:
        found["container"] = _session(answer["container"], [])
    found["nccl"] = nccl(answer["conf"], answer["home"], found)
    return found


def parse_effective(answer: Mapping[str, Any]) -> Mapping[str, tuple[Setting, ...]] | Absent:
    """The same where every path is known, for those who judge all of them; else why one is not.

    A container whose first process belongs to somebody else is left out: few users may look into it.
    """
    paths = parse_paths(answer)
    absent = next(
        (v for path, v in paths.items() if isinstance(v, Absent) and path != "container"), None
    )
    return (
        {path: s for path, s in paths.items() if not isinstance(s, Absent)}
        if absent is None
        else absent
    )


def parse_conf(answer: Mapping[str, Any]) -> Mapping[str, tuple[Row, ...]]:
    """NCCL's own files that are there, each with the lines that set something."""
    return {
        path: tuple(_rows([[path, lines]]))
        for path, lines in answer["conf"].items()
        if lines is not None
    }


def parse_libraries(answer: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """Folders of LD_LIBRARY_PATH, with the libraries of NCCL and of the driver that lie in them."""
    return {folder: tuple(map(_text, names)) for folder, names in answer["libraries"].items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r}")  # noqa: TRY004 - as every parse
    return value


def _rows(files: Sequence[Any]) -> list[Row]:
    rows = [(_text(path), number, _text(text)) for path, lines in files for number, text in lines]
    if not all(isinstance(number, int) for _, number, _ in rows):
        raise ValueError("a line without a number")
    return rows


# ---------------------------------------------------------------- sessions


def _session(answer: Sequence[Any], rows: Sequence[Row]) -> tuple[Setting, ...] | Absent:
    if answer[0] != "ok":
        return Absent(_text(answer[1]), _text(answer[2]))
    places = assigned(rows)
    settings = []
    for name, value in sorted(answer[1].items()):
        file, line = places.get((name, _text(value)), (None, None))
        settings.append(Setting(name, value, file, line))
    return tuple(settings)


def assigned(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[str, int]]:
    """The last place that gives a name this value, as far as it is written out."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for file, line, text in rows:
        for match in _ASSIGNED.finditer("" if text.lstrip().startswith("#") else text):
            name = next(group for group in match.groups()[:3] if group)
            found[name, _unquoted(match.group(4))] = (file, line)
    return found


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)[:1])
    except ValueError:
        return word


def _is_profile(file: str) -> bool:
    return file.startswith("/etc/profile") or file.endswith(
        ("/.bash_profile", "/.bash_login", "/.profile")
    )


def service(rows: Iterable[Row]) -> tuple[Setting, ...]:
    """What a service is given by these lines of units and environment files, sorted by name."""
    return tuple(Setting(name, *where) for name, where in sorted(launched.service(rows).items()))


# ---------------------------------------------------------------- NCCL's own files


def nccl(conf: Mapping[str, Any], home: str, sessions: Paths) -> tuple[Setting, ...]:
    """What NCCL takes from its files: that of NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf; the first wins."""
    own = f"{_text(home).rstrip('/')}/.nccl.conf"
    known = [value for value in sessions.values() if not isinstance(value, Absent)]
    asked = (
        s.value for settings in known for s in settings if s.name == "NCCL_CONF_FILE" and s.value
    )
    found: dict[str, Setting] = {}
    for path in (next(asked, own), CONF):
        lines = conf[path] if path in (own, CONF) else conf.get(path)
        for file, line, text in _rows([[path, lines]]) if lines is not None else ():
            name, sign, value = text.partition("=")
            if sign and not text.startswith("#") and name not in found:
                found[name] = Setting(name, value[:CUT], file, line)
    return tuple(sorted(found.values(), key=lambda setting: setting.name))


def in_effect(paths: Paths, path: str) -> dict[str, Setting]:
    """What NCCL has in a process of one launch path: its environment, and behind it NCCL's own files."""
    own, conf = (paths.get(key, ()) for key in (path, "nccl"))
    both = [*(() if isinstance(conf, Absent) else conf), *(() if isinstance(own, Absent) else own)]
    return {setting.name: setting for setting in both}


def _asked(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """One look brings all facts of this file; only a process that sshd started is an ssh command itself."""
    return (
        Read("environment", (node.job_user or node.ssh.user, node.transport == "ssh"), limit=LIMIT),
    )


PATHS = Fact("env.paths", _asked, parse_paths, deep=True, needs=JOB_USER)
EFFECTIVE = Fact("env.effective", _asked, parse_effective, deep=True, needs=JOB_USER)
CONF_LINES = Fact("env.conf_lines", _asked, parse_conf, deep=True, needs=JOB_USER)
LIBRARIES = Fact("env.libraries", _asked, parse_libraries, deep=True, needs=JOB_USER)
