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
    groups = ceil_divide(world * LEAST, exact)
    ranks_in_row = ceil_divide(world, groups)
    share = min(exact // ranks_in_row, 2 * PRIME)
    height = share // 3
    greatest = min(PRIME, share - height)
    return greatest, height, groups


def ceil_divide(number, divisor):
    """Return the quotient of two whole numbers, rounded up."""
    return -(-number // divisor)


def pattern(rank, greatest=PRIME):
    """Return one row of what `rank` contributes: whole numbers from 1 to `greatest`.

    With all of PRIME two ranks differ in all but two elements of a row at least, as long as there
    are fewer than PRIME squared; beyond that, patterns repeat.
    """
    square = rank + 1
    line = rank // PRIME + 1
    values = []
    for x in range(1, PRIME + 1):
        quadratic = (square * x * x + line * x) % PRIME
        values.append(1 + quadratic % greatest)
    return values


def height(row, greatest):
    """Return what all ranks add in a row, from 0 to `greatest`: a hash of its number.

    Takes a number, or a tensor of numbers (int64).
    """
    # Multiplication by a large odd number and a shift mix the bits of neighbouring rows.
    mixed = row * 2654435761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return (mixed >> 13) % (greatest + 1)


class ReducedShare(object):
    """The sum of what one rank or some ranks contribute.

    `table` is a tensor of G rows: the sum of the patterns of each group of ranks. `counts` has the
    number of these ranks in each group; rank r is in group r modulo G.
    """

    def __init__(self, table, counts):
        self.table = table
        self.counts = counts


class Numbers(object):
    """The data of one type for sums over `world` ranks.

    Collectives without sums use a world of 1. `kind` are the keywords for tensors of this type,
    `greatest` is the greatest value of a pattern, `most` the greatest height, `groups` is G.
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
        if self._whole is None:
            self._whole = self.sum(range(self._world))
        return self._whole

    def sum(self, ranks):
        """Return the sum of the shares of some ranks."""
        table = [[0] * PRIME for _ in range(self.groups)]
        counts = [0] * self.groups
        for rank in ranks:
            group = rank % self.groups
            counts[group] += 1
            row = table[group]
            for place, value in enumerate(pattern(rank, self.greatest)):
                row[place] += value
        table = self._torch.tensor(table, **self.kind)
        counts = self._torch.tensor(counts, dtype=self._torch.int64, device=self._device)
        return ReducedShare(table, counts)

    def value(self, rank, row, place, turn):
        """Return what `rank` contributes to one element, a plain number."""
        group_of_row = (row + turn) % self.groups
        if group_of_row != rank % self.groups:
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
            differs = piece != wanted
            counts.append(differs.sum())
        if not counts:
            return 0, []
        # One sum at the end: the host waits for the device once.
        total = self._torch.stack(counts).sum()
        wrong = int(total)
        if wrong == 0:
            return 0, []
        return wrong, self._first_wrong(buffer, share, row, turn)

    def _first_wrong(self, buffer, share, row, turn):
        """Return (index, row, place in it, seen, expected) of the first WINDOW wrong elements."""
        elements = []
        start = 0
        for piece, wanted in self._pieces(buffer, share, row, turn):
            seen = piece.flatten()
            expected = wanted.expand_as(piece).flatten()
            room = WINDOW - len(elements)
            differs = seen != expected
            positions = differs.nonzero().flatten()
            for position in positions[:room].tolist():
                index = start + position
                rows_before, place = divmod(index, PRIME)
                value = float(seen[position])
                wanted_value = float(expected[position])
                elements.append((index, row + rows_before, place, value, wanted_value))
            start += seen.numel()
            if len(elements) == WINDOW:
                break
        return elements

    def _pieces(self, buffer, share, row, turn):
        """Yield (piece of the buffer, what it should hold), SLICE rows of PRIME elements at most.

        The last piece has one dimension, if the buffer ends within a row.
        """
        whole_rows = buffer.numel() // PRIME
        split = whole_rows * PRIME
        body = buffer[:split].view(-1, PRIME)
        rest = buffer[split:]
        table = self._torch.roll(share.table, -turn, 1)
        first = row + turn
        for start in range(0, whole_rows, SLICE):
            stop = min(start + SLICE, whole_rows)
            wanted = self._rows(table, share.counts, first + start, stop - start)
            yield body[start:stop], wanted
        length = rest.numel()
        if length > 0:
            wanted = self._rows(table, share.counts, first + whole_rows, 1)
            yield rest, wanted[0, :length]

    def _rows(self, table, counts, first, count):
        """Return the sums of `count` rows from the number `first` on.

        Row k has the ranks of group k modulo G: the sum of their patterns, and the height of the
        row once for each of them.
        """
        rows = self._torch.arange(first, first + count, device=self._device)
        group = rows % self.groups
        heights = height(rows, self.most) * counts[group]
        heights = heights.to(self.kind["dtype"])
        patterns = table
        if self.groups > 1:  # else the only row is broadcast, without a copy for each row
            patterns = table[group]
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
    rank_of = _rank_by_contribution(numbers, wrong, turn, world)
    if deficit in rank_of:
        return [(rank_of[deficit], "missing")]
    if surplus in rank_of:
        return [(rank_of[surplus], "doubled")]
    if len(wrong) < DOUBLE:
        return []
    for contribution, rank in rank_of.items():
        # If this rank is missing, the surplus with what it gives is what the other gave twice.
        doubled = tuple(more + own for more, own in zip(surplus, contribution))
        if doubled in rank_of:
            return [(rank, "missing"), (rank_of[doubled], "doubled")]
    return []


def _rank_by_contribution(numbers, wrong, turn, world):
    """Return each rank by the tuple of what it contributes to the wrong elements."""
    rank_of = {}
    for rank in range(world):
        contribution = []
        for _, row, place, _, _ in wrong:
            contribution.append(numbers.value(rank, row, place, turn))
        rank_of[tuple(contribution)] = rank
    return rank_of


def _are_integers(wrong):
    """Return whether all wrong elements hold whole numbers; false for NaN and infinity too."""
    for _, _, _, seen, _ in wrong:
        if not abs(seen) < LARGEST_SUM or seen != int(seen):
            return False
    return True
