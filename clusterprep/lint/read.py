"""Text in, settings out: the dialects in which environments are written, each read as its reader does."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clusterprep.lint import Entry, Text
from clusterprep.lint.conf import COMMENT, DOLLAR, meant

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MARK = "\ufeff"

_SHELLS = {".sh", ".bash", ".zsh", ".csh", ".ksh", ".sbatch", ".slurm", ".profile"}
_RC = re.compile(r"\.?(bash|zsh|ksh)?(rc|env|_?profile|_login|\.bashrc)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPORT = re.compile(r"\s*(?:export|setenv|declare\s+-\w*x\w*|typeset\s+-\w*x\w*)\s+\w", re.MULTILINE)
_SECTION = re.compile(r"\s*\[(?:Service|Manager|Unit)\]\s*$", re.MULTILINE)
_RUN_TIME = re.compile(r"[$`]")  # in a shell word: a value that only the shell knows
_KEYWORDS = {"if", "then", "else", "elif", "do", "{", "!", "time", "while", "until"}
_DECLARING = {"export", "declare", "typeset"}
_PRINTING = {"echo", "printf"}  # of a prolog of Slurm, which takes `export NAME=value` from what is printed


def dialect_of(name: str, text: str) -> str:
    """The dialect by the file's name, and where that says nothing, by what stands in it."""
    base = posixpath.basename(name)
    suffix = posixpath.splitext(base)[1]
    if _SECTION.search(text):
        return "unit"
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
    if marked and dialect == "nccl.conf":
        entries = tuple(replace(entry, lost=True) if entry.line == 1 else entry for entry in entries)
    return Text(dialect, tuple(lines), entries, returns, marked)


def _conf(lines: list[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        setting = meant(line)
        if setting is not None:
            known = "dollar" not in setting.flaws
            yield Entry(setting.name, setting.value, number, known, setting.lost, written=setting.written)


def _env_file(lines: list[str]) -> Iterator[Entry]:
    """KEY=value for docker, systemd and pam_env: quotes are read as the latter two do, which take them off."""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        name, equals, value = stripped.removeprefix("export ").partition("=")
        if equals and not stripped.startswith(("#", ";")):
            meant_value = _unquoted(COMMENT.sub("", value.strip()))
            known = DOLLAR.search(meant_value) is None
            yield Entry(name.strip(), meant_value, number, known, written=value)


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _unit(lines: list[str]) -> Iterator[Entry]:
    """`Environment=` lines of a systemd unit or drop-in; quotes group words, and several settings fit one line."""
    for number, line in _joined(lines):
        key, _, rest = line.partition("=")
        if key.strip() == "Environment" and not line.lstrip().startswith(("#", ";")):
            for word in _words(rest, operators=False) or ():
                if found := _ASSIGNED.fullmatch(word):
                    yield Entry(found[1], found[2].replace("%%", "%"), number)


def _shell(lines: list[str]) -> Iterator[Entry]:
    entries: list[Entry] = []
    exported: set[str] = set()
    everything = False
    for number, line in _joined(lines):
        for words in _commands(line):
            everything |= words[:2] in (["set", "-a"], ["set", "-o"])
            if words[0] == "unset":
                entries = [entry for entry in entries if entry.name not in words[1:]]
                continue
            if words[0] in _DECLARING:
                exported |= {word for word in words[1:] if NAME.fullmatch(word)}
            entries += (Entry(*found, number, known=not _RUN_TIME.search(found[1])) for found in _set(words))
            if words[0] not in {*_DECLARING, *_PRINTING, "setenv"} and all(_ASSIGNED.fullmatch(w) for w in words):
                entries[-len(words) :] = [replace(entry, bare=True) for entry in entries[-len(words) :]]
    for entry in entries:
        bare = entry.bare and not everything and entry.name not in exported
        yield replace(entry, bare=bare)


def _set(words: list[str]) -> Iterator[tuple[str, str]]:
    """What one command sets for those that come after it, or for itself."""
    if words[0] == "setenv":
        if len(words) > 1 and NAME.fullmatch(words[1]):
            yield words[1], " ".join(words[2:3])
        return
    if words[0] in _PRINTING:
        for word in words[1:]:
            if word.startswith("export ") and (found := _ASSIGNED.fullmatch(word.removeprefix("export ").strip())):
                yield found[1], found[2]
        if "export" in words:
            words = words[words.index("export") :]
        else:
            return
    for word in words[1:] if words[0] in _DECLARING or words[0] == "env" else words:
        found = _ASSIGNED.fullmatch(word)
        if found:
            yield found[1], found[2]
        elif words[0] not in _DECLARING and words[0] != "env":
            return  # the command itself: what follows are its arguments


def _commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line of shell, as words without quotes."""
    words: list[str] = []
    for word in _words(_code(line), operators=True) or ():
        if word and set(word) <= set("();<>|&"):
            if words:
                yield words
            words = []
        elif not words and word in _KEYWORDS:
            continue
        else:
            words.append(word)
    if words:
        yield words


def _code(line: str) -> str:
    """A line without its comment, which starts with a word and outside of quotes."""
    quote = ""
    for place, char in enumerate(line):
        if char in "\"'" and (place == 0 or line[place - 1] != "\\"):
            quote = char if not quote else "" if char == quote else quote
        elif char == "#" and not quote and (place == 0 or line[place - 1] in " \t;&|()"):
            return line[:place]
    return line


def _words(line: str, *, operators: bool) -> list[str] | None:
    """None for a line whose quotes do not close, as in text of several lines."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=operators)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return None


def _joined(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash at the end continues, under the number of the first."""
    start, held = 0, ""
    for number, line in enumerate(lines, 1):
        start = start or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            held += line[:-1]
            continue
        yield start, held + line
        start, held = 0, ""
    if held:
        yield start, held


_READERS = {"nccl.conf": _conf, "shell": _shell, "env-file": _env_file, "unit": _unit}
