"""Read scripts of shells, csh and fish among them: what a program started afterwards finds set."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.nccl.lint import LintEntry, Scope

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ASSIGNED_OR_MORE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_RUN_TIME = re.compile(r"[$`]")  # in a shell word: a value that only the shell knows
# `${NAME:-text}` and the like: the text holds unless the name was set before.
_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?[-=]([^$`{}]*)\}")
_SET_ALL = re.compile(r"[-+][a-zA-Z]*a[a-zA-Z]*")  # flags of `set` with an a
_OPENING = {"if", "case", "while", "until", "for", "select", "foreach", "switch", "begin"}
_CLOSING = {"fi", "esac", "done", "endif", "endsw", "end", "}"}
# Words that a command may follow at once.
_BEFORE_COMMAND = {"then", "else", "elif", "do", "!", "time", "if", "while", "until", "begin"}
_RESERVED = _OPENING | _CLOSING | _BEFORE_COMMAND
_DECLARING = {"export", "declare", "typeset", "readonly", "local"}
# A prolog of Slurm takes `export NAME=value` from what is printed.
_PRINTING = {"echo", "printf"}
_PASSING = {"-x", "-e", "--env"}  # of mpirun and of containers: the next word is NAME=value
_HERE = re.compile(r"(?<!<)<<(-?)\s*\\?(['\"]?)(\w+)\2")
_OPERATORS = set("();<>|&")
# What stands before a comment; "" is the start of the line.
_BEFORE_COMMENT = {"", " ", "\t", ";", "&", "|", "(", ")"}


class _Command(Struct, frozen=True):
    """One simple command.

    `sure` is false in a branch, a loop, a function, or behind && and ||.
    """

    words: tuple[str, ...]
    line: int
    sure: bool


class _Assignment(Struct, frozen=True):
    """What a command sets. `bare` means that the shell keeps it for itself unless exported."""

    name: str
    value: str
    scope: Scope = "file"
    bare: bool = False


def read_shell(lines: Iterable[str]) -> Iterator[LintEntry]:
    """Yield each setting. What is unset again is left out; `bare` marks what is not exported."""
    entries: list[LintEntry] = []
    exported: set[str] = set()
    exports_all = False
    for command in _commands(join_continued(_outside_here_documents(lines))):
        words = command.words
        exports_all = _exports_all(words, exports_all)
        unset = _unset(words)
        if unset:
            if command.sure:
                entries = _without(entries, unset)
            exported -= unset
            continue
        if _exports(words):
            for word in words[1:]:
                exported.add(word.partition("=")[0].removesuffix("+"))
        for assignment in _assignments(words):
            entries.append(_entry(assignment, command, exports_all))
    for entry in entries:
        yield replace(entry, bare=entry.bare and entry.name not in exported)


def _entry(assignment: _Assignment, command: _Command, exports_all: bool) -> LintEntry:
    """Return the setting of an assignment as its command makes it."""
    scope = assignment.scope
    if scope == "file" and not command.sure:
        scope = "branch"
    known, value = _known(assignment.name, assignment.value)
    bare = assignment.bare and not exports_all
    return LintEntry(
        assignment.name,
        value,
        command.line,
        known,
        bare=bare,
        scope=scope,
    )


def _known(name: str, value: str) -> tuple[bool, str]:
    """Return whether a value is known, and the value.

    A default for the same name, as in `A=${A:-1}`, is what the file sets.
    """
    default = _DEFAULT.fullmatch(value)
    if default and default[1] == name:
        return True, default[2]
    if value.startswith("+="):
        return False, value
    return not _RUN_TIME.search(value), value


# ---------------------------------------------------------------- what a command does


def _exports_all(words: Sequence[str], before: bool) -> bool:
    """Return whether `set -a` holds after this command: it exports what is set from then on."""
    if words[0] != "set" or len(words) < 2:
        return before
    flag = words[1]
    if flag in ("-o", "+o"):
        is_about_all = "allexport" in words[2:]
    else:
        is_about_all = _SET_ALL.fullmatch(flag) is not None
    if is_about_all:
        return flag.startswith("-")
    return before


def _unset(words: Sequence[str]) -> set[str]:
    """Return the names that a command unsets, or does not export any more."""
    if words[0] in ("unset", "unsetenv") or tuple(words[:2]) == ("export", "-n"):
        return set(words[1:])
    return set()


def _without(entries: Iterable[LintEntry], unset: set[str]) -> list[LintEntry]:
    """Return the entries that hold after these names are unset."""
    remaining = []
    for entry in entries:
        if entry.name not in unset or entry.scope == "command":
            remaining.append(entry)
    return remaining


def _exports(words: Sequence[str]) -> bool:
    """Return whether a command exports the names that it declares: `declare` alone does not."""
    if words[0] == "export":
        return True
    if words[0] not in ("declare", "typeset", "readonly"):
        return False
    return any(word.startswith("-") and "x" in word for word in words[1:])


def _assignments(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield what one command sets."""
    first = words[0]
    if first == "setenv":
        yield from _of_csh(words)
    elif first == "set":
        yield from _of_fish(words)
    elif first in _PRINTING:
        yield from _of_prolog(words)
    elif first in _DECLARING:
        bare = not _exports(words)
        for name, value in _pairs(words[1:]):
            yield _Assignment(name, value, bare=bare)
    elif first == ":":
        yield from _defaults(words[1:])
    else:
        yield from _before_a_command(words)


