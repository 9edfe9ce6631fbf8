"""How much time and memory the pure core takes for fleets of any size.

The fleets are grown from recorded machines.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Want
from clusterprep import reports
from clusterprep.changes.file_plan import change_rows, plan_file_changes
from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.resources import target_fact
from clusterprep.cli.commands.record import line_of
from clusterprep.cli.exit_codes import findings_code
from clusterprep.history.compare import since
from clusterprep.history.runs import Runs, packed
from clusterprep.inventory.load import load_inventory
from clusterprep.jobs.verify import blame, schedule
from clusterprep.jobs.verify.stage import given_environment, gpus_in_use, rendezvous_of
from clusterprep.jobs.verify.timeline import EventLog
from clusterprep.model import Fleet, Inventory, Report, VerifyResult
from clusterprep.nccl.environment import FACTS, render
from clusterprep.runtime.cycles import WHILE_WORKING
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import Queries, QueryPlan, plan_queries
from tests.support import grown, grown_trial

SIZES = (256, 1000, 4096, 10_000)
TODAY = date(2026, 11, 22)
MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """The cost of a stage at one size: CPU seconds, bytes that stay, and its peak of bytes."""

    nodes: int
    stage: str
    seconds: float
    kept: int
    peak: int


class Meter:
    """Measures the stages of one process."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.costs = nodes, list[Cost]()
        self.bare = _status("VmRSS")
        self.before = 0.0  # CPU seconds that do not count for the stage under way

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, self.before, began = _status("VmRSS"), 0.0, time.process_time()
        yield
        seconds = time.process_time() - began - self.before
        self.costs.append(
            Cost(self.nodes, name, seconds, _status("VmRSS") - before, _status("VmHWM") - self.bare)
        )

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Work of the simulation, which is none of the stage under way."""
        began = time.process_time()
        yield
        self.before += time.process_time() - began


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


# ---------------------------------------------------------------- the stages


def everything(inventory: Inventory) -> QueryPlan:
    """What `apply` asks: all checks, the environment, the files that may be written."""
    steps = load_playbook("site").steps
    paths = [path for step in steps for path in step.resource.paths(step.params, inventory)]
    extra = [*(registry.facts()[name] for name in FACTS), *map(target_fact, paths)]
    return plan_queries(tuple(registry.checks().values()), registry.facts(), extra)


def measured(nodes: int, meter: Meter) -> None:
    """All stages in a row, as one process does them.

    AssertionError where what was planted is not what is found.
    """
    inventory, plan = _loaded(nodes, meter)
    fated = grown.fates(inventory)
    with meter.stage("parse"):
        fleet = grown.looked(Queries(plan, inventory), inventory, fated, meter.apart)
    fleet = grown.planted(fleet, fated)
    with meter.stage("pairs"):
        fleet = probe_pairs(grown.Wires(fleet, fated.deaf), fleet, inventory.nodes[0].name)  # type: ignore[arg-type]
    fleet = grown.dialled(fleet, fated)
    with meter.stage("judge"):
        findings = judge(fleet, plan.checks, TODAY)
    grown.compare(findings, fated)
    with meter.stage("render"):
        environment = render(fleet)
    steps = load_playbook("site").steps
    with meter.stage("diff"):
        planned, gaps = plan_file_changes(fleet, steps, environment)
        changed = change_rows(planned, {}, {})
    assert set(gaps) <= set(fated.checks), "only nodes with a fault cannot be planned"
    verify = _tried(fleet, environment, meter)
    report = Report(
        "apply",
        "20261122-104500-c0de",
        "large",
        "2026-11-22T10:45:00Z",
        12.5,
        "fail",
        findings_code(findings),
        tuple(fleet.snapshots.values()),
        findings,
        environment.values,
        (),
        changed,
        verify,
    )
    with meter.stage("to the history"):
        kept = packed(report, line_of(report, "large.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        with meter.stage("write it"):
            runs.record(kept)
        with meter.stage("what is new"):
            since(kept.run, runs.report(report.run, only=("findings",)), findings)
    for fmt in reports.SUFFIXES:
        with meter.stage(f"report {fmt}"), Path(os.devnull).open("w", encoding="utf-8") as sink:
            sink.writelines(reports.pieces(report, fmt))


def _loaded(nodes: int, meter: Meter) -> tuple[Inventory, QueryPlan]:
    with tempfile.TemporaryDirectory() as folder:
        listed, short = Path(folder) / "listed.yaml", Path(folder) / "short.yaml"
        listed.write_text(grown.listed_text(nodes))
        short.write_text(grown.inventory_text(nodes))
        with meter.stage("load, listed"):
            again = load_inventory(listed)
        with meter.stage("load"):
            inventory = load_inventory(short)
    assert [node.address for node in again.nodes] == [node.address for node in inventory.nodes]
    with meter.stage("plan"):
        plan = everything(inventory)
        queries = Queries(plan, inventory)
        for node in inventory.nodes:
            queries.of(node)
    return inventory, plan


def _tried(fleet: Fleet, environment: Any, meter: Meter) -> Any:
    with meter.stage("trial plan"):
        settings = fleet.inventory.verify
        env, gpus = given_environment(fleet, environment), gpus_in_use(fleet)
        further = schedule.other_steps(settings)
        plan = schedule.plan_trial(
            fleet.reached, env, rendezvous_of(fleet), settings, gpus, further
        )
    names = [node.name for node in plan.nodes]
    result: Any = None
    for name, story in grown_trial.stories(names).items():
        log = EventLog(plan)
        for event in grown_trial.events(plan, story):
            log.add(event)
        with meter.stage(f"order, {name}"):
            timeline = log.timeline()
        with meter.stage(f"blame, {name}"):
            result = blame.judge(timeline)
            said = blame.findings(result)
        grown_trial.compare(story, result, said)
        del timeline, said
        result = VerifyResult(
            **{name: getattr(result, name) for name in VerifyResult.__struct_fields__}
        )
    return result


# ---------------------------------------------------------------- the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=lambda text: [int(n) for n in text.split(",")], default=SIZES
    )
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument(
        "--here", action="store_true", help="one size, in this process, as JSON on stdout"
    )
    words = parser.parse_args()
    if words.here:
        gc.set_threshold(*WHILE_WORKING)
        meter = Meter(words.nodes[0])
        measured(words.nodes[0], meter)
        json.dump([asdict(cost) for cost in meter.costs], sys.stdout)
        return
    costs = [cost for nodes in words.nodes for cost in _in_a_process(nodes)]
    if words.json:
        words.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")
    for nodes in words.nodes:
        _show([cost for cost in costs if cost.nodes == nodes])
    _show_growth(costs, words.nodes)
    _show_wanted(costs)


def _in_a_process(nodes: int) -> list[Cost]:
    argv = [sys.executable, __file__, "--here", "--nodes", str(nodes)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
    return [Cost(**row) for row in json.loads(done.stdout)]


def _show(costs: Sequence[Cost]) -> None:
    nodes = costs[0].nodes
    print(f"\n{nodes:,} nodes{'':12}  seconds  ms/node  kept KB/node  peak MB")
    for cost in costs:
        print(
            f"{cost.stage:24} {cost.seconds:8.2f} {cost.seconds / nodes * 1000:8.3f} "
            f"{cost.kept / nodes / 1024:13.1f} {cost.peak / MIB:8.0f}"
        )
    total = sum(cost.seconds for cost in costs if cost.stage not in BESIDE)
    peak = max(cost.peak for cost in costs) / MIB
    print(f"{'all':24} {total:8.2f} {total / nodes * 1000:8.3f} {'':13} {peak:8.0f}")


BESIDE = ("load, listed",)  # an alternative, no step of the row


def _show_growth(costs: Sequence[Cost], sizes: Sequence[int]) -> None:
    by = {(cost.nodes, cost.stage): cost for cost in costs}
    least, most = (1000 if 1000 in sizes else min(sizes)), max(sizes)
    if least == most:
        return
    print(f"\ntime per node at {most:,} over that at {least:,} (1 is linear)")
    for stage in dict.fromkeys(cost.stage for cost in costs):
        few, many = by[least, stage], by[most, stage]
        print(f"{stage:24} {many.seconds / most / (few.seconds / least):8.2f}")


# What is wanted of the row from the answers of all nodes to all reports, without trial and history.
_CORE = ("parse", "pairs", "judge", "render", "diff")
_STAGES = {"judge": 1.5, "report json": 1.5, "report html": 1.5}  # seconds at 10,000 nodes
_WHOLE = {1000: 1.5, 10_000: 15.0}  # seconds
_MEMORY = 300.0  # MB at 10,000 nodes


def _show_wanted(costs: Sequence[Cost]) -> None:
    """Print what is wanted of the sizes that were measured, what was seen, and whether it holds."""
    print("\nwanted, seen, holds")
    for nodes, limit in _WHOLE.items():
        own = [cost for cost in costs if cost.nodes == nodes]
        whole = [cost for cost in own if cost.stage in _CORE or cost.stage.startswith("report ")]
        if whole:
            seconds = sum(cost.seconds for cost in whole)
            print(Want(f"{nodes:,} nodes, answers to all reports, s", seconds, limit))
        if nodes != max(_WHOLE):
            continue
        for cost in own:
            if cost.stage in _STAGES:
                print(Want(f"{nodes:,} nodes, {cost.stage}, s", cost.seconds, _STAGES[cost.stage]))
        core = [cost.peak / MIB for cost in own if cost.stage in _CORE]
        if core:
            print(Want(f"{nodes:,} nodes, all without trial and history, MB", max(core), _MEMORY))


if __name__ == "__main__":
    main()
