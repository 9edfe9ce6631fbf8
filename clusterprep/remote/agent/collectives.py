"""The collectives of the trial: what goes in, what has to come out, and how long it takes.

`bytes` is what nccl-tests calls the size: the larger buffer of one rank, which all_gather and all_to_all fill from
all ranks, and reduce_scatter reads.
"""

import time

from clusterprep.remote.agent.sums import PRIME, Numbers, explain

MAX_REPETITIONS = 5
BUDGET = 2.0  # seconds that the timed repetitions of one size may take together
# Bytes that tell how long a large collective may take: a megabyte stays in the caches, and memory that is touched first
# may be several times as slow. The larger one is left out where it would take more than PROBE_SHARE of the limit.
PROBED = (1 << 20, 32 << 20)
PROBE_SHARE = 0.02
TIME_SHARE, MEMORY_SHARE = 0.25, 0.5  # of the time limit and of the memory that is free
MAX_LOCATED = (
    64  # ranks; in a larger world too many rounds would be needed to find who spoils a sum
)
LOCATING = 10.0  # seconds that these rounds may take together
MAX_BLAMED = (
    16  # ranks that one rank names: a report is a line of 16 KiB, and who names many proves nothing
)
TEXT = 300  # characters of a refusal that travel
# What a backend says that does not know a collective, or not with this type: always before anything is sent.
REFUSALS = (
    "not support",
    "unsupported",
    "not implemented",
    "invalid scalar type",
    "invalid data type",
    "no attribute",
)


class RankContext(object):
    """What all collectives of one rank share: torch, its device, and the data."""

    def __init__(self, torch, device, rank, world):
        self.torch, self.dist, self.device = torch, torch.distributed, device
        self.rank, self.world = rank, world
        self._numbers = {}

    def numbers(self, dtype, added):
        """The data of a type, for ranks that are added up or left apart."""
        world = self.world if added else 1
        if (dtype, world) not in self._numbers:
            self._numbers[dtype, world] = Numbers(self.torch, self.device.name, dtype, world)
        return self._numbers[dtype, world]

    def call(self, *names):
        """The first of these functions that this torch has: some were renamed."""
        for name in names:
            if hasattr(self.dist, name):
                return getattr(self.dist, name)
        raise NotImplementedError("this torch has no %s" % names[-1])

    def spread(self, value, limit):
        """The greatest `value` of all ranks, known to all; also a barrier that needs no guess about the device."""
        cell = self.torch.tensor([value], dtype=self.torch.float32, device=self.device.name)
        greatest = self.dist.ReduceOp.MAX
        self.device.timed(
            lambda async_op: self.dist.all_reduce(cell, greatest, async_op=async_op), limit
        )
        return float(cell[0])


