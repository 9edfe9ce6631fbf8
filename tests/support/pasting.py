"""Lines that a user pastes, given to a real shell that can do no harm.

Every line runs in bash with an empty PATH and no redirections, as far as its words lead. There is
one command, `x`, which only notes that it was run: words that a node said try to reach it.
"""

from __future__ import annotations

import ast
import functools
import shlex
import string
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.project.test_architecture import MODULES, calls

# What a node may say for a name, so that a shell runs `x`.
WORDS = (
    "$(x)",
    "`x`",
    ";x;",
    "'$(x)'",
    '"$(x)"',
    "';x;'",
    '";x;"',
    "a\nx\n",
    "a\rx",
    "|x",
    "&x&",
    "a && x",
    "<(x)",
    "{x,}",
    "\\$(x)",
    "\\';x;\\'",
    "eth0;x${IFS}|x;",
    "/$(x)/;x;e x",
    "-$(x)",
    "a\x1b[2J\x1b]52;c;eA==\x07",
    "a\u202e\u2066x",
    "a\x00\x9bx",
    "a b  c",
    "#$(x)",
    "*",
    "",
)
_DRIVER = """
trap 'hit=1' USR1
x() { builtin kill -USR1 $$; }
kill() { :; }
while IFS= read -r -d '' line; do
    hit=
    ( set -r; eval "$line" ) > /dev/null 2>&1 < /dev/null
    [ -z "$hit" ] || printf '%s\\0' "$line"
done
"""
MAKERS = ("shell_line", "sentence", "noted")


def run_words(lines: Iterable[str]) -> list[str]:
    """Return the lines of which a shell runs words that a node said."""
    text = "".join(f"{line}\0" for line in dict.fromkeys(lines))
    environment = {"PATH": "/nonexistent"}
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", _DRIVER],
        input=text.encode(),
        capture_output=True,
        env=environment,
        check=False,
        timeout=300,
    )
    return [line for line in done.stdout.decode().split("\0") if line]


def not_parsed(lines: Iterable[str]) -> list[str]:
    """Return the lines that no shell can parse to their end, or that hold a comment."""
    return [line for line in dict.fromkeys(lines) if not _is_parsed(line)]


def _is_parsed(line: str) -> bool:
    try:
        has_comment = shlex.split(line, comments=True) != shlex.split(line)
    except ValueError:
        return False
    done = subprocess.run(
        ["/bin/bash", "-n"], input=line.encode(), capture_output=True, check=False
    )
    return not has_comment and done.returncode == 0


def not_shown_safely(texts: Iterable[str]) -> list[str]:
    """Return the texts with letters that control a terminal, or that are not seen."""
    return [text for text in texts if not text.isprintable()]


@functools.cache
def templates() -> tuple[tuple[str, str, str], ...]:
    """Return the maker, the template and the place of every remedy in the code."""
    found = []
    for module, path in MODULES.items():
        if module == "remedies":
            continue
        for name, call in calls(module):
            maker = name.rpartition(".")[2]
            if maker in MAKERS:
                at = 1 if maker == "noted" else 0
                found.append((maker, _literal(call.args[at]), f"{Path(path).name}:{call.lineno}"))
    return tuple(found)


def _literal(node: ast.expr) -> str:
    """Return the value of a literal; of a choice between two of them, the first."""
    if isinstance(node, ast.IfExp):
        node = node.body
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def fields_of(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


def is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return is_literal(node.body) and is_literal(node.orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def command_words(line: str) -> Iterator[Sequence[str]]:
    """Yield the words of each simple command of a line, as a shell without quotes sees them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set(";&|()"):
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words
