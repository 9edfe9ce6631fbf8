"""Scripts of shells, csh and fish among them: what a program that is started afterwards finds set."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from clusterprep.nccl.lint import LintEntry, Scope
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ASSIGNED_OR_MORE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_RUN_TIME = re.compile(r"[$`]")  # in a shell word: a value that only the shell knows
# `${NAME:-text}` and its kin: the text holds unless somebody has set the name before.
_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?[-=]([^$`{}]*)\}")
_OPENING = {"if", "case", "while", "until", "for", "select", "foreach", "switch", "begin"}
_CLOSING = {"fi", "esac", "done", "endif", "endsw", "end", "}"}
_KEYWORDS = {"then", "else", "elif", "do", "!", "time", "if", "while", "until", "begin"}
_DECLARING = {"export", "declare", "typeset", "readonly", "local"}
_PRINTING = {
    "echo",
    "printf",
}  # of a prolog of Slurm, which takes `export NAME=value` from what is printed
_PASSING = {"-x", "-e", "--env"}  # of mpirun and of containers: the next word is NAME=value
_HERE = re.compile(r"(?<!<)<<(-?)\s*\\?(['\"]?)(\w+)\2")


@dataclass(frozen=True)
class _Command:
    """The words of one simple command; `sure` is false in a branch, a loop, a function, or behind && and ||."""

    words: tuple[str, ...]
    line: int
    sure: bool


def read_shell(lines: Iterable[str]) -> Iterator[LintEntry]:
    """Each setting; what is unset again is left out, and `bare` what nobody exports."""
    entries: list[LintEntry] = []
    exported: set[str] = set()
    everything = False
    for command in _commands(joined(_outside_here_documents(lines))):
        words = command.words
        everything = _all_exported(words, everything)
        if gone := _unset(words):
            if command.sure:
                entries = [
                    entry for entry in entries if entry.name not in gone or entry.scope == "command"
                ]
            exported -= gone
            continue
        if _exports(words):
            exported |= {word.partition("=")[0].removesuffix("+") for word in words[1:]}
        for name, value, scope, bare in _set(words):
            inside: Scope = "branch" if scope == "file" and not command.sure else scope
            known, text = _known(name, value)
            entries.append(
                LintEntry(
                    name, text, command.line, known, bare=bare and not everything, scope=inside
                )
            )
    for entry in entries:
        yield replace(entry, bare=entry.bare and entry.name not in exported)


def _all_exported(words: Sequence[str], before: bool) -> bool:
    """Whether `set -a` holds after this command, which exports whatever is set from then on."""
    if words[0] != "set" or len(words) < 2:
        return before
    plus = words[1].startswith("+")
    if words[1] in ("-o", "+o"):
        return not plus if "allexport" in words[2:] else before
    return not plus if re.fullmatch(r"[-+][a-zA-Z]*a[a-zA-Z]*", words[1]) else before


def _unset(words: Sequence[str]) -> set[str]:
    if words[0] in ("unset", "unsetenv") or tuple(words[:2]) == ("export", "-n"):
        return set(words[1:])
    return set()


def _exports(words: Sequence[str]) -> bool:
    """Whether a declaring command hands its names on: declare alone does not."""
    flags = [word for word in words[1:] if word.startswith("-")]
    return words[0] == "export" or (
        words[0] in ("declare", "typeset", "readonly") and any("x" in f for f in flags)
    )


def _known(name: str, value: str) -> tuple[bool, str]:
    """Whether a value is known, and it; a default for the same name is what the file sets."""
    default = _DEFAULT.fullmatch(value)
    if default and default[1] == name:
        return True, default[2]
    return not _RUN_TIME.search(value) and not value.startswith("+="), value


def _set(words: Sequence[str]) -> Iterator[tuple[str, str, Scope, bool]]:
    """What one command sets: name, value, for whom, and whether the shell keeps it for itself."""
    first = words[0]
    if first in ("setenv", "set"):
        yield from _of_other_shells(words)
    elif first in _PRINTING:
        yield from ((name, value, "file", False) for name, value in _printed(words))
    elif first in _DECLARING:
        bare = not _exports(words)
        yield from ((name, value, "file", bare) for name, value in _pairs(words[1:]))
    elif first == ":":
        for word in words[1:]:
            if (found := _DEFAULT.fullmatch(word)) and "=" in word:
                yield found[1], found[2], "file", True
    else:
        yield from _before_a_command(words)


def _of_other_shells(words: Sequence[str]) -> Iterator[tuple[str, str, Scope, bool]]:
    """`setenv NAME value` of csh, and `set -gx NAME value` of fish; in bash `set -x` has no words behind it."""
    rest = [word for word in words[1:] if not word.startswith("-")]
    flags = [word for word in words[1:] if word.startswith("-")]
    shown = words[0] == "setenv" or any("x" in flag and flag != "--erase" for flag in flags)
    if shown and rest and NAME.fullmatch(rest[0]) and (words[0] == "setenv" or len(rest) > 1):
        yield rest[0], " ".join(rest[1:] if words[0] == "set" else rest[1:2]), "file", False


def _printed(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words[1:]:
        if word.startswith("export ") and (
            found := ASSIGNED.fullmatch(word.removeprefix("export ").strip())
        ):
            yield found[1], found[2]
    if "export" in words:
        yield from _pairs(words[words.index("export") + 1 :])


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if found := _ASSIGNED_OR_MORE.fullmatch(word):
            yield found[1], f"+={found[3]}" if found[2] else found[3]


def _before_a_command(words: Sequence[str]) -> Iterator[tuple[str, str, Scope, bool]]:
    """Assignments alone are the shell's; in front of a command, or handed to one, they are for that command."""
    own = next(
        (n for n, word in enumerate(words) if not _ASSIGNED_OR_MORE.fullmatch(word)), len(words)
    )
    alone = own == len(words)
    for name, value in _pairs(words[:own]):
        yield name, value, "file" if alone else "command", alone
    rest = words[own:]
    if {"env", "sudo"} & set(rest[:2]):  # behind exec and nohup too
        yield from ((name, value, "command", False) for name, value in _pairs(rest[1:]))
        return
    for before, word in itertools.pairwise(rest):
        if before in _PASSING:
            yield from ((name, value, "command", False) for name, value in _pairs([word]))


