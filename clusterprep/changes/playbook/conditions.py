"""`when`: a comparison over names, as a closed language with a parser of its own. Pure.

    or         = and {"or" and}
    and        = not {"and" not}
    not        = "not" not | "(" or ")" | comparison
    comparison = ["not"] "in" "group" WORD | operand OP operand | operand ["not"] "in" "(" literal {"," literal} ")"
                 | "node" ["not"] "in" "group" WORD
    OP         = "==" | "!=" | "<" | "<=" | ">" | ">="

What is not known on a node stays unknown through `and`, `or` and `not`, unless the other side decides by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from clusterprep.changes.playbook.names import Kind, Name, Value, find
from clusterprep.model import Absent, Node
from clusterprep.model.units import parse_size
from clusterprep.runtime.lazy_dataclass import dataclass

MAX_TEXT, MAX_DEPTH = 1000, 50
ORDERED = ("<", "<=", ">", ">=")
_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"[^"]*"|'[^']*') | (?P<number>\d[\w.+-]*) | (?P<word>[A-Za-z_][\w.-]*)
    | (?P<sign>==|!=|<=|>=|<|>|\(|\)|,) | (?P<other>\S) )""",
    re.VERBOSE | re.ASCII,
)
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,9}", re.ASCII)
_WANTED = {
    "text": 'text in quotes, such as "ubuntu"',
    "number": "a number, such as 8",
    "size": "a size, such as 512GiB",
    "version": "a version, such as 5.15",
}

Truth = bool | Absent
Lookup = Callable[[Name], Value | Absent]


