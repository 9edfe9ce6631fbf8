"""The data of the trial: what every rank gives and what has to come out, known everywhere without communication.

An element stands in a row of PRIME elements, and what rank r gives at place x of row k is

    pattern(r)[x] + height(k)          a quadratic of x modulo PRIME, and a hash of the row's number

so it depends on the rank and on the element: a piece that arrives at the wrong place differs, also when it moved by
whole rows. Every repetition shifts both by one, so that what a repetition left in the buffer is wrong in the next.

Sums are exact in every type whatever the order of additions, because no sum exceeds the whole numbers that the type
holds one by one: 2**24 in float32, 2**31 - 1 in int32, but 256 in bfloat16. `span` divides that among the ranks.
Where the share of one rank would get too small, only every G-th rank gives something in a row, the others zero.
"""

PRIME = 251
LEAST = 8  # values that one rank needs to be told from others
EXACT = {
    "float32": 2**24,
    "int32": 2**31 - 1,
    "bfloat16": 2**8,
}  # whole numbers up to here have no gap
SLICE = 4096  # rows that are worked on at once, a million elements: what is wanted is never held as a whole
WINDOW = 64  # wrong elements that are looked at for what made them wrong
SINGLE, DOUBLE = 4, 8  # wrong elements that prove one rank's share in them, or two ranks'


def span(exact, world):
    """(greatest value of a pattern, greatest height, G) so that the sum of `world` ranks stays within `exact`."""
    groups = -(-world * LEAST // exact)
    share = min(exact // -(-world // groups), 2 * PRIME)
    height = share // 3
    return min(PRIME, share - height), height, groups


def pattern(rank, greatest=PRIME):
    """What `rank` gives, one row of it: whole numbers from 1 to `greatest`.

    With all of PRIME two ranks differ in all but two elements of a row at least, as long as there are fewer than
    PRIME squared; beyond that, patterns come again.
    """
    square, line = rank + 1, rank // PRIME + 1
    return [1 + (square * x * x + line * x) % PRIME % greatest for x in range(1, PRIME + 1)]


def height(row, greatest):
    """What all ranks add in a row, from 0 to `greatest`. Takes a number, or a tensor of them (int64)."""
    mixed = row * 2654435761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return (mixed >> 13) % (greatest + 1)


class ReducedShare(object):
    """What one rank gives, or some ranks together: `table` has a row for each of the G groups of ranks."""

    def __init__(self, table, counts):
        self.table, self.counts = table, counts


class Numbers(object):
    """The data of one type, for sums over `world` ranks; a world of 1 is for collectives that do not add."""

    def __init__(self, torch, device, dtype, world):
        self._torch, self._device = torch, device
        self.kind = {"dtype": getattr(torch, dtype), "device": device}
        self.greatest, self.most, self.groups = span(EXACT[dtype], world)
        self._world, self._whole = world, None
        self._singles, self._patterns = {}, {}

    def single(self, rank):
        """The share of one rank."""
        if rank not in self._singles:
            self._singles[rank] = self.sum([rank])
        return self._singles[rank]

    def whole(self):
        """What all ranks add up to."""
        self._whole = self._whole or self.sum(range(self._world))
        return self._whole

    def sum(self, ranks):
        """What the shares of some ranks add up to."""
        table, counts = [[0] * PRIME for _ in range(self.groups)], [0] * self.groups
        for rank in ranks:
            group = rank % self.groups
            table[group] = [sum(pair) for pair in zip(table[group], pattern(rank, self.greatest))]
            counts[group] += 1
        whole = {"dtype": self._torch.int64, "device": self._device}
        return ReducedShare(
            self._torch.tensor(table, **self.kind), self._torch.tensor(counts, **whole)
        )

    def value(self, rank, row, place, turn):
        """What `rank` gives at one element, a plain number."""
        if (row + turn) % self.groups != rank % self.groups:
            return 0
        if rank not in self._patterns:
            self._patterns[rank] = pattern(rank, self.greatest)
        return self._patterns[rank][(place + turn) % PRIME] + height(row + turn, self.most)

    def fill(self, buffer, share, row, turn):
        """Write a share into a buffer (one dimension, contiguous) whose first row has the number `row`."""
        for piece, wanted in self._pieces(buffer, share, row, turn):
            piece.copy_(wanted)

    def compare(self, buffer, share, row, turn):
        """How many elements differ, and the first WINDOW of them: (index, row, place, seen, wanted)."""
        counts = [
            (piece != wanted).sum() for piece, wanted in self._pieces(buffer, share, row, turn)
        ]
        wrong = int(self._torch.stack(counts).sum()) if counts else 0
        return wrong, self._first(buffer, share, row, turn) if wrong else []

    def _first(self, buffer, share, row, turn):
        found, start = [], 0
        for piece, wanted in self._pieces(buffer, share, row, turn):
            flat, full = piece.flatten(), wanted.expand_as(piece).flatten()
            for at in (flat != full).nonzero().flatten()[: WINDOW - len(found)].tolist():
                index = start + at
                found.append(
                    (index, row + index // PRIME, index % PRIME, float(flat[at]), float(full[at]))
                )
            start += flat.numel()
            if len(found) == WINDOW:
                break
        return found

    def _pieces(self, buffer, share, row, turn):
        """Slices of the buffer with what is wanted in them; the last one is what is left of a row."""
        whole = buffer.numel() // PRIME
        body, tail = buffer[: whole * PRIME].view(-1, PRIME), buffer[whole * PRIME :]
        table = self._torch.roll(share.table, -turn, 1)
        for start in range(0, whole, SLICE):
            count = min(SLICE, whole - start)
            yield (
                body[start : start + count],
                self._rows(table, share.counts, row + turn + start, count),
            )
        if tail.numel():
            yield tail, self._rows(table, share.counts, row + turn + whole, 1)[0, : tail.numel()]

    def _rows(self, table, counts, first, count):
        rows = self._torch.arange(first, first + count, device=self._device)
        group = rows % self.groups
        heights = (height(rows, self.most) * counts[group]).to(self.kind["dtype"])
        return (table if self.groups == 1 else table[group]) + heights[:, None]


def explain(numbers, found, turn, world):
    """Whose share in a sum is missing or there twice: [(rank, "missing" or "doubled")], empty where it is neither.

    `found` are the wrong elements of a comparison. All of them have to agree, and there have to be enough of them.
    """
    if len(found) < SINGLE or any(
        not abs(seen) < 2.0**31 or seen != int(seen) for _, _, _, seen, _ in found
    ):
        return []
    over = tuple(int(seen) - int(wanted) for _, _, _, seen, wanted in found)
    under = tuple(-value for value in over)
    shares = {
        tuple(numbers.value(rank, row, place, turn) for _, row, place, _, _ in found): rank
        for rank in range(world)
    }
    if under in shares:
        return [(shares[under], "missing")]
    if over in shares:
        return [(shares[over], "doubled")]
    if len(found) < DOUBLE:
        return []
    for values, rank in shares.items():
        other = shares.get(tuple(a + b for a, b in zip(over, values)))
        if other is not None:
            return [(rank, "missing"), (other, "doubled")]
    return []
