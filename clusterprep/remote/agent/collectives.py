"""The collectives of the trial: the data that goes in, the expected result, and the time it takes.

`bytes` is what nccl-tests calls the size: the larger buffer of one rank, which all_gather and
all_to_all fill from all ranks, and reduce_scatter reads.
"""

import time

from clusterprep.remote.agent.sums import PRIME, Numbers, ceil_divide, explain

MAX_REPETITIONS = 5
BUDGET = 2.0  # seconds that the timed repetitions of one size may take together
# Bytes of the probes that predict how long a large collective takes: a megabyte stays in the
# caches, and memory that is touched first may be several times as slow. The larger probe is left
# out where it would take more than PROBE_SHARE of the limit.
PROBED = (1 << 20, 32 << 20)
PROBE_SHARE = 0.02
TIME_SHARE, MEMORY_SHARE = 0.25, 0.5  # of the time limit and of the memory that is free
# Seconds of one run of a size that is cut short: enough for latency not to count.
CUT_SHORT = 1.5
# Ranks. In a larger world too many rounds would be needed to locate a rank that spoils a sum.
MAX_LOCATED = 64
LOCATING_LIMIT = 10.0  # seconds that these rounds may take together
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
        self.torch = torch
        self.dist = torch.distributed
        self.device = device
        self.rank = rank
        self.world = world
        self._numbers = {}
        # Of the sizes of each (op, dtype) that were timed last: bytes, seconds of a run, and of a
        # run with a rank's own work. All ranks have the same values.
        self.timed = {}

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
        """Put into each element of the tensor its greatest value of all ranks."""
        greatest = self.dist.ReduceOp.MAX

        def run(async_op):
            return self.dist.all_reduce(tensor, greatest, async_op=async_op)

        self.device.timed(run, limit)


class Collective(object):
    """One collective of one type and size.

    A subclass says what is sent and what should come out:

    * `ways()`: into how many pieces the buffer is divided, one for each rank or one in all.
    * `buffers()`: how many bytes of memory each byte of the size takes.
    * `reserve()` allocates the buffers, with `self.share` elements in a piece.
    * `give(turn)` fills what this rank sends.
    * `run(turn, async_op)` calls torch, and returns its handle.
    * `parts(turn)` yields the pieces of the result, each with what is expected in it: (buffer,
      share, its first row, the rank that it came from; None if all ranks are added up).

    `turn` is the number of the repetition, 0 for the warm-up.
    """

    added = False  # whether ranks are added up
    blocks = False  # whether torch makes the host wait for it on GPUs

    def __init__(self, context, dtype):
        self.context = context
        self.dtype = dtype
        self.numbers = context.numbers(dtype, self.added)
        # Of the repetition with most wrong elements: their number, the report of the first, and the
        # ranks that this one blames, as (rank, "missing", "doubled" or "wrong").
        self.wrong = 0
        self.first = None
        self.blame = []
        self.own = float("inf")  # seconds; see `once`

    def prepare(self, size):
        """Allocate buffers of at least `size` bytes, equal pieces of whole elements for all ranks.

        Returns the size that they have.
        """
        pieces = self.ways()
        element = self.empty(1)
        width = element.element_size()  # bytes
        step = width * pieces  # bytes that one more element in each piece takes
        self.share = max(1, ceil_divide(size, step))  # elements of one rank's piece
        self.rows = ceil_divide(self.share, PRIME)  # of one piece
        self.reserve()
        return self.share * step

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
        seconds = self.context.device.timed(
            lambda async_op: self.run(turn, async_op), limit, self.blocks
        )
        began = time.monotonic()
        self.check(turn)
        checking = time.monotonic() - began
        self.own = min(self.own, filling + checking)
        return seconds

    def check(self, turn):
        """Compare the result with what is expected. Of all repetitions the worst is kept."""
        wrong = 0
        first = None
        blame = []
        start = 0  # elements of the pieces before
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
            self.wrong = wrong
            self.first = first
            self.blame = blame

    def result(self):
        """Return what is reported of all repetitions.

        The number of wrong elements, the first of them, [(rank, why)] of those blamed, and the
        least seconds of this rank's own work.
        """
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
        return {
            "index": start + offset,
            "seen": repr(seen),  # text, as JSON has no NaN
            "wanted": wanted,
            "turn": turn,
            "source": source,
        }

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
        """Return the rank that sends."""
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

    blocks = True

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


def size_to_run(context, step, limit):
    """Return (bytes, why they are fewer than planned); all ranks agree on both.

    The reason is "links", "time", "memory", or empty for the whole step.
    """
    size = cut_short(context, step, limit)
    if size < step["bytes"]:
        return size, "links"
    if step["fit"]:
        return fitting(context, step, limit)
    return size, ""


