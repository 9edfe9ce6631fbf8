"""The collectives of the trial: the data that goes in, the expected result, and the time it takes.

`bytes` is what nccl-tests calls the size: the larger buffer of one rank, which all_gather and
all_to_all fill from all ranks, and reduce_scatter reads.
"""

import time

from clusterprep.remote.agent.sums import PRIME, Numbers, explain

MAX_REPETITIONS = 5
BUDGET = 2.0  # seconds that the timed repetitions of one size may take together
# Bytes of the probes that predict how long a large collective takes: a megabyte stays in the
# caches, and memory that is touched first may be several times as slow. The larger probe is left
# out where it would take more than PROBE_SHARE of the limit.
PROBED = (1 << 20, 32 << 20)
PROBE_SHARE = 0.02
TIME_SHARE, MEMORY_SHARE = 0.25, 0.5  # of the time limit and of the memory that is free
# Ranks. In a larger world too many rounds would be needed to locate a rank that spoils a sum.
MAX_LOCATED = 64
LOCATING = 10.0  # seconds that these rounds may take together
# Ranks that one rank blames: a report is a line of 16 KiB, and a longer list proves nothing.
MAX_BLAMED = 16
TEXT = 300  # characters of a refusal that are reported
# How a backend refuses a collective, or a type of it: always before anything is sent.
REFUSALS = (
    "not support",
    "unsupported",
    "not implemented",
    "invalid scalar type",
    "invalid data type",
    "no attribute",
)
REFUSAL_TYPES = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError)


class RankContext(object):
    """What all collectives of one rank share: torch, its device, and the data."""

    def __init__(self, torch, device, rank, world):
        self.torch, self.dist, self.device = torch, torch.distributed, device
        self.rank, self.world = rank, world
        self._numbers = {}

    def numbers(self, dtype, added):
        """Return the data of a type, for collectives that add up ranks or that do not."""
        world = self.world if added else 1
        key = (dtype, world)
        if key not in self._numbers:
            self._numbers[key] = Numbers(self.torch, self.device.name, dtype, world)
        return self._numbers[key]

    def call(self, *names):
        """Return the first of these functions that this torch has: some were renamed."""
        for name in names:
            if hasattr(self.dist, name):
                return getattr(self.dist, name)
        raise NotImplementedError("this torch has no %s" % names[-1])

    def spread(self, value, limit):
        """Return the greatest `value` of all ranks, the same on all of them.

        Serves as a barrier, too, one that needs no guess about the device.
        """
        cell = self.torch.tensor([value], dtype=self.torch.float32, device=self.device.name)
        self.reduce_to_greatest(cell, limit)
        return float(cell[0])

    def reduce_to_greatest(self, tensor, limit):
        greatest = self.dist.ReduceOp.MAX

        def run(async_op):
            return self.dist.all_reduce(tensor, greatest, async_op=async_op)

        self.device.timed(run, limit)


