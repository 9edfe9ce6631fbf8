"""Remedies: the lines for a shell and the sentences that say what to do. Made here alone.

A remedy is pasted into a shell, often root's, and may hold words that a node said: the name of an
interface, a path, a version. `shell_line` quotes each of them, and `sentence` takes the letters out
of them that a shell would act upon, because sentences are pasted too.

    shell_line("ethtool -s {card} autoneg on   # and on the switch port", card=name)
    sentence("choose another port than {port}", port=29500)

Templates are literals, which the architecture test holds, so only fields bring words of others.
What stands behind `NOTE` in a template of `shell_line` is no part of the line: it is the remedy's
note. In an interactive zsh `#` begins no comment, and a quote or a semicolon behind it would be
taken for one of the line.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NOTE = "   # "  # between a line and its note
LONGEST_WORD = 1024  # characters; a longer one is no name, path or version
LONGEST_LINE = 4000  # characters; reports show a line whole or not at all
_INACTIVE = frozenset(string.ascii_letters + string.digits + " %+,-./:=@[]^_")

Word = str | int | float | Sequence[str | int]
"""A field of a template. Several words are quoted one by one, with a space between them."""


class Remedy(str):
    """What to do: a line that can be pasted into a shell, or a sentence. The text is what is shown.

    `is_command` tells which, and `note` is a sentence about the line, or "". `is_bare` is True if
    it holds no text but that of its template. Only the functions of this module make remedies, so
    text that a node wrote is none.
    """

    __slots__ = ("is_bare", "is_command", "note")
    is_bare: bool
    is_command: bool
    note: str

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a remedy does not change: {name}")

    def __deepcopy__(self, memo: object) -> Remedy:
        return self


class _NoLine(Exception):
    """A word that no quoting makes safe; the text says why."""


def _make(text: str, *, is_command: bool = False, note: str = "", is_bare: bool = False) -> Remedy:
    remedy = Remedy(text)
    object.__setattr__(remedy, "is_bare", is_bare)
    object.__setattr__(remedy, "is_command", is_command)
    object.__setattr__(remedy, "note", note)
    return remedy


NO_REMEDY = _make("", is_bare=True)
# What stands for a word that is known on a node alone, in the remedies of checks' pages.
_WORDS = (
    "ADAPTER|ADDRESS|BRANCH|DEVICE|FILE|FOLDER|GID|GPUS|GROUP|GUID|IFACE|INTERFACE|JOB|N|NAME|"
    "NETWORK|PACKAGES|PATH|PID|PREFIX|SIZE|TABLE|UID|UNIT|USER|USUAL|VERSION|WATTS|-i GPU"
)
_PLACEHOLDER = re.compile(rf"(?<![\w$%{{.])({_WORDS})(?![\w.])")


def shell_line(template: str, /, **words: Word) -> Remedy:
    """Return a line for a POSIX shell: the template with every word quoted.

    A word that is such a line itself is taken as it is, and its note is left out.

    Where a word would be taken for an option, or is longer than any name, there is no line, and the
    remedy is a sentence that says why.
    """
    command, _, note = template.partition(NOTE)
    try:
        line = _filled(command, words, _quoted)
        if len(line) > LONGEST_LINE:
            raise _NoLine(f"it would have {len(line):,} characters")
    except _NoLine as error:
        return _make(f"no command is shown, because {error}")
    note = _filled(note, words, _inactive)
    return _make(line, is_command=True, note=note, is_bare=_are_numbers(words))


def sentence(template: str, /, **words: Word) -> Remedy:
    """Return a sentence, its words without the letters that a shell would act upon."""
    return _make(_filled(template, words, _inactive), is_bare=_are_numbers(words))


def chain(first: Remedy, *others: Remedy) -> Remedy:
    """Return several remedies as one, in this order: lines as one line, else as one sentence."""
    remedies = [remedy for remedy in (first, *others) if remedy]
    # Equal lines and equal notes are said once.
    lines = list(dict.fromkeys(remedy for remedy in remedies if remedy.is_command))
    notes = []
    for remedy in remedies:
        if not remedy.is_command:
            notes.append(str(remedy))
        elif remedy.note:
            notes.append(remedy.note)
    shown = _first_that_fit(lines)
    if len(shown) < len(lines):
        notes.append(f"and {len(lines) - len(shown)} more: check again after that")
    note = "; ".join(dict.fromkeys(notes))
    is_bare = all(remedy.is_bare for remedy in remedies)
    if not lines:
        return _make(note, is_bare=is_bare)
    return _make("; ".join(shown), is_command=True, note=note, is_bare=is_bare)


def with_all_words(remedies: Sequence[Remedy]) -> Remedy:
    """Return lines that differ in one word as one line with all of these words in its place.

    For commands that take any number of them. What differs otherwise, or would be too long, is
    chained.
    """
    distinct = list(dict.fromkeys(remedies))
    line = _joined_line(distinct)
    if line is None or not all(remedy.is_command for remedy in distinct):
        return chain(*distinct)
    notes = dict.fromkeys(remedy.note for remedy in distinct if remedy.note)
    is_bare = all(remedy.is_bare for remedy in distinct)
    return _make(line, is_command=True, note="; ".join(notes), is_bare=is_bare)


def _joined_line(lines: Sequence[str]) -> str | None:
    """Return lines that differ in one word as one line, None where they differ otherwise."""
    first, *others = [line.split(" ") for line in lines]
    if any(len(words) != len(first) for words in others):
        return None
    joined: list[str] = []
    differing = 0
    for different_words in map(dict.fromkeys, zip(first, *others, strict=True)):
        joined.extend(different_words)
        differing += len(different_words) > 1
    line = " ".join(joined)
    return line if differing == 1 and len(line) <= LONGEST_LINE else None


def noted(remedy: Remedy, template: str, /, **words: Word) -> Remedy:
    """Return the remedy with one more note."""
    return chain(remedy, sentence(template, **words))


def renamed(remedy: Remedy, rename: Callable[[str], str]) -> Remedy:
    """Return the remedy with names replaced by words of ours, for a reader elsewhere.

    `rename` replaces names by words of letters, digits and dashes, which no shell acts upon.
    """
    return _make(
        rename(str(remedy)),
        is_command=remedy.is_command,
        note=rename(remedy.note),
        is_bare=remedy.is_bare,
    )


def placed(remedy: Remedy, **words: Word) -> Remedy:
    """Return the remedy with words in the place of their names: `placed(remedy, NODE="n1")`.

    For remedies in tables, which are written before the words are known. Raises ValueError for one
    that holds words of others already: a name among them is none of ours.
    """
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    if not (pattern.search(remedy) or pattern.search(remedy.note)):
        return remedy
    if not remedy.is_bare:
        raise ValueError(f"there are words of others in it: {remedy}")
    template = pattern.sub(r"{\1}", _escaped(remedy))
    note = pattern.sub(r"{\1}", _escaped(remedy.note))
    if not remedy.is_command:
        return sentence(template, **words)
    return shell_line(f"{template}{NOTE}{note}", **words)


def has_placeholder(remedy: Remedy) -> bool:
    """Return whether a line for a shell has words in capitals that stand for others."""
    return remedy.is_command and _PLACEHOLDER.search(remedy) is not None


def pack(remedy: Remedy) -> list[str | bool]:
    """Return the remedy as JSON, for `unpack`."""
    return [str(remedy), remedy.is_command, remedy.note]


def unpack(value: Any) -> Remedy:
    """Return the remedy that was packed. Text alone, as earlier releases kept it, is a sentence.

    Raises TypeError or ValueError for anything else.
    """
    if isinstance(value, str):
        return _make(_printable(value))
    text, is_command, note = value
    if not (isinstance(text, str) and isinstance(note, str)):
        raise TypeError(f"no remedy: {value!r:.80}")
    return _make(_printable(text), is_command=bool(is_command), note=_printable(note))


# ---------------------------------------------------------------- templates of a site's own files

SITE_FIELDS = ("node", "seen", "wanted")
# What every shell takes for one word, also the second shell behind `ssh` or `sh -c` in a template.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.+:=@%/,][A-Za-z0-9_.+:=@%/,-]*")


def check_site_template(template: str) -> None:
    """Raise ValueError, which says what is expected, for a template with other fields or braces."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; a brace that is no field is written twice: {{{{") from None
    for _, name, form, conversion in parts:
        if name is not None and (name not in SITE_FIELDS or form or conversion):
            known = ", ".join(f"{{{field}}}" for field in SITE_FIELDS)
            raise ValueError(
                f"the field {{{name}}} is not one of {known}; "
                "a brace that is no field is written twice: {{"
            )