def _of_csh(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield `setenv NAME value`."""
    operands = [word for word in words[1:] if not word.startswith("-")]
    if operands and NAME.fullmatch(operands[0]):
        value = operands[1] if len(operands) > 1 else ""
        yield _Assignment(operands[0], value)


def _of_fish(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield `set -gx NAME value`. In bash `set -x` has no words behind it."""
    operands = []
    exports = False
    for word in words[1:]:
        if not word.startswith("-"):
            operands.append(word)
        elif "x" in word and word != "--erase":
            exports = True
    if exports and len(operands) > 1 and NAME.fullmatch(operands[0]):
        yield _Assignment(operands[0], " ".join(operands[1:]))


def _of_prolog(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield `echo "export NAME=value"` and `echo export NAME=value`."""
    for word in words[1:]:
        if not word.startswith("export "):
            continue
        match = ASSIGNED.fullmatch(word.removeprefix("export ").strip())
        if match:
            yield _Assignment(match[1], match[2])
    if "export" in words:
        behind = words[words.index("export") + 1 :]
        for name, value in _pairs(behind):
            yield _Assignment(name, value)


def _defaults(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield what `: ${NAME:=value}` sets."""
    for word in words:
        match = _DEFAULT.fullmatch(word)
        if match and "=" in word:
            yield _Assignment(match[1], match[2], bare=True)


def _before_a_command(words: Sequence[str]) -> Iterator[_Assignment]:
    """Yield assignments of the shell, if no command follows, else those for the command alone."""
    is_assigned = [bool(_ASSIGNED_OR_MORE.fullmatch(word)) for word in words]
    own = len(words) if all(is_assigned) else is_assigned.index(False)
    command = words[own:]
    for name, value in _pairs(words[:own]):
        if command:
            yield _Assignment(name, value, "command")
        else:
            yield _Assignment(name, value, bare=True)
    passed: list[str] = []
    if "env" in command[:2] or "sudo" in command[:2]:  # behind exec and nohup too
        passed.extend(command[1:])
    else:
        for before, word in itertools.pairwise(command):
            if before in _PASSING:
                passed.append(word)
    for name, value in _pairs(passed):
        yield _Assignment(name, value, "command")


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each assignment; the value of NAME+=more is «+=more»."""
    for word in words:
        match = _ASSIGNED_OR_MORE.fullmatch(word)
        if match:
            name, plus, value = match.groups()
            if plus:
                value = f"+={value}"
            yield name, value


# ---------------------------------------------------------------- lines, commands, words


def _commands(rows: Iterable[tuple[int, str]]) -> Iterator[_Command]:
    """Yield the simple commands of a script, as words without quotes."""
    depth = 0
    for number, line in rows:
        words: list[str] = []
        is_conditional = False
        line_words = words_of(_without_comment(line), operators=True) or []
        for word in [*line_words, ";"]:
            if _is_operator(word):
                if words:
                    sure = depth == 0 and not is_conditional
                    yield _Command(tuple(words), number, sure)
                words = []
                is_conditional = "&&" in word or "||" in word
            elif word == "{":  # of a function too, behind its name
                words = []
                depth += 1
            elif words or word not in _RESERVED:
                words.append(word)
            else:
                depth = _depth_after(word, depth)
                if word not in _BEFORE_COMMAND and word not in _CLOSING:
                    words = [word]


def _is_operator(word: str) -> bool:
    return bool(word) and set(word) <= _OPERATORS


def _depth_after(word: str, depth: int) -> int:
    """Return how many blocks are open after a reserved word."""
    if word in _OPENING:
        return depth + 1
    if word in _CLOSING:
        return max(depth - 1, 0)
    return depth


def _without_comment(line: str) -> str:
    """Return a line without its comment.

    A comment starts at a # that begins a word and is outside of quotes.
    """
    quote = ""  # the one that is open
    before = ""  # the character before this one
    for place, character in enumerate(line):
        if character in "\"'" and before != "\\":
            if not quote:
                quote = character
            elif character == quote:
                quote = ""
        elif character == "#" and not quote and before in _BEFORE_COMMENT:
            return line[:place]
        before = character
    return line


def words_of(line: str, *, operators: bool) -> list[str] | None:
    """Return the words of a line without quotes.

    None if the quotes of the line do not close, as in text of several lines. With `operators` the
    operators of a shell are words too.
    """
    reader = shlex.shlex(line, posix=True, punctuation_chars=operators)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return None


def _outside_here_documents(lines: Iterable[str]) -> Iterator[str]:
    """Yield the script's own lines, and an empty line for each of a here-document.

    A line of a here-document that exports is kept: it is another script or the output of a prolog.
    """
    end = ""
    strips_tabs = False
    for line in lines:
        if not end:
            yield line
            start = _HERE.search(_without_comment(line))
            if start:
                end = start[3]
                strips_tabs = bool(start[1])
            continue
        text = line.lstrip("\t") if strips_tabs else line
        if text == end:
            end = ""
            yield ""
        elif line.lstrip().startswith("export "):
            yield line
        else:
            yield ""


def join_continued(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    r"""Yield lines with their numbers, joined if a backslash at the end continues them.

    >>> list(join_continued(["A=1 \\", "B=2", "C=3"]))
    [(1, 'A=1 B=2'), (3, 'C=3')]
    """
    start = 0
    begun = ""
    for number, line in enumerate(lines, 1):
        start = start or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += line[:-1]
            continue
        yield start, begun + line
        start = 0
        begun = ""
    if begun:
        yield start, begun