class Collective(object):
    """One collective of one type and size.

    `parts` yields the pieces of the result, each with what is expected in it: (buffer, share, its
    first row, the rank that it came from; None if all ranks are added up).
    """

    added = False  # whether ranks are added up

    def __init__(self, context, dtype):
        self.context, self.dtype = context, dtype
        self.numbers = context.numbers(dtype, self.added)
        self.wrong, self.first, self.blame = 0, None, []
        self.own = float("inf")

    def prepare(self, size):
        """Allocate buffers of at least `size` bytes, equal pieces of whole elements for all ranks.

        Returns the size that they have.
        """
        pieces = self.ways()
        width = self.empty(1).element_size()
        self.share = max(1, -(-size // (width * pieces)))  # elements of one rank's piece
        self.rows = -(-self.share // PRIME)
        self.reserve()
        return self.share * pieces * width

    def buffers(self):
        """Return how many bytes of memory each byte of the size takes."""
        return 1.0

    def ways(self):
        """Return into how many pieces the buffer is divided."""
        return self.context.world

    def empty(self, count):
        return self.context.torch.empty(count, **self.numbers.kind)

    def piece(self, buffer, number):
        start = number * self.share
        return buffer[start : start + self.share]

    def once(self, turn, limit):
        """Run one checked repetition. Returns its seconds. Of wrong results the worst is kept.

        `own` becomes the least time that this rank took for its own work, filling and checking,
        in which the others wait for it.
        """
        began = time.monotonic()
        self.give(turn)
        filling = time.monotonic() - began
        self.context.spread(0.0, limit)
        seconds = self.context.device.timed(lambda async_op: self.run(turn, async_op), limit)
        began = time.monotonic()
        self.check(turn)
        checking = time.monotonic() - began
        self.own = min(self.own, filling + checking)
        return seconds

    def check(self, turn):
        wrong, first, blame, start = 0, None, [], 0
        for buffer, share, row, source in self.parts(turn):
            count, samples = self.numbers.compare(buffer, share, row, turn)
            if count:
                if source is None:
                    blame = explain(self.numbers, samples, turn, self.context.world)
                else:
                    blame.append((source, "wrong"))
                if first is None:
                    first = self.describe(start, samples[0], turn, source)
            wrong += count
            start += buffer.numel()
        if wrong > self.wrong:
            self.wrong, self.first, self.blame = wrong, first, blame

    def result(self):
        blame = self.blame[:MAX_BLAMED]
        return {
            "wrong": self.wrong,
            "first": self.first,
            "blame": blame,
            "own": self.own,
        }

    def describe(self, start, sample, turn, source):
        """Return the report of the first wrong element. `turn` is the repetition, 0 the warm-up."""
        offset, _, _, seen, wanted = sample
        row = {
            "index": start + offset,
            "seen": repr(seen),
            "wanted": wanted,
        }
        row["turn"] = turn
        row["source"] = source
        return row

    def own_share(self):
        """Return what this rank gives."""
        return self.numbers.single(self.context.rank)

    def fill_pieces(self, turn):
        """Fill `given` with a piece for every rank."""
        share = self.own_share()
        for target in range(self.context.world):
            piece = self.piece(self.given, target)
            self.numbers.fill(piece, share, target * self.rows, turn)


class AllReduce(Collective):
    added = True

    def ways(self):
        return 1

    def reserve(self):
        self.buffer = self.empty(self.share)
        self.sum = self.numbers.whole()

    def give(self, turn):
        self.numbers.fill(self.buffer, self.own_share(), 0, turn)

    def run(self, turn, async_op):
        return self.context.dist.all_reduce(self.buffer, async_op=async_op)

    def parts(self, turn):
        yield self.buffer, self.sum, 0, None


class Broadcast(Collective):
    """A broadcast from another rank in every repetition; the other ranks hold something else.

    The second repetition comes from the other half of the ranks.
    """

    def root(self, turn):
        step = self.context.world // 2 + 1
        return turn * step % self.context.world

    def ways(self):
        return 1

    def reserve(self):
        self.buffer = self.empty(self.share)

    def give(self, turn):
        self.numbers.fill(self.buffer, self.own_share(), 0, turn)

    def run(self, turn, async_op):
        return self.context.dist.broadcast(self.buffer, self.root(turn), async_op=async_op)

    def parts(self, turn):
        source = self.root(turn)
        yield self.buffer, self.numbers.single(source), 0, source


class AllGather(Collective):
    def buffers(self):
        return 1.0 + 1.0 / self.context.world

    def reserve(self):
        self.given = self.empty(self.share)
        self.buffer = self.empty(self.share * self.context.world).zero_()
        names = ("all_gather_single", "all_gather_into_tensor", "_all_gather_base")
        self.gather = self.context.call(*names)

    def give(self, turn):
        self.numbers.fill(self.given, self.own_share(), 0, turn)

    def run(self, turn, async_op):
        return self.gather(self.buffer, self.given, async_op=async_op)

    def parts(self, turn):
        for source in range(self.context.world):
            piece = self.piece(self.buffer, source)
            yield piece, self.numbers.single(source), 0, source


class ReduceScatter(Collective):
    added = True

    def buffers(self):
        return 1.0 + 1.0 / self.context.world

    def reserve(self):
        self.given = self.empty(self.share * self.context.world)
        self.buffer = self.empty(self.share).zero_()
        self.sum = self.numbers.whole()
        names = ("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base")
        self.scatter = self.context.call(*names)

    def give(self, turn):
        self.fill_pieces(turn)

    def run(self, turn, async_op):
        return self.scatter(self.buffer, self.given, async_op=async_op)

    def parts(self, turn):
        yield self.buffer, self.sum, self.context.rank * self.rows, None


class AllToAll(Collective):
    def buffers(self):
        return 2.0

    def reserve(self):
        count = self.share * self.context.world
        self.given = self.empty(count)
        self.buffer = self.empty(count).zero_()
        self.exchange = self.context.call("all_to_all_single")

    def give(self, turn):
        self.fill_pieces(turn)

    def run(self, turn, async_op):
        return self.exchange(self.buffer, self.given, async_op=async_op)

    def parts(self, turn):
        row = self.context.rank * self.rows
        for source in range(self.context.world):
            piece = self.piece(self.buffer, source)
            yield piece, self.numbers.single(source), row, source


class Barrier(Collective):
    """Carries no data. The device is named: torch's guess may be another rank's GPU."""

    def prepare(self, size):
        return 0

    def give(self, turn):
        pass

    def run(self, turn, async_op):
        options = self.context.device.barrier_options()
        return self.context.dist.barrier(async_op=async_op, **options)

    def parts(self, turn):
        return ()


COLLECTIVES = {
    "all_reduce": AllReduce,
    "broadcast": Broadcast,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "barrier": Barrier,
}


def collective_of(context, step):
    return COLLECTIVES[step["op"]](context, step["dtype"])


def fitting(context, step, limit):
    """Return (bytes, why they are fewer): what fits half of the memory and a quarter of the limit.

    The reason is "time", "memory", or empty if the whole step fits. All ranks agree on it. The
    time is predicted from smaller collectives of the same kind; those are refused where the step
    would be, and the caller handles that. A rank's own work counts, for the others wait for it.
    """
    wanted = step["bytes"]
    collective = collective_of(context, step)
    collective.prepare(min(PROBED[0], wanted))
    collective.once(0, limit)  # connects
    for size in PROBED:
        collective = collective_of(context, step)
        probed = collective.prepare(min(size, wanted))
        seconds = collective.once(1, limit)
        seconds = context.spread(seconds + collective.own, limit)
        if seconds * PROBED[-1] / probed > limit * PROBE_SHARE:
            break
    predicted = seconds * wanted / probed
    in_time = limit * TIME_SHARE / max(predicted, 1e-9)
    room = context.device.room() / step.get("among", 1)
    in_memory = room * MEMORY_SHARE / (wanted * collective.buffers())
    share = -context.spread(-min(1.0, in_time, in_memory), limit)  # the least of all ranks
    if share >= 1.0:
        return wanted, ""
    is_time = context.spread(float(in_memory > in_time), limit)
    return max(1, int(wanted * share)), "time" if is_time else "memory"


def measure(context, channel, step, limit):
    """Run one collective of one size: a warm-up, then the repetitions.

    There are as many as asked for, or as fit into BUDGET. A collective that the backend refuses
    is left out by all ranks alike, for it is refused before anything is sent.
    """
    report = {
        "op": step["op"],
        "dtype": step["dtype"],
    }
    collective = collective_of(context, step)
    entered, size = False, step["bytes"]
    try:
        report["bytes"] = size
        if step["fit"]:
            size, report["scaled"] = fitting(context, step, limit)
        report["bytes"] = collective.prepare(size)
        channel.tell("entered", **report)
        entered = True
        first = collective.once(0, limit)
    except REFUSAL_TYPES as error:
        if not refused(error):
            raise
        if not entered:
            channel.tell("entered", **report)
        context.spread(0.0, limit)
        report.update(seconds=0.0, wrong=0, first=None, refused=str(error)[:TEXT])
        channel.tell("left", **report)
        return
    slowest = context.spread(first, limit)
    count = step["repetitions"]
    if not count:
        within_budget = int(BUDGET / max(slowest, 1e-9))
        count = max(1, min(MAX_REPETITIONS, within_budget))
    channel.tell("warmed", repetitions=count, **report)
    times = []
    for turn in range(1, count + 1):
        times.append(collective.once(turn, limit))
    times.sort()
    if collective.added and context.spread(float(collective.wrong > 0), limit):
        locate(context, collective, slowest, limit)
    report.update(collective.result())
    channel.tell("left", seconds=times[len(times) // 2], best=times[0], **report)


def refused(error):
    """Return whether an error says that the backend does not know a collective.

    Subclasses do not count: torch raises them for what failed on the way.
    """
    if type(error) not in REFUSAL_TYPES:
        return False
    message = str(error).lower()
    return any(refusal in message for refusal in REFUSALS)


def locate(context, collective, slowest, limit):
    """Find the ranks that spoil a sum: each rank in turn gives its share alone.

    It goes through the same way of adding. The greatest is taken, and what the others give is
    below every share, so that the result is that rank's alone: a rank that adds something to what
    it gives spoils its own round. Where many rounds are spoiled, the others give zeros, which a
    rank that flips signs or multiplies leaves as they are. If many are spoiled again, no rank is
    blamed.
    """
    world = context.world
    if world > MAX_LOCATED or slowest * world > LOCATING or world < 2:
        return
    few = max(1, world // 4)
    for idle in (-2 * collective.numbers.greatest, 0):
        bad = spoiled_alone(context, collective, idle, limit)
        proves_nothing = not 0 < len(bad) <= few
        if not context.spread(float(proves_nothing), limit):
            add_blame(collective, bad)
            return


def add_blame(collective, ranks):
    known = [rank for rank, _ in collective.blame]
    added = []
    for rank in ranks:
        if rank not in known:
            added.append((rank, "wrong"))
    collective.blame = collective.blame + added


def spoiled_alone(context, collective, idle, limit):
    """Return the ranks whose share arrives wrong here, given alone while the others give `idle`."""
    numbers, bad = collective.numbers, []
    buffer = collective.empty(collective.share * collective.ways())
    for source in range(context.world):
        share = numbers.single(source)
        buffer.fill_(idle)
        if source == context.rank:
            numbers.fill(buffer, share, 0, source)
        context.reduce_to_greatest(buffer, limit)
        count, _ = numbers.compare(buffer, share, 0, source)
        if count:
            bad.append(source)
    return bad
