"""The rounds of an acceptance as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import CollectiveResult

Direction = tuple[str, str]  # the node that sends, and the one that receives


class Round(Struct, frozen=True):
    """What one round measured.

    `at` is when it began, in seconds since the first one did. `links` has bytes per second of the
    directions of its `Rounds`, in their order, and NaN where one was not measured. `own` has the
    seconds that each rank takes between collectives of the largest size.
    """

    at: float
    links: Sequence[float]
    own: Mapping[int, float]
    collectives: tuple[CollectiveResult, ...]


class Rounds(Struct, frozen=True):
    """The rounds that ended well, and the seconds until the last one ended.

    There were `count` of them; of very many only some are kept. `speeds` has the bus bandwidths of
    all of them in GB/s, by the size of the all-reduce.

    `broken` is the trial of a round that did not: some rank did not finish, or had wrong results.
    `lost` are nodes whose agents fell silent between two trials. Either began at `broken_at`, and
    no round came after it. `stopped_by` says what ended the command before the time was over: the
    round under way then is not counted.
    """

    rounds: tuple[Round, ...]
    seconds: float
    directions: tuple[Direction, ...] = ()
    count: int = 0
    speeds: Mapping[int, Sequence[float]] = {}
    broken: Timeline | None = None
    broken_at: float = 0.0
    lost: tuple[str, ...] = ()
    stopped_by: str = ""

    @property
    def ended_well(self) -> bool:
        return self.broken is None and not self.lost

    @property
    def finished(self) -> bool:
        """True if rounds were run until their time was over."""
        return self.ended_well and not self.stopped_by


NO_ROUNDS = Rounds((), 0.0)
