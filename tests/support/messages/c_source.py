"""Finds messages in C and C++: what stands as text in the calls that print or throw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

GAP = "…"  # stands for what is only known when the program runs
LONGEST = 200  # characters of a message: more says no more, and lines of logs are often cut

# A text, a character, a comment, a bracket, a separator, a word: all that is needed to find the
# end of a call and the texts in it.
_TOKEN = re.compile(
    r'(?P<text>(?:u8|[LuU])?"(?:[^"\\\n]|\\.|\\\n)*")'
    r"|(?P<raw>R\"\((?P<inner>.*?)\)\")"
    r"|(?P<char>'(?:[^'\\\n]|\\.)+')"
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<comma>,)|(?P<semicolon>;)"
    r"|(?P<stream><<)|(?P<word>[A-Za-z_][\w:]*|\d[\w.]*)|(?P<other>[^\s])",
    re.DOTALL,
)
_FORMAT = re.compile(r"%(?:\d+\$)?[-+ #0']*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?(?:hh|h|ll|l|z|t|j|L|q)?")
_CONVERSION = re.compile(
    _FORMAT.pattern
    # Slurm's own are two letters.
    + r"(?:p[A-Zs](?![a-z])|[diouxXeEfFgGaAcspnmM@]|(?=…))"
)
_BRACES = re.compile(r"\{[^{}\n]{0,40}\}")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(\n)|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": " ", "r": "", "a": "", "0": ""}


@dataclass(frozen=True)
class Call:
    """A call that makes a message. `skip` arguments stand before the text.

    `joins`: all arguments together are the text, as in TORCH_CHECK(ok, "rank ", rank, " is late").
    Otherwise the first argument with text is a format.
    """

    name: str  # a regular expression
    skip: int = 0
    joins: bool = False
    is_info: bool = False  # what the program itself takes for information


def messages(source: str, calls: tuple[Call, ...]) -> Iterator[tuple[str, bool]]:
    """Yield the messages of the calls, with GAP for what is only known at run time.

    With each goes whether it is mere information.
    """
    for call in calls:
        for match in re.finditer(rf"(?<![\w#])(?:{call.name})", source):
            before = source[max(0, match.start() - 40) : match.start()]
            if re.search(r"#\s*define\s+$", before):
                continue
            find = _joined if call.joins else _format
            text = find(source, match.end(), call.skip)
            if text:
                yield text, call.is_info


def _joined(source: str, start: int, skip: int) -> str:
    """Return all texts up to the end of the call, or of the statement, with gaps between them."""
    parts: list[str] = []
    depth = 0
    argument = 0
    is_call = False  # LOG(ERROR) << … has no brackets around its texts
    for kind, value in _tokens(source, start):
        if kind == "open":
            depth += 1
            is_call = is_call or not parts
            if depth > 1 and argument >= skip:
                parts.append(GAP)
            continue
        if kind == "close":
            depth -= 1
            if depth < 0 or (depth == 0 and is_call):
                break
            continue
        if kind == "semicolon":
            break
        if kind == "comma" and depth <= 1:
            argument += 1
            continue
        if argument < skip or kind in {"stream", "comma"}:
            continue
        parts.append(value if kind == "text" else GAP)
    return "".join(parts)


def _format(source: str, start: int, skip: int) -> str:
    """Return the first text of the call. Macros between its parts, as PRIu64, are gaps."""
    parts: list[str] = []
    depth = 0
    argument = 0
    for kind, value in _tokens(source, start):
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
            if depth <= 0:
                break
        elif kind == "semicolon":
            break
        elif kind == "comma":
            if parts:
                break
            argument += depth <= 1
        elif argument < skip:
            continue
        elif kind == "text":
            parts.append(value)
        elif kind == "word" and parts:
            parts.append(GAP)
        elif parts:
            break  # an operator, as in `ok ? "a" : "b"`
    return "".join(parts)


def _tokens(source: str, start: int) -> Iterator[tuple[str, str]]:
    """Yield kind and value of each token, at most 400 of them, without comments."""
    for count, match in enumerate(_TOKEN.finditer(source, start)):
        kind = match.lastgroup or ""
        if count > 400:
            return
        if kind == "comment":
            continue
        if kind == "inner" or match["raw"]:
            yield "text", match["inner"]
        elif kind == "text":
            quoted = match["text"]
            yield "text", _ESCAPE.sub(_unescaped, quoted[quoted.index('"') + 1 : -1])
        else:
            yield kind, match[0]


def _unescaped(match: re.Match[str]) -> str:
    octal, hexadecimal, newline, char = match.groups()
    if octal:
        return _ESCAPED.get(octal, " ")
    if hexadecimal or newline:
        return ""
    return _ESCAPED.get(char, char)


def without_formats(text: str) -> str:
    """Return the text with GAP for %d, {} and their like."""
    text = text.replace("%%", "\0")
    text = _CONVERSION.sub(GAP, text)
    text = _BRACES.sub(GAP, text)
    return text.replace("\0", "%")


def tidied(text: str) -> str:
    """Return the text with single spaces and single gaps, cut where it is very long."""
    text = "".join(char if char.isprintable() else " " for char in text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(rf"{GAP}(?:\s*{GAP})+", GAP, text).strip(f"{GAP} ")
    if len(text) > LONGEST:
        text = text[:LONGEST].rsplit(" ", 1)[0] + f" {GAP}"
    return text
