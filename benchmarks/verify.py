"""What verify costs over a plain torchrun script with the same collectives on the same hosts."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from clusterprep.remote.agent.collectives import BUDGET, MAX_REPETITIONS  # noqa: E402
from tests.support.lab import Lab, why_not  # noqa: E402

WANTED = 1.15  # times the plain script, the links stage aside
LIMIT = 300.0  # seconds for one run
CALM = 1.0  # seconds between two runs
PORT = 29511


def verify(lab: Lab, per_node: int) -> tuple[float, float, list[dict[str, Any]]]:
    """Return the seconds without the links stage, those of that stage, and the collectives."""
    words = [
        sys.executable,
        "-m",
        "clusterprep",
        "verify",
        str(lab.inventory()),
        "--format",
        "json",
    ]
    began = time.monotonic()
    done = lab.controller.run([*words, "--nproc-per-node", str(per_node)], timeout=LIMIT)
    wall = time.monotonic() - began
    report = json.loads(done.stdout)
    if done.returncode != 0:
        sys.exit(f"verify failed: {json.dumps(report['verify'], indent=1)}")
    links = sum(
        stage["seconds"] for stage in report["verify"]["stages"] if stage["name"] == "links"
    )
    return wall - links, links, report["verify"]["collectives"]


def repeated(step: dict[str, Any]) -> int:
    """How often verify does it after the warm-up.

    Sizes of the sweep as often as fits its budget, all others once.
    """
    if step["op"] != "all_reduce" or "dtype" in step:
        return 1
    return max(1, min(MAX_REPETITIONS, int(BUDGET / step["seconds"])))


def torchrun(lab: Lab, per_node: int, steps: list[dict[str, Any]]) -> float:
    """Seconds from starting torchrun on every host over ssh until the last has ended."""
    plan = json.dumps(
        [
            [step["op"], step["bytes"], step.get("dtype", "float32"), repeated(step)]
            for step in steps
        ]
    )
    head = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(lab.hosts))]
    head += [
        "--nproc-per-node",
        str(per_node),
        "--master-addr",
        lab.hosts[0].address,
        "--master-port",
        str(PORT),
    ]
    began = time.monotonic()
    running = []
    for position, host in enumerate(lab.hosts):
        words = [
            *head,
            "--node-rank",
            str(position),
            str(HERE / "same_collectives.py"),
            f"'{plan}'",
        ]
        line = "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 " + " ".join(words)
        command = [
            "ssh",
            "-F",
            str(lab.home / ".ssh" / "config"),
            "-i",
            str(lab.key),
            "-o",
            "BatchMode=yes",
        ]
        command += ["-o", f"UserKnownHostsFile={lab.known_hosts}", f"root@{host.address}", line]
        running.append(
            lab.controller.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in running:
        out, _ = process.communicate(timeout=LIMIT)
        if process.returncode != 0:
            sys.exit(f"torchrun ended with {process.returncode}: {out}")
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument(
        "--repeat", type=int, default=3, help="rounds; one more before them does not count"
    )
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    ours, theirs, stage = list[float](), list[float](), list[float]()
    with Lab(options.nodes) as lab:
        for number in range(options.repeat + 1):
            wall, links, steps = verify(lab, options.nproc_per_node)
            time.sleep(CALM)
            plain = torchrun(lab, options.nproc_per_node, steps)
            time.sleep(CALM)
            if number:
                ours.append(wall)
                theirs.append(plain)
                stage.append(links)
                print(
                    f"round {number}: verify {wall:.2f} s (links {links:.2f} s aside), "
                    f"torchrun {plain:.2f} s",
                    flush=True,
                )
    ratio = statistics.median(ours) / statistics.median(theirs)
    held = "holds" if ratio <= WANTED else "does not hold"
    print(
        f"{len(steps)} collectives on {options.nodes} x {options.nproc_per_node} ranks, "
        f"medians of {options.repeat}:"
    )
    print(
        f"verify {statistics.median(ours):.2f} s / "
        f"torchrun {statistics.median(theirs):.2f} s = {ratio:.2f}"
    )
    print(f"wanted: at most {WANTED}: {held}")
    return 0 if ratio <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
