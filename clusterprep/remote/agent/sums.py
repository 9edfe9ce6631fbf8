"""The data of the trial: each rank knows what all contribute and what has to come out.

The elements of a buffer are in rows of PRIME elements. Rank r contributes at place x of row k

    pattern(r)[x] + height(k)          a quadratic of x modulo PRIME, and a hash of the row's number

so it depends on the rank and on the element: a piece that arrives at the wrong place differs, also
when it moved by whole rows. Every repetition (`turn`) shifts both by one, so that what a repetition
left in the buffer is wrong in the next.

Sums are exact in every type whatever the order of additions, because no sum exceeds the whole
numbers that the type represents without a gap: 2**24 in float32, 2**31 - 1 in int32, but 256 in
bfloat16. `span` divides that among the ranks. Where the share of one rank would get too small, only
every G-th rank contributes to a row, the others zero.
"""

PRIME = 251
LEAST = 8  # values that one rank needs to be distinguished from others
# Whole numbers up to here have no gap in the type.
EXACT = {"float32": 2**24, "int32": 2**31 - 1, "bfloat16": 2**8}
# rows that are compared at once, a million elements: bounds the memory for what is wanted
SLICE = 4096
WINDOW = 64  # wrong elements that are examined for the reason why they are wrong
SINGLE, DOUBLE = 4, 8  # wrong elements that prove one rank's share in them, or two ranks'
LARGEST_SUM = 2.0**31  # no right or explainable sum is as large