def has_site_fields(template: str) -> bool:
    """Return whether a template that `check_site_template` allows has fields."""
    return bool(_field_names(template))


def has_site_field(template: str, name: str) -> bool:
    """Return whether a template that `check_site_template` allows has this field."""
    return name in _field_names(template)


def site_line(template: str, /, **words: str) -> Remedy:
    """Return a line of a template that a site wrote.

    The template is the site's; a word that is more than letters, digits and _.+:=@%/,- is not put
    into it, because nothing is known of how many shells the line goes through.
    """
    for name in _field_names(template):
        if not _PLAIN_WORD.fullmatch(words[name]):
            return _make(f"no command is shown, because the word for {name} in it is not plain")
    return shell_line(template, **words)


def site_sentence(template: str, /, **words: str) -> Remedy:
    """Return a sentence of a template that a site wrote, as `sentence` does."""
    return sentence(template, **words)


def site_example(template: str, *, is_command: bool, wanted: str) -> Remedy:
    """Return what a template without the field `seen` says before a node is known.

    NODE stands for it, as in other remedies of checks, and WANTED for what is not declared.
    """
    text = template.format(node="NODE", wanted=wanted or "WANTED")
    maker = shell_line if is_command else sentence
    return maker(_escaped(text))


def _first_that_fit(lines: Sequence[str]) -> Sequence[str]:
    """Return the first of these lines that together are no longer than LONGEST_LINE."""
    length = 0
    for number, line in enumerate(lines):
        length += len(line) + len("; ")
        if length > LONGEST_LINE:
            return lines[:number]
    return lines


