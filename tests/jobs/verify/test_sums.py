"""The data of the trial.

Known without communication, and no plausible corruption leaves a result as it was.
"""

from __future__ import annotations

import random

import pytest

from clusterprep.remote.agent.sums import EXACT, LEAST, PRIME, Numbers, explain, pattern, span

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
WORLD = 8
LENGTH = 40 * PRIME + 17
TYPES = sorted(EXACT)
WORLDS = [1, 2, 3, 8, 33, 64]


def numbers(dtype: str = "float32", world: int = WORLD) -> Numbers:
    return Numbers(torch, "cpu", dtype, world)


def data(of: Numbers, rank: int, turn: int = 0, row: int = 0, length: int = LENGTH) -> torch.Tensor:
    buffer = torch.empty(length, **of.kind)
    of.fill(buffer, of.single(rank), row, turn)
    return buffer


def reduced(of: Numbers, ranks: list[int], turn: int = 0) -> torch.Tensor:
    """Added one after the other in the type itself, as a backend does."""
    total = torch.zeros(LENGTH, **of.kind)
    for rank in ranks:
        total = total + data(of, rank, turn)
    return total


def wrong(of: Numbers, buffer: torch.Tensor, world: int = WORLD, turn: int = 0) -> int:
    return of.compare(buffer, of.sum(range(world)), 0, turn)[0]


def said(
    of: Numbers, buffer: torch.Tensor, world: int = WORLD, turn: int = 0
) -> list[tuple[int, str]]:
    return explain(of, of.compare(buffer, of.sum(range(world)), 0, turn)[1], turn, world)


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_right_sums_are_right_in_any_order(dtype: str, world: int) -> None:
    of, order = numbers(dtype, world), list(range(world))
    for turn in range(3):
        random.Random(turn).shuffle(order)
        assert wrong(of, reduced(of, order, turn), world, turn) == 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("world", [1, 2, 8, 31, 32, 33, 100, 1024, 20000, 100_000])
def test_no_sum_exceeds_what_the_type_holds_exactly(dtype: str, world: int) -> None:
    greatest, most, groups = span(EXACT[dtype], world)
    together = -(-world // groups)  # ranks that give something in one row
    assert together * (greatest + most) <= EXACT[dtype]
    assert greatest + most >= min(LEAST, EXACT[dtype])


def test_the_whole_numbers_that_a_type_holds_are_no_more_and_no_less() -> None:
    for dtype, limit in EXACT.items():
        ones = torch.tensor([limit - 1, 1], dtype=getattr(torch, dtype))
        assert int(ones[0]) == limit - 1
        if dtype != "int32":
            assert int(torch.tensor([float(limit + 1)], dtype=getattr(torch, dtype))) != limit + 1


# ---------------------------------------------------------------- what depends on what


def test_what_a_rank_gives_depends_on_rank_and_element() -> None:
    ranks = [0, 1, 2, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME, 60_000]
    for rank in ranks:
        values = pattern(rank)
        assert 1 <= min(values) <= max(values) <= PRIME
        assert all(values[i] != values[i + 1] for i in range(3))
        for other in ranks:
            same = sum(a == b for a, b in zip(values, pattern(other), strict=True))
            assert same == PRIME if rank == other else same <= 2


@pytest.mark.parametrize("dtype", TYPES)
def test_a_number_is_what_the_buffer_holds(dtype: str) -> None:
    of = numbers(dtype, 40)
    for rank, row, turn in [(0, 0, 0), (7, 5, 1), (39, 1000, 4)]:
        buffer = data(of, rank, turn, row)
        assert [
            of.value(rank, row + i // PRIME, i % PRIME, turn) for i in range(0, LENGTH, 97)
        ] == buffer[::97].tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_the_last_repetition_left_is_wrong_in_the_next(dtype: str) -> None:
    of = numbers(dtype)
    assert wrong(of, reduced(of, list(range(WORLD)), turn=1), turn=2) > 0.9 * LENGTH


# ---------------------------------------------------------------- corruption


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_missing_rank_spoils_every_element_and_is_named(dtype: str, rank: int) -> None:
    of = numbers(dtype)
    buffer = reduced(of, [r for r in range(WORLD) if r != rank], turn=3)
    assert wrong(of, buffer, turn=3) == LENGTH
    assert said(of, buffer, turn=3) == [(rank, "missing")]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_counted_twice_spoils_every_element_and_is_named(dtype: str, rank: int) -> None:
    of = numbers(dtype)
    buffer = reduced(of, [*range(WORLD), rank])
    assert wrong(of, buffer) == LENGTH
    assert said(of, buffer) == [(rank, "doubled")]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_rank_counted_instead_of_another_is_named_with_it(dtype: str) -> None:
    of = numbers(dtype)
    buffer = reduced(of, [0, 1, 2, 3, 4, 5, 6, 6])
    assert wrong(of, buffer) > 0.8 * LENGTH
    assert said(of, buffer) == [(7, "missing"), (6, "doubled")]


def test_a_missing_rank_is_named_where_not_every_rank_gives_something_everywhere() -> None:
    of, world = numbers("bfloat16", 100), 100
    assert of.groups > 1
    buffer = reduced(of, [rank for rank in range(world) if rank != 42])
    assert 0 < wrong(of, buffer, world) < LENGTH
    assert said(of, buffer, world) == [(42, "missing")]


@pytest.mark.parametrize("dtype", TYPES)
def test_pieces_that_two_ranks_swapped_are_seen(dtype: str) -> None:
    """Each adds its own data at the other's place.

    0 to 99 of rank 2 at 100 to 199, rank 5 the other way.
    """
    of = numbers(dtype)
    buffer = reduced(of, list(range(WORLD)))
    two, five = data(of, 2), data(of, 5)
    buffer[0:100] += five[100:200] - two[0:100]
    buffer[100:200] += two[0:100] - five[100:200]
    assert wrong(of, buffer) > 150
    assert said(of, buffer) == []


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shift", [1, 64, 250, 256, PRIME, 2 * PRIME, 7 * PRIME, 16 * PRIME])
def test_a_shifted_sum_is_seen(dtype: str, shift: int) -> None:
    of = numbers(dtype)
    assert wrong(of, torch.roll(reduced(of, list(range(WORLD))), shift)) > LENGTH // 2


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 9, 20])
def test_a_chunk_of_whole_rows_at_the_wrong_place_is_seen(dtype: str, rows: int) -> None:
    of = numbers(dtype)
    buffer = reduced(of, list(range(WORLD)))
    here, there = buffer[: rows * PRIME].clone(), buffer[rows * PRIME : 2 * rows * PRIME].clone()
    buffer[: rows * PRIME], buffer[rows * PRIME : 2 * rows * PRIME] = there, here
    assert wrong(of, buffer) >= PRIME


