"""Measure `exec -- uname -r` on lab hosts, beside parallel-ssh, Ansible, clush and pdsh.

All have 64 nodes at once, the same hosts and keys, and no connection left from an earlier run.
parallel-ssh verifies no host keys; the others do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path.insert(0, str(REPOSITORY))

from contenders import Contender, ansible_start  # noqa: E402
from fanout import Bench  # noqa: E402
from measured import Run  # noqa: E402

from tests.support.lab import Lab, why_not  # noqa: E402

FORKS = "64"
COMMAND = ("uname", "-r")
OURS = "exec"
KERNEL = os.uname().release


def contenders(lab: Lab, folder: Path, tools: Path) -> Iterator[Contender]:
    """Return all contenders, with their files in `folder`.

    Those that are not installed are left out, and named on stderr.
    """
    inventory = lab.inventory(folder / "inventory.yaml")
    cli = (sys.executable, "-c", "from clusterprep.cli.main import main; main()")
    argv = (*cli, "exec", str(inventory), "--", *COMMAND)
    yield Contender(OURS, "a", "clusterprep exec", argv, said=KERNEL)
    others = {
        "parallel-ssh": _parallel_ssh(lab, folder, tools),
        "ansible": _ansible(lab, folder, tools),
        "clush": _clush(lab),
        "pdsh": _pdsh(lab),
    }
    for name, words in others.items():
        if words is None:
            print(f"not installed, so not compared: {name}", file=sys.stderr)
        else:
            yield Contender(name, "b", name, words, said=KERNEL)


def _parallel_ssh(lab: Lab, folder: Path, tools: Path) -> tuple[str, ...] | None:
    if not next(tools.parent.glob("lib/python*/site-packages/pssh"), None):
        return None
    job = folder / "pssh.json"
    addresses = [host.address for host in lab.hosts]
    job.write_text(json.dumps({"addresses": addresses, "key": str(lab.key)}))
    return str(tools / "python"), str(HERE / "pssh_job.py"), str(job), " ".join(COMMAND)


def _ansible(lab: Lab, folder: Path, tools: Path) -> tuple[str, ...] | None:
    if not (tools / "ansible").exists():
        return None
    start = ansible_start(lab, folder, tools / "ansible")
    return *start, "all", "--forks", FORKS, "-m", "command", "-a", " ".join(COMMAND)


def _clush(lab: Lab) -> tuple[str, ...] | None:
    program = Path(sys.executable).with_name("clush")
    if not program.exists():
        return None
    addresses = ",".join(host.address for host in lab.hosts)
    options = ("-q", "-f", FORKS, "-l", "root", "-o", " ".join(_ssh_options(lab)))
    return str(program), *options, "-b", "-w", addresses, *COMMAND


def _pdsh(lab: Lab) -> tuple[str, ...] | None:
    program = shutil.which("pdsh")
    if program is None:
        return None
    addresses = ",".join(host.address for host in lab.hosts)
    arguments = f"PDSH_SSH_ARGS_APPEND={' '.join(_ssh_options(lab))}"
    options = ("-R", "ssh", "-f", FORKS, "-l", "root", "-w", addresses)
    return "env", arguments, program, *options, *COMMAND


def _ssh_options(lab: Lab) -> tuple[str, ...]:
    return (
        *("-F", "none", "-i", str(lab.key), "-oBatchMode=yes"),
        *(f"-oUserKnownHostsFile={lab.known_hosts}", "-oKexAlgorithms=curve25519-sha256"),
    )


def measure(nodes: int, repeat: int, tools: Path) -> dict[str, list[Run]]:
    """Return the runs of each contender, in turn, after one that does not count."""
    runs: dict[str, list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="clusterprep-bench-") as name, Lab(nodes) as lab:
        bench = Bench(lab, Path(name))
        chosen = list(contenders(lab, Path(name), tools))
        for number in range(repeat + 1):
            for contender in chosen:
                run = bench.run(contender)
                print(f"{number}/{repeat} {contender.name:14} {run.wall:7.3f} s", file=sys.stderr)
                if number:
                    runs[contender.name].append(run)
    return runs


def table(nodes: int, runs: dict[str, list[Run]]) -> str:
    """Return a line for each contender: seconds, and how many times ours."""
    ours = statistics.median(run.wall for run in runs[OURS])
    lines = [f"{nodes} hosts: {' '.join(COMMAND)}", f"{'':16}{'median, s':>10}{'min':>8}{'max':>8}"]
    lines[-1] += f"{'× exec':>9}{'CPU ms/node':>13}"
    for name, measured in runs.items():
        walls = [run.wall for run in measured]
        cpu = statistics.median(run.cpu for run in measured) * 1000 / nodes
        median = statistics.median(walls)
        line = f"{name:16}{median:10.2f}{min(walls):8.2f}{max(walls):8.2f}"
        lines.append(f"{line}{median / ours:9.2f}{cpu:13.1f}")
    others = statistics.median(run.others for measured in runs.values() for run in measured)
    lines.append(f"Other programs used {others:.0%} of the machine.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64, help="number of lab hosts (64)")
    parser.add_argument("--repeat", type=int, default=5, help="counted runs of each (5)")
    parser.add_argument(
        "--tools", type=Path, default=REPOSITORY / ".venv-bench", help="environment of the others"
    )
    args = parser.parse_args()
    reason = why_not()
    if reason:
        raise SystemExit(reason)
    print(table(args.nodes, measure(args.nodes, args.repeat, args.tools / "bin")))


if __name__ == "__main__":
    main()
