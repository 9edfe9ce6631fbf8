"""How many nodes a second a controller can log in to and look at, by the CPU of its processes.

    python benchmarks/workers.py [--nodes N] [--repeat R] [--workers 0,1,2,4] [--split]

The nodes are SSH servers on this machine that replay recorded answers (`replayed_nodes.py`), in
processes of their own whose CPU is reported apart. Wall time here includes the servers' work, which
shares the cores: so what counts is the bound, the nodes per second of the busiest process if it had
a core of its own. Each row is a fresh controller process; its start-up does not count, that of its
workers does. `--split` shows what one process spends its CPU on.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

from replayed_nodes import ReplayedNodes  # noqa: E402

from clusterprep.model import Inventory, Node  # noqa: E402
from clusterprep.remote import bootstrap  # noqa: E402
from clusterprep.remote.transports.link import Link, open_link  # noqa: E402
from clusterprep.remote.transports.protocol import Transport  # noqa: E402
from clusterprep.remote.transports.ssh import SshTransport  # noqa: E402
from clusterprep.remote.transports.workers import WorkerTransport  # noqa: E402
from clusterprep.survey import registry  # noqa: E402
from clusterprep.survey.fanout import Fanout  # noqa: E402
from clusterprep.survey.queries import Queries, QueryPlan, plan_queries  # noqa: E402
from clusterprep.survey.reads import ask_reads  # noqa: E402
from clusterprep.survey.selection import Selection, select_checks  # noqa: E402

WORKERS = (0, 1, 2, 4)
FORKS = 64
SERVERS = 2  # processes
CHECKS = {"one small check": ("kernel.version",), "every check": ()}
MEASURED_APART = ("clock", "pairs")  # stages that need an agent that runs


@dataclass(frozen=True)
class Cost:
    """CPU of one look at all nodes, in ms per node, and its wall time in seconds."""

    controller: float
    workers: float  # all of them together
    busiest: float  # of the controller and each worker
    wall: float
    servers: float = 0.0

    @property
    def bound(self) -> float:
        """Nodes per second, if the busiest process has a core of its own."""
        return 1000 / self.busiest


class NoProgress:
    """A progress display that shows nothing."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


def plan_of(only: tuple[str, ...]) -> QueryPlan:
    checks = select_checks(registry.checks(), Selection(only=only))
    plan = plan_queries(checks, registry.facts())
    facts = tuple(fact for fact in plan.facts if fact.stage not in MEASURED_APART)
    return QueryPlan(plan.checks, facts)


# ---------------------------------------------------------------- one controller process


def looked(inventory: Inventory, plan: QueryPlan, workers: int) -> Cost:
    """Return what a look at all nodes costs. Raises SystemExit if a node is not reached."""
    with _fanout(inventory, SshTransport()) as fanout:  # what is loaded at the first use
        fanout.survey(plan, last=True, inventory=replace(inventory, nodes=inventory.nodes[:1]))
    transport = WorkerTransport(workers) if workers else SshTransport()
    began, used = time.monotonic(), time.process_time()
    with _fanout(inventory, transport) as fanout:
        fleet = fanout.survey(plan, last=True)
        pids = transport.pids if isinstance(transport, WorkerTransport) else []
        of_workers = [_cpu_of(pid) for pid in pids]
    used = time.process_time() - used
    wall = time.monotonic() - began
    lost = [f"{name}: {seen.detail}" for name, seen in fleet.snapshots.items() if not seen.reached]
    if lost:
        raise SystemExit(f"{len(lost)} nodes were not reached: {lost[0]}")
    per_node = 1000 / len(inventory.nodes)
    return Cost(
        controller=used * per_node,
        workers=sum(of_workers) * per_node,
        busiest=max(used, *of_workers, 0.0) * per_node,
        wall=wall,
    )


def _fanout(inventory: Inventory, transport: Transport) -> Fanout:
    return Fanout(inventory, {"ssh": transport}, FORKS, lambda node: None, NoProgress())


