"""A value is compared with what its function promises, however deep it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from msgspec import Struct

from clusterprep.cli.commands import selftest
from clusterprep.model import Absent
from clusterprep.survey import registry
from clusterprep.survey.typecheck import MOST_TESTED, fits_return_type


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


class Grown(Sequence[Leaf]):
    """Leaves that are made when they are looked at."""

    def __init__(self, *names: Any) -> None:
        self.names = names

    def __getitem__(self, place: Any) -> Any:
        return Leaf(self.names[place], 1.0)

    def __len__(self) -> int:
        return len(self.names)


def leaves(answer: object) -> Sequence[Leaf]: ...


def names(answer: object) -> Sequence[str | tuple[str, ...]]: ...


def test_what_fits_one_type_is_tested_for_another_one() -> None:
    assert fits_return_type(leaves, [LEAF])
    assert not fits_return_type(names, [LEAF])
    assert fits_return_type(leaves, [LEAF])


def test_an_item_beside_those_that_were_tested_is_tested() -> None:
    many = [Leaf(str(number), 1.0) for number in range(MOST_TESTED)]
    wrong = Leaf(7, 1.0)  # type: ignore[arg-type]
    for _ in range(3):
        assert fits_return_type(leaves, many)
        assert not fits_return_type(leaves, [*many, wrong])
        assert fits_return_type(leaves, [*many, LEAF])
        assert not fits_return_type(leaves, [LEAF, wrong])


def test_items_that_are_not_held_are_tested_each_time() -> None:
    for _ in range(100):
        assert fits_return_type(leaves, Grown("a", "b"))
        assert not fits_return_type(leaves, Grown("a", 7))
        assert not fits_return_type(leaves, Grown(7, "b"))


def test_every_fact_of_a_healthy_node_is_what_it_promises() -> None:
    fleet = selftest.recorded_fleet("hgx-h100-ib", tuple(registry.checks().values()))
    facts, known = registry.facts(), fleet.snapshots["n2"].facts
    assert len(known) > 80
    assert [
        name
        for name, value in known.items()
        if name in facts and not fits_return_type(facts[name].parse, value)
    ] == []
