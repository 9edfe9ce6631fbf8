"""Says what connections that a peer closed are worth: little, and nothing beside a cause.

A process that loses a peer ends too, and its own peers lose it. Who ended first is the peer that
tells of no other one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from clusterprep.jobs.diagnose.endings import Endings
from clusterprep.jobs.diagnose.model import Evidence, Weight

CAUSE = "peer_lost"
_INTERNAL = "nccl_bug_or_version"
_INFORMING = frozenset({"INFO", "DEBUG", "TRACE", "I"})  # levels of lines that tell no failure


def is_of_peer(piece: Evidence) -> bool:
    """Whether a piece of evidence tells of a peer that went away, and of nothing else."""
    return piece.cause == CAUSE


def may_follow(piece: Evidence) -> bool:
    """Whether it is an internal error of NCCL that says no more.

    NCCL up to 2.14 says so where a peer went away: github.com/NVIDIA/nccl/issues/795.
    """
    return piece.cause == _INTERNAL and piece.weight <= Weight.SYMPTOM


def weighed(
    evidence: Sequence[Evidence], log_endings: Endings, *, has_failure: bool
) -> list[Evidence]:
    """Return the evidence without peers that went away because of another failure, or at the end.

    `has_failure`: other evidence tells of a failure. Peers that lost one themselves are not named,
    and an internal error that says no more is an echo of a peer that went away.
    """
    rows = [piece for piece in evidence if not is_of_peer(piece)]
    ended_well = not log_endings.has_failed and log_endings.ended_well(())
    if has_failure or ended_well:
        return rows
    lost = [piece for piece in evidence if is_of_peer(piece) and piece.line.level not in _INFORMING]
    if lost:
        rows = [_as_echo(piece) if may_follow(piece) else piece for piece in rows]
    told_of_one = {_short(piece.line.host) for piece in lost if piece.line.host}
    for piece in lost:
        first = tuple(one for one in piece.culprits if _may_be_first(one[1], told_of_one))
        rows.append(replace(piece, culprits=first))
    return rows


def _as_echo(piece: Evidence) -> Evidence:
    return replace(piece, weight=Weight.ECHO)


def _may_be_first(peer: str, told_of_one: Collection[str]) -> bool:
    """Whether a peer has not lost one itself. A loopback address tells no peer from another."""
    is_loopback = peer.startswith(("127.", "::1", "localhost"))
    return not is_loopback and _short(peer) not in told_of_one


def _short(host: str) -> str:
    """Return a host without its domain; an address as it is."""
    first = host.partition(".")[0]
    return host if first.isdigit() else first
