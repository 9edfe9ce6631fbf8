"""Fill in the templates of Ansible that need no Ansible.

Inventories hold few kinds of them: a variable of the host, one of the environment, a default for
either. Everything else (statements, arithmetic, other look-ups and filters) is refused, so that a
node is never dialled by a value that Ansible would not have used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

DEEPEST = 20  # templates within values of templates; a variable may stand for itself
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_STATEMENT = re.compile(r"\{[%#]")
_TOKEN = re.compile(
    r"\s*(?:('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([0-9]+)|(\w+)|([.\[\](),|=]))"
)
_BUILTIN = "ansible.builtin."
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("none", "None"), None),
}


class NotFilled(Exception):
    """A template that cannot be filled in here; the text says why."""


class _Undefined:
    """What a name stands for that nothing defines."""

    def __init__(self, name: str) -> None:
        self.name = name


class Scope(Struct, frozen=True):
    """What names stand for: variables of the host by name, and the environment."""

    variables: Mapping[str, Any]
    environment: Mapping[str, str]


def has_template(text: str) -> bool:
    """Return whether Ansible would fill in something of this text."""
    return "{{" in text or _STATEMENT.search(text) is not None


def fill(value: Any, scope: Scope, depth: int = 0) -> Any:
    """Return the value that a template stands for; other values are returned as they are.

    A text that is one expression keeps the type of its value. Raises NotFilled.
    """
    if not isinstance(value, str) or not has_template(value):
        return value
    if depth > DEEPEST:
        raise NotFilled("it stands for itself")
    if _STATEMENT.search(value):
        raise NotFilled("statements are not read here")
    whole = _EXPRESSION.fullmatch(value.strip())
    if whole and "}}" not in whole[1]:
        return _Expression(whole[1], scope, depth).value()

    def text_of(match: re.Match[str]) -> str:
        return str(_Expression(match[1], scope, depth).value())

    filled = _EXPRESSION.sub(text_of, value)
    if "{{" in filled:
        raise NotFilled("a bracket is not closed")
    return filled


class _Expression:
    """Reads one expression from left to right, and computes it on the way."""

    def __init__(self, text: str, scope: Scope, depth: int) -> None:
        self.scope = scope
        self.depth = depth
        self.tokens = _tokens(text)
        self.position = 0

    def value(self) -> Any:
        """Return the value of the whole expression. Raises NotFilled."""
        value = self._filtered()
        if self.position < len(self.tokens):
            raise NotFilled(f"'{self.tokens[self.position]}' is not read here")
        return _defined(value)

    def _filtered(self) -> Any:
        value = self._member()
        while self._takes("|"):
            name = self._qualified_name()
            arguments = self._arguments() if self._takes("(") else []
            value = _apply_filter(name, value, arguments)
        return value

    def _member(self) -> Any:
        """Return a name, a text, a number or a look-up, with what `.x` and `[x]` take of it."""
        value = self._primary()
        while self._peek() in (".", "["):
            if self._takes("."):
                key: Any = self._next()
            else:
                self.position += 1
                key = self._filtered()
                self._expect("]")
            value = self._filled(_member_of(value, _unquoted(key)))
        return value

    def _primary(self) -> Any:
        token = self._next()
        if token == "(":  # noqa: S105 - a bracket
            value = self._filtered()
            self._expect(")")
            return value
        if token[0] in "'\"":
            return _Text(token[1:-1])
        if token.isdecimal():
            return int(token)
        if token in _WORDS:
            return _WORDS[token]
        if token == "lookup" and self._takes("("):  # noqa: S105 - a word
            return self._look_up(self._arguments())
        if not token.isidentifier() or self._peek() == "(":
            raise NotFilled(f"'{token}' is not read here")
        if token not in self.scope.variables:
            return _Undefined(token)
        return self._filled(self.scope.variables[token])

    def _filled(self, value: Any) -> Any:
        if isinstance(value, _Text | _Undefined):
            return value
        return fill(value, self.scope, self.depth + 1)

    def _look_up(self, arguments: Sequence[Any]) -> str:
        """Return a variable of the environment, empty if it is not set, as in Ansible."""
        kind = str(arguments[0]).removeprefix(_BUILTIN) if arguments else ""
        if kind != "env" or len(arguments) != 2:
            raise NotFilled("of look-ups only lookup('env', 'NAME') is read here")
        return self.scope.environment.get(str(arguments[1]), "")

    def _arguments(self) -> list[Any]:
        """Return the arguments up to the closing bracket."""
        arguments: list[Any] = []
        while not self._takes(")"):
            arguments.append(self._filtered())
            if self._peek() == "=":
                raise NotFilled("arguments with names are not read here")
            if not self._takes(","):
                self._expect(")")
                break
        return arguments

    def _qualified_name(self) -> str:
        name = self._next()
        while self._takes("."):
            name = f"{name}.{self._next()}"
        return name.removeprefix(_BUILTIN)

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _takes(self, token: str) -> bool:
        """Return whether the next token is this one, and pass over it if so."""
        if self._peek() != token:
            return False
        self.position += 1
        return True

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise NotFilled("the expression ends too early")
        self.position += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise NotFilled(f"'{token}' is missing")


class _Text(str):
    """A text that stands in the template itself: no variable's value, so not filled in again."""

    __slots__ = ()


def _tokens(text: str) -> list[str]:
    """Return the words and signs of an expression. Raises NotFilled for other signs."""
    tokens: list[str] = []
    position = 0
    stripped = text.strip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise NotFilled(f"'{stripped[position:].strip()[:20]}' is not read here")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def _unquoted(key: Any) -> Any:
    return str(key) if isinstance(key, str) else key


def _member_of(value: Any, key: Any) -> Any:
    """Return an item of a list or a mapping, undefined where there is none."""
    if isinstance(value, Mapping) and key in value:
        return value[key]
    if isinstance(value, list | tuple):
        number = int(key) if str(key).isdecimal() else -1
        if 0 <= number < len(value):
            return value[number]
    return _Undefined(str(key))


def _defined(value: Any) -> Any:
    if isinstance(value, _Undefined):
        raise NotFilled(f"nothing says what '{value.name}' is")
    return str(value) if isinstance(value, _Text) else value


def _apply_filter(name: str, value: Any, arguments: Sequence[Any]) -> Any:
    """Return what a filter makes of a value. Raises NotFilled for filters that are not known."""
    if name in ("default", "d"):
        return _default(value, arguments)
    convert = _FILTERS.get(name)
    if convert is None or arguments:
        raise NotFilled(f"the filter '{name}' is not read here")
    try:
        return convert(_defined(value))
    except (ValueError, TypeError, IndexError) as error:
        raise NotFilled(f"the filter '{name}': {error}") from None


def _default(value: Any, arguments: Sequence[Any]) -> Any:
    """Return the first argument for what is undefined, and with `true` also for what is empty."""
    replacement = arguments[0] if arguments else _Text("")
    takes_empty = len(arguments) > 1 and bool(arguments[1])
    if isinstance(value, _Undefined) or (takes_empty and not value):
        return replacement
    return value


_FILTERS: Mapping[str, Callable[[Any], Any]] = {
    "string": str,
    "int": int,
    "bool": lambda value: str(value).lower() in ("yes", "true", "on", "1"),
    "trim": lambda value: str(value).strip(),
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "first": lambda value: value[0],
    "last": lambda value: value[-1],
    "mandatory": lambda value: value,
}
