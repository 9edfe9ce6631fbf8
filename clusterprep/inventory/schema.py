"""Check data against the shipped JSON Schemas, and turn errors into sentences with lines."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

import clusterprep
from clusterprep.inventory.ansible_hints import ansible_hint
from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model.nodeset import nearest, nearest_word
from clusterprep.model.secrets import without_secrets_of_urls

_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}
LONGEST_SHOWN = 60  # characters of a text that messages quote


def schema_path(name: str) -> Path:
    """Return the path of `<name>.schema.json`.

    It is inside the package once this is installed, and beside it in a checkout.
    """
    package = Path(clusterprep.__file__).parent
    file_name = f"{name}.schema.json"
    installed = package / "schemas" / file_name
    if installed.exists():
        return installed
    return package.parent / "schemas" / file_name


def schema_line(name: str) -> str:
    """Return the line by which editors with yaml-language-server find a schema of this machine.

    Empty if they could not read it: it is in an archive, or there are blanks in its path.
    """
    path = schema_path(name)
    text = str(path)
    if not path.is_file() or not text.isprintable() or " " in text:
        return ""
    return f"# yaml-language-server: $schema={text}\n"


@functools.cache
def load_schema(name: str) -> Mapping[str, Any]:
    """Return the content of `<name>.schema.json`."""
    text = schema_path(name).read_text(encoding="utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


@functools.cache
def validator(name: str) -> Any:
    """Return a jsonschema validator in which `$` matches at the very end of a text only.

    This is how JSON Schema means it; Python's `$` matches before a last newline too.
    """
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(_: Any, wanted: str, instance: Any, __: Any) -> Iterator[ValidationError]:
        regex = wanted.replace("$", r"\Z")
        if isinstance(instance, str) and not re.search(regex, instance):
            yield ValidationError("pattern")

    extend: Any = validators.extend
    strict_validator = extend(Draft202012Validator, {"pattern": pattern})
    return strict_validator(load_schema(name))


class _Complaint(Struct, frozen=True):
    """One error of jsonschema in plain words."""

    place: Place
    message: str
    hint: str | None = None
    missing: str | None = None  # the required key that is missing
    meant: str | None = None  # the key that an unknown one looks like


def check_against_schema(
    document: Document, name: str, data: Any, originals: Mapping[Place, list[Place]] | None = None
) -> list[Place]:
    """Complain of everything in `data` that the schema does not allow.

    Returns the places of it in the document. If an entry of `data` stands for several entries of
    the document, `originals` maps its place to theirs.
    """
    complaints: list[_Complaint] = []
    for error in validator(name).iter_errors(data):
        complaints.extend(_complaints(error))
    misspelt = _misspelt_keys(complaints)
    invalid: list[Place] = []
    for complaint in complaints:
        # A required key that is there but misspelt is not also reported as missing.
        is_misspelt = (complaint.place, complaint.missing) in misspelt
        for place in _places_in_document(complaint.place, originals or {}):
            if place not in document.spoilt and not is_misspelt:
                document.complain(place, complaint.message, complaint.hint)
            invalid.append(place)
    return invalid


def _misspelt_keys(complaints: Iterable[_Complaint]) -> set[tuple[Place, str]]:
    """Return the known keys that unknown ones look like, each with the place of its mapping."""
    misspelt: set[tuple[Place, str]] = set()
    for complaint in complaints:
        if complaint.meant:
            parent = complaint.place[:-1]
            misspelt.add((parent, complaint.meant))
    return misspelt


def _places_in_document(place: Place, originals: Mapping[Place, list[Place]]) -> list[Place]:
    """Return the places that a place of the data stands for: itself, if it stands for no others."""
    entry = place[:2]  # ("nodes", 3)
    inside = place[2:]
    return [original + inside for original in originals.get(entry, [entry])]


def _complaints(error: Any) -> Iterator[_Complaint]:
    """Yield the complaints of one jsonschema.ValidationError."""
    place: Place = tuple(error.absolute_path)
    schema = error.schema
    instance = error.instance
    if error.validator == "additionalProperties":
        yield from _unknown_keys(place, error)
    elif error.validator == "required":
        yield from _missing_keys(place, error)
    elif "propertyNames" in error.absolute_schema_path:
        yield _Complaint((*place, instance), f"expected {schema['title']}")
    elif error.validator == "enum":
        hint = nearest(str(instance), error.validator_value)
        yield _Complaint(place, _expectation(schema, instance), hint)
    elif error.validator == "uniqueItems":
        repeated = shown_value(_first_repeated(instance))
        yield _Complaint(place, f"expected {schema['title']}; seen {repeated} twice")
    else:
        yield _Complaint(place, _expectation(schema, instance))


def _missing_keys(place: Place, error: Any) -> Iterator[_Complaint]:
    # jsonschema yields one error per missing key, and names the key in its message alone.
    for key in error.validator_value:
        if key not in error.instance and f"'{key}'" in error.message:
            yield _Complaint(place, f"the key '{key}' is missing", missing=key)


def _unknown_keys(place: Place, error: Any) -> Iterator[_Complaint]:
    known = list(error.schema.get("properties", {}))
    for key in error.instance:
        if key in known:
            continue
        meant = nearest_word(key, known)
        hint = ansible_hint(key) or nearest(key, known)
        if not hint:
            joined = ", ".join(known)
            hint = f"known are {joined}" if known else "it takes none"
        yield _Complaint((*place, key), "unknown key", hint, meant=meant)


def _first_repeated(items: list[Any]) -> Any:
    for number, item in enumerate(items):
        if item in items[:number]:
            return item
    raise ValueError("no item is repeated")


def _expectation(schema: Mapping[str, Any], seen: Any) -> str:
    """Return the message «expected … ; seen …» for a value that the schema does not allow."""
    wanted = schema.get("title", "something else")
    if "enum" in schema:
        allowed = ", ".join(schema["enum"])
        wanted = f"{wanted}: {allowed}"
    return f"expected {wanted}; seen {shown_value(seen)}"


def shown_value(value: Any) -> str:
    """Return a value for a message: short ones as they are, the rest by kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN:
        text = without_secrets_of_urls(value)
        return f"'{text}'" if text.isprintable() else repr(text)
    if isinstance(value, (int, float)):
        return str(value)
    if value == []:
        return "an empty list"
    return _KINDS.get(type(value), "something else")