def test_random_moves_of_chunks_are_seen_in_every_type() -> None:
    random.seed(5)
    for _ in range(60):
        of = numbers(random.choice(TYPES), random.choice([2, 3, 8, 17]))
        world = [
            *range(
                max(2, 256 // (of.greatest + of.most)) if of.kind["dtype"] is torch.bfloat16 else 8
            )
        ]
        world = world[: random.choice([2, len(world)])]
        buffer = reduced(of, world)
        size = random.choice([64, 100, PRIME, 4 * PRIME])
        source, target = random.sample(range(LENGTH - size), 2)
        buffer[target : target + size] = buffer[source : source + size].clone()
        assert of.compare(buffer, of.sum(world), 0, 0)[0] > 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index", [0, 2 * PRIME, LENGTH - 1])
def test_one_flipped_bit_is_one_wrong_element(dtype: str, index: int) -> None:
    of = numbers(dtype)
    width = 16 if dtype == "bfloat16" else 32
    whole = torch.int16 if width == 16 else torch.int32
    for bit in range(width):
        buffer = reduced(of, list(range(WORLD)))
        right = float(buffer[index])
        flipped = buffer.view(whole)
        flipped[index] = flipped[index] ^ (-(2 ** (width - 1)) if bit == width - 1 else 2**bit)
        count, found = of.compare(buffer, of.sum(range(WORLD)), 0, 0)
        assert (count, len(found)) == (1, 1)
        assert (found[0][0], found[0][4]) == (index, right)
        assert found[0][3] != right
        assert explain(of, found, 0, WORLD) == []


def test_a_nan_is_wrong_and_no_rank_explains_it() -> None:
    of = numbers()
    buffer = reduced(of, list(range(WORLD)))
    buffer[7:20] = float("nan")
    assert wrong(of, buffer) == 13
    assert said(of, buffer) == []


@pytest.mark.parametrize("length", [1, 2, PRIME - 1, PRIME, PRIME + 1])
def test_short_buffers_are_filled_and_compared_whole(length: int) -> None:
    of = numbers()
    buffer = data(of, 1, length=length)
    assert of.compare(buffer, of.single(1), 0, 0) == (0, [])
    buffer[length - 1] += 1
    assert of.compare(buffer, of.single(1), 0, 0)[1][0][0] == length - 1


def test_the_first_wrong_elements_are_found_across_slices() -> None:
    of = numbers("int32")
    length = 5000 * PRIME + 3
    buffer = data(of, 1, length=length)
    for index in (4097 * PRIME + 7, length - 1):
        buffer[index] += 1
    count, found = of.compare(buffer, of.single(1), 0, 0)
    assert (count, [row[0] for row in found]) == (2, [4097 * PRIME + 7, length - 1])
    assert [row[1:3] for row in found] == [(4097, 7), (5000, 2)]
