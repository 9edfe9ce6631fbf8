"""Four hostile nodes of sixteen.

The other twelve are judged as without them, as early, and in as little memory. A limit of time
holds whatever is sent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterprep.inventory.load import load_inventory
from clusterprep.model import Fleet
from clusterprep.remote.transports.factory import transports_for
from clusterprep.runtime.budget import Budget
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import plan_queries
from clusterprep.survey.selection import Selection, select_checks
from tests.support.command import CLI, Answer, answer, finished, started
from tests.support.hostile import hostile
from tests.support.hostile_sshd import PORT, hostile_sshd
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab
from tests.support.patience import eventually

pytestmark = pytest.mark.hosts

HEALTHY = 12
BUDGET = 10.0  # seconds: hostile nodes use up every limit, and the healthy ones need two
ONLY = ("ssh.reach", "host.identity", "kernel.version", "os.release", "mem.size")
SSH_WAYS = {"n13": "closed", "n14": "flood"}
PYTHON_WAYS = {"n15": "bomb", "n16": "forks"}
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, file=sys.stderr)
sys.exit(code)
"""


@dataclass
class Clock:
    """A progress display that notes when each node was done."""

    began: float = field(default_factory=time.monotonic)
    done: dict[str, float] = field(default_factory=dict)

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        self.done[node] = time.monotonic() - self.began


@dataclass(frozen=True)
class Run:
    """A check by the command line, and when each node was done in another one."""

    answer: Answer
    mebibytes: int
    done: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """When the last healthy node was done."""
        return max(seconds for name, seconds in self.done.items() if name in NAMES)


NAMES = [f"n{number}" for number in range(1, HEALTHY + 1)]


def check(lab: Lab, inventory: Path, *words: str) -> tuple[Answer, int]:
    """A check, and the memory of the controller at its peak in MiB."""
    argv = [*CLI, "check", str(inventory), "--format", "json", f"--only={','.join(ONLY)}", *words]
    done = lab.controller.run([sys.executable, "-c", MEASURED, *argv], timeout=60)
    (peak,) = (line for line in done.stderr.splitlines() if line.startswith("PEAK "))
    return answer(done), int(peak.split()[1])


def looked(lab: Lab, inventory: Path) -> Mapping[str, float]:
    """The seconds after which each node was done in a look like that of check."""
    checks = select_checks(registry.checks(), Selection(only=ONLY))
    clock = Clock()
    with lab.controller.entered():
        loaded = load_inventory(inventory)
        budget = Budget(BUDGET, time.monotonic())
        with Fanout(
            loaded,
            transports_for(loaded, lambda question: ""),
            64,
            lambda node: None,
            clock,
            budget,
        ) as fanout:
            fleet: Fleet = fanout.survey(plan_queries(checks, registry.facts()), last=True)
    assert [name for name in NAMES if fleet.snapshots[name].reached] == NAMES
    return clock.done


def measured(lab: Lab, inventory: Path) -> Run:
    seen, mebibytes = check(lab, inventory, f"--budget={BUDGET:g}")
    return Run(seen, mebibytes, looked(lab, inventory))


@dataclass(frozen=True)
class Runs:
    """The same check before four nodes turned hostile and after."""

    lab: Lab
    inventory: Path
    before: Run
    after: Run


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    require_lab()
    with Lab(16) as lab, ExitStack() as undone:
        before = measured(lab, lab.inventory())
        for name, way in PYTHON_WAYS.items():
            undone.enter_context(hostile(lab.host(name), way))
        for name, way in SSH_WAYS.items():
            host = lab.host(name)
            host.run(["touch", "/run/closed"])
            undone.enter_context(hostile_sshd(host, way))
        inventory = with_other_ports(lab, SSH_WAYS)
        yield Runs(lab, inventory, before, measured(lab, inventory))


def with_other_ports(lab: Lab, names: Collection[str]) -> Path:
    """An inventory in which these hosts have the port of their hostile sshd."""
    nodes: list[dict[str, Any]] = []
    known = []
    for host in lab.hosts:
        node: dict[str, Any] = {"name": host.name, "address": host.address}
        if host.name in names:
            node["ssh"] = {"port": PORT}
            key = host.read("/etc/ssh/ssh_host_ed25519_key.pub")
            known.append(f"[{host.address}]:{PORT} {key}")
        nodes.append(node)
    with lab.known_hosts.open("a") as file:
        file.writelines(known)
    return lab.inventory(lab.folder / "hostile.yaml", nodes=nodes)


def findings(seen: Answer, name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in seen.report["findings"]:
        if name in finding["nodes"]:
            found.setdefault(finding["check"], set()).add(finding["verdict"])
    return found


def test_healthy_nodes_are_judged_as_without_them(runs: Runs) -> None:
    before = {name: findings(runs.before.answer, name) for name in NAMES}
    assert before == {name: findings(runs.after.answer, name) for name in NAMES}
    assert {
        verdict for found in before.values() for each in found.values() for verdict in each
    } <= {
        "pass",
        "skip",
    }


def test_hostile_nodes_are_named_and_pass_nothing(runs: Runs) -> None:
    seen = runs.after.answer
    unreached = [node["name"] for node in seen.report["nodes"] if not node["reached"]]
    assert unreached == ["n13", "n14", "n15"]
    assert seen.code == 3
    for name in unreached:
        assert findings(seen, name)["ssh.reach"] == {"unknown"}


@pytest.mark.clock
def test_healthy_nodes_are_done_as_early(runs: Runs) -> None:
    assert runs.after.seconds <= 1.3 * runs.before.seconds + 0.5, (
        runs.before.done,
        runs.after.done,
    )


def test_the_controller_takes_little_more_memory(runs: Runs) -> None:
    assert runs.after.mebibytes <= 1.5 * runs.before.mebibytes


@pytest.mark.clock
def test_a_time_limit_holds_whatever_is_sent(runs: Runs) -> None:
    argv = [*CLI, "check", str(runs.inventory), "--format", "json", "--timeout", "5"]
    began = time.monotonic()
    done = runs.lab.controller.run(argv, timeout=60)
    assert time.monotonic() - began < 12.0
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "unknown"


STEP = """\
- nodes: n1
  command:
    run: [sh, -c, "touch /root/going; sleep 80; touch /root/done"]
    creates: /root/done
    limit: 300s
"""


@pytest.mark.slow
def test_a_step_goes_on_while_two_nodes_take_nothing(make_lab: Callable[..., Lab]) -> None:
    """Agents end themselves, and what they run, after 30 s without a sign of the controller."""
    lab = make_lab(3)
    playbook = lab.folder / "step.yaml"
    playbook.write_text(STEP)
    healthy, *hostile_hosts = lab.hosts
    with ExitStack() as undone:
        for host in hostile_hosts:
            undone.enter_context(hostile_sshd(host, "closed"))
        inventory = with_other_ports(lab, [host.name for host in hostile_hosts])
        words = ("--playbook", str(playbook), "--no-verify", "--only", "ssh.")
        process = started(lab, "apply", *words, inventory=inventory)
        assert eventually(
            lambda: not healthy.run(["test", "-e", "/root/going"], check=False).returncode
        )
        for host in hostile_hosts:
            host.run(["touch", "/run/closed"])
        seen = finished(process, timeout=200)
    assert healthy.run(["test", "-e", "/root/done"], check=False).returncode == 0
    assert seen.outcomes() == {"done"}, seen.report["changes"]
