"""Node sets as text, in ClusterShell's syntax: expand them in the order written, fold names again.

    expand("gpu[01-03],login") == ["gpu01", "gpu02", "gpu03", "login"]
    fold(["gpu01", "gpu03", "gpu02"]) == "gpu[01-03]"

ClusterShell itself keeps node sets sorted, which would pair the wrong name with the wrong address.
So the order is kept here, and only single ranges and folding are left to it. Its group sources run
commands and are never used.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter, ne, sub

MAX_NODES = 100_000
ALL = "all"  # in a selection: every node, if no node and no group has this name

# Brackets are skipped, with the commas in them.
_OPERATOR = re.compile(r"\[[^\[\]]*\]|([,!&^])")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:\s*-\s*(\d{1,18})(?:/(\d{1,18}))?)?", re.ASCII)
_PLAIN = re.compile(r"[\w.:%+~=/-]+", re.ASCII)
_FOLDABLE = re.compile(r"(?!.*[0-9]{16})[A-Za-z0-9_.:-]+")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)")
# Folding over several numbers at once takes quadratic time in the rows that do not fold.
_MOST_ROWS = 200

Meaning = Callable[[str], list[str]]  # the names that an operand stands for


def expand(text: str, most: int = MAX_NODES) -> list[str]:
    """Return every name in the order written; the last bracket varies fastest.

    `,` joins, `!` subtracts, `&` intersects, `^` keeps names of one side only, from left to right.
    A name that is written twice stays twice. Raises ValueError for what is wrong, and for more than
    `most` names before they are built.
    """
    if _FOLDABLE.fullmatch(text):
        return [text]
    return _evaluate(text, functools.partial(_expand_operand, most=most), most)


def select(
    text: str,
    known: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None = None,
    missing_ok: bool = False,
    whole: str = "in the inventory",
) -> list[str]:
    """Return the names of `known`, in their order, that the text selects.

    An operand of the text may also be the name of a group, or `all`. Raises ValueError that lists
    names that are not `whole`, and the most similar known one, unless `missing_ok`.
    """
    members = groups or {}
    names = frozenset(known)

    def meaning(operand: str) -> list[str]:
        if operand in members and operand not in names:
            return list(members[operand])
        if operand == ALL and operand not in names:
            return list(known)
        return _expand_operand(operand)

    wanted = frozenset(_evaluate(text, meaning))
    unknown = sorted(wanted - names)
    if unknown and not missing_ok:
        raise ValueError(_unknown(unknown, [*known, *members], whole))
    return [name for name in known if name in wanted]


def fold(names: Iterable[str]) -> str:
    """Return names as 'gpu[01-14,16]', without repetitions and whatever their order."""
    numbers_by_row: dict[_Row, list[_Number]] = {}
    others: list[str] = []
    distinct = sorted(names)  # mostly they are in order, and each is there once
    if len(distinct) == 1:
        return distinct[0]
    if len(set(distinct)) < len(distinct):
        distinct = sorted(set(distinct))
    # Names of one row mostly stand together, and the loop over them is in C.
    for row, run in itertools.groupby(map(_split, distinct), itemgetter(0)):
        if row is None:
            others.extend(map(itemgetter(1), run))
        else:
            numbers_by_row.setdefault(row, []).extend(map(itemgetter(1), run))
    if numbers_by_row:
        others.insert(0, _fold(numbers_by_row))
    return ",".join(others)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return numbers, as those of ranks, as `fold` would return their texts: '[0-14,16]'.

    They are taken apart without being remembered: there are more of them than nodes.
    """
    texts = sorted(map(str, set(numbers)))
    if not texts:
        return ""
    return _fold_row("", "", list(zip(map(int, texts), texts, strict=True)))


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return a hint with the most similar valid word, or None if none is similar."""
    close = nearest_word(word, valid)
    return f"did you mean '{close}'?" if close else None


def nearest_word(word: str, valid: Iterable[str]) -> str | None:
    """Return the most similar valid word, or None if none is similar."""
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


_Row = tuple[str, str | None]
"""The text before and after the last number of a name; without a number the latter is None."""
_Number = tuple[int, str]
"""The last number of a name, and as it is written there; 0 and "" of a name without one."""


@functools.lru_cache(MAX_NODES)  # a report folds the same names for each of a hundred findings
def _split(name: str) -> tuple[_Row, _Number] | tuple[None, str]:
    """Return the row and the number of a name; None and the name if ClusterShell cannot fold it."""
    if not _FOLDABLE.fullmatch(name):
        return None, name
    match = _LAST_NUMBER.fullmatch(name)
    if match is None:
        return (name, None), (0, "")
    before, number, after = match.groups()
    return _row(before, after), (int(number), number)


@functools.lru_cache(MAX_NODES)
def _row(before: str, after: str) -> _Row:
    """Return a row, as one object for all its names: these are compared quickly."""
    return before, after


def _fold(numbers_by_row: Mapping[_Row, Sequence[_Number]]) -> str:
    """Return names that ClusterShell can fold as text."""
    folded = []
    for (before, after), numbers in numbers_by_row.items():
        row = _fold_row(before, after or "", numbers)
        folded.append(row)
    if len(folded) == 1 or len(folded) > _MOST_ROWS:
        return ",".join(folded)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(folded, resolver=RESOLVER_NOGROUP))


def _fold_row(before: str, after: str, numbers: Sequence[_Number]) -> str:
    if len(numbers) == 1:
        _, text = numbers[0]
        return f"{before}{text}{after}"
    return f"{before}[{_ranges(numbers)}]{after}"


def _ranges(numbers: Sequence[_Number]) -> str:
    """Return numbers, in the order of their texts, as '1-3,7', as ClusterShell writes them."""
    # The loops over all numbers are in C: there may be ten thousand.
    values = list(map(itemgetter(0), numbers))
    texts = list(map(itemgetter(1), numbers))
    if len(set(map(len, texts))) > 1:
        if texts != list(map(str, values)):
            from ClusterShell.RangeSet import RangeSet

            return str(RangeSet.fromlist(texts))
        values.sort()
        texts = list(map(str, values))
    steps = map(sub, values[1:], values)
    is_start = map(ne, steps, itertools.repeat(1))
    starts = [0, *itertools.compress(itertools.count(1), is_start), len(values)]
    ranges = []
    for start, end in itertools.pairwise(starts):
        first, last = texts[start], texts[end - 1]
        ranges.append(first if first == last else f"{first}-{last}")
    return ",".join(ranges)


def _evaluate(text: str, meaning: Meaning, most: int = MAX_NODES) -> list[str]:
    """Return the names of a text with operators. Raises ValueError."""
    result: list[str] = []
    for operator, operand in _pieces(text):
        if not operand and text.strip():
            raise ValueError(f"a name is missing in '{text}'")
        if not operand:
            raise ValueError("a node name cannot be empty")
        if operator == ",":
            result += meaning(operand)
        else:
            result = _apply(operator, result, meaning(operand))
        if len(result) > most:
            raise ValueError(_too_many(text, most))
    return result


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield (operator, operand) from left to right; the first operand is joined to nothing."""
    operator, start = ",", 0
    for match in _OPERATOR.finditer(text):
        if match[1]:
            yield operator, text[start : match.start()].strip()
            operator, start = match[1], match.end()
    yield operator, text[start:].strip()


