"""Read the settings of a text, in each dialect as its own reader does."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from msgspec.structs import replace

from clusterprep.nccl.lint import LintEntry, Text
from clusterprep.nccl.lint.conf import COMMENT, DOLLAR, is_quoted, parse_setting
from clusterprep.nccl.lint.shell import ASSIGNED, join_continued, read_shell, words_of

MARK = "\ufeff"

_SHELL_SUFFIXES = {
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
# Neither begins with blanks: a search that begins anew at each of them takes quadratic time.
_EXPORT = re.compile(r"(?:export|setenv|(?:declare|typeset|set)\s+-(?=\w*x)\w+)\s+\w")
_SECTION = re.compile(r"\[(?:Service|Manager|Unit)\]\s*$", re.MULTILINE)


def dialect_of(name: str, text: str) -> str:
    """Return the dialect of a file by its name, and if that says nothing, by its text.

    >>> dialect_of("/etc/nccl.conf", "")
    'nccl.conf'
    """
    folder, base = posixpath.split(name)
    suffix = posixpath.splitext(base)[1]
    if _SECTION.search(text):
        return "unit"
    if base == "environment" or posixpath.basename(folder) == "environment.d":
        return "environment"
    if base.endswith("nccl.conf") or suffix == ".conf":
        return "nccl.conf"
    if suffix in _SHELL_SUFFIXES or _RC.fullmatch(base) or text.startswith("#!"):
        return "shell"
    if _EXPORT.search(text):
        return "shell"
    return "env-file"


def read(text: str, dialect: str) -> Text:
    """Return the settings of a text. Nothing is ever run or expanded, and no text is refused."""
    has_mark = text.startswith(MARK)
    raw_lines = text.removeprefix(MARK).split("\n")
    if raw_lines[-1] == "":
        raw_lines.pop()
    lines = []
    first_return = 0
    for number, line in enumerate(raw_lines, 1):
        if line.endswith("\r") and not first_return:
            first_return = number
        lines.append(line.removesuffix("\r"))
    mark_hides_name = has_mark and dialect in ("nccl.conf", "shell")
    entries = []
    for entry in _READERS[dialect](lines):
        if mark_hides_name and entry.line == 1:
            entries.append(replace(entry, lost=True))
        else:
            entries.append(entry)
    return Text(
        dialect,
        tuple(lines),
        tuple(entries),
        first_return,
        has_mark,
    )


def _conf(lines: list[str]) -> Iterator[LintEntry]:
    for number, line in enumerate(lines, 1):
        setting = parse_setting(line)
        if setting is None:
            continue
        known = "dollar" not in setting.flaws
        yield LintEntry(
            setting.name, setting.value, number, known, setting.lost, written=setting.written
        )


def _env_file(lines: list[str]) -> Iterator[LintEntry]:
    """Yield KEY=value lines. Quotes are taken off as systemd does; docker keeps them."""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        name, equals, written = stripped.removeprefix("export ").partition("=")
        if not equals or stripped.startswith(("#", ";")):
            continue
        value = COMMENT.sub("", written.strip())
        value = _unquoted(value)
        known = DOLLAR.search(value) is None
        yield LintEntry(
            name.strip(),
            value,
            number,
            known,
            written=written,
        )


def _unquoted(value: str) -> str:
    return value[1:-1] if is_quoted(value) else value


def _environment(lines: list[str]) -> Iterator[LintEntry]:
    """Yield lines of /etc/environment (pam_env) and environment.d (systemd).

    Both take quotes off.
    """
    for entry in _env_file(lines):
        yield replace(entry, written=_unquoted(entry.written.strip()))


def _unit(lines: list[str]) -> Iterator[LintEntry]:
    """Yield the settings of `Environment=` lines of a systemd unit or drop-in.

    Quotes group words, and several settings fit one line.
    """
    entries: list[LintEntry] = []
    for number, line in join_continued(lines):
        if line.lstrip().startswith(("#", ";")):
            continue
        key, _, settings = line.partition("=")
        if key.strip() not in ("Environment", "DefaultEnvironment"):
            continue
        if not settings.strip():  # an empty line takes back those before it
            entries = []
        for word in words_of(settings, operators=False) or ():
            match = ASSIGNED.fullmatch(word)
            if match:
                entries.append(_unit_entry(match[1], match[2], number))
    yield from entries


def _unit_entry(name: str, value: str, line: int) -> LintEntry:
    """Return one setting of a unit: %% stands for %, and systemd expands %h and the like."""
    known = "%" not in value.replace("%%", "")
    return LintEntry(name, value.replace("%%", "%"), line, known)


_READERS = {
    "nccl.conf": _conf,
    "shell": read_shell,
    "env-file": _env_file,
    "environment": _environment,
    "unit": _unit,
}
