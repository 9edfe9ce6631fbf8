"""Reads the commands that README and the pages of docs/ tell people to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
FENCE = re.compile(r"\s*```(\w*)")
INLINE = re.compile(r"`((?:[^`\n]|\n(?!\n))+)`")
ENDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "(", ")"})
REDIRECTIONS = frozenset({">", ">>", "<"})
ALTERNATIVES = re.compile(r"(?<=\s)([A-Z]+)\|\S+")  # of a synopsis: FILE|-


class Command(Struct, frozen=True):
    """One `clusterprep …` as a document has it."""

    page: str
    line: int
    text: str  # the whole line, without its comment
    words: tuple[str, ...]  # behind `clusterprep`
    in_block: bool

    @property
    def is_synopsis(self) -> bool:
        """Say whether it shows what can be typed: options in brackets, or an ellipsis."""
        return any(word.startswith("[") or "…" in word for word in self.words)

    @property
    def typed(self) -> str:
        """Return the command without what stands before and behind it on its line."""
        return shlex.join(("clusterprep", *self.words))


def commands() -> list[Command]:
    """Return every `clusterprep …` of all documents: in blocks, and within sentences."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(ROOT).as_posix()
        for number, line in blocks(text):
            found += _of_line(name, number, line, in_block=True)
        for match in INLINE.finditer(_without_blocks(text)):
            if match[1].startswith("clusterprep "):
                number = text[: match.start()].count("\n") + 1
                found += _of_line(name, number, " ".join(match[1].split()), in_block=False)
    return found


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that stand in a block of commands, each with its number.

    That is a block that is indented, or one between fences with lines that begin with `$ `. A line
    that is indented further continues the line before it.
    """
    begun: tuple[int, str] | None = None
    for number, line, language in _lines(text):
        is_typed = language is None and line.startswith("    ")
        if begun and is_typed and (line.startswith("     ") or begun[1].endswith("\\")):
            begun = (begun[0], f"{begun[1].rstrip(chr(92))} {line.strip()}")
            continue
        if begun:
            yield begun
        begun = None
        if is_typed:
            begun = (number, line.strip())
        elif language == "" and line.startswith("$ "):
            begun = (number, line.removeprefix("$ "))
    if begun:
        yield begun


def _lines(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield number, line and, between fences, the language that the fence names."""
    language: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if fence is None:
            yield number, line, language
        else:
            language = fence[1] if language is None else None


def _without_blocks(text: str) -> str:
    """Return a page with empty lines in place of its blocks."""
    lines = [""] * (text.count("\n") + 1)
    for number, line, language in _lines(text):
        if language is None and not line.startswith("    "):
            lines[number - 1] = line
    return "\n".join(lines)


def _of_line(page: str, number: int, line: str, *, in_block: bool) -> Iterator[Command]:
    text = _split_comment(line)
    for words in _parts(text):
        for place, word in enumerate(words):
            is_ours = word == "clusterprep" or word.endswith("bin/clusterprep")
            if is_ours and "=" not in word:
                yield Command(page, number, text, tuple(words[place + 1 :]), in_block)
                break


def _split_comment(line: str) -> str:
    """Return a line without the comment at its end."""
    return re.split(r"\s+#\s", line, maxsplit=1)[0].strip()


def _parts(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a line, as a shell would see them."""
    lexer = shlex.shlex(ALTERNATIVES.sub(r"\1", text), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in REDIRECTIONS and words and words[-1].isdigit():
            words.pop()  # 3< FILE
        if word in ENDS:
            yield words
            words = []
        else:
            words.append(word)
    yield words
