"""Measure what distance and packet loss cost a check.

Three links are compared: near, 80 ms away, and 80 ms away with every twentieth packet lost.

    python benchmarks/bad_network.py [--nodes N] [--repeat R]

Needs root. It starts a lab, holds every frame between controller and hosts for 40 ms, drops packets
by nftables, and counts on the way how often the controller speaks after an answer on each
connection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.support.lab import Lab, faults, why_not  # noqa: E402

DELAY = 40.0  # milliseconds each way
LOSS = 0.05
COMMANDS = {
    "one small check": ["--only", "kernel.version"],
    "with clocks": ["--only", "kernel.version,time.offset"],
    "every check": [],
}


def once(lab: Lab, inventory: Path, words: list[str]) -> tuple[float, int, int]:
    """Seconds, nodes reached, and clocks that could be judged."""
    began = time.monotonic()
    argv = [
        sys.executable,
        "-m",
        "clusterprep",
        "check",
        str(inventory),
        "--format",
        "json",
        *words,
    ]
    done = lab.controller.run(argv, timeout=300)
    seconds = time.monotonic() - began
    report = json.loads(done.stdout)
    known = [
        f
        for f in report["findings"]
        if f["check"] == "time.offset" and f["verdict"] in ("pass", "fail")
    ]
    return (
        seconds,
        sum(node["reached"] for node in report["nodes"]),
        sum(len(f["nodes"]) for f in known),
    )


def measured(lab: Lab, way: str, far: faults.Distance, repeat: int) -> None:
    inventory = lab.inventory()
    for name, words in COMMANDS.items():
        runs = [once(lab, inventory, words) for _ in range(repeat)]
        turns = sorted({turn for connections in far.turns().values() for turn in connections})
        seconds = statistics.median(run[0] for run in runs)
        trips = seconds * 1000 / (2 * DELAY) if way != "near" else 0.0
        shown = "-".join(map(str, turns))
        print(
            f"{len(lab.hosts):5} {way:12} {name:16} {seconds:7.2f} s {trips:7.1f} {shown:>9} "
            f"{min(run[1] for run in runs):8} {min(run[2] for run in runs):8}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    print("nodes way          command             wall    × RTT  trips/node  reached   clocks")
    for nodes in args.nodes:
        with Lab(nodes) as lab:
            with faults.far_controller(lab, 0) as far:
                measured(lab, "near", far, args.repeat)
            with faults.far_controller(lab, DELAY) as far:
                measured(lab, "80 ms", far, args.repeat)
                with faults.loss_to_controller(lab, LOSS):
                    measured(lab, "80 ms, 5 %", far, args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
