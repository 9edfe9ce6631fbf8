"""JSON Schema at run time: finds the shipped schemas and turns their verdicts into sentences with lines and hints."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import clusterprep
from clusterprep.inventory.ansible_words import ansible_hint
from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model.nodeset import nearest, nearest_word
from clusterprep.runtime.lazy_dataclass import dataclass

_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def schema_path(name: str) -> Path:
    """Where `<name>.schema.json` lies: inside the package once it is installed, beside it in a checkout."""
    package = Path(clusterprep.__file__).parent
    inside = package / "schemas" / f"{name}.schema.json"
    return inside if inside.exists() else package.parent / "schemas" / f"{name}.schema.json"


@functools.cache
def load_schema(name: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(schema_path(name).read_text(encoding="utf-8"))
    return schema


@functools.cache
def validator(name: str) -> Any:
    """A jsonschema validator in which `$` is the very end of a text, as the standard's own regular expressions say."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(_: Any, wanted: str, instance: Any, __: Any) -> Iterator[ValidationError]:
        if isinstance(instance, str) and not re.search(wanted.replace("$", r"\Z"), instance):
            yield ValidationError("pattern")

    extend: Any = validators.extend
    return extend(Draft202012Validator, {"pattern": pattern})(load_schema(name))


@dataclass(frozen=True)
class _Complaint:
    """One verdict of jsonschema in our words."""

    place: Place
    message: str
    hint: str | None = None
    lacks: str | None = None  # the required key that is missing
    meant: str | None = None  # the key that an unknown one looks like


def check(
    document: Document, name: str, data: Any, where: Mapping[Place, list[Place]] | None = None
) -> list[Place]:
    """Complains about everything in `data` that the schema does not allow, and gives the places of it.

    `where` leads from a place in `data` to all the places of the document that it stands for.
    """
    found = [
        complaint for error in validator(name).iter_errors(data) for complaint in _complaints(error)
    ]
    misspelt = {(complaint.place[:-1], complaint.meant) for complaint in found if complaint.meant}
    bad: list[Place] = []
    for complaint in found:
        for place in _real_places(complaint.place, where or {}):
            # A required key that is there but misspelt needs one complaint, not a second one that it is missing.
            if place not in document.spoilt and (complaint.place, complaint.lacks) not in misspelt:
                document.complain(place, complaint.message, complaint.hint)
            bad.append(place)
    return bad


def _real_places(place: Place, where: Mapping[Place, list[Place]]) -> list[Place]:
    return [real + place[2:] for real in where.get(place[:2], [place[:2]])]


def _complaints(error: Any) -> Iterator[_Complaint]:
    place: Place = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        yield from _unknown_keys(place, error)
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance and f"'{key}'" in error.message:
                yield _Complaint(place, f"the key '{key}' is missing", lacks=key)
    elif "propertyNames" in error.absolute_schema_path:
        yield _Complaint((*place, error.instance), f"expected {error.schema['title']}")
    elif error.validator == "enum":
        hint = nearest(str(error.instance), error.validator_value)
        yield _Complaint(place, _expected(error.schema, error.instance), hint)
    elif error.validator == "uniqueItems":
        twice = next(
            item for number, item in enumerate(error.instance) if item in error.instance[:number]
        )
        yield _Complaint(place, f"expected {error.schema['title']}; seen {show(twice)} twice")
    else:
        yield _Complaint(place, _expected(error.schema, error.instance))


def _unknown_keys(place: Place, error: Any) -> Iterator[_Complaint]:
    known = list(error.schema.get("properties", {}))
    for key in error.instance:
        if key not in known:
            meant = nearest_word(key, known)
            listed = f"known are {', '.join(known)}" if known else "it takes none"
            hint = ansible_hint(key) or nearest(key, known) or listed
            yield _Complaint((*place, key), "unknown key", hint, meant=meant)


def _expected(schema: Mapping[str, Any], seen: Any) -> str:
    wanted = schema.get("title", "something else")
    if "enum" in schema:
        wanted = f"{wanted}: {', '.join(schema['enum'])}"
    return f"expected {wanted}; seen {show(seen)}"


def show(value: Any) -> str:
    """A value in a message: short ones as they are, the rest by kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and len(value) <= 60:
        return f"'{value}'" if value.isprintable() else repr(value)
    if isinstance(value, (int, float)):
        return str(value)
    return "an empty list" if value == [] else _KINDS.get(type(value), "something else")
