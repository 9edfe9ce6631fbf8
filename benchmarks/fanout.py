"""Measure clusterprep on many hosts.

It is compared with plain ssh, with a floor, and with Ansible and pyinfra.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path.insert(0, str(REPOSITORY))

from contenders import WRITTEN, Contender, chooser, contenders, content  # noqa: E402
from measured import CORES, Measured, Run  # noqa: E402

from clusterprep.model import SshSettings  # noqa: E402
from tests.support.lab import Lab, faults, why_not  # noqa: E402

LIMIT = 600.0  # seconds for one run of one contender
CALM = 1.0  # seconds between two runs, in which sshd and agents on the hosts come to their ends
QUIET = 0.1  # share of the machine that others may use before the table says so
SLOW_RUNS = 2  # Ansible takes minutes: each number of forks once, and then the best of them again
HUNG = 0.03  # share of the hosts that hang in the last rounds
HUNG_RUNS = 3


class Bench:
    """One lab and its contenders."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder
        self._content = content()

    def run(self, contender: Contender) -> Run:
        """Measure once. Raises if the contender failed, or did not do what it is compared for."""
        if contender.writes:
            self._clear()
        time.sleep(CALM)
        before = self._hosts_cpu()
        result, output = self._folder / "result.json", self._folder / "output.txt"
        watch = [sys.executable, str(HERE / "stopwatch.py"), str(result), *contender.argv]
        with output.open("w") as sink:
            options: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": sink,
                "stderr": sink,
                "cwd": self._folder,
            }
            self.lab.controller.popen(watch, env={"PYTHONPATH": str(REPOSITORY)}, **options).wait(
                LIMIT
            )
        seen = json.loads(result.read_text())
        said = output.read_text(errors="replace")
        if seen["code"] not in contender.codes or contender.said not in said:
            raise SystemExit(f"{contender.name} ended with {seen['code']}:\n{said[-4000:]}")
        if contender.writes:
            self._verify(contender)
        time.sleep(CALM)
        hosts = self._hosts_cpu() - before
        return Run(
            seen["wall"], seen["user"] + seen["system"], hosts, seen["machine"], seen["memory"]
        )

    def _hosts_cpu(self) -> float:
        """Seconds that all hosts have worked.

        Each one's process 1 is its sshd, and collects whatever ended there.
        """
        stats = (
            Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()
            for host in self.lab.hosts
        )
        return sum(sum(map(int, fields[11:15])) for fields in stats) / os.sysconf("SC_CLK_TCK")

    def _clear(self) -> None:
        """No host has the file, nor what clusterprep remembers of writing it."""
        self._everywhere("rm", "-rf", WRITTEN, "/var/lib/clusterprep")

    def _verify(self, contender: Contender) -> None:
        wrong = [n for n, text in self._everywhere("cat", WRITTEN).items() if text != self._content]
        if wrong:
            raise SystemExit(f"{contender.name} did not write {WRITTEN} on {', '.join(wrong)}")

    def _everywhere(self, *argv: str) -> dict[str, str]:
        """Output by host name of a command run on all hosts, without ssh."""
        return {host.name: host.run(argv, check=False).stdout for host in self.lab.hosts}

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Some hosts accept connections and say nothing."""
        count = max(1, round(len(self.lab.hosts) * HUNG))
        with contextlib.ExitStack() as stack:
            for host in self.lab.hosts[1 :: len(self.lab.hosts) // count][:count]:
                stack.enter_context(faults.freeze(host))
            yield


def measure(
    bench: Bench, all_of_them: Sequence[Contender], repeat: int, forks: str | None
) -> Measured:
    """All contenders in turn, so that a disturbance of the machine meets them alike.

    The first round does not count.

    `forks` is the one run of Ansible that is worth its minutes, where that is known from a smaller
    lab.
    """
    measured = Measured(len(bench.lab.hosts), SshSettings().connect_timeout)
    quick = [c for c in all_of_them if not c.name.startswith("ansible") and not c.hung]
    slow = [c for c in all_of_them if c.name.startswith("ansible") and forks in (None, c.name)]
    for contender in quick:
        _show(
            contender, bench.run(dataclasses.replace(contender, said="")), "warm-up"
        )  # what repeats something does it here
    for number in range(1, repeat + 1):
        if number == 2:
            slow = [c for c in slow if c.name == measured.best("ansible")]
        for contender in (*quick, *(slow if number <= SLOW_RUNS else ())):
            _count(measured, bench, contender, f"{number}/{repeat}")
    with bench.hanging():
        for number in range(1, min(repeat, HUNG_RUNS) + 1):
            for contender in (c for c in all_of_them if c.hung):
                _count(measured, bench, contender, f"{number}/{min(repeat, HUNG_RUNS)}")
    return measured


def _count(measured: Measured, bench: Bench, contender: Contender, when: str) -> None:
    run = bench.run(contender)
    measured.runs[contender.name].append(run)
    _show(contender, run, when)


def _show(contender: Contender, run: Run, when: str) -> None:
    print(f"{when:8} {contender.name:18} {run.wall:8.3f} s", file=sys.stderr, flush=True)


def table(measured: Measured, all_of_them: Iterable[Contender]) -> str:
    """One line per contender, then what was wanted."""
    head = f"{'':4}{'':34}{'wall, s':>8}{'min':>9}{'max':>9}{'runs':>6}{'×(a)':>8}{'×(b)':>8}"
    head += f"{'CPU':>8}{'host CPU':>10}"
    lines = [head, "─" * len(head)]
    for contender in all_of_them:
        runs = measured.runs.get(contender.name)
        if not runs:
            continue
        walls = [run.wall for run in runs]
        ratios = [measured.ratio(contender.name, base) for base in ("ssh", measured.best("floor-"))]
        lines.append(
            f"({contender.letter}) {contender.what:34}"
            f"{statistics.median(walls):8.2f}{min(walls):9.2f}{max(walls):9.2f}"
            f"{len(walls):6}{_number(ratios[0]):>8}{_number(ratios[1]):>8}"
            f"{measured.cpu(contender.name):8.1f}{measured.hosts(contender.name):10.1f}"
        )
    return "\n".join([*lines, "", *map(str, measured.wants())])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _preface(measured: Measured, repeat: int) -> str:
    lines = [
        (
            f"{measured.nodes} lab hosts, {repeat} runs each after a warm-up, in turn; "
            f"Python {platform.python_version()}."
        ),
        (
            f"The hosts share this machine's {CORES} cores with the controller: "
            "their work is part of every wall time."
        ),
        (
            "CPU: milliseconds of the controller per node, "
            "all descendants of the command together; median."
        ),
        "host CPU: milliseconds of one host, from its sshd on; median.",
    ]
    if measured.others > QUIET:
        lines.append(
            f"NOT QUIET: something else used {measured.others:.0%} of the machine; "
            "ratios may be wrong."
        )
    return "\n".join([*lines, ""])


def _as_json(measured: Measured, all_of_them: Iterable[Contender]) -> dict[str, Any]:
    rows = {
        c.name: {
            "letter": c.letter,
            "what": c.what,
            "wall_s": [run.wall for run in measured.runs[c.name]],
            "controller_cpu_ms_per_node": [
                run.cpu * 1000 / measured.nodes for run in measured.runs[c.name]
            ],
            "controller_memory_kib": [run.memory for run in measured.runs[c.name]],
            "host_cpu_ms": [run.hosts * 1000 / measured.nodes for run in measured.runs[c.name]],
            "others": [run.others for run in measured.runs[c.name]],
        }
        for c in all_of_them
        if c.name in measured.runs
    }
    wants = [
        {"text": w.text, "value": w.value, "limit": w.limit, "holds": w.holds}
        for w in measured.wants()
    ]
    return {"nodes": measured.nodes, "cores": CORES, "contenders": rows, "wanted": wants}


def _mention_missing(available: Iterable[Contender], tools: Path) -> None:
    missing = {"ansible", "pyinfra", "parallel"} - {c.name.split("-")[0] for c in available}
    if missing:
        print(
            f"not in {tools}, so not compared: {', '.join(sorted(missing))}; see requirements.txt",
            file=sys.stderr,
        )


def one_size(
    nodes: int, args: argparse.Namespace, forks: str | None
) -> tuple[Measured, list[Contender]]:
    """Start a lab and measure the chosen contenders in it."""
    with tempfile.TemporaryDirectory(prefix="clusterprep-bench-") as name, Lab(nodes) as lab:
        available = list(contenders(lab, Path(name), args.tools / "bin"))
        _mention_missing(available, args.tools)
        chosen = [c for c in available if chooser(args.only)(c)]
        if not chosen:
            raise SystemExit(
                f"--only {args.only}: known are {', '.join(c.name for c in available)}"
            )
        return measure(Bench(lab, Path(name)), chosen, args.repeat, forks), chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", default="64,256", help="numbers of lab hosts, the smallest first (64,256)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="counted runs of each contender (5)")
    parser.add_argument(
        "--only", default="", metavar="a,b,…", help="letters or names of contenders"
    )
    parser.add_argument(
        "--tools", type=Path, default=REPOSITORY / ".venv-bench", help="environment of the others"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there")
    return parser


def main() -> int:
    """Entry of ``python benchmarks/fanout.py``."""
    args = _parser().parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    compileall.compile_dir(REPOSITORY / "clusterprep", quiet=1)  # as an installation is
    forks, sizes = None, []
    for nodes in map(int, args.nodes.split(",")):
        measured, chosen = one_size(nodes, args, forks)
        forks = forks or measured.best("ansible")
        sizes.append(_as_json(measured, chosen))
        print(_preface(measured, args.repeat))
        print(table(measured, chosen), end="\n\n", flush=True)
        if args.json:
            args.json.write_text(json.dumps(sizes, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