class Collective(object):
    """One collective of one type and size; `parts` are the pieces of the result, each with what has to be in it."""

    added = False  # whether ranks are added up

    def __init__(self, job, dtype):
        self.job, self.dtype = job, dtype
        self.numbers = job.numbers(dtype, self.added)
        self.wrong, self.first, self.blame = 0, None, []
        self.own = float("inf")

    def prepare(self, size):
        """Buffers of at least `size` bytes in whole elements, as many for every rank; the size that they have."""
        width = self.empty(1).element_size()
        self.share = max(1, -(-size // (width * self.ways())))  # elements of one rank's piece
        self.rows = -(-self.share // PRIME)
        self.reserve()
        return self.share * self.ways() * width

    def buffers(self):
        """How many bytes of memory each byte of the size takes."""
        return 1.0

    def ways(self):
        """Into how many pieces the buffer is divided."""
        return self.job.world

    def empty(self, count):
        return self.job.torch.empty(count, **self.numbers.kind)

    def piece(self, buffer, number):
        return buffer[number * self.share : (number + 1) * self.share]

    def once(self, turn, limit):
        """One checked repetition, in seconds. Of wrong results the worst is kept.

        `own` is the least time that this rank took for its own part, in which the others wait for it.
        """
        began = time.monotonic()
        self.give(turn)
        given = time.monotonic() - began
        self.job.spread(0.0, limit)
        seconds = self.job.device.timed(lambda async_op: self.run(turn, async_op), limit)
        began = time.monotonic()
        self.check(turn)
        self.own = min(self.own, given + time.monotonic() - began)
        return seconds

    def check(self, turn):
        wrong, first, blame, start = 0, None, [], 0
        for buffer, share, row, source in self.parts(turn):
            count, found = self.numbers.compare(buffer, share, row, turn)
            if count and source is None:
                blame = explain(self.numbers, found, turn, self.job.world)
            elif count:
                blame.append((source, "wrong"))
            if count and first is None:
                first = self.describe(start, found[0], turn, source)
            wrong, start = wrong + count, start + buffer.numel()
        if wrong > self.wrong:
            self.wrong, self.first, self.blame = wrong, first, blame

    def result(self):
        return {
            "wrong": self.wrong,
            "first": self.first,
            "blame": self.blame[:MAX_BLAMED],
            "own": self.own,
        }

    def describe(self, start, found, turn, source):
        """The first wrong element in words for the report; `turn` is the repetition, 0 the warm-up."""
        index, _, _, seen, wanted = found
        return {
            "index": start + index,
            "seen": repr(seen),
            "wanted": wanted,
            "turn": turn,
            "source": source,
        }


class AllReduce(Collective):
    added = True

    def ways(self):
        return 1

    def reserve(self):
        self.buffer = self.empty(self.share)
        self.sum = self.numbers.whole()

    def give(self, turn):
        self.numbers.fill(self.buffer, self.numbers.single(self.job.rank), 0, turn)

    def run(self, turn, async_op):
        return self.job.dist.all_reduce(self.buffer, async_op=async_op)

    def parts(self, turn):
        yield self.buffer, self.sum, 0, None


class Broadcast(Collective):
    """From another rank in every repetition, the second of them from the other half; the others hold something else."""

    def root(self, turn):
        return turn * (self.job.world // 2 + 1) % self.job.world

    def ways(self):
        return 1

    def reserve(self):
        self.buffer = self.empty(self.share)

    def give(self, turn):
        self.numbers.fill(self.buffer, self.numbers.single(self.job.rank), 0, turn)

    def run(self, turn, async_op):
        return self.job.dist.broadcast(self.buffer, self.root(turn), async_op=async_op)

    def parts(self, turn):
        source = self.root(turn)
        yield self.buffer, self.numbers.single(source), 0, source


class AllGather(Collective):
    def buffers(self):
        return 1.0 + 1.0 / self.job.world

    def reserve(self):
        self.mine, self.buffer = (
            self.empty(self.share),
            self.empty(self.share * self.job.world).zero_(),
        )
        self.gather = self.job.call(
            "all_gather_single", "all_gather_into_tensor", "_all_gather_base"
        )

    def give(self, turn):
        self.numbers.fill(self.mine, self.numbers.single(self.job.rank), 0, turn)

    def run(self, turn, async_op):
        return self.gather(self.buffer, self.mine, async_op=async_op)

    def parts(self, turn):
        for source in range(self.job.world):
            yield self.piece(self.buffer, source), self.numbers.single(source), 0, source


class ReduceScatter(Collective):
    added = True

    def buffers(self):
        return 1.0 + 1.0 / self.job.world

    def reserve(self):
        self.mine, self.buffer = (
            self.empty(self.share * self.job.world),
            self.empty(self.share).zero_(),
        )
        self.sum = self.numbers.whole()
        self.scatter = self.job.call(
            "reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"
        )

    def give(self, turn):
        for target in range(self.job.world):
            share = self.numbers.single(self.job.rank)
            self.numbers.fill(self.piece(self.mine, target), share, target * self.rows, turn)

    def run(self, turn, async_op):
        return self.scatter(self.buffer, self.mine, async_op=async_op)

    def parts(self, turn):
        yield self.buffer, self.sum, self.job.rank * self.rows, None


class AllToAll(Collective):
    def buffers(self):
        return 2.0

    def reserve(self):
        whole = self.share * self.job.world
        self.mine, self.buffer = self.empty(whole), self.empty(whole).zero_()
        self.exchange = self.job.call("all_to_all_single")

    def give(self, turn):
        for target in range(self.job.world):
            share = self.numbers.single(self.job.rank)
            self.numbers.fill(self.piece(self.mine, target), share, target * self.rows, turn)

    def run(self, turn, async_op):
        return self.exchange(self.buffer, self.mine, async_op=async_op)

    def parts(self, turn):
        for source in range(self.job.world):
            yield (
                self.piece(self.buffer, source),
                self.numbers.single(source),
                self.job.rank * self.rows,
                source,
            )


class Barrier(Collective):
    """Carries no data. The device is named, for a guess of torch's may be another rank's GPU."""

    def prepare(self, size):
        return 0

    def give(self, turn):
        pass

    def run(self, turn, async_op):
        return self.job.dist.barrier(async_op=async_op, **self.job.device.barrier_options())

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


def fitting(job, step, limit):
    """(bytes, what made them fewer): as much of a step as fits into half of the memory and a quarter of the limit.

    All ranks agree on it. The time is guessed from smaller ones of the same kind, which are refused where the step
    would be, and is then left to it. What a rank does for its own part counts, for the others wait for it.
    """
    trial = COLLECTIVES[step["op"]](job, step["dtype"])
    trial.prepare(min(PROBED[0], step["bytes"]))
    trial.once(0, limit)  # connects
    for size in PROBED:
        trial = COLLECTIVES[step["op"]](job, step["dtype"])
        probed = trial.prepare(min(size, step["bytes"]))
        seconds = job.spread(trial.once(1, limit) + trial.own, limit)
        if seconds * PROBED[-1] / probed > limit * PROBE_SHARE:
            break
    in_time = limit * TIME_SHARE / max(seconds * step["bytes"] / probed, 1e-9)
    in_memory = (
        job.device.room() / step.get("among", 1) * MEMORY_SHARE / (step["bytes"] * trial.buffers())
    )
    share = -job.spread(-min(1.0, in_time, in_memory), limit)
    if share >= 1.0:
        return step["bytes"], ""
    return max(1, int(step["bytes"] * share)), "time" if job.spread(
        float(in_memory > in_time), limit
    ) else "memory"


def measure(job, channel, step, limit):
    """Run one collective of one size: a warm-up, then the repetitions asked for, or as many as fit into BUDGET.

    What the backend does not know is left out by all ranks alike, for they are refused before anything is sent.
    """
    told = {"op": step["op"], "dtype": step["dtype"]}
    trial = COLLECTIVES[step["op"]](job, step["dtype"])
    entered, size = False, step["bytes"]
    try:
        told["bytes"] = size
        if step["fit"]:
            size, told["scaled"] = fitting(job, step, limit)
        told["bytes"] = trial.prepare(size)
        channel.tell("entered", **told)
        entered = True
        first = trial.once(0, limit)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
        if not refused(error):
            raise
        if not entered:
            channel.tell("entered", **told)
        job.spread(0.0, limit)
        channel.tell("left", seconds=0.0, wrong=0, first=None, refused=str(error)[:TEXT], **told)
        return
    slowest = job.spread(first, limit)
    count = step["repetitions"] or max(1, min(MAX_REPETITIONS, int(BUDGET / max(slowest, 1e-9))))
    channel.tell("warmed", repetitions=count, **told)
    times = sorted(trial.once(turn, limit) for turn in range(1, count + 1))
    if trial.added and job.spread(float(trial.wrong > 0), limit):
        locate(job, trial, slowest, limit)
    channel.tell(
        "left", seconds=times[len(times) // 2], best=times[0], **dict(trial.result(), **told)
    )


def refused(error):
    """Whether a backend says that it does not know a collective; what failed on the way is of another type."""
    words = str(error).lower()
    plain = type(error) in (
        RuntimeError,
        NotImplementedError,
        ValueError,
        TypeError,
        AttributeError,
    )
    return plain and any(refusal in words for refusal in REFUSALS)


def locate(job, trial, slowest, limit):
    """Some rank had a wrong sum: one rank after the other gives its share alone, through the same way of adding.

    The greatest is taken, and what the others give is below every share, so that what comes out is that rank's alone:
    a rank that adds something to what it gives spoils its own round. Where that spoils many rounds, the others give
    zeros, which a rank that turns signs or multiplies leaves as they are. What does not come back shows nothing.
    """
    if job.world > MAX_LOCATED or slowest * job.world > LOCATING or job.world < 2:
        return
    few = max(1, job.world // 4)
    for idle in (-2 * trial.numbers.greatest, 0):
        bad = alone(job, trial, idle, limit)
        if not job.spread(float(not 0 < len(bad) <= few), limit):
            known = [rank for rank, _ in trial.blame]
            trial.blame = trial.blame + [(rank, "wrong") for rank in bad if rank not in known]
            return


def alone(job, trial, idle, limit):
    """The ranks whose share, given alone among ranks that give `idle`, arrives here with something wrong in it."""
    numbers, greatest, bad = trial.numbers, job.dist.ReduceOp.MAX, []
    buffer = trial.empty(trial.share * trial.ways())
    for source in range(job.world):
        buffer.fill_(idle)
        if source == job.rank:
            numbers.fill(buffer, numbers.single(source), 0, source)
        job.device.timed(
            lambda async_op: job.dist.all_reduce(buffer, greatest, async_op=async_op), limit
        )
        if numbers.compare(buffer, numbers.single(source), 0, source)[0]:
            bad.append(source)
    return bad
