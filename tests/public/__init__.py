"""Public dumps and excerpts of logs, labelled by somebody who had not seen this program.

A YAML file holds the cases of one kind of evidence; those of a second round are in second/. Each
is laid over a healthy machine of tests/machines, n2 of two; n1 stays as it is:

    name:        a few words
    source:      where the text was published
    base:        the kind of machine
    says:        {check: verdict}: what was labelled; a list where several verdicts are right, and
                 «a or b» where either check may say it
    at:          the node that is judged, n2 where it is not given
    names:       words that the failures must hold
    kernel_log:  lines of the kernel, as printed
    given:       what n2 shows besides, as tests/machines has it
    everywhere:  what both nodes show
    peer:        what n1 shows
    acs:         by the place of a bridge on n2, the word that controls ACS
    control:     by the place of a card on both nodes, its word of Device Control
    inventory:   merged over that of the base
    first:       true where nothing was measured on the node before
    nccl:        {node: lines}: what the ranks of a node print; `env` is what they were given,
                 `alone` is true for a job of n2 only
    dcgm:        what `dcgmi diag` prints
    wrong:       what is said today where it is not what was labelled
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from clusterprep.facts import Fact
from clusterprep.facts.stress import DIAGNOSTICS, parse_diagnostics
from clusterprep.jobs.verify.gpudirect_check import gpudirect_findings
from clusterprep.jobs.verify.nvls_check import nvls_findings
from clusterprep.jobs.verify.schedule import plan_trial
from clusterprep.jobs.verify.transport_check import transport_findings
from clusterprep.model import Finding, Fleet, Inventory, Json, VerifySettings
from clusterprep.remote.agent.nccl_lines import Output
from clusterprep.remote.transports.replay import ReplayTransport
from clusterprep.reports.progress import Progress
from clusterprep.survey.answers import parse_fact
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from tests.jobs.verify.stories import on_node, story
from tests.machines import Kind, Machine, merged, pair, play
from tests.machines.tree import config, endpoint_config
from tests.support.fleet import with_facts

HERE = Path(__file__).parent
# From the best to the worst: the worst of a check on a node is what it says of that node.
VERDICTS = ("none", "pass", "skip", "unknown", "fail warning", "fail error")
HOURS_AGO = 7200  # seconds before now at which the first line of a case was logged


@dataclass(frozen=True)
class Case:
    """One excerpt with its label; the fields are those of the YAML."""

    name: str
    source: str
    base: str
    says: Mapping[str, Any]
    at: str = "n2"
    names: tuple[str, ...] = ()
    kernel_log: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    peer: Mapping[str, Any] = field(default_factory=dict)
    acs: Mapping[str, int] = field(default_factory=dict)
    control: Mapping[str, int] = field(default_factory=dict)
    inventory: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False
    nccl: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    dcgm: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def is_altered(self) -> bool:
        """Return whether a node is not as its kind has it."""
        return self.alters_both or bool(self.given or self.kernel_log or self.acs)

    @property
    def alters_both(self) -> bool:
        """Return whether n1 is not as its kind has it either."""
        return bool(self.everywhere or self.peer or self.inventory or self.control)


def evidence() -> list[str]:
    """Return the kinds of evidence: the names of the files, as second/rdma."""
    names = (path.relative_to(HERE).with_suffix("") for path in HERE.rglob("*.yaml"))
    return sorted(name.as_posix() for name in names)


@functools.cache
def cases(kind: str) -> tuple[Case, ...]:
    rows = yaml.safe_load((HERE / f"{kind}.yaml").read_text())
    return tuple(Case(**row) for row in rows)


# ---------------------------------------------------------------- what check and verify say


def findings(case: Case) -> tuple[Finding, ...]:
    """Return what the program makes of a case."""
    if case.nccl:
        return tuple(_of_trial(case, healthy(case.base).fleet))
    if case.dcgm:
        answer = ["ok", {"code": 0, "out": case.dcgm, "err": ""}]
        fact = Fact(DIAGNOSTICS.name, parse=functools.partial(parse_diagnostics, 2))
        found = parse_fact(fact, [answer])
        seen = with_facts(healthy(case.base).fleet, {("n2", DIAGNOSTICS.name): found})
        return judge(seen, play.everything().checks, play.TODAY)
    if not case.is_altered:
        return healthy(case.base).findings
    inventory, told = _recorded(case)
    if case.first:
        return _at_first(inventory, told)
    return play.looked(inventory, told)[1]


@functools.cache
def healthy(base: str) -> play.World:
    """Two healthy machines of a kind, recorded once."""
    kind = pair(base, {})
    inventory = _inventory(kind)
    told = play.recording(kind)
    return play.World(inventory, told, *play.looked(inventory, told))


def _inventory(kind: Kind) -> Inventory:
    with tempfile.TemporaryDirectory() as folder:
        return play.inventory_of(kind, Path(folder))


def _recorded(case: Case) -> tuple[Inventory, Mapping[str, Mapping[str, Json]]]:
    """Return the answers of both nodes; those of an n1 that is as ever are not taken again."""
    nodes = {
        "n1": merged(case.everywhere, case.peer),
        "n2": merged(case.everywhere, case.given),
    }
    kind = pair(case.base, nodes, case.inventory)
    first, second = (_with_control(case, machine) for machine in kind.machines)
    kind = dataclasses.replace(kind, machines=(first, _with_lines(case, second)))
    if case.alters_both:
        return _inventory(kind), play.recording(kind)
    world = healthy(case.base)
    node = world.inventory.nodes[1]
    again = play.recorded(kind.machines[1], node, world.inventory, play.everything())
    return world.inventory, {**world.recording, "n2": again}


def _with_control(case: Case, machine: Machine) -> Machine:
    """Return the machine with the words of Device Control that the case has."""
    files = dict(machine.files)
    for at, word in case.control.items():
        files[f"{machine.links[f'/sys/bus/pci/devices/{at}']}/config"] = endpoint_config(word)
    return dataclasses.replace(machine, files=files)


def _with_lines(case: Case, machine: Machine) -> Machine:
    """Return n2 with the case's lines in the kernel's log, and its words of ACS."""
    files = dict(machine.files)
    up = float(files.get("/proc/uptime", "90000").split()[0])
    log = files.get("/dev/kmsg", "").rstrip("\n")
    for number, line in enumerate(case.kernel_log):
        since_boot = int((up - HOURS_AGO + number) * 1e6)
        log += f"\n3,{9000 + number},{since_boot},-;{line}"
    if case.kernel_log:
        files["/dev/kmsg"] = f"{log}\n"
    for at, word in case.acs.items():
        files[f"{machine.links[f'/sys/bus/pci/devices/{at}']}/config"] = config(word)
    return dataclasses.replace(machine, files=files)


def _at_first(inventory: Inventory, told: Mapping[str, Mapping[str, Json]]) -> tuple[Finding, ...]:
    """Survey as play.looked does, where no earlier survey counted anything."""
    plan = play.everything()
    with Fanout(inventory, {"ssh": ReplayTransport(told)}, 2, _ignore, Progress()) as fanout:
        fleet = probe_pairs(fanout, fanout.survey(plan), "n1")
    return judge(fleet, plan.checks, play.TODAY)


def _ignore(node: object) -> None:
    pass


def _of_trial(case: Case, fleet: Fleet) -> Iterator[Finding]:
    """Yield what is said of a trial whose ranks printed the case's lines."""
    nodes = [node for node in fleet.reached if node.name == "n2" or not case.alone]
    trees = {node.name: fleet.fact(node.name, "pci.tree") for node in nodes}
    counts = {name: len(tree.gpus) for name, tree in trees.items()}
    planned = [replace(node, nproc_per_node=counts[node.name]) for node in nodes]
    settings = VerifySettings(backend="nccl", sizes=(8, 1 << 20), timeout=10.0)
    given = {node.name: dict(case.env) for node in nodes}
    plan = plan_trial(planned, given, ("10.0.0.1", 29500), settings, counts)
    heard = {name: _heard(text) for name, text in case.nccl.items()}
    events = []
    for rank in plan.ranks:
        at = trees[rank.node].gpus[rank.local_rank].at
        gpu = {"uuid": f"GPU-{rank.rank}", "index": rank.local_rank, "pci": at, "numa": 0}
        events.append(on_node(plan, rank.rank, "ready", 1.0, gpu=gpu))
        if rank.node in heard:
            events.append(on_node(plan, rank.rank, "nccl", lines=heard[rank.node], cut=0))
    timeline = story(*events, plan=plan)
    yield from transport_findings(timeline)
    yield from gpudirect_findings(timeline, fleet)
    yield from nvls_findings(timeline, fleet)


