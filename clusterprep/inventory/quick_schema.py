"""Tell whether data are valid, for the keywords of JSON Schema that the shipped schemas use.

jsonschema finds and explains what is wrong. To import it, with all that it needs, takes 36 ms, an
eighth of a small check, in which no node works yet; and nearly all files are valid. So it is
imported only for a file that this module does not accept, or for a schema that it cannot decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from typing import Any

Schema = Mapping[str, Any]


class Undecided(Exception):
    """A keyword, or a value of one, that only jsonschema knows."""


def is_valid(schema: Schema, data: Any) -> bool:
    """Return whether the data are valid. Raises Undecided."""
    return _Rules(schema).allow(schema, data)


def anchored(pattern: str) -> str:
    """Return a pattern for `re` in which `$` matches at the very end of a text only.

    This is how JSON Schema means it; Python's `$` matches before a last newline too.
    """
    return pattern.replace("$", r"\Z")


class _Rules:
    """The rules of one schema file, by keyword: `rule(wanted, data, schema)`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._rules: Mapping[str, Callable[[Any, Any, Schema], bool]] = {
            **_RULES,
            "$ref": self._reference,
            "additionalProperties": self._additional_properties,
            "anyOf": self._any_of,
            "items": self._items,
            "oneOf": self._one_of,
            "properties": self._properties,
            "propertyNames": self._property_names,
        }

    def allow(self, schema: Any, data: Any) -> bool:
        """Return whether a schema of this file allows the data. Raises Undecided."""
        if isinstance(schema, bool):
            return schema
        for keyword, wanted in schema.items():
            if keyword in _NOTES:
                continue
            rule = self._rules.get(keyword)
            if rule is None:
                raise Undecided(keyword)
            if not rule(wanted, data, schema):
                return False
        return True

    def _reference(self, wanted: str, data: Any, _: Schema) -> bool:
        start, *steps = wanted.split("/")
        if start != "#":
            raise Undecided(wanted)
        target: Any = self._root
        for step in steps:
            target = target[step]
        return self.allow(target, data)

    def _properties(self, wanted: Mapping[str, Schema], data: Any, _: Schema) -> bool:
        if not isinstance(data, dict):
            return True
        return all(self.allow(wanted[key], data[key]) for key in wanted.keys() & data.keys())

    def _additional_properties(self, wanted: Any, data: Any, schema: Schema) -> bool:
        if not isinstance(data, dict):
            return True
        others = data.keys() - schema.get("properties", {}).keys()
        return all(self.allow(wanted, data[key]) for key in others)

    def _property_names(self, wanted: Schema, data: Any, _: Schema) -> bool:
        return not isinstance(data, dict) or all(self.allow(wanted, key) for key in data)

    def _items(self, wanted: Schema, data: Any, _: Schema) -> bool:
        return not isinstance(data, list) or all(self.allow(wanted, item) for item in data)

    def _any_of(self, wanted: list[Schema], data: Any, _: Schema) -> bool:
        return any(self.allow(schema, data) for schema in wanted)

    def _one_of(self, wanted: list[Schema], data: Any, _: Schema) -> bool:
        return [self.allow(schema, data) for schema in wanted].count(True) == 1


def _is_number(data: Any) -> bool:
    return isinstance(data, (int, float)) and not isinstance(data, bool)


def _is_integer(data: Any) -> bool:
    return _is_number(data) and (isinstance(data, int) or data.is_integer())


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda data: isinstance(data, list),
    "boolean": lambda data: isinstance(data, bool),
    "integer": _is_integer,
    "null": lambda data: data is None,
    "number": _is_number,
    "object": lambda data: isinstance(data, dict),
    "string": lambda data: isinstance(data, str),
}


def _type(wanted: str | list[str], data: Any, _: Schema) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(_TYPES[name](data) for name in names)


def _enum(wanted: list[Any], data: Any, _: Schema) -> bool:
    if not all(isinstance(value, str) for value in wanted):
        raise Undecided("enum")  # there 1, 1.0 and true differ in ways of their own
    return isinstance(data, str) and data in wanted


def _unique_items(wanted: bool, data: Any, _: Schema) -> bool:
    if not wanted or not isinstance(data, list):
        return True
    if not all(isinstance(item, str) for item in data):
        raise Undecided("uniqueItems")
    return len(set(data)) == len(data)


def _required(wanted: list[str], data: Any, _: Schema) -> bool:
    return not isinstance(data, dict) or all(key in data for key in wanted)


def _pattern(wanted: str, data: Any, _: Schema) -> bool:
    return not isinstance(data, str) or re.search(anchored(wanted), data) is not None


def _at_least(kind: type[Sized]) -> Callable[[int, Any, Schema], bool]:
    return lambda wanted, data, _: not isinstance(data, kind) or len(data) >= wanted


def _at_most(kind: type[Sized]) -> Callable[[int, Any, Schema], bool]:
    return lambda wanted, data, _: not isinstance(data, kind) or len(data) <= wanted


# Keywords that allow everything.
_NOTES = frozenset({"$defs", "$id", "$schema", "default", "description", "title"})
# Rules that need no other part of the schema.
_RULES: Mapping[str, Callable[[Any, Any, Schema], bool]] = {
    "enum": _enum,
    "exclusiveMinimum": lambda wanted, data, _: not _is_number(data) or data > wanted,
    "maxItems": _at_most(list),
    "maxLength": _at_most(str),
    "maxProperties": _at_most(dict),
    "maximum": lambda wanted, data, _: not _is_number(data) or data <= wanted,
    "minItems": _at_least(list),
    "minLength": _at_least(str),
    "minProperties": _at_least(dict),
    "minimum": lambda wanted, data, _: not _is_number(data) or data >= wanted,
    "pattern": _pattern,
    "required": _required,
    "type": _type,
    "uniqueItems": _unique_items,
}
