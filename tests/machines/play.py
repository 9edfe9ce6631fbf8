"""Ask a described machine as a real node is asked.

The agent's own readers run in a root folder with the machine's files. That needs chroot, so root or
a user namespace, and a C compiler. What no tree of files can answer (the resolver, sudo, statvfs, a
command) is described.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from clusterprep.cli.commands.selftest import with_load, with_past
from clusterprep.facts import Fact
from clusterprep.history.certificate import with_certified
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Finding, Fleet, Inventory, Json, Node, Read
from clusterprep.remote.transports.replay import ReplayTransport, record
from clusterprep.reports.progress import Progress
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import QueryPlan, plan_queries
from tests.machines import Kind, Machine, load
from tests.support import nvml
from tests.support.asked import reads

# Kinds of reads that are answered by the real readers inside the machine's root.
ROOTED = frozenset(
    "file files target pci nvml rights account kernels cpus governors interrupts kernel_log tasks "
    "shm_segments pci_tree pci_errors rdma_tree rail_routes roce_qos rail_neighbours verbs "
    "nccl_topology gpu_nodes nvml_libraries journal driver_libraries nvme launch_limits "
    "session_share slurm_files slurm_state".split()
)
MEMORY = "/dev/shm"  # thousands of small files are made; a disk takes thirty times as long
TODAY = date(2026, 11, 21)
# Where a Debian machine has its libraries, and readers look for NVML.
LIBRARIES = "usr/lib/x86_64-linux-gnu"

# Runs in a process of its own: loads what it needs, then locks itself in and reads.
_INSIDE = """
import json, os, sys
import ctypes, pwd, stat
from clusterprep.remote import bootstrap
from clusterprep.remote.agent import look, readers
import importlib
for part in bootstrap.parts_for(bootstrap.kinds()):
    for name, _ in bootstrap.sources(part):
        module = importlib.import_module(name)
        if part != "look" and hasattr(module, "install"):
            module.install(None)
request = json.load(sys.stdin)
if request["library"]:
    ctypes.CDLL(request["library"])
os.chroot(request["root"])
os.chdir("/")
json.dump([look.answer(kind, args) for kind, args in request["reads"]], sys.stdout)
"""


def inventory_of(kind: Kind, folder: Path) -> Inventory:
    """The kind's inventory, read as a user's file is."""
    path = folder / "inventory.yaml"
    path.write_text(json.dumps(kind.inventory))
    return load_inventory(path)


def everything() -> QueryPlan:
    """All checks, and all the facts that they need."""
    return plan_queries(tuple(registry.checks().values()), registry.facts())


def recording(kind: Kind, facts: Iterable[Fact] = ()) -> dict[str, dict[str, Json]]:
    """Return the answers of a kind's machines to all reads of `check`, to be replayed."""
    plan = plan_queries(everything().checks, registry.facts(), facts)
    with tempfile.TemporaryDirectory() as folder:
        inventory = inventory_of(kind, Path(folder))
        machines = {machine.name: machine for machine in kind.machines}
        return {
            node.name: recorded(machines[node.name], node, inventory, plan)
            for node in inventory.nodes
        }


def recorded(
    machine: Machine, node: Node, inventory: Inventory, plan: QueryPlan
) -> dict[str, Json]:
    asked = reads(plan, node, inventory)
    told = record(answers(machine, asked, inventory), peer=machine.address)
    # A node that is dialled answers within 0.08 ms, and a packet as large as the interface's MTU
    # gets through.
    return {**told, "dial": ["ok", 80, mtu(machine), True, mtu(machine)]}


def mtu(machine: Machine) -> int:
    """Of the interface that has the machine's address."""
    _, rows = machine.answers.get("interfaces", ["ok", []])
    mine = [
        row for row in rows if any(told["address"] == machine.address for told in row["addresses"])
    ]
    return int(mine[0]["mtu"]) if mine else 1500


def answers(machine: Machine, asked: Sequence[Read], inventory: Inventory) -> dict[Read, Json]:
    """The raw answer of every read."""
    rooted = [read for read in asked if read.kind in ROOTED and read.kind not in machine.answers]
    found = dict(zip(rooted, _read_inside(machine, rooted), strict=True))
    for read in asked:
        if read not in found:
            found[read] = _described(machine, read, inventory)
    return found


