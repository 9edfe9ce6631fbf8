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
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import astuple

from clusterprep.model.records import field_names

Test = Callable[[Any], bool]

# Types whose values are tested by their class alone.
SIMPLE_TYPES = (str, int, bool, bytes, type(None))
MOST_TESTED = 1024  # items of each type that are not tested again


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
        return _union_test(arguments)
    if origin is tuple:
        return _tuple_test(arguments)
    if isinstance(origin, type):
        return _container_test(origin, arguments)
    return _class_test(hint)


def _union_test(arguments: tuple[Any, ...]) -> Test:
    """Return the test for one of several types; the class alone decides about most of them."""
    exact = frozenset().union(*map(_exact_types, arguments))
    tests = [_test(argument) for argument in arguments if not _exact_types(argument)]
    if len(tests) == 1:
        (other,) = tests
        return lambda value: type(value) in exact or other(value)
    return lambda value: type(value) in exact or any(test(value) for test in tests)


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
    if hint is Any:
        return _accept
    test = _test(hint)
    # Items that fit, by their id: it stays theirs as long as they are held here.
    tested: dict[int, Any] = {}

    def test_all(values: Iterable[Any]) -> bool:
        # Equal parts of answers are one object as a rule (`facts/parts.py`), on one node and on
        # all: most items were tested before.
        for value in values:
            key = id(value)
            if key in tested:
                continue
            if not test(value):
                return False
            if len(tested) >= MOST_TESTED:
                tested.clear()
            tested[key] = value
        return True

    return test_all


def _container_test(origin: type, arguments: tuple[Any, ...]) -> Test:
    if issubclass(origin, Mapping):
        keys, items = map(_test_of_all, arguments)

        def test_mapping(value: Any) -> bool:
            # To ask an abstract class takes five times as long, and nearly all are dicts.
            is_mapping = type(value) is dict or isinstance(value, Mapping)
            return is_mapping and keys(value) and items(value.values())

        return test_mapping
    if issubclass(origin, (Sequence, AbstractSet)):
        (items,) = map(_test_of_all, arguments)
        return lambda value: isinstance(value, origin) and items(value)
    return _accept


def _tuple_test(arguments: tuple[Any, ...]) -> Test:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        exact = _exact_types(arguments[0])
        if exact:
            return lambda value: isinstance(value, tuple) and exact.issuperset(map(type, value))
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


def _fields_of_dataclass(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in field_names(type(value)) or ())


def _record_test(kind: type) -> Test:
    """Return the test for a Struct or a dataclass: its class, and the type of each field."""
    names = field_names(kind) or ()
    fields_of: Callable[[Any], tuple[Any, ...]] = _fields_of_dataclass
    if issubclass(kind, Struct):
        fields_of = astuple
    # The classes of all fields of values that fit: most values of a kind have the same ones.
    fitting: set[tuple[type, ...]] = set()
    last_that_fits: Any = object()  # several facts may have the same value in them

    @functools.cache
    def field_tests() -> tuple[list[frozenset[type]], list[tuple[int, Test]]]:
        """Return the classes of each field, none where these do not decide, and other tests."""
        hints = typing.get_type_hints(kind)
        classes: list[frozenset[type]] = []
        others: list[tuple[int, Test]] = []
        for place, name in enumerate(names):
            exact = _exact_types(hints[name])
            classes.append(exact)
            if not exact:
                others.append((place, _test(hints[name])))
        return classes, others

    def test(value: Any) -> bool:
        nonlocal last_that_fits
        if value is last_that_fits:
            return True
        if type(value) is not kind:
            return False
        # Not before the first value: a class may have fields of its own type.
        exact, others = field_tests()
        fields = fields_of(value)
        classes = tuple(map(type, fields))
        if classes not in fitting:
            pairs = zip(classes, exact, strict=True)
            if not all(own in allowed for own, allowed in pairs if allowed):
                return False
            fitting.add(classes)
        for place, fits in others:
            if not fits(fields[place]):
                return False
        last_that_fits = value
        return True

    return test
