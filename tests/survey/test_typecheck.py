"""A value is compared with what its function promises, however deep it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from msgspec import Struct

from clusterprep.cli.commands import selftest
from clusterprep.model import Absent
from clusterprep.survey import registry
from clusterprep.survey.typecheck import fits_return_type


@dataclass(frozen=True)
class Leaf:
    name: str
    size: float | None
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Branch:
    leaves: tuple[Leaf, ...]
    by_name: Mapping[str, int]
    inner: Branch | None = None


def tree(answer: object) -> Branch | Absent | None: ...


LEAF = Leaf("x", 1.5)
GOOD = Branch((LEAF, Leaf("y", None, "b")), {"x": 1})


@pytest.mark.parametrize(
    "value", [None, Absent("denied"), GOOD, Branch((), {}, GOOD), Branch((Leaf("x", 2),), {})]
)
def test_what_was_promised_is_taken(value: Any) -> None:
    assert fits_return_type(tree, value)


@pytest.mark.parametrize(
    "value",
    [
        7,
        LEAF,
        Branch([LEAF], {}),  # type: ignore[arg-type]
        Branch((Leaf(7, 1.5),), {}),  # type: ignore[arg-type]
        Branch((Leaf("x", "1.5"),), {}),  # type: ignore[arg-type]
        Branch((Leaf("x", True),), {}),
        Branch((Leaf("x", 1.5, "c"),), {}),  # type: ignore[arg-type]
        Branch((), {"x": "1"}),  # type: ignore[dict-item]
        Branch((), {"x": True}),
        Branch((), {}, Branch((), {1: 1})),  # type: ignore[dict-item]
    ],
)
def test_nothing_else_is(value: Any) -> None:
    assert not fits_return_type(tree, value)


class Twig(Struct, frozen=True):
    name: str
    leaves: tuple[Leaf, ...] = ()  # dataclasses, as a site may have them
    inner: Twig | None = None


class LongTwig(Twig, frozen=True):
    length: float = 0.0


def twig(answer: object) -> Twig: ...


def unannotated(answer): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize("function", [twig, unannotated])
@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (Twig("x"), True),
        (Twig("x", (LEAF,), Twig("y")), True),
        (Twig(7), False),  # type: ignore[arg-type]
        (Twig("x", (Leaf("x", "1.5"),)), False),  # type: ignore[arg-type]
        (Twig("x", [LEAF]), False),  # type: ignore[arg-type]
        (Twig("x", (), Twig("y", (), 7)), False),  # type: ignore[arg-type]
        (Twig("x", (), LongTwig("y")), False),
    ],
)
def test_fields_of_structs_are_tested_too(function: Any, value: Any, fits: bool) -> None:
    assert fits_return_type(function, value) == fits


def test_a_struct_of_a_derived_class_is_another_one() -> None:
    assert not fits_return_type(twig, LongTwig("x"))
    assert fits_return_type(unannotated, LongTwig("x", length=2))


def test_every_fact_of_a_healthy_node_is_what_it_promises() -> None:
    fleet = selftest.recorded_fleet("hgx-h100-ib", tuple(registry.checks().values()))
    facts, known = registry.facts(), fleet.snapshots["n2"].facts
    assert len(known) > 80
    assert [
        name
        for name, value in known.items()
        if name in facts and not fits_return_type(facts[name].parse, value)
    ] == []
