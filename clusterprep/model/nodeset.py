"""Node sets as text, in ClusterShell's syntax: expand them in the order written, fold names again.

    expand("gpu[01-03],login") == ["gpu01", "gpu02", "gpu03", "login"]
    fold(["gpu01", "gpu03", "gpu02"]) == "gpu[01-03]"

ClusterShell itself keeps node sets sorted, which would pair the wrong name with the wrong address.
So the order is kept here, and only single ranges and folding are left to it. Its group sources run
commands and are never used.
"""

from __future__ import annotations

import bisect
import difflib
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


def expand(text: str) -> list[str]:
    """Return every name in the order written; the last bracket varies fastest.

    `,` joins, `!` subtracts, `&` intersects, `^` keeps names of one side only, from left to right.
    A name that is written twice stays twice. Raises ValueError for what is wrong, and for more than
    MAX_NODES names before they are built.
    """
    if _FOLDABLE.fullmatch(text):
        return [text]
    return _evaluate(text, _expand_operand)


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
    names = tuple(names)
    if len(names) == 1:
        return names[0]
    codes = sorted(map(_code, names))  # mostly they are in order, and each is there once
    if len(set(codes)) < len(codes):
        codes = sorted(set(codes))
    others: list[str] = []
    if codes[:1] == [_NOT_FOLDABLE]:
        others = sorted({name for name in names if _code(name) == _NOT_FOLDABLE})
        del codes[0]
    if codes:
        others.insert(0, _fold(codes))
    return ",".join(others)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return numbers, as those of ranks, as `fold` would return their texts: '[0-14,16]'."""
    in_order = sorted(set(numbers))
    ranges = _ranges(_runs(in_order))
    return f"[{ranges}]" if len(in_order) > 1 else ranges


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return a hint with the most similar valid word, or None if none is similar."""
    close = nearest_word(word, valid)
    return f"did you mean '{close}'?" if close else None


def nearest_word(word: str, valid: Iterable[str]) -> str | None:
    """Return the most similar valid word, or None if none is similar."""
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


_NOT_FOLDABLE = 0
# Bits of a code: of the last number of a name, and of how many digits it is written with.
_NUMBER_BITS, _WIDTH_BITS = 56, 8
_Run = tuple[int, int]
"""The first and the last of numbers without a gap."""


@functools.lru_cache(MAX_NODES)  # a report folds the same names for each of a hundred findings
def _code(name: str) -> int:
    """Return a number for a name: its text around its last number, the digits of that, and itself.

    So the codes of names that follow each other do so too. _NOT_FOLDABLE is that of a name that
    ClusterShell cannot fold.
    """
    if not _FOLDABLE.fullmatch(name):
        return _NOT_FOLDABLE
    row, number = name, ""
    match = _LAST_NUMBER.fullmatch(name)
    if match is not None:
        before, number, after = match.groups()
        row = f"{before}\0{after}"
    code = int.from_bytes(
        b"\1" + row.encode(), "big"
    )  # nothing is lost of a row that begins with 0
    code = (code << _WIDTH_BITS) + len(number)
    return (code << _NUMBER_BITS) + int(number or 0)


def _fold(codes: Sequence[int]) -> str:
    """Return names that ClusterShell can fold as text, by their codes in order."""
    runs_by_row: dict[int, list[_Run]] = {}
    for run in _runs(codes):
        runs_by_row.setdefault(run[0] >> (_NUMBER_BITS + _WIDTH_BITS), []).append(run)
    folded_by_name = dict(map(_fold_row, runs_by_row.items()))
    rows = [folded_by_name[name] for name in sorted(folded_by_name)]
    if len(rows) == 1 or len(rows) > _MOST_ROWS:
        return ",".join(rows)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(rows, resolver=RESOLVER_NOGROUP))


def _fold_row(row_and_runs: tuple[int, Sequence[_Run]]) -> tuple[str, str]:
    """Return the name of a row that sorts first, and all of its names as text."""
    row, runs = row_and_runs
    text = row.to_bytes(row.bit_length() // 8 + 1, "big")[1:].decode()
    before, has_number, after = text.partition("\0")
    if not has_number:
        return before, before
    runs_by_width: dict[int, list[_Run]] = {}
    for first, last in runs:
        width = (first >> _NUMBER_BITS) % (1 << _WIDTH_BITS)
        number = first % (1 << _NUMBER_BITS)
        runs_by_width.setdefault(width, []).append((number, number + last - first))
    ranges = _ranges_of_widths(runs_by_width)
    if len(runs) == 1 and first == last:
        name = f"{before}{ranges}{after}"
        return name, name
    firsts = [f"{of_width[0][0]:0{width}}" for width, of_width in runs_by_width.items()]
    name = min([f"{before}{first}{after}" for first in firsts])
    return name, f"{before}[{ranges}]{after}"


def _ranges_of_widths(runs_by_width: Mapping[int, Sequence[_Run]]) -> str:
    """Return numbers, by how many digits they are written with, as ClusterShell writes them."""
    if len(runs_by_width) == 1:
        ((width, runs),) = runs_by_width.items()
        return _ranges(runs, width)
    if not any(_is_padded(runs[0][0], width) for width, runs in runs_by_width.items()):
        every_run = itertools.chain.from_iterable(runs_by_width.values())
        numbers = [range(first, last + 1) for first, last in every_run]
        return _ranges(_runs(list(itertools.chain.from_iterable(numbers))))
    from ClusterShell.RangeSet import RangeSet

    texts = []
    for width, runs in runs_by_width.items():
        for first, last in runs:
            texts.extend([f"{number:0{width}}" for number in range(first, last + 1)])
    return str(RangeSet.fromlist(texts))


def _is_padded(number: int, width: int) -> bool:
    return len(str(number)) < width


def _ranges(runs: Iterable[_Run], width: int = 0) -> str:
    """Return runs as '1-3,7', with numbers of at least `width` digits."""
    ranges = []
    for first, last in runs:
        text = f"{first:0{width}}"
        ranges.append(text if first == last else f"{text}-{last:0{width}}")
    return ",".join(ranges)


def _runs(values: Sequence[int]) -> list[_Run]:
    """Return the runs of numbers that stand in order, each once."""
    runs = []
    start = 0
    while start < len(values):
        end = start + 1
        if end < len(values) and values[end] - values[start] == 1:
            end = _end_of_run(values, start)
        runs.append((values[start], values[end - 1]))
        start = end
    return runs


def _end_of_run(values: Sequence[int], start: int) -> int:
    """Return the position behind the run that begins at `start`.

    There is no gap between two numbers that differ by as much as their positions. So only some of
    ten thousand are looked at.
    """
    step = 1
    while start + step < len(values) and values[start + step] - values[start] == step:
        step *= 2
    return bisect.bisect_right(
        range(len(values)),
        values[start] - start,
        start + step // 2,
        min(start + step, len(values)),
        key=lambda position: values[position] - position,
    )


def _evaluate(text: str, meaning: Meaning) -> list[str]:
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
        if len(result) > MAX_NODES:
            raise ValueError(_too_many(text))
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


def _expand_operand(text: str) -> list[str]:
    """Return the names of one name or pattern without operators."""
    parts = _BRACKET.split(text)  # literal, range, literal, range, …, literal
    literals, brackets = parts[0::2], parts[1::2]
    _check_literals(text, literals)
    count = math.prod(_count(bracket) for bracket in brackets)
    if count > MAX_NODES:
        raise ValueError(_too_many(text))
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


def _too_many(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return f"'{shown}' stands for more than {MAX_NODES:,} nodes"


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
