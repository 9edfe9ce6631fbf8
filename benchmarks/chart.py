"""Draw time against nodes.

    chart.py FANOUT.json SIMULATED.json OUT.svg

The two inputs are written by fanout.py and simulated.py.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "clusterprep", "font.family": "sans-serif"}
)

import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

HOSTS = {
    "ansible": ("Ansible, common job", "#b2182b"),
    "pyinfra": ("pyinfra, common job", "#ef8a62"),
    "check": ("clusterprep check", "#2166ac"),
    "apply": ("clusterprep apply, common job", "#4393c3"),
    "floor-ssh": ("plain ssh with the bytes of a check", "#777777"),
    "ssh": ("plain ssh, true", "#aaaaaa"),
}
# What no tool can undercut that logs in over SSH and has the same looked at.
LIMITS = ("floor-ssh", "ssh")
SIMULATED = ("simulated nodes: what check computes", "#1b7837")
CHECK = ("load", "plan", "parse", "pairs", "judge", "report console")  # the stages of a check
LABELS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # seconds


def hosts(sizes: list[dict[str, Any]], family: str) -> list[tuple[int, float]]:
    """Return (nodes, median wall time) of a contender on lab hosts.

    Ansible has its best number of forks.
    """
    found = []
    for size in sizes:
        walls = [
            statistics.median(row["wall_s"])
            for name, row in size["contenders"].items()
            if name == family or (family == "ansible" and name.startswith("ansible-"))
        ]
        if walls:
            found.append((size["nodes"], min(walls)))
    return found


def simulated(costs: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """(nodes, CPU seconds of the stages of a check)."""
    found: dict[int, float] = {}
    for cost in costs:
        if cost["stage"] in CHECK:
            found[cost["nodes"]] = found.get(cost["nodes"], 0.0) + cost["seconds"]
    return sorted(found.items())


def main(fanout: str, fleets: str, out: str) -> None:
    """Read both files of numbers and write the drawing."""
    measured = json.loads(Path(fanout).read_text())
    figure, axes = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    for family, (label, colour) in HOSTS.items():
        if points := hosts(measured, family):
            style = ":" if family in LIMITS else "-"
            line = {"color": colour, "label": f"{label}, lab hosts"}
            axes.plot(*zip(*points, strict=True), f"o{style}", **line)
    points = simulated(json.loads(Path(fleets).read_text()))
    label, colour = SIMULATED
    axes.plot(*zip(*points, strict=True), "o--", color=colour, markerfacecolor="white", label=label)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds")
    ticks = sorted({size["nodes"] for size in measured} | {nodes for nodes, _ in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(LABELS, [str(label) for label in LABELS])
    axes.minorticks_off()
    axes.grid(visible=True, color="#dddddd")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(out, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
