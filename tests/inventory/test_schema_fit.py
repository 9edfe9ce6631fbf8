"""Data of which `schema_fit` is sure are those of which jsonschema has nothing to say."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterprep.inventory.schema import load_schema, validator
from clusterprep.inventory.schema_fit import surely_fits

REPOSITORY = Path(__file__).resolve().parents[2]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 10**9, 1.0, 2.5, "", "a", "a\n", "..", "/a", "a b", "\x00",
    "x" * 5000, [], ["a"], ["a", "a"], [1, True], [None], {}, {"a": 1}, {1: "a"}, {"name": "n1"},
)  # fmt: skip
SITE_CHECKS = [
    {
        "name": "site.scratch",
        "title": "The scratch file system",
        "file": "/proc/mounts",
        "take": {"regex": r"^\S+ /scratch (\S+) "},
        "expect": {"one_of": ["lustre", "gpfs"]},
        "why": "Jobs write their checkpoints there.",
        "remedy": "mount /scratch",
        "examples": {"pass": ["a /scratch lustre"], "fail": ["b / ext4"]},
    }
]
STEPS = [
    {"file": {"path": "/etc/a", "content": "b"}},
    {"package": {"name": "chrony"}, "when": "os == ubuntu", "tags": ["a"]},
    {"service": {"name": "chrony", "enabled": True}},
]


def documents() -> dict[str, list[Any]]:
    inventories = [
        REPOSITORY / "inventory.example.yaml",
        *sorted((REPOSITORY / "examples").rglob("inventory*.yaml")),
    ]
    playbooks = [
        REPOSITORY / "benchmarks" / "common.yaml",
        *sorted((REPOSITORY / "playbooks").rglob("*.yaml")),
    ]
    known_bad = REPOSITORY / "clusterprep" / "data" / "known_bad.json"
    return {
        "inventory": [yaml.safe_load(path.read_text()) for path in inventories],
        "playbook": [STEPS, *(yaml.safe_load(path.read_text()) for path in playbooks)],
        "known_bad": [json.loads(known_bad.read_text())[:4]],
        "site_checks": [SITE_CHECKS],
    }


DOCUMENTS = documents()


def spoilt(data: Any, source: random.Random) -> Any:
    """Return a copy in which one place has another value, another key or one key less."""
    result = copy.deepcopy(data)
    places = [place for place in _containers(result) if place]
    if not places:
        return source.choice(VALUES)
    container = source.choice(places)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    key = source.choice(keys)
    action = source.randrange(4)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[source.choice(("name", "x", 1, "ssh"))] = source.choice(VALUES)
    elif action == 2 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = source.choice(VALUES)
    return result


def _containers(data: Any) -> list[Any]:
    found = [data] if isinstance(data, (dict, list)) else []
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in inner:
        found.extend(_containers(value))
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_shipped_fits_without_jsonschema(name: str) -> None:
    schema = load_schema(name)
    for data in DOCUMENTS[name]:
        is_valid = next(validator(name).iter_errors(data), None) is None
        assert surely_fits(data, schema) == is_valid


@pytest.mark.parametrize("name", DOCUMENTS)
def test_jsonschema_has_nothing_against_what_fits(name: str) -> None:
    schema = load_schema(name)
    source = random.Random(name)
    for _ in range(300):
        data = source.choice(DOCUMENTS[name])
        for _ in range(source.randrange(1, 4)):
            data = spoilt(data, source)
        if surely_fits(data, schema):
            assert next(validator(name).iter_errors(data), None) is None, data


@pytest.mark.parametrize(
    ("schema", "data", "fits"),
    [
        ({"type": "integer"}, 1, True),
        ({"type": "integer"}, True, False),
        ({"type": "integer"}, 1.0, False),
        ({"type": "number"}, 1.5, True),
        ({"type": ["string", "null"]}, None, True),
        ({"enum": ["a", "b"]}, "b", True),
        ({"enum": [1]}, True, False),
        ({"uniqueItems": True}, ["a", "b"], True),
        ({"uniqueItems": True}, ["a", "a"], False),
        ({"uniqueItems": True}, [1, True], False),
        ({"pattern": "^a$"}, "a\n", False),
        ({"pattern": "^a$"}, 1, True),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "a", False),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "a", True),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1, "b": 2}, False),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "a", True),
        ({"$ref": "https://example.org/a"}, "a", False),
        ({"a keyword of tomorrow": 1}, "a", False),
    ],
)
def test_sure_of_what_every_reader_understands_alike(
    schema: dict[str, Any], data: Any, fits: bool
) -> None:
    assert surely_fits(data, schema) == fits
