"""`when`: comparisons of names, a closed language with its own parser. Pure.

    or         = and {"or" and}
    and        = not {"and" not}
    not        = "not" not | "(" or ")" | comparison
    comparison = ["not"] "in" "group" WORD
                 | "node" ["not"] "in" "group" WORD
                 | operand OP operand
                 | operand ["not"] "in" "(" literal {"," literal} ")"
    OP         = "==" | "!=" | "<" | "<=" | ">" | ">="

What is not known on a node stays unknown through `and`, `or` and `not`, unless the other side
decides by itself: `false and unknown` is false.

    parse("kernel >= 5.15 and in group rack1").holds(node, lookup)  →  True, False or an Absent
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from msgspec import Struct

from clusterprep.changes.playbook.names import Kind, Name, Value, find
from clusterprep.model import Absent, Node
from clusterprep.model.units import parse_size

MAX_TEXT = 1000  # characters of a condition
MAX_DEPTH = 50  # levels of `not` and of parentheses
MAX_DIGITS = 18  # of a number, so that it fits into 64 bits
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

# The tokens that a literal of each kind may be.
_FITTING = {
    "text": ("text",),
    "number": ("number",),
    "size": ("number", "text"),
    "version": ("number", "text"),
}

Truth = bool | Absent
Lookup = Callable[[Name], Value | Absent]


class ConditionError(ValueError):
    """The text is not a condition; the message says where and what was expected."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Comparison(Struct, frozen=True):
    """Two sides of one kind.

    The right side is a name, or a tuple of literals in the form in which they are compared: one
    literal, or several for `in`.
    """

    left: Name
    operator: str
    right: Name | tuple[object, ...]

    def names(self) -> Iterator[Name]:
        yield self.left
        if isinstance(self.right, Name):
            yield self.right

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        left = _comparable(self.left, lookup)
        if isinstance(left, Absent):
            return left
        if isinstance(self.right, tuple):
            return _compare(self.operator, left, self.right)
        right = _comparable(self.right, lookup)
        if isinstance(right, Absent):
            return right
        return _compare(self.operator, left, (right,))


class InGroup(Struct, frozen=True):
    group: str

    def names(self) -> Iterator[Name]:
        return iter(())

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        return self.group in node.groups


class Not(Struct, frozen=True):
    inner: Condition

    def names(self) -> Iterator[Name]:
        return self.inner.names()

    def holds(self, node: Node, lookup: Lookup) -> Truth:
        truth = self.inner.holds(node, lookup)
        return truth if isinstance(truth, Absent) else not truth


class Joined(Struct, frozen=True):
    """Parts joined by `and` or `or`: with `and` one false part decides, with `or` a true one."""

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
        if unknown is not None:
            return unknown
        return not self.decides


Condition = Comparison | InGroup | Not | Joined


def groups_of(condition: Condition) -> Iterator[str]:
    """Yield the groups that a condition names."""
    if isinstance(condition, InGroup):
        yield condition.group
    elif isinstance(condition, Not):
        yield from groups_of(condition.inner)
    elif isinstance(condition, Joined):
        for part in condition.parts:
            yield from groups_of(part)