def _apply(operator: str, left: list[str], right: list[str]) -> list[str]:
    """Return what `&`, `!` or `^` makes of two lists of names, in their order."""
    in_left, in_right = frozenset(left), frozenset(right)
    if operator == "&":
        return [name for name in left if name in in_right]
    only_left = [name for name in left if name not in in_right]
    if operator == "!":
        return only_left
    return only_left + [name for name in right if name not in in_left]


def _expand_operand(text: str, most: int = MAX_NODES) -> list[str]:
    """Return the names of one name or pattern without operators."""
    parts = _BRACKET.split(text)  # literal, range, literal, range, …, literal
    literals, brackets = parts[0::2], parts[1::2]
    _check_literals(text, literals)
    count = math.prod(_count(bracket) for bracket in brackets)
    if count > most:
        raise ValueError(_too_many(text, most))
    choices = [[literals[0]]]  # for each part of a name, the texts that it may be
    for bracket, literal in zip(brackets, literals[1:], strict=True):
        choices.append(_indices(bracket))
        choices.append([literal])
    return list(map("".join, itertools.product(*choices)))


def _check_literals(text: str, literals: list[str]) -> None:
    """Raise ValueError if what is outside the brackets cannot be parts of names."""
    outside_brackets = "".join(literals)
    if "[" in outside_brackets or "]" in outside_brackets:
        raise ValueError(f"a bracket is not closed, or nested, in '{text}'")
    if "@" in text:
        why = "a user belongs under ssh: {user: …}"
        if text[0] == "@":
            why = "groups of ClusterShell's are not looked up"
        raise ValueError(f"'@' has no place in '{text}': {why}")
    if "" in literals[1:-1]:
        raise ValueError(f"two brackets stand side by side in '{text}'")
    for literal in literals:
        if literal and not _PLAIN.fullmatch(literal):
            raise ValueError(f"'{text}' is not a node name or a range such as gpu[01-16]")


def _count(bracket: str) -> int:
    return sum(_length(part, bracket) for part in bracket.split(","))


def _length(part: str, bracket: str) -> int:
    """Return how many numbers one part of a bracket stands for. Raises ValueError."""
    match = _RANGE.fullmatch(part.strip())
    if match is None and ":" in part:
        raise ValueError(
            f"brackets are for ranges: write the address in '[{bracket}]' without them; "
            "a port belongs under ssh: {port: …}"
        )
    if match is None:
        raise ValueError(
            f"'{part}' in '[{bracket}]' is not a number or a range such as 1-16 or 1-9/2"
        )
    first = int(match[1])
    last = int(match[2] or match[1])
    step = int(match[3] or 1)
    if last < first or step < 1:
        raise ValueError(f"the range '{part}' in '[{bracket}]' runs backwards or has no step")
    return (last - first) // step + 1


def _indices(bracket: str) -> list[str]:
    """Return the numbers of one bracket as text, zero-padded as ClusterShell pads them."""
    from ClusterShell.RangeSet import RangeSet, RangeSetParseError

    indices: list[str] = []
    try:
        for part in bracket.split(","):
            indices.extend(RangeSet(part.strip()).striter())
    except RangeSetParseError:
        raise ValueError(
            f"the ends of a zero-padded range have to be equally long: '[{bracket}]'"
        ) from None
    return indices


def _too_many(text: str, most: int) -> str:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return f"'{shown}' stands for more than {most:,} nodes"


def _unknown(names: list[str], valid: list[str], whole: str) -> str:
    """Return the message about names that are not among the valid ones."""
    message = f"'{fold(names)}' is not {whole}"
    # Another number of the same name is not a misspelling: what helps is a list of the numbers.
    stem = _stem(names[0])
    similar = [word for word in valid if _stem(word) == stem]
    if similar:
        return f"{message}, which has {fold(similar)}"
    close = nearest(names[0], valid)
    return f"{message} ({close})" if close else message


def _stem(name: str) -> str:
    """Return a name without its numbers: "gpu#" for "gpu07"."""
    return re.sub(r"[0-9]+", "#", name)
