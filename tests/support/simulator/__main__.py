"""Prints how often blame is right.

`python -m tests.support.simulator --nodes 232 --faults 2 --seed 7 --runs 200`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.support.simulator import KINDS, Run, play

HEAD = (
    "nodes  faults  kinds                       runs   right  pairs right  blamed  "
    "group tests  pair rounds  exercised"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulator", description=__doc__)
    parser.add_argument("--nodes", type=_numbers, default=[232], metavar="N,…")
    parser.add_argument(
        "--faults",
        type=_numbers,
        default=[0, 1, 2, 5],
        metavar="N,…",
        help="0 is a healthy cluster",
    )
    parser.add_argument(
        "--kinds", default="all", help=f"of {', '.join(KINDS)}; all: mixed; each: a row for each"
    )
    parser.add_argument("--seed", default="1")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument(
        "--slow", type=float, default=0.7, help="speed of what is bad, as a share of normal"
    )
    parser.add_argument(
        "--noise", type=float, default=0.1, help="standard deviation of one measurement"
    )
    parser.add_argument(
        "--share", action="store_true", help="not all pairs beyond 64 nodes, as verify does"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    print(HEAD)
    for nodes in options.nodes:
        for faults in options.faults:
            rows = (
                [(kind,) for kind in KINDS]
                if options.kinds == "each" and faults
                else [_kinds(options.kinds)]
            )
            for kinds in rows:
                began = time.monotonic()
                runs = played(options, nodes, faults, kinds)
                print(
                    row(nodes, faults, kinds, runs),
                    f" {time.monotonic() - began:6.1f} s",
                    flush=True,
                )
    return 0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _kinds(text: str) -> tuple[str, ...]:
    return KINDS if text in {"all", "each"} else tuple(text.split(","))


def played(
    options: argparse.Namespace, nodes: int, faults: int, kinds: tuple[str, ...]
) -> list[Run]:
    one = partial(
        play,
        nodes,
        faults,
        kinds=kinds,
        share=options.share,
        slow=options.slow,
        noise=options.noise,
    )
    seeds = [
        f"{options.seed}-{nodes}-{faults}-{','.join(kinds)}-{number}"
        for number in range(options.runs)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        return list(pool.map(one, seeds, chunksize=4))


def row(nodes: int, faults: int, kinds: Sequence[str], runs: Sequence[Run]) -> str:
    def most(values: list[int]) -> str:
        return f"{sum(values) / len(values):.0f}, ≤ {max(values)}"

    words = "-" if not faults else "all" if len(kinds) == len(KINDS) else ",".join(kinds)
    right = sum(run.right for run in runs) / len(runs)
    pairs = [run.pairs_right for run in runs if any(fault.kind == "pair" for fault in run.faults)]
    shown = f"{sum(pairs) / len(pairs):11.1%}" if pairs else f"{'-':>11}"
    blamed = sum(bool(run.found.blames) for run in runs) / len(runs)
    groups = most([run.found.group_tests for run in runs])
    rounds = most([run.found.pair_rounds for run in runs])
    share = sum(run.found.exercised for run in runs) / sum(run.found.pairs for run in runs)
    return (
        f"{nodes:5}  {faults:6}  {words:22}  {len(runs):6}  {right:6.1%}  {shown}  {blamed:6.1%}"
        f"  {groups:>11}  {rounds:>11}  {share:9.1%}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