def span(exact, world):
    """Return (greatest value of a pattern, greatest height, G).

    With them the sum of `world` ranks is at most `exact`.
    """
    groups = -(-world * LEAST // exact)
    ranks_in_row = -(-world // groups)
    share = min(exact // ranks_in_row, 2 * PRIME)
    height = share // 3
    greatest = min(PRIME, share - height)
    return greatest, height, groups


def pattern(rank, greatest=PRIME):
    """Return one row of what `rank` contributes: whole numbers from 1 to `greatest`.

    With all of PRIME two ranks differ in all but two elements of a row at least, as long as there
    are fewer than PRIME squared; beyond that, patterns repeat.
    """
    square = rank + 1
    line = rank // PRIME + 1
    return [1 + (square * x * x + line * x) % PRIME % greatest for x in range(1, PRIME + 1)]


def height(row, greatest):
    """Return what all ranks add in a row, from 0 to `greatest`: a hash of its number.

    Takes a number, or a tensor of numbers (int64).
    """
    mixed = row * 2654435761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return (mixed >> 13) % (greatest + 1)


class ReducedShare(object):
    """The sum of what one rank or some ranks contribute.

    `table` has a row of patterns for each of the G groups of ranks, `counts` the ranks of each
    group.
    """

    def __init__(self, table, counts):
        self.table = table
        self.counts = counts


class Numbers(object):
    """The data of one type for sums over `world` ranks.

    Collectives without sums use a world of 1.
    """

    def __init__(self, torch, device, dtype, world):
        self._torch = torch
        self._device = device
        self.kind = {
            "dtype": getattr(torch, dtype),
            "device": device,
        }
        self.greatest, self.most, self.groups = span(EXACT[dtype], world)
        self._world = world
        self._whole = None
        self._singles = {}
        self._patterns = {}

    def single(self, rank):
        """Return the share of one rank."""
        if rank not in self._singles:
            self._singles[rank] = self.sum([rank])
        return self._singles[rank]

    def whole(self):
        """Return the sum of all ranks."""
        self._whole = self._whole or self.sum(range(self._world))
        return self._whole

    def sum(self, ranks):
        """Return the sum of the shares of some ranks."""
        table = [[0] * PRIME for _ in range(self.groups)]
        counts = [0] * self.groups
        for rank in ranks:
            group = rank % self.groups
            added = pattern(rank, self.greatest)
            table[group] = [sum(pair) for pair in zip(table[group], added)]
            counts[group] += 1
        table = self._torch.tensor(table, **self.kind)
        counts = self._torch.tensor(counts, dtype=self._torch.int64, device=self._device)
        return ReducedShare(table, counts)

    def value(self, rank, row, place, turn):
        """Return what `rank` contributes to one element, a plain number."""
        if (row + turn) % self.groups != rank % self.groups:
            return 0
        if rank not in self._patterns:
            self._patterns[rank] = pattern(rank, self.greatest)
        shifted = (place + turn) % PRIME
        return self._patterns[rank][shifted] + height(row + turn, self.most)

    def fill(self, buffer, share, row, turn):
        """Write a share into a buffer whose first row has the number `row`.

        The buffer has one dimension and is contiguous.
        """
        for piece, wanted in self._pieces(buffer, share, row, turn):
            piece.copy_(wanted)

    def compare(self, buffer, share, row, turn):
        """Return how many elements differ, and the first WINDOW of them.

        Each is (index, row, place, seen, wanted).
        """
        counts = []
        for piece, wanted in self._pieces(buffer, share, row, turn):
            counts.append((piece != wanted).sum())
        # One sum at the end: the host waits for the device once.
        wrong = int(self._torch.stack(counts).sum()) if counts else 0
        if not wrong:
            return 0, []
        return wrong, self._first_wrong(buffer, share, row, turn)

    def _first_wrong(self, buffer, share, row, turn):
        elements = []
        start = 0
        for piece, wanted in self._pieces(buffer, share, row, turn):
            seen = piece.flatten()
            expected = wanted.expand_as(piece).flatten()
            room = WINDOW - len(elements)
            places = (seen != expected).nonzero().flatten()[:room]
            for place in places.tolist():
                index = start + place
                where = (index, row + index // PRIME, index % PRIME)
                elements.append(where + (float(seen[place]), float(expected[place])))
            start += seen.numel()
            if len(elements) == WINDOW:
                break
        return elements

    def _pieces(self, buffer, share, row, turn):
        """Yield slices of the buffer with what they should hold; the last may be part of a row."""
        whole = buffer.numel() // PRIME
        body = buffer[: whole * PRIME].view(-1, PRIME)
        tail = buffer[whole * PRIME :]
        table = self._torch.roll(share.table, -turn, 1)
        first = row + turn
        for start in range(0, whole, SLICE):
            count = min(SLICE, whole - start)
            wanted = self._rows(table, share.counts, first + start, count)
            yield body[start : start + count], wanted
        if tail.numel():
            wanted = self._rows(table, share.counts, first + whole, 1)
            yield tail, wanted[0, : tail.numel()]

    def _rows(self, table, counts, first, count):
        """Return the sums of `count` rows from the number `first` on."""
        rows = self._torch.arange(first, first + count, device=self._device)
        group = rows % self.groups
        heights = height(rows, self.most) * counts[group]
        heights = heights.to(self.kind["dtype"])
        patterns = table if self.groups == 1 else table[group]
        return patterns + heights[:, None]


def explain(numbers, wrong, turn, world):
    """Return the ranks whose share is missing in a sum or in it twice.

    They are [(rank, "missing" or "doubled")], empty if neither explains the sum. `wrong` are the
    wrong elements of a comparison. All of them have to agree, and there have to be enough of them.
    """
    if len(wrong) < SINGLE or not _are_integers(wrong):
        return []
    surplus = tuple(int(seen) - int(wanted) for _, _, _, seen, wanted in wrong)
    deficit = tuple(-value for value in surplus)
    rank_of = {}  # the contributions of a rank to the wrong elements -> the rank
    for rank in range(world):
        values = [numbers.value(rank, row, place, turn) for _, row, place, _, _ in wrong]
        rank_of[tuple(values)] = rank
    if deficit in rank_of:
        return [(rank_of[deficit], "missing")]
    if surplus in rank_of:
        return [(rank_of[surplus], "doubled")]
    if len(wrong) < DOUBLE:
        return []
    for values, rank in rank_of.items():
        with_rank = tuple(a + b for a, b in zip(surplus, values))
        if with_rank in rank_of:
            return [(rank, "missing"), (rank_of[with_rank], "doubled")]
    return []


def _are_integers(wrong):
    """Whether all wrong elements hold whole numbers; false for NaN and infinity too."""
    for _, _, _, seen, _ in wrong:
        if not abs(seen) < LARGEST_SUM or seen != int(seen):
            return False
    return True
