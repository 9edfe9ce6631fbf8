"""A seed says everything, the majority stays right, every fault meets every command of its own."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.soak.schedule import ALL, BY_NAME, FIRST_VALUE, KINDS, VERIFY_NODES, Round, rounds

NODES = [f"n{number}" for number in range(1, 65)]


def first(count: int, seed: int = 7, nodes: list[str] = NODES, share: float = 0.1) -> list[Round]:
    return list(itertools.islice(rounds(seed, nodes, share), count))


def test_the_same_seed_is_the_same_schedule() -> None:
    assert first(50) == first(50)
    assert first(50) != first(50, seed=8)


def test_the_schedule_begins_with_an_apply_and_nothing_wrong() -> None:
    assert first(1) == [Round(0, "apply", (), FIRST_VALUE)]


@pytest.mark.parametrize(
    ("count", "share", "wanted"), [(64, 0.1, 6), (6, 0.1, 1), (6, 0.9, 2), (3, 0.5, 1)]
)
def test_so_many_nodes_are_wrong_and_never_half_of_them(
    count: int, share: float, wanted: int
) -> None:
    turns = first(200, nodes=NODES[:count], share=share)[1:]
    assert {len(turn.harmed() - {""}) for turn in turns if turn.command == "check"} == {wanted}


def test_every_apply_writes_something_new() -> None:
    values = [turn.value for turn in first(100)]
    assert len(set(values)) == 100


def test_every_fault_meets_every_command_that_it_is_for() -> None:
    met = Counter((harm.kind, turn.command) for turn in first(1500) for harm in turn.harms)
    assert set(met) == {(kind.name, command) for kind in KINDS for command in kind.commands}


def test_harms_are_for_their_command() -> None:
    for turn in first(500)[1:]:
        assert turn.harms
        assert all(turn.command in BY_NAME[harm.kind].commands for harm in turn.harms)
        assert all(BY_NAME[harm.kind].of_command == (not harm.node) for harm in turn.harms)
        assert all((harm.at == 0) == BY_NAME[harm.kind].whole for harm in turn.harms)
        assert turn.partial == (
            turn.command == "apply" and any(BY_NAME[harm.kind].blocks for harm in turn.harms)
        )
        assert len(turn.nodes) == (VERIFY_NODES if turn.command == "verify" else 0)
        assert turn.command in ALL | {"verify"}
