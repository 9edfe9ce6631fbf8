"""The data of the trial: its sum is known without communication, and no plausible corruption leaves it as it was."""

from __future__ import annotations

import random

import pytest

from clusterprep.remote.trial import MAX_WORLD, PRIME, compare, fill, pattern, total

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
WORLD = 8
LENGTH = 4 * PRIME + 17


def data(rank: int) -> torch.Tensor:
    buffer = torch.empty(LENGTH)
    fill(buffer, torch.tensor(pattern(rank), dtype=torch.float32))
    return buffer


def reduced(*ranks: int) -> torch.Tensor:
    return sum(map(data, ranks), torch.zeros(LENGTH))


def wrong(buffer: torch.Tensor, world: int = WORLD) -> int:
    return compare(buffer, torch.tensor(total(world), dtype=torch.float32))[0]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_right_sums_are_right_in_any_order(world: int) -> None:
    order = list(range(world))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        assert wrong(reduced(*order), world) == 0


def test_the_greatest_sum_is_exact_in_float32() -> None:
    assert MAX_WORLD * PRIME < 2**24
    with pytest.raises(ValueError, match="not exact"):
        total(MAX_WORLD + 1)


def test_what_a_rank_gives_depends_on_rank_and_element() -> None:
    ranks = [0, 1, 2, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME, MAX_WORLD - 1]
    for rank in ranks:
        values = pattern(rank)
        assert 1 <= min(values) <= max(values) <= PRIME
        assert all(values[i] != values[i + 1] for i in range(3))
        for other in ranks:
            same = sum(a == b for a, b in zip(values, pattern(other), strict=True))
            assert same == PRIME if rank == other else same <= 2


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_missing_rank_spoils_every_element(rank: int) -> None:
    assert wrong(reduced(*(r for r in range(WORLD) if r != rank))) == LENGTH


def test_a_rank_counted_twice_instead_of_another_spoils_nearly_every_element() -> None:
    assert wrong(reduced(0, 1, 2, 3, 4, 5, 6, 6)) > 0.97 * LENGTH


def test_a_rank_counted_twice_spoils_every_element() -> None:
    assert wrong(reduced(*range(WORLD), 3)) == LENGTH


def test_pieces_that_two_ranks_swapped_are_seen() -> None:
    """Each adds its own data at the other's place: 0 to 99 of rank 2 at 100 to 199, rank 5 the other way."""
    buffer = reduced(*range(WORLD))
    two, five = data(2), data(5)
    buffer[0:100] += five[100:200] - two[0:100]
    buffer[100:200] += two[0:100] - five[100:200]
    assert wrong(buffer) > 190


@pytest.mark.parametrize("shift", [1, 64, 250, 256])
def test_a_shifted_sum_is_seen(shift: int) -> None:
    assert wrong(torch.roll(reduced(*range(WORLD)), shift)) > LENGTH // 2


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("index", [0, 2 * PRIME, LENGTH - 1])
def test_one_flipped_bit_is_one_wrong_element(bit: int, index: int) -> None:
    buffer = reduced(*range(WORLD))
    flipped = buffer.view(torch.int32)
    flipped[index] = flipped[index] ^ (-(2**31) if bit == 31 else 2**bit)
    count, first = compare(buffer, torch.tensor(total(WORLD), dtype=torch.float32))
    assert count == 1
    assert first["index"] == index
    assert first["wanted"] == total(WORLD)[index % PRIME]
    assert first["seen"] != str(first["wanted"])


def test_a_nan_is_wrong() -> None:
    buffer = reduced(*range(WORLD))
    buffer[7] = float("nan")
    assert wrong(buffer) == 1


@pytest.mark.parametrize("length", [1, 2, PRIME - 1, PRIME, PRIME + 1])
def test_short_buffers_are_filled_and_compared_whole(length: int) -> None:
    period = torch.tensor(pattern(1), dtype=torch.float32)
    buffer = torch.empty(length)
    fill(buffer, period)
    assert compare(buffer, period) == (0, None)
    buffer[length - 1] += 1
    assert compare(buffer, period)[1]["index"] == length - 1
