"""Text in, settings out: the dialects in which environments are written, each read as its reader does."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from clusterprep.nccl.lint import LintEntry, Text
from clusterprep.nccl.lint.conf import COMMENT, DOLLAR, meant
from clusterprep.nccl.lint.shell import ASSIGNED, joined, read_shell, words_of

MARK = "\ufeff"

_SHELLS = {
    ".sh",
    ".bash",
    ".zsh",
    ".csh",
    ".tcsh",
    ".ksh",
    ".fish",
    ".sbatch",
    ".slurm",
    ".profile",
}
_RC = re.compile(r"\.?(bash|zsh|ksh)?(rc|env|_?profile|_login|\.bashrc)")
_EXPORT = re.compile(r"\s*(?:export|setenv|(?:declare|typeset|set)\s+-\w*x\w*)\s+\w", re.MULTILINE)
_SECTION = re.compile(r"\s*\[(?:Service|Manager|Unit)\]\s*$", re.MULTILINE)


def dialect_of(name: str, text: str) -> str:
    """The dialect by the file's name, and where that says nothing, by what stands in it."""
    folder, base = posixpath.split(name)
    suffix = posixpath.splitext(base)[1]
    if _SECTION.search(text):
        return "unit"
    if base == "environment" or posixpath.basename(folder) == "environment.d":
        return "environment"
    if base.endswith("nccl.conf") or suffix == ".conf":
        return "nccl.conf"
    if suffix in _SHELLS or _RC.fullmatch(base) or text.startswith("#!"):
        return "shell"
    return "shell" if _EXPORT.search(text) else "env-file"


def read(text: str, dialect: str) -> Text:
    """The settings of a text. Nothing is ever run or expanded, and no text is refused."""
    marked = text.startswith(MARK)
    lines = text.removeprefix(MARK).split("\n")
    if lines[-1] == "":
        lines.pop()
    returns = next((number for number, line in enumerate(lines, 1) if line.endswith("\r")), 0)
    lines = [line.removesuffix("\r") for line in lines]
    entries = tuple(_READERS[dialect](lines))
    if marked and dialect in ("nccl.conf", "shell"):
        entries = tuple(
            replace(entry, lost=True) if entry.line == 1 else entry for entry in entries
        )
    return Text(dialect, tuple(lines), entries, returns, marked)


def _conf(lines: list[str]) -> Iterator[LintEntry]:
    for number, line in enumerate(lines, 1):
        setting = meant(line)
        if setting is not None:
            known = "dollar" not in setting.flaws
            yield LintEntry(
                setting.name, setting.value, number, known, setting.lost, written=setting.written
            )


def _env_file(lines: list[str]) -> Iterator[LintEntry]:
    """KEY=value for docker and systemd: quotes are read as the latter does, which takes them off."""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        name, equals, value = stripped.removeprefix("export ").partition("=")
        if equals and not stripped.startswith(("#", ";")):
            meant_value = _unquoted(COMMENT.sub("", value.strip()))
            known = DOLLAR.search(meant_value) is None
            yield LintEntry(name.strip(), meant_value, number, known, written=value)


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _environment(lines: list[str]) -> Iterator[LintEntry]:
    """/etc/environment for pam_env and environment.d for systemd: both take quotes off."""
    for entry in _env_file(lines):
        yield replace(entry, written=_unquoted(entry.written.strip()))


def _unit(lines: list[str]) -> Iterator[LintEntry]:
    """`Environment=` lines of a systemd unit or drop-in; quotes group words, and several settings fit one line."""
    entries: list[LintEntry] = []
    for number, line in joined(lines):
        key, _, rest = line.partition("=")
        if key.strip() in ("Environment", "DefaultEnvironment") and not line.lstrip().startswith(
            ("#", ";")
        ):
            if not rest.strip():  # an empty line takes back those before it
                entries = []
            for word in words_of(rest, operators=False) or ():
                if found := ASSIGNED.fullmatch(word):
                    known = "%" not in found[2].replace("%%", "")  # %h and its kin are systemd's
                    entries.append(LintEntry(found[1], found[2].replace("%%", "%"), number, known))
    yield from entries


_READERS = {
    "nccl.conf": _conf,
    "shell": read_shell,
    "env-file": _env_file,
    "environment": _environment,
    "unit": _unit,
}