# ---------------------------------------------------------------- words


def _escaped(text: str) -> str:
    """Return text as a template without fields."""
    return text.replace("{", "{{").replace("}", "}}")


def _filled(template: str, words: Mapping[str, Word], safe: Any) -> str:
    texts = {}
    for name in _field_names(template):
        word = words[name]
        if isinstance(word, str | int | float):
            texts[name] = safe(word)
        else:
            texts[name] = " ".join(safe(part) for part in word)
    return template.format(**texts)


def _field_names(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


def _are_numbers(words: Mapping[str, Word]) -> bool:
    for word in words.values():
        parts = word if isinstance(word, Sequence) and not isinstance(word, str) else (word,)
        if not all(isinstance(part, int | float) for part in parts):
            return False
    return True


def _quoted(word: str | float) -> str:
    """Return one word of a shell's line. Raises _NoLine for one that no quoting makes safe."""
    if isinstance(word, Remedy) and word.is_command:
        return str(word)
    if not isinstance(word, str):
        return f"{word:g}" if isinstance(word, float) else str(word)
    if len(word) > LONGEST_WORD:
        raise _NoLine(f"the node gave {len(word):,} characters for a name in it")
    if word.startswith("-"):
        raise _NoLine(f"a name in it could be taken for an option: {_inactive(word)}")
    return shlex.quote(_printable(word))


def _inactive(word: str | float) -> str:
    """Return a word for a sentence: letters that a shell acts upon become question marks."""
    text = str(word)
    if len(text) > LONGEST_WORD:
        text = f"{text[:LONGEST_WORD]}…"
    letters = []
    for letter in text:
        is_inactive = letter in _INACTIVE or (not letter.isascii() and letter.isprintable())
        letters.append(letter if is_inactive else "?")
    return "".join(letters)


def _printable(text: str) -> str:
    """Return the text with escape sequences of ASCII in the place of control characters."""
    if text.isprintable():
        return text
    letters = []
    for letter in text:
        letters.append(letter if letter.isprintable() else ascii(letter)[1:-1])
    return "".join(letters)