# ---------------------------------------------------------------- lines, commands, words


def _commands(rows: Iterable[tuple[int, str]]) -> Iterator[_Command]:
    """The simple commands of a script, as words without quotes."""
    depth = 0
    for number, line in rows:
        words: list[str] = []
        behind = False
        for word in [*(words_of(_code(line), operators=True) or ()), ";"]:
            if word and set(word) <= set("();<>|&"):
                if words:
                    yield _Command(tuple(words), number, not behind and not depth)
                words, behind = [], "&&" in word or "||" in word
            elif word == "{":  # of a function too, behind its name
                words, depth = [], depth + 1
            elif not words and word in _OPENING | _CLOSING | _KEYWORDS:
                depth = max(depth + (word in _OPENING) - (word in _CLOSING), 0)
                words = [] if word in _KEYWORDS | _CLOSING else [word]
            else:
                words.append(word)


def _code(line: str) -> str:
    """A line without its comment, which starts with a word and outside of quotes."""
    quote = ""
    for place, char in enumerate(line):
        if char in "\"'" and (place == 0 or line[place - 1] != "\\"):
            quote = char if not quote else "" if char == quote else quote
        elif char == "#" and not quote and (place == 0 or line[place - 1] in " \t;&|()"):
            return line[:place]
    return line


def words_of(line: str, *, operators: bool) -> list[str] | None:
    """None for a line whose quotes do not close, as in text of several lines."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=operators)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return None


def _outside_here_documents(lines: Iterable[str]) -> Iterator[str]:
    """The script's own lines; of a here-document those that export, for another script or the output of a prolog."""
    end, tabs = "", False
    for line in lines:
        if not end:
            yield line
            if found := _HERE.search(_code(line)):
                end, tabs = found[3], bool(found[1])
        elif (line.lstrip("\t") if tabs else line) == end:
            end = ""
            yield ""
        else:
            yield line if line.lstrip().startswith("export ") else ""


def joined(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
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