def _comparable(name: Name, lookup: Lookup) -> object:
    """Return the value of a name as it is compared: versions as tuples of numbers."""
    value = lookup(name)
    if isinstance(value, Absent) or name.kind != "version":
        return value
    numbers = _VERSION.match(str(value))
    if numbers is None:
        shown = str(value)[:80]
        return Absent("garbled", f"{name.name}: {shown!r} is no version")
    return _version(numbers[0])


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at the end, so that 5.15 equals 5.15.0."""
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


class _Token(Struct, frozen=True):
    kind: str  # text, number, word, sign, end
    text: str
    column: int


def parse(text: str) -> Condition:
    """Return the condition that a text expresses. Raises ConditionError."""
    if len(text) > MAX_TEXT:
        raise ConditionError(f"more than {MAX_TEXT} characters are no condition")
    return _Parser(text).parse()


class _Parser:
    """Recursive descent: one method for each line of the grammar above."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.position = 0
        self.depth = 0

    def parse(self) -> Condition:
        condition = self.parse_or()
        if self.peek().kind != "end":
            self.fail("'and', 'or' or the end")
        return condition

    def parse_or(self) -> Condition:
        return self.joined("or", self.parse_and, decides=True)

    def parse_and(self) -> Condition:
        return self.joined("and", self.parse_not, decides=False)

    def joined(self, word: str, parse_part: Callable[[], Condition], decides: bool) -> Condition:
        parts = [parse_part()]
        while self.accept(word):
            parts.append(parse_part())
        if len(parts) == 1:
            return parts[0]
        return Joined(tuple(parts), decides)

    def parse_not(self) -> Condition:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConditionError(f"more than {MAX_DEPTH} levels are too deep")
        try:
            if self.accept("not"):
                return Not(self.parse_not())
            if self.accept("("):
                inner = self.parse_or()
                self.expect(")")
                return inner
            if self.accept("in"):
                return self.parse_group()
            return self.parse_comparison()
        finally:
            self.depth -= 1

    def parse_group(self) -> Condition:
        self.expect("group")
        token = self.next()
        if token.kind not in ("word", "number", "text"):
            self.fail("the name of a group", token)
        return InGroup(token.text.strip("\"'"))

    def parse_comparison(self) -> Condition:
        left = self.next()
        negated = self.accept_not_before_in()
        operator = self.next()
        if operator.text == "in":
            return self.parse_in(left, negated)
        if operator.text not in ("==", "!=", *ORDERED):
            self.fail("one of ==, !=, <, <=, >, >=, in", operator)
        right = self.next()
        if left.kind == "word":
            return self.comparison(left, operator.text, right)
        # A literal on the left: the sides change places, and the operator is turned round.
        turned = {
            "<": ">",
            "<=": ">=",
            ">": "<",
            ">=": "<=",
        }
        operator_text = turned.get(operator.text, operator.text)
        return self.comparison(right, operator_text, left)

    def accept_not_before_in(self) -> bool:
        """Take `not` if `in` follows it."""
        if self.peek().text != "not":
            return False
        following = self.tokens[self.position + 1]
        if following.text != "in":
            return False
        self.position += 1
        return True

    def parse_in(self, left: _Token, negated: bool) -> Condition:
        if self.peek().text == "group":
            if left.text != "node":
                self.fail("'node' before 'in group'", left)
            group = self.parse_group()
            return Not(group) if negated else group
        name = self.name(left)
        self.expect("(")
        literals = [literal(name, self.next())]
        while self.accept(","):
            literals.append(literal(name, self.next()))
        self.expect(")")
        operator = "not in" if negated else "in"
        return Comparison(name, operator, tuple(literals))

    def comparison(self, left: _Token, operator: str, right: _Token) -> Condition:
        name = self.name(left)
        if name.kind == "text" and operator in ORDERED:
            raise ConditionError(f"{name.name} is text, which has no order; expected == or !=")
        if right.kind != "word":
            value = literal(name, right)
            return Comparison(name, operator, (value,))
        other = self.name(right)
        if other.kind != name.kind:
            kinds = f"{name.name} is a {name.kind} and {other.name} a {other.kind}"
            raise ConditionError(kinds)
        return Comparison(name, operator, other)

    def name(self, token: _Token) -> Name:
        if token.kind != "word":
            self.fail("a name such as kernel or gpus.count", token)
        try:
            return find(token.text)
        except KeyError as error:
            message = f"unknown name '{token.text}' in column {token.column}"
            hint = f"text stands in quotes; {error.args[0]}"
            raise ConditionError(message, hint) from None

    def peek(self) -> _Token:
        return self.tokens[self.position]

    def next(self) -> _Token:
        """Return the next token and move on; the end is returned again and again."""
        token = self.peek()
        if token.kind != "end":
            self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Move past the next token if it is this word or sign; return whether it was."""
        token = self.peek()
        if token.kind not in ("word", "sign") or token.text != text:
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"'{text}'")

    def fail(self, wanted: str, token: _Token | None = None) -> NoReturn:
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
    """Return a literal in the form in which it is compared with a name. Raises ConditionError."""
    text = token.text
    if token.kind == "text":
        text = text.strip("\"'")
    if token.kind in _FITTING[name.kind]:
        try:
            return _literal_value(name.kind, text)
        except ValueError:
            pass
    shown = token.text or "the end"
    place = f"seen {shown} in column {token.column}"
    hint = None
    if name.kind == "text" and token.kind in ("word", "number"):
        hint = "text stands in quotes"
    raise ConditionError(f"{name.name} is compared with {_WANTED[name.kind]}; {place}", hint)


def _literal_value(kind: Kind, text: str) -> object:
    """Return the value of a literal. Raises ValueError if it is none of this kind."""
    if kind == "number":
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise ValueError(text)
        return int(text)
    if kind == "size":
        return parse_size(text)
    if kind == "version":
        if not _VERSION.fullmatch(text):
            raise ValueError(text)
        return _version(text)
    return text
