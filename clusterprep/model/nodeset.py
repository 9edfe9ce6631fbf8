"""Node sets as text: ClusterShell's syntax, expanded in the order written and folded again for reports.

ClusterShell itself keeps node sets sorted, which would pair the wrong name with the wrong address, so the order is
kept here and only single ranges and folding are left to it. Its group sources run commands and are never used.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MAX_NODES = 100_000

_OPERATOR = re.compile(
    r"\[[^\[\]]*\]|([,!&^])"
)  # brackets are passed over, with the commas in them
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:\s*-\s*(\d{1,18})(?:/(\d{1,18}))?)?", re.ASCII)
_PLAIN = re.compile(r"[\w.:%+~=/-]+", re.ASCII)
_FOLDABLE = re.compile(r"(?!.*[0-9]{16})[A-Za-z0-9_.:-]+")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)")
_MOST_ROWS = (
    200  # folding over several numbers at once takes quadratic time in the rows that do not fold
)

Meaning = Callable[[str], list[str]]


def expand(text: str) -> list[str]:
    """Every name in the order written, the last bracket varying fastest; names written twice stay twice.

    `,` joins, `!` takes away, `&` intersects, `^` keeps what is on one side only, from left to right.
    ValueError says what is wrong; more than MAX_NODES names are refused before they are built.
    """
    if _FOLDABLE.fullmatch(text):
        return [text]
    return _evaluate(text, _operand)


def select(
    text: str,
    known: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None = None,
    missing_ok: bool = False,
) -> list[str]:
    """The names of `known`, in its order, that the text means; an operand may also be the name of a group.

    ValueError names what is not known, folded, with the nearest known word, unless that is allowed.
    """
    members = groups or {}
    names = frozenset(known)

    def meaning(operand: str) -> list[str]:
        if operand in members and operand not in names:
            return list(members[operand])
        return _operand(operand)

    wanted = frozenset(_evaluate(text, meaning))
    strange = sorted(wanted - names)
    if strange and not missing_ok:
        raise ValueError(_unknown(strange, [*known, *members]))
    return [name for name in known if name in wanted]


def fold(names: Iterable[str]) -> str:
    """'gpu[01-14,16]' of the names, without repetitions and the same whatever their order."""
    distinct = set(names)
    foldable = {name for name in distinct if _FOLDABLE.fullmatch(name)}
    parts = [_fold(foldable)] if foldable else []
    return ",".join(parts + sorted(distinct - foldable))


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """A hint with the valid word that looks most like this one, where one does."""
    close = nearest_word(word, valid)
    return f"did you mean '{close}'?" if close else None


def nearest_word(word: str, valid: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


def _fold(names: set[str]) -> str:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    rows: dict[
        tuple[str, str | None], list[str]
    ] = {}  # by what stands around the last number; None: there is none
    for name in sorted(names):
        match = _LAST_NUMBER.fullmatch(name)
        before, number, after = match.groups() if match else (name, "", None)
        rows.setdefault((before, after), []).append(number)
    folded = [_fold_row(before, after or "", numbers) for (before, after), numbers in rows.items()]
    if len(rows) == 1 or len(rows) > _MOST_ROWS:
        return ",".join(folded)
    return str(NodeSet.fromlist(folded, resolver=RESOLVER_NOGROUP))


def _fold_row(before: str, after: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return f"{before}{numbers[0]}{after}"
    return f"{before}[{_ranges(numbers)}]{after}"


def _ranges(numbers: list[str]) -> str:
    """'1-3,7', as ClusterShell writes it; numbers of which only some have leading zeros are left to it."""
    if len(set(map(len, numbers))) > 1 and any(number[0] == "0" != number for number in numbers):
        from ClusterShell.RangeSet import RangeSet

        return str(RangeSet.fromlist(numbers))
    ordered = sorted(numbers, key=int)
    starts = [
        0,
        *(at for at in range(1, len(ordered)) if int(ordered[at]) != int(ordered[at - 1]) + 1),
    ]
    ends = [*(start - 1 for start in starts[1:]), len(ordered) - 1]
    pairs = ((ordered[start], ordered[end]) for start, end in zip(starts, ends, strict=True))
    return ",".join(first if first == last else f"{first}-{last}" for first, last in pairs)


def _evaluate(text: str, meaning: Meaning) -> list[str]:
    result: list[str] = []
    for operator, operand in _pieces(text):
        if not operand:
            raise ValueError(
                f"a name is missing in '{text}'" if text.strip() else "a node name cannot be empty"
            )
        if operator == ",":
            result += meaning(operand)
        else:
            result = _apply(operator, result, meaning(operand))
        if len(result) > MAX_NODES:
            raise ValueError(_too_many(text))
    return result


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """(operator, operand) from left to right; the first operand is joined to nothing."""
    operator, start = ",", 0
    for match in _OPERATOR.finditer(text):
        if match[1]:
            yield operator, text[start : match.start()].strip()
            operator, start = match[1], match.end()
    yield operator, text[start:].strip()


def _apply(operator: str, left: list[str], right: list[str]) -> list[str]:
    inside, outside = frozenset(right), frozenset(left)
    if operator == "&":
        return [name for name in left if name in inside]
    kept = [name for name in left if name not in inside]
    return kept if operator == "!" else kept + [name for name in right if name not in outside]


def _operand(text: str) -> list[str]:
    """One name or pattern without operators."""
    parts = _BRACKET.split(text)  # literal, range, literal, range, …, literal
    _check_literals(text, parts[0::2])
    if math.prod(_count(part) for part in parts[1::2]) > MAX_NODES:
        raise ValueError(_too_many(text))
    choices = [[part] if place % 2 == 0 else _indices(part) for place, part in enumerate(parts)]
    return ["".join(combination) for combination in itertools.product(*choices)]


def _check_literals(text: str, literals: list[str]) -> None:
    if any("[" in literal or "]" in literal for literal in literals):
        raise ValueError(f"a bracket is not closed, or nested, in '{text}'")
    if "@" in text:
        why = (
            "groups of ClusterShell's are not looked up"
            if text[0] == "@"
            else "a user belongs under ssh: {user: …}"
        )
        raise ValueError(f"'@' has no place in '{text}': {why}")
    if any(not literal for literal in literals[1:-1]):
        raise ValueError(f"two brackets stand side by side in '{text}'")
    for literal in literals:
        if literal and not _PLAIN.fullmatch(literal):
            raise ValueError(f"'{text}' is not a node name or a range such as gpu[01-16]")


def _count(bracket: str) -> int:
    return sum(_length(part, bracket) for part in bracket.split(","))


def _length(part: str, bracket: str) -> int:
    match = _RANGE.fullmatch(part.strip())
    if match is None:
        raise ValueError(
            f"'{part}' in '[{bracket}]' is not a number or a range such as 1-16 or 1-9/2"
        )
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or step < 1:
        raise ValueError(f"the range '{part}' in '[{bracket}]' runs backwards or has no step")
    return (last - first) // step + 1


def _indices(bracket: str) -> list[str]:
    """The numbers of one bracket as text, zero-padded as ClusterShell pads them."""
    from ClusterShell.RangeSet import RangeSet, RangeSetParseError

    try:
        return [index for part in bracket.split(",") for index in RangeSet(part.strip()).striter()]
    except RangeSetParseError:
        raise ValueError(
            f"the ends of a zero-padded range have to be equally long: '[{bracket}]'"
        ) from None


def _too_many(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return f"'{shown}' stands for more than {MAX_NODES:,} nodes"


def _unknown(strange: list[str], valid: list[str]) -> str:
    close = nearest_word(strange[0], valid)
    message = f"'{fold(strange)}' is not in the inventory"
    if close is None:
        return message
    stem = _stem(close)
    if stem != _stem(strange[0]):
        return f"{message} (did you mean '{close}'?)"
    # Another number of the same name is no misspelling; what helps is to see which numbers there are.
    return f"{message}, which has {fold(word for word in valid if _stem(word) == stem)}"


def _stem(name: str) -> str:
    return re.sub(r"[0-9]+", "#", name)