def _heard(text: str) -> list[str]:
    """Return what the agent keeps of the lines."""
    output = Output()
    output.hear(text.encode())
    return output.lines


# ---------------------------------------------------------------- against the label


def verdict(found: Iterable[Finding], check: str, node: str) -> str:
    """Return the worst that a check, or one of several joined with «or», says of a node."""
    said = ["none"]
    for finding in found:
        if finding.check in check.split(" or ") and node in finding.nodes:
            word = finding.verdict
            said.append(f"fail {finding.severity}" if word == "fail" else word)
    return max(said, key=VERDICTS.index)


def misses(case: Case, found: tuple[Finding, ...]) -> list[str]:
    """Return where the program says something else than the label does."""
    missed = []
    for check, label in case.says.items():
        right = [label] if isinstance(label, str) else label
        said = verdict(found, check, case.at)
        if said not in right:
            missed.append(f"{check} is {said}")
    mine = [one for one in found if one.verdict == "fail" and case.at in one.nodes]
    words = " ".join(f"{one.message} {one.seen} {one.remedy}" for one in mine).lower()
    missed += [f"{name} is not named" for name in case.names if name.lower() not in words]
    if not (case.alters_both or case.nccl):
        others = sorted({one.check for one in found if _blames_the_healthy(one)})
        missed += [f"{check} blames the healthy node" for check in others]
    return missed


def _blames_the_healthy(finding: Finding) -> bool:
    return finding.verdict == "fail" and "n1" in finding.nodes and "n2" not in finding.nodes
