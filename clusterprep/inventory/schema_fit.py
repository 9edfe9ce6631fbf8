"""Tell whether data is as one of the shipped JSON Schemas wants it, without jsonschema.

To import jsonschema with what it needs takes 60 ms, a sixth of a command over SSH, and nearly all
data is as it should be. So jsonschema is asked only where this says no, or that it cannot tell: it
knows the keywords of the shipped schemas and values that every reader of JSON understands alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
_SAY_NOTHING = frozenset({"$schema", "$id", "$defs", "title", "description", "default"})
_TYPES: dict[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": float,  # and int
    "null": type(None),
}


class _UndecidedError(Exception):
    """What is asked for here is left to jsonschema."""


def surely_fits(data: Any, schema: Schema) -> bool:
    """Return True if the schema allows the data, False if it does not or this cannot tell."""
    try:
        return _Reader(schema).allows(data, schema)
    except _UndecidedError:
        return False


class _Reader:
    """Holds data against one schema, whose `$ref`s are all to its own `$defs`."""

    def __init__(self, root: Schema) -> None:
        self._definitions = root.get("$defs", {})

    def allows(self, value: Any, schema: Schema | bool) -> bool:
        """Return whether a part of the schema allows a value. Raises _UndecidedError."""
        if isinstance(schema, bool):
            return schema
        for keyword, wanted in schema.items():
            if keyword in _SAY_NOTHING:
                continue
            rule = _RULES.get(keyword)
            if rule is None:
                raise _UndecidedError(keyword)
            if not rule(self, value, wanted, schema):
                return False
        return True

    def definition(self, reference: str) -> Schema:
        """Return what a `$ref` means. Raises _UndecidedError for one to another document."""
        name = reference.removeprefix("#/$defs/")
        if name not in self._definitions:
            raise _UndecidedError(reference)
        definition: Schema = self._definitions[name]
        return definition


Rule = Callable[[_Reader, Any, Any, Schema], bool]


def _has_type(_: _Reader, value: Any, wanted: str | list[str], __: Schema) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    kind = type(value)
    if kind in (int, float) and "number" in names:
        return True
    if kind is float or kind not in _TYPES.values():
        raise _UndecidedError("1.0 is an integer, too")
    return kind in [_TYPES[name] for name in names]


def _has_properties(reader: _Reader, value: Any, wanted: Mapping[str, Schema], _: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    for key, schema in wanted.items():
        if key in value and not reader.allows(value[key], schema):
            return False
    return True


def _has_only_known(reader: _Reader, value: Any, wanted: Schema | bool, schema: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    return all(reader.allows(value[key], wanted) for key in value if key not in known)


def _has_required(_: _Reader, value: Any, wanted: list[str], __: Schema) -> bool:
    return not isinstance(value, dict) or all(key in value for key in wanted)


def _has_names(reader: _Reader, value: Any, wanted: Schema, _: Schema) -> bool:
    return not isinstance(value, dict) or all(reader.allows(key, wanted) for key in value)


def _has_items(reader: _Reader, value: Any, wanted: Schema, _: Schema) -> bool:
    return not isinstance(value, list) or all(reader.allows(item, wanted) for item in value)


def _has_unique_items(_: _Reader, value: Any, wanted: bool, __: Schema) -> bool:
    if not wanted or not isinstance(value, list):
        return True
    if not all(isinstance(item, str) for item in value):
        raise _UndecidedError("whether true is 1")
    return len(set(value)) == len(value)


def _is_one_of(_: _Reader, value: Any, wanted: list[Any], __: Schema) -> bool:
    if not isinstance(value, str):
        raise _UndecidedError("whether true is 1")
    return value in wanted


def _matches(_: _Reader, value: Any, wanted: str, __: Schema) -> bool:
    return not isinstance(value, str) or bool(pattern(wanted).search(value))


def _refers(reader: _Reader, value: Any, wanted: str, _: Schema) -> bool:
    return reader.allows(value, reader.definition(wanted))


def _fits_any(reader: _Reader, value: Any, wanted: list[Schema], _: Schema) -> bool:
    return any(reader.allows(value, schema) for schema in wanted)


def _fits_one(reader: _Reader, value: Any, wanted: list[Schema], _: Schema) -> bool:
    return sum(reader.allows(value, schema) for schema in wanted) == 1


def _bounded(kind: type | tuple[type, ...], holds: Callable[[Any, Any], bool]) -> Rule:
    """Return the rule for a keyword that bounds values of one kind and says nothing of others."""

    def rule(_: _Reader, value: Any, wanted: Any, __: Schema) -> bool:
        is_meant = isinstance(value, kind) and not isinstance(value, bool)
        return not is_meant or holds(value, wanted)

    return rule


_NUMBERS = (int, float)
_RULES: dict[str, Rule] = {
    "$ref": _refers,
    "type": _has_type,
    "properties": _has_properties,
    "additionalProperties": _has_only_known,
    "required": _has_required,
    "propertyNames": _has_names,
    "items": _has_items,
    "uniqueItems": _has_unique_items,
    "enum": _is_one_of,
    "pattern": _matches,
    "anyOf": _fits_any,
    "oneOf": _fits_one,
    "minimum": _bounded(_NUMBERS, lambda value, least: bool(value >= least)),
    "maximum": _bounded(_NUMBERS, lambda value, most: bool(value <= most)),
    "exclusiveMinimum": _bounded(_NUMBERS, lambda value, least: bool(value > least)),
    "minLength": _bounded(str, lambda value, least: len(value) >= least),
    "maxLength": _bounded(str, lambda value, most: len(value) <= most),
    "minItems": _bounded(list, lambda value, least: len(value) >= least),
    "maxItems": _bounded(list, lambda value, most: len(value) <= most),
    "minProperties": _bounded(dict, lambda value, least: len(value) >= least),
    "maxProperties": _bounded(dict, lambda value, most: len(value) <= most),
}


def pattern(wanted: str) -> re.Pattern[str]:
    """Return a pattern of a schema, in which `$` matches at the very end of a text only.

    This is how JSON Schema means it; Python's `$` matches before a last newline too.
    """
    return re.compile(wanted.replace("$", r"\Z"))
