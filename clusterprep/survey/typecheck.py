"""Whether a value has the type that its function promises: what a node answered went in, and may be of any shape.

Types are compared as they are written in annotations, so a fact says once what it is. Checks are put together once per
type; what they cost is paid for an answer that was not seen before. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

Test = Callable[[Any], bool]


def returns(function: Callable[..., Any], value: object) -> bool:
    """Whether the value is what the function is annotated to return; where it is not annotated, by its own class."""
    return _promise(function)(value)


@functools.cache
def _promise(function: Callable[..., Any]) -> Test:
    hint = (
        typing.get_type_hints(function).get("return", Any)
        if hasattr(function, "__annotations__")
        else Any
    )
    return _of_class if hint is Any else _test(hint)


def _of_class(value: object) -> bool:
    kind: Any = type(value)
    return not hasattr(kind, "__dataclass_fields__") or bool(_test(kind)(value))


@functools.cache
def _test(hint: Any) -> Test:
    """The test for one annotation; of a kind that is not known here, all passes."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if kinds := _exactly(hint):
        return lambda value: type(value) in kinds
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in inside
    if origin in (typing.Union, types.UnionType):
        tests = tuple(map(_test, inside))
        return lambda value: any(test(value) for test in tests)
    if origin is tuple:
        return _tuple(inside)
    return _container(origin, inside) if isinstance(origin, type) else _plain(hint)


def _exactly(hint: Any) -> frozenset[type]:
    """The classes of the values that fit, where nothing but the class counts; none for any other annotation.

    Most of what nodes say is lists of such values, whose classes can be compared without a call for each.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = list(map(_exactly, typing.get_args(hint)))
        return frozenset().union(*parts) if all(parts) else frozenset()
    if hint is float:
        return frozenset((int, float))
    return frozenset((hint,)) if hint in (str, int, bool, bytes, type(None)) else frozenset()


def _all(hint: Any) -> Callable[[Any], bool]:
    """Whether all of some values fit."""
    if kinds := _exactly(hint):
        return lambda values: kinds.issuperset(map(type, values))
    test = _test(hint)
    return lambda values: all(map(test, values))


def _container(origin: type, inside: tuple[Any, ...]) -> Test:
    if issubclass(origin, Mapping):
        keys, items = map(_all, inside)
        return lambda value: isinstance(value, Mapping) and keys(value) and items(value.values())
    if issubclass(origin, (Sequence, AbstractSet)):
        (items,) = map(_all, inside)
        return lambda value: isinstance(value, origin) and items(value)
    return lambda value: True


def _tuple(inside: tuple[Any, ...]) -> Test:
    if len(inside) == 2 and inside[1] is Ellipsis:
        items = _all(inside[0])
        return lambda value: isinstance(value, tuple) and items(value)
    tests = tuple(map(_test, inside))
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(tests)
        and all(test(part) for test, part in zip(tests, value, strict=True))
    )


def _plain(hint: Any) -> Test:
    if not isinstance(hint, type) or hint is object:
        return lambda value: True
    if "__dataclass_fields__" in vars(
        hint
    ):  # a look at them would make the class, which its first value does
        return _fields(hint)
    return lambda value: isinstance(value, hint)


def _fields(kind: type) -> Test:
    @functools.cache
    def inside() -> tuple[list[tuple[str, frozenset[type]]], list[tuple[str, Test]]]:
        """The fields of which only the class counts, and the tests of the others."""
        made: Any = kind
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(made)]
        exact = [(name, kinds) for name in names if (kinds := _exactly(hints[name]))]
        return exact, [(name, _test(hints[name])) for name in names if not _exactly(hints[name])]

    def test(value: object) -> bool:
        if type(value) is not kind:
            return False
        exact, others = inside()  # only now, for a class may hold itself
        return all(type(getattr(value, name)) in kinds for name, kinds in exact) and all(
            fits(getattr(value, name)) for name, fits in others
        )

    return test