def cut_short(context, step, limit):
    """Return the bytes of a step, fewer if one run would take longer than it may.

    That is known from the size before it. Small messages measure latency and tell nothing of a
    large one, which is tried with less data then.
    """
    wanted = step["bytes"]
    longest = step.get("longest")
    if not longest:
        return wanted
    size, seconds, _ = context.timed.get((step["op"], step["dtype"]), (0, 0.0, 0.0))
    if size >= PROBED[0]:
        predicted = seconds * wanted / size
    elif wanted > PROBED[-1]:
        predicted = predicted_seconds(context, step, limit)
    else:
        return wanted
    if predicted <= longest:
        return wanted
    return max(1, int(wanted * CUT_SHORT / predicted))


def fitting(context, step, limit):
    """Return (bytes, why they are fewer): what fits half of the memory and a quarter of the limit.

    The reason is "time", "memory", or empty if the whole step fits. All ranks agree on it. The
    time is predicted from smaller collectives of the same kind; those are refused where the step
    would be, and the caller handles that. A rank's own work counts, for the others wait for it.
    """
    wanted = step["bytes"]
    size, _, seconds = context.timed.get((step["op"], step["dtype"]), (0, 0.0, 0.0))
    if size >= PROBED[0]:
        predicted = seconds * wanted / size
    else:
        predicted = predicted_seconds(context, step, limit)
    in_time = limit * TIME_SHARE / max(predicted, 1e-9)
    processes = step.get("among", 1)  # that share this memory
    room = context.device.room() / processes
    needed = wanted * collective_of(context, step).buffers()
    in_memory = room * MEMORY_SHARE / needed
    share = min(1.0, in_time, in_memory)
    share = -context.spread(-share, limit)  # the least of all ranks
    if share >= 1.0:
        return wanted, ""
    # All ranks take part in this, so it comes after a decision that is the same on all of them.
    is_time = context.spread(float(in_memory > in_time), limit)
    reason = "time" if is_time else "memory"
    fitting_bytes = int(wanted * share)
    return max(1, fitting_bytes), reason


def predicted_seconds(context, step, limit):
    """Return how long one repetition of a step will take, from one of the sizes in PROBED."""
    wanted = step["bytes"]
    first = collective_of(context, step)
    first.prepare(min(PROBED[0], wanted))
    first.once(0, limit)  # connects
    for size in PROBED:
        collective = collective_of(context, step)
        probed = collective.prepare(min(size, wanted))
        seconds = collective.once(1, limit)
        seconds = context.spread(seconds + collective.own, limit)
        for_largest_probe = seconds * PROBED[-1] / probed
        if for_largest_probe > limit * PROBE_SHARE:
            break
    return seconds * wanted / probed


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
    size = step["bytes"]
    report["bytes"] = size
    entered = False
    try:
        size, report["scaled"] = size_to_run(context, step, limit)
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
    if step["repetitions"] is None:
        seconds = context.spread(times[0], limit)
        whole = context.spread(times[0] + collective.own, limit)
        context.timed[step["op"], step["dtype"]] = (report["bytes"], seconds, whole)
    if collective.added:
        is_wrong = float(collective.wrong > 0)
        if context.spread(is_wrong, limit):
            locate(context, collective, slowest, limit)
    report.update(collective.result())
    median = times[len(times) // 2]
    channel.tell("left", seconds=median, best=times[0], **report)


def refused(error):
    """Return whether an error says that the backend does not know a collective.

    Subclasses do not count: torch raises them for what failed on the way.
    """
    if type(error) not in REFUSAL_TYPES:
        return False
    message = str(error).lower()
    return any(refusal in message for refusal in REFUSALS)


def locate(context, collective, slowest, limit):
    """Blame the ranks that spoil a sum: each rank in turn gives its share alone.

    It goes through the same way of adding. The greatest is taken, and what the others give is
    below every share, so that the result is that rank's alone: a rank that adds something to what
    it gives spoils its own round. Where many rounds are spoiled, the others give zeros, which a
    rank that flips signs or multiplies leaves as they are. If many are spoiled again, no rank is
    blamed. `slowest` is how many seconds the collective took the slowest rank.
    """
    world = context.world
    takes_too_long = world > MAX_LOCATED or slowest * world > LOCATING_LIMIT
    if takes_too_long or world < 2:
        return
    most_spoiled = max(1, world // 4)  # more at once say nothing about single ranks
    below_every_share = -2 * collective.numbers.greatest
    for idle in (below_every_share, 0):
        bad = spoiled_alone(context, collective, idle, limit)
        proves_nothing = not 0 < len(bad) <= most_spoiled
        # All ranks have to go on alike, so it counts only where it proves something to all.
        if not context.spread(float(proves_nothing), limit):
            add_blame(collective, bad)
            return


def add_blame(collective, ranks):
    """Add to the blame of a collective the ranks that it does not blame yet."""
    known = [rank for rank, _ in collective.blame]
    added = []
    for rank in ranks:
        if rank not in known:
            added.append((rank, "wrong"))
    collective.blame = collective.blame + added


def spoiled_alone(context, collective, idle, limit):
    """Return the ranks whose share arrives wrong here, given alone while the others give `idle`."""
    numbers = collective.numbers
    bad = []
    length = collective.share * collective.ways()
    buffer = collective.empty(length)
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
