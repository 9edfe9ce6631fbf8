"""The time limits of a start and of a collective: defaults by release, and where they are set.

Defaults as `diagnose` names them when one fires (jobs/diagnose/limits.py); sources there.
"""

from __future__ import annotations

import textwrap

from clusterprep.runtime.lazy_dataclass import dataclass

WIDTH = 98  # columns of a page
_GROUP_SET = (
    "init_process_group(timeout=…), in Lightning by DDPStrategy(timeout=…), "
    "in Transformers by ddp_timeout"
)


@dataclass(frozen=True)
class TimeLimit:
    """A limit: what waits, how long by default, and where that is set."""

    waits: str
    default: str
    where: str


JOIN = TimeLimit(
    "torchrun waits for all nodes",
    "600 s",
    "--rdzv-conf join_timeout=…; with the static back end timeout=…",
)
CLIENTS = TimeLimit(
    "the store of init_process_group waits for all ranks",
    "600 s for an NCCL group since torch 2.2; 1800 s before, for gloo and in Lightning",
    _GROUP_SET,
)
STORE = TimeLimit(
    "a store waits for a key",
    "300 s of a bare TCPStore, 900 s of torchrun's own",
    "TCPStore(timeout=…)",
)
NCCL_GROUP = TimeLimit(
    "a collective of an NCCL group",
    "600 s since torch 2.2, 1800 s before",
    _GROUP_SET,
)
GLOO_GROUP = TimeLimit("a collective of a gloo group", "1800 s", _GROUP_SET)
HEARTBEAT = TimeLimit(
    "the watchdog's own heartbeat",
    "480 s, up to torch 2.5 600 s",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
)
CONNECT = TimeLimit(
    "NCCL connects to a peer",
    "34 attempts, about a minute in all",
    "NCCL_SOCKET_RETRY_CNT, NCCL_SOCKET_RETRY_SLEEP_MSEC",
)

_START = (JOIN, CLIENTS, STORE)
_FIRST_COLLECTIVE = (CLIENTS, NCCL_GROUP, HEARTBEAT, CONNECT)
# Topics of `explain` and the limits that fire there.
LIMITS: dict[str, tuple[TimeLimit, ...]] = {
    "rendezvous_incomplete": (*_START, NCCL_GROUP),
    "net.ports": (*_START, CONNECT),
    "name.resolve": _START,
    "launch.nproc": (JOIN, CLIENTS),
    "launch.ranks": (JOIN, CLIENTS),
    "nccl.init_time": _FIRST_COLLECTIVE,
    "nccl.hang": (NCCL_GROUP, GLOO_GROUP, HEARTBEAT),
    "rendezvous_misconfigured": _START,
    "world_size_mismatch": _START,
    "slow_work_exceeds_timeout": (NCCL_GROUP, GLOO_GROUP, HEARTBEAT),
}


def limit_lines(topic: str) -> list[str]:
    """Return lines for each limit of a topic: what waits how long, and where that is set."""
    lines = []
    for limit in LIMITS.get(topic, ()):
        lines += _wrapped(f"{limit.waits}: {limit.default}", "  ")
        lines += _wrapped(f"set by {limit.where}", "      ")
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
