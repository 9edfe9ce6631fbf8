"""Check that a value has the type that a function is annotated to return. Pure.

    fits_return_type(parse_hostname, "gpu1")   # True for: def parse_hostname(text: str) -> str

A parser gets what a node answered, which may have any shape, so its result is checked before it is
used. A test is built once for each type; an answer that was seen before is not tested again.

Frames are limited to finite numbers, 64 bits and 64 levels before that
(`remote/transports/frames.py`). A value that still breaks a check makes the check unknown on the
node that sent the value, and on no other node.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from clusterprep.model.records import field_names

Test = Callable[[Any], bool]

# Types whose values are tested by their class alone.
SIMPLE_TYPES = (str, int, bool, bytes, type(None))


def fits_return_type(function: Callable[..., Any], value: object) -> bool:
    """Return True if the value has the type that the function is annotated to return.

    Without an annotation, a Struct or a dataclass is tested by the types of its own fields, and
    other values pass.
    """
    return _return_test(function)(value)


@functools.cache
def _return_test(function: Callable[..., Any]) -> Test:
    hint: Any = Any
    if isinstance(function, functools.partial):
        function = function.func
    if hasattr(function, "__annotations__"):
        hint = typing.get_type_hints(function).get("return", Any)
    return _fits_its_class if hint is Any else _test(hint)


def _fits_its_class(value: object) -> bool:
    kind: Any = type(value)
    if field_names(kind) is None:
        return True
    return _test(kind)(value)


@functools.cache
def _test(hint: Any) -> Test:
    """Return the test for an annotation; for an annotation of an unknown kind, all values pass."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any:
        return _accept
    if exact := _exact_types(hint):
        return lambda value: type(value) in exact
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin in (typing.Union, types.UnionType):
        tests = tuple(map(_test, arguments))
        return lambda value: any(test(value) for test in tests)
    if origin is tuple:
        return _tuple_test(arguments)
    if isinstance(origin, type):
        return _container_test(origin, arguments)
    return _class_test(hint)


def _accept(value: object) -> bool:
    return True


def _exact_types(hint: Any) -> frozenset[type]:
    """Return the classes of matching values if the class alone decides, else an empty set.

    Most answers are lists of such values: their classes can be compared without a call for each
    value.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_exact_types(argument) for argument in typing.get_args(hint)]
        return frozenset().union(*parts) if all(parts) else frozenset()
    if hint is float:
        return frozenset((int, float))
    if hint in SIMPLE_TYPES:
        return frozenset((hint,))
    return frozenset()


def _test_of_all(hint: Any) -> Callable[[Any], bool]:
    """Return the test for an iterable whose items all have a type."""
    exact = _exact_types(hint)
    if exact:
        return lambda values: exact.issuperset(map(type, values))
    test = _test(hint)
    return lambda values: all(map(test, values))


def _container_test(origin: type, arguments: tuple[Any, ...]) -> Test:
    if issubclass(origin, Mapping):
        keys, items = map(_test_of_all, arguments)
        return lambda value: isinstance(value, Mapping) and keys(value) and items(value.values())
    if issubclass(origin, (Sequence, AbstractSet)):
        (items,) = map(_test_of_all, arguments)
        return lambda value: isinstance(value, origin) and items(value)
    return _accept


def _tuple_test(arguments: tuple[Any, ...]) -> Test:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        items = _test_of_all(arguments[0])
        return lambda value: isinstance(value, tuple) and items(value)
    tests = tuple(map(_test, arguments))

    def test(value: Any) -> bool:
        if not isinstance(value, tuple) or len(value) != len(tests):
            return False
        pairs = zip(tests, value, strict=True)
        return all(part_test(part) for part_test, part in pairs)

    return test


def _class_test(hint: Any) -> Test:
    if not isinstance(hint, type) or hint is object:
        return _accept
    if field_names(hint) is not None:
        return _record_test(hint)
    return lambda value: isinstance(value, hint)


def _record_test(kind: type) -> Test:
    """Return the test for a Struct or a dataclass: its class, and the type of each field."""

    @functools.cache
    def field_tests() -> tuple[list[tuple[str, frozenset[type]]], list[tuple[str, Test]]]:
        """Return the fields that the class alone decides, and the others with their tests."""
        hints = typing.get_type_hints(kind)
        exact: list[tuple[str, frozenset[type]]] = []
        others: list[tuple[str, Test]] = []
        for name in field_names(kind) or ():
            classes = _exact_types(hints[name])
            if classes:
                exact.append((name, classes))
            else:
                others.append((name, _test(hints[name])))
        return exact, others

    def test(value: object) -> bool:
        if type(value) is not kind:
            return False
        # Not before the first value: a class may have fields of its own type.
        exact, others = field_tests()
        for name, classes in exact:
            if type(getattr(value, name)) not in classes:
                return False
        return all(fits(getattr(value, name)) for name, fits in others)

    return test
