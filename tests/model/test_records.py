"""The fields of Structs and of dataclasses are found alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct

from clusterprep.model.records import field_names


class Fan(Struct, frozen=True):
    turns: int
    rack: str = ""


class NamedFan(Fan, frozen=True):
    name: str = ""


@dataclass(frozen=True)
class OwnFan:
    turns: int


@dataclass(frozen=True, slots=True)
class SmallFan:
    turns: int
    rack: str


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Fan, ("turns", "rack")),
        (NamedFan, ("turns", "rack", "name")),
        (OwnFan, ("turns",)),
        (SmallFan, ("turns", "rack")),
        (str, None),
        (dict, None),
        (type(None), None),
    ],
)
def test_fields_are_named_in_their_order(kind: Any, names: tuple[str, ...] | None) -> None:
    assert field_names(kind) == names