def _cpu_of(pid: int) -> float:
    """Return the seconds that a process has worked."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def split(inventory: Inventory, plan: QueryPlan) -> dict[str, float]:
    """Return the CPU of one process in ms per node: each step with all steps before it."""
    queries = Queries(plan, inventory)
    sheets = {node.name: queries.of(node) for node in inventory.nodes}
    kinds = {read.kind for sheet in sheets.values() for read in sheet.reads}
    parts = bootstrap.parts_for(kinds)
    transport = SshTransport()

    def log_in(node: Node) -> None:
        transport.open(node, bootstrap.command()).close()

    def start_agent(node: Node) -> None:
        _agent(node).close()

    def read(node: Node) -> None:
        link = _agent(node)
        ask_reads(link, sheets[node.name].reads)
        link.close()

    def read_and_parse(node: Node) -> None:
        link = _agent(node)
        queries.facts(sheets[node.name], ask_reads(link, sheets[node.name].reads))
        link.close()

    def _agent(node: Node) -> Link:
        return open_link(transport, node, parts, lambda node: None)

    read_and_parse(inventory.nodes[0])  # what is loaded at the first use
    steps: dict[str, Callable[[Node], None]] = {
        "login": log_in,
        "agent": start_agent,
        "read": read,
        "parse": read_and_parse,
    }
    seconds = {}
    with _fanout(inventory, transport) as fanout:
        for name, step in steps.items():
            used = time.process_time()
            fanout.each(inventory.nodes, step)
            seconds[name] = (time.process_time() - used) * 1000 / len(inventory.nodes)
    queries.close()
    return seconds


# ---------------------------------------------------------------- all of them


def measured(nodes: int, checks: str, mode: str) -> tuple[dict[str, float], float]:
    """Return what a fresh controller process says, and ms of CPU per node of the servers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ReplayedNodes(nodes, SERVERS) as servers:
            (folder / "inventory").write_bytes(pickle.dumps(servers.inventory(folder)))
            argv = [sys.executable, str(HERE), "--here", name, "--checks", checks, "--mode", mode]
            done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout), servers.cpu * 1000 / nodes


def show_split(nodes: int) -> None:
    print(f"one process, {nodes} nodes, ms of CPU per node")
    print(f"{'':18}{'login':>8}{'agent':>8}{'read':>8}{'parse':>8}{'all':>8}")
    for checks in CHECKS:
        sums, _ = measured(nodes, checks, "split")
        before = 0.0
        cells = []
        for value in sums.values():
            cells.append(f"{value - before:8.2f}")
            before = value
        print(f"{checks:18}{''.join(cells)}{before:8.2f}", flush=True)


def show_workers(nodes: int, repeat: int, counts: Sequence[int]) -> None:
    print(f"\n{nodes} nodes, {FORKS} at once, medians of {repeat}; CPU in ms per node")
    head = f"{'':18}{'workers':>8}{'controller':>11}{'workers':>9}{'busiest':>9}"
    print(f"{head}{'bound, nodes/s':>15}{'wall, s':>9}{'servers':>9}")
    for checks in CHECKS:
        costs: dict[int, list[Cost]] = {count: [] for count in counts}
        for _ in range(repeat):
            for count in counts:  # in turn, so that a disturbance of the machine meets all alike
                row, servers = measured(nodes, checks, str(count))
                costs[count].append(Cost(**{**row, "servers": servers}))
        for count in counts:
            _show_row(checks, count, costs[count])


def _show_row(checks: str, count: int, costs: Sequence[Cost]) -> None:
    cost = Cost(
        **{
            name: statistics.median(getattr(each, name) for each in costs)
            for name in asdict(costs[0])
        }
    )
    print(
        f"{checks:18}{count:8}{cost.controller:11.2f}{cost.workers:9.2f}{cost.busiest:9.2f}"
        f"{cost.bound:15.0f}{cost.wall:9.2f}{cost.servers:9.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--workers", type=lambda text: [int(count) for count in text.split(",")], default=WORKERS
    )
    parser.add_argument("--split", action="store_true", help="show also where the CPU goes")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--checks", help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        # Written a moment ago by this program.
        inventory = pickle.loads((options.here / "inventory").read_bytes())  # noqa: S301
        plan = plan_of(CHECKS[options.checks])
        if options.mode == "split":
            print(json.dumps(split(inventory, plan)))
        else:
            print(json.dumps(asdict(looked(inventory, plan, int(options.mode)))))
        return
    if options.split:
        show_split(options.nodes)
    show_workers(options.nodes, options.repeat, options.workers)


if __name__ == "__main__":
    main()
