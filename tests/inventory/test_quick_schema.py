"""What is accepted without jsonschema is what jsonschema accepts."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.changes.playbook.reading import as_written
from clusterprep.errors import InputError
from clusterprep.inventory.document import read_document
from clusterprep.inventory.load import WRITTEN
from clusterprep.inventory.quick_schema import Undecided, is_valid
from clusterprep.inventory.schema import load_schema, validator

ROOT = Path(__file__).parents[2]
INVENTORIES = sorted((Path(__file__).parent / "inventories").glob("*/*.yaml"))
SHIPPED = [
    ("inventory", ROOT / "inventory.example.yaml"),
    *(("playbook", path) for path in sorted((ROOT / "playbooks").glob("*.yaml"))),
]
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, 1.0, 1.5, -1, 10**9, math.inf, math.nan, "", "a", "a\n", "/a/../b",
    "9" * 400, "\0", [], [1], ["a", "a"], [["a"], ["a"]], {}, {"a": 1}, {"a": {"b": []}},
    {"name": "n[1-3]"}, {1: 2},
)  # fmt: skip


@pytest.mark.parametrize(("name", "path"), SHIPPED, ids=lambda value: Path(value).stem)
def test_shipped_files_are_accepted(name: str, path: Path) -> None:
    assert is_valid(load_schema(name), _data(name, path))


def test_inventories_are_accepted_as_by_jsonschema() -> None:
    compared = 0
    for path in INVENTORIES:
        data = _data("inventory", path)
        compared += data is not None
        assert _agrees("inventory", data), path
    assert compared > 100


@pytest.mark.parametrize(("name", "path"), SHIPPED, ids=lambda value: Path(value).stem)
def test_spoilt_files_are_accepted_as_by_jsonschema(name: str, path: Path) -> None:
    data = _data(name, path)
    rng = random.Random(path.name)
    for _ in range(60):
        spoilt = _spoilt(data, rng)
        assert _agrees(name, spoilt), spoilt


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a": {}}},
        {"properties": {"a": {"not": {}}}},
        {"enum": [1]},
        {"$ref": "https://example.org/schema"},
    ],
    ids=str,
)
def test_what_is_not_known_here_is_left_to_jsonschema(schema: dict[str, Any]) -> None:
    with pytest.raises(Undecided):
        is_valid(schema, {"a": 1})


def _agrees(name: str, data: Any) -> bool:
    expected = not any(validator(name).iter_errors(data))
    try:
        return is_valid(load_schema(name), data) is expected
    except Undecided:
        return not expected  # a valid file must not need jsonschema


def _data(name: str, path: Path) -> Any:
    """The data of a YAML file, None for one that is none."""
    try:
        if name == "inventory":
            return read_document(path, WRITTEN).data
        return read_document(path, as_written(), "a list of steps", top="list").data
    except InputError:
        return None


def _spoilt(data: Any, rng: random.Random) -> Any:
    """A copy in which one value is another one, is missing, or has a neighbour."""
    spoilt = copy.deepcopy(data)
    holder, key = rng.choice(list(_places(spoilt)))
    change = rng.randrange(3)
    if change == 0 and isinstance(holder, dict):
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[rng.choice(["", "nodes", "mtu", "a\n", 7])] = rng.choice(ODD)
    else:
        holder[key] = rng.choice(ODD)
    return spoilt


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    else:
        return
    for key, value in items:
        yield data, key
        yield from _places(value)
