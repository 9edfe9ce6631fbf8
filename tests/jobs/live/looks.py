"""Makes answers of nodes as the agent sends them, for jobs in every state."""

from __future__ import annotations

import copy
from typing import Any

from clusterprep.jobs.live.look import parse_look
from clusterprep.jobs.live.model import LiveDiagnosis, NodeLook

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WRAPPER = "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
PROGRAM = ["step", "/home/u/train.py", 57]


def in_collective(name: str) -> list[list[Any]]:
    """The stack of a rank that waits in a collective."""
    return [[name, C10D, 3252], ["_exception_logger.<locals>.wrapper", WRAPPER, 83], PROGRAM]


ALL_REDUCE = in_collective("all_reduce")
IN_LOADER = [
    ["__getitem__", "/home/u/data.py", 12],
    ["_SingleProcessDataLoaderIter._next_data", LOADER, 783],
    PROGRAM,
]


def task(call: str = "futex", *files: str, **more: Any) -> dict[str, Any]:
    """What the main thread of a rank does: it waits for a lock."""
    row: dict[str, Any] = {"tid": 100, "comm": "pt_main_thread", "state": "S", "ticks": 500}
    row.update(switches=40, wchan="futex_do_wait", call=[call, list(files)], kernel=[])
    return {**row, **more}


def look(stack: list[list[Any]] | None = ALL_REDUCE, **more: Any) -> dict[str, Any]:
    """One look at a rank that waits in all_reduce."""
    row: dict[str, Any] = {"state": "S", "ticks": 600, "threads": 20, "main": task()}
    row.update(blocked=[], io=[10, 10], children=[])
    if stack is None:
        row["no_stack"] = "Permission denied"
    else:
        row["stack"] = stack
    return {**row, **more}


def rank(number: int | None, *looks: Any, size: int = 4, **more: Any) -> dict[str, Any]:
    """A rank as its node tells it: one look stands for both."""
    pair = list(looks) or [look()]
    if len(pair) == 1:
        pair.append(copy.deepcopy(pair[0]))
    row: dict[str, Any] = {"pid": 100 + (number or 0), "comm": "python", "gpus": []}
    row["rank"] = None if number is None else str(number)
    row["size"] = None if number is None else str(size)
    row["local"] = "0"
    row["job"] = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    row.update(looks=pair, started=1000, launchers=[90], children=[])
    return {**row, **more}


def socket(one: int, other: int, **more: Any) -> dict[str, Any]:
    """The socket of a rank to another one, over which nothing came for 40 seconds.

    Rank N is the process 100 + N on the address 10.0.0.(N + 1).
    """
    low, high = sorted((one, other))
    listener = 40000 + high
    row: dict[str, Any] = {"pid": 100 + one, "rank": True, "state": 1, "sendq": 0, "recvq": 0}
    row.update(address=f"10.0.0.{one + 1}", peer=f"10.0.0.{other + 1}")
    row["port"] = listener if one == high else 50000 + low
    row["peer_port"] = listener if other == high else 50000 + low
    row.update(again=0, probing=False, received_ago=40_000, passed=0, old=True, held=False)
    row.update(resent=0, segments=1000)
    return {**row, **more}


def node(*ranks: dict[str, Any], sockets: tuple[dict[str, Any], ...] = (), **more: Any) -> Any:
    """The raw answer of a node."""
    row: dict[str, Any] = {"seconds": 1.2, "hz": 100, "ranks": list(ranks), "hidden": 0, "more": 0}
    row.update(sockets=list(sockets), others=[], cut=False, ras=None)
    return {**row, **more}


RING = ((0, 1), (1, 2), (2, 3), (3, 0))


def ring(**changed: Any) -> tuple[tuple[dict[str, Any], ...], ...]:
    """The sockets of four ranks in a ring, by rank; `r1_r2={...}` changes the end of rank 1."""
    ends = [*RING, *((other, one) for one, other in RING)]
    by_rank: list[list[dict[str, Any]]] = [[], [], [], []]
    for one, other in ends:
        more = changed.get(f"r{one}_r{other}", {})
        if more is not None:
            by_rank[one].append(socket(one, other, **more))
    return tuple(tuple(rows) for rows in by_rank)


def four(*ranks: dict[str, Any] | None, **changed: Any) -> dict[str, NodeLook]:
    """Four nodes n1 to n4 with a rank each, of which None is not there."""
    sockets = ring(**changed)
    looks: dict[str, NodeLook] = {}
    for index, one in enumerate(ranks):
        here = () if one is None else (one,)
        rows = sockets[index] if one is not None else ()
        looks[f"n{index + 1}"] = parse_look(node(*here, sockets=rows))
    return looks


def causes(found: LiveDiagnosis) -> list[tuple[str, str | None]]:
    """Name and culprit of each cause."""
    return [(cause.cause.name, cause.culprit) for cause in found.diagnosis.causes]