def _described(machine: Machine, read: Read, inventory: Inventory) -> Json:
    if read.kind == "command":
        return _command(machine.commands, [str(word) for word in read.args])
    if read.kind == "otherwise":
        return _otherwise(machine.commands, *read.args)
    if read.kind == "resolve":
        addresses = {node.name: node.address for node in inventory.nodes}
        return ["ok", {name: [addresses[name]] for name in map(str, read.args)}]
    if read.kind == "own_name":
        return ["ok", [machine.address]]
    described = machine.answers.get(read.kind, ["no", "not_described", read.kind])
    if isinstance(described, Mapping):  # by arguments, joined with a space
        words = " ".join(map(str, read.args))
        return described.get(words, ["no", "not_described", f"{read.kind} {words}"])
    return described


def _command(commands: Mapping[str, Any], words: list[str]) -> Json:
    text = commands.get(shlex.join(words), commands.get(" ".join(words)))  # null: it is not there
    if text is None:
        return ["no", "missing_tool", f"{words[0]} is not there"]
    given = text if isinstance(text, Mapping) else {"out": text}
    return ["ok", {"code": 0, "out": "", "err": "", **given}]


def _otherwise(commands: Mapping[str, Any], first: Json, words: Json) -> Json:
    outcome, given = _command(commands, first)[:2]
    if outcome == "ok" and given["code"] == 0:
        return ["ok", None]
    return _command(commands, words)


def _read_inside(machine: Machine, asked: Sequence[Read]) -> list[Json]:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        root = Path(folder)
        build(machine, root)
        library = nvml_library(machine, root)
        request = {
            "root": folder,
            "library": library,
            "reads": [[read.kind, list(read.args)] for read in asked],
        }
        argv = [*become_root(), sys.executable, "-c", _INSIDE]
        done = subprocess.run(
            argv, input=json.dumps(request), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        answers = list(json.loads(done.stdout))
    for read, answer in zip(asked, answers, strict=True):
        if read.kind == "nvml" and answer[0] == "ok" and answer[1] is not None:
            for row in answer[1]["gpus"]:
                if "seconds" in row:
                    row["seconds"] = 0.0  # this machine took longer, or not
    return answers


def become_root() -> list[str]:
    """Return what to put before a command that needs chroot.

    A user namespace for ordinary users.
    """
    return [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]


def can_be_played() -> bool:
    """Return whether this machine can play others: a compiler for NVML, and chroot."""
    if shutil.which("cc") is None:
        return False
    try:
        done = subprocess.run([*become_root(), "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


needs_chroot = pytest.mark.skipif(
    not can_be_played(), reason="to play machines takes a C compiler, and root or a user namespace"
)


def build(machine: Machine, root: Path) -> None:
    """The machine's files and links below a root folder."""
    for path, text in machine.files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(str(text))
    for path, target in machine.links.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def nvml_library(machine: Machine, root: Path) -> str | None:
    """Build a management library that says what `gpus:` describes. Return None without GPUs.

    The library is visible to the machine's loader.
    """
    if not machine.gpus:
        return None
    system: dict[str, Any] = {}
    for row in machine.gpus:
        system.update(row.get("system", {}))
    gpus = [row for row in machine.gpus if "system" not in row]
    return str(nvml.build(root / LIBRARIES, gpus, **system))


@dataclass(frozen=True)
class World:
    """A kind of machine with all that it answers, and what check makes of it."""

    inventory: Inventory
    recording: Mapping[str, Mapping[str, Json]]
    fleet: Fleet
    findings: tuple[Finding, ...]


@functools.cache
def world(name: str) -> World:
    """The kind of this name, recorded once for all tests."""
    kind = load(name)
    with tempfile.TemporaryDirectory() as folder:
        inventory = inventory_of(kind, Path(folder))
    told = recording(kind)
    return World(inventory, told, *looked(inventory, told))


def looked(
    inventory: Inventory, recorded_nodes: Mapping[str, Mapping[str, Json]]
) -> tuple[Fleet, tuple[Finding, ...]]:
    """Survey a recording as `check` does: reads, ports, an hour without errors, judgement."""
    plan = everything()
    transports = {"ssh": ReplayTransport(recorded_nodes)}
    with Fanout(
        inventory, transports, len(inventory.nodes), lambda node: None, Progress()
    ) as fanout:
        fleet = fanout.survey(plan)
        fleet = with_load(with_past(probe_pairs(fanout, fleet, inventory.nodes[0].name)))
    fleet = with_certified(fleet, None)
    return fleet, judge(fleet, plan.checks, TODAY)