class ConditionError(ValueError):
    """The text is no condition; the message says where and what was expected."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Comparison:
    """Two sides of one kind; a literal is held as it is compared."""

    left: Name
    operator: str
    right: Name | tuple[object, ...]  # a tuple of literals: of one, or of several for `in`

    def names(self) -> Iterator[Name]:
        yield self.left
        if isinstance(self.right, Name):
            yield self.right

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        left = _comparable(self.left, lookup)
        right = (_comparable(self.right, lookup),) if isinstance(self.right, Name) else self.right
        for side in (left, *right):
            if isinstance(side, Absent):
                return side
        return _compare(self.operator, left, right)


@dataclass(frozen=True)
class InGroup:
    group: str

    def names(self) -> Iterator[Name]:
        return iter(())

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        return self.group in node.groups


@dataclass(frozen=True)
class Not:
    inner: Condition

    def names(self) -> Iterator[Name]:
        return self.inner.names()

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        truth = self.inner.holds(node, lookup)
        return truth if isinstance(truth, Absent) else not truth


@dataclass(frozen=True)
class Joined:
    """Parts joined by `and`, where one that is false decides, or by `or`, where one that is true does."""

    parts: tuple[Condition, ...]
    decides: bool

    def names(self) -> Iterator[Name]:
        return (name for part in self.parts for name in part.names())

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        unknown = None
        for part in self.parts:
            truth = part.holds(node, lookup)
            if isinstance(truth, Absent):
                unknown = unknown or truth
            elif truth is self.decides:
                return truth
        return not self.decides if unknown is None else unknown


Condition = Comparison | InGroup | Not | Joined


def groups_of(condition: Condition) -> Iterator[str]:
    """The groups that a condition names."""
    if isinstance(condition, InGroup):
        yield condition.group
    elif isinstance(condition, Not):
        yield from groups_of(condition.inner)
    elif isinstance(condition, Joined):
        for part in condition.parts:
            yield from groups_of(part)


def _comparable(name: Name, lookup: Lookup) -> object:
    value = lookup(name)
    if isinstance(value, Absent) or name.kind in ("text", "number", "size"):
        return value
    numbers = _VERSION.match(str(value))
    return (
        _version(numbers[0])
        if numbers
        else Absent("garbled", f"{name.name}: {str(value)[:80]!r} is no version")
    )


def _version(text: str) -> tuple[int, ...]:
    """The leading numbers, without zeros at the end: 5.15 is 5.15.0."""
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _compare(operator: str, left: object, right: tuple[object, ...]) -> bool:
    if operator in ("==", "in"):
        return left in right
    if operator in ("!=", "not in"):
        return left not in right
    if operator == "<":
        return left < right[0]  # type: ignore[operator, no-any-return]
    if operator == "<=":
        return left <= right[0]  # type: ignore[operator, no-any-return]
    if operator == ">":
        return left > right[0]  # type: ignore[operator, no-any-return]
    return left >= right[0]  # type: ignore[operator, no-any-return]


@dataclass(frozen=True)
class _Token:
    kind: str  # text, number, word, sign, end
    text: str
    column: int


def parse(text: str) -> Condition:
    """The condition that a text is. Raises ConditionError."""
    if len(text) > MAX_TEXT:
        raise ConditionError(f"more than {MAX_TEXT} characters are no condition")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent: one function for each line of the grammar above."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = self.depth = 0

    def whole(self) -> Condition:
        found = self.either()
        if self.peek().kind != "end":
            self.stop("'and', 'or' or the end")
        return found

    def either(self) -> Condition:
        return self._row("or", self.both, decides=True)

    def both(self) -> Condition:
        return self._row("and", self.single, decides=False)

    def _row(self, word: str, part: Callable[[], Condition], decides: bool) -> Condition:
        parts = [part()]
        while self.take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), decides)

    def single(self) -> Condition:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConditionError(f"more than {MAX_DEPTH} levels are too deep")
        try:
            if self.take("not"):
                return Not(self.single())
            if self.take("("):
                inner = self.either()
                self.expect(")")
                return inner
            if self.take("in"):
                return self.group()
            return self.comparison()
        finally:
            self.depth -= 1

    def group(self) -> Condition:
        self.expect("group")
        token = self.next()
        if token.kind not in ("word", "number", "text"):
            self.stop("the name of a group", token)
        return InGroup(token.text.strip("\"'"))

    def comparison(self) -> Condition:
        left = self.next()
        denied = self.peek().text == "not" and self.tokens[self.at + 1].text == "in"
        self.at += denied
        operator = self.next()
        if operator.text == "in":
            return self.among(left, "not in" if denied else "in")
        if operator.text not in ("==", "!=", *ORDERED):
            self.stop("one of ==, !=, <, <=, >, >=, in", operator)
        right = self.next()
        if left.kind != "word":
            turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
            return self.compared(right, turned.get(operator.text, operator.text), left)
        return self.compared(left, operator.text, right)

    def among(self, left: _Token, operator: str) -> Condition:
        if self.peek().text == "group":
            if left.text != "node":
                self.stop("'node' before 'in group'", left)
            found = self.group()
            return Not(found) if operator == "not in" else found
        name = self.name(left)
        self.expect("(")
        literals = [literal(name, self.next())]
        while self.take(","):
            literals.append(literal(name, self.next()))
        self.expect(")")
        return Comparison(name, operator, tuple(literals))

    def compared(self, left: _Token, operator: str, right: _Token) -> Condition:
        name = self.name(left)
        if name.kind == "text" and operator in ORDERED:
            raise ConditionError(f"{name.name} is text, which has no order; expected == or !=")
        if right.kind != "word":
            return Comparison(name, operator, (literal(name, right),))
        other = self.name(right)
        if other.kind != name.kind:
            raise ConditionError(f"{name.name} is a {name.kind} and {other.name} a {other.kind}")
        return Comparison(name, operator, other)

    def name(self, token: _Token) -> Name:
        if token.kind != "word":
            self.stop("a name such as kernel or gpus.count", token)
        try:
            return find(token.text)
        except KeyError as error:
            hint = f"text stands in quotes; {error.args[0]}"
            raise ConditionError(
                f"unknown name '{token.text}' in column {token.column}", hint
            ) from None

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def next(self) -> _Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def take(self, text: str) -> bool:
        token = self.peek()
        found = token.kind in ("word", "sign") and token.text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.stop(f"'{text}'")

    def stop(self, wanted: str, token: _Token | None = None) -> NoReturn:
        seen = token or self.peek()
        shown = "the end" if seen.kind == "end" else f"'{seen.text}'"
        hint = "== compares" if seen.text == "=" else None
        raise ConditionError(f"expected {wanted} in column {seen.column}; seen {shown}", hint)


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        yield _Token(kind, match[kind], match.start(kind) + 1)
    yield _Token("end", "", len(text) + 1)


def literal(name: Name, token: _Token) -> object:
    """What a name of this kind is compared with."""
    fits = {
        "text": ("text",),
        "number": ("number",),
        "size": ("number", "text"),
        "version": ("number", "text"),
    }
    seen = token.text.strip("\"'") if token.kind == "text" else token.text
    if token.kind in fits[name.kind]:
        try:
            return _literal(name.kind, seen)
        except ValueError:
            pass
    shown = token.text or "the end"
    hint = (
        "text stands in quotes"
        if name.kind == "text" and token.kind in ("word", "number")
        else None
    )
    raise ConditionError(
        f"{name.name} is compared with {_WANTED[name.kind]}; seen {shown} in column {token.column}",
        hint,
    )


def _literal(kind: Kind, text: str) -> object:
    if kind == "number":
        if not text.isdecimal() or len(text) > 18:
            raise ValueError(text)
        return int(text)
    if kind == "size":
        return parse_size(text)
    if kind == "version":
        if not _VERSION.fullmatch(text):
            raise ValueError(text)
        return _version(text)
    return text
