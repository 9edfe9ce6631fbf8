"""Agents without machines: they keep files in memory, and refuse what real agents refuse.

`FakeAgents` stands for `Fanout` in tests of what is written in which order. Every request is kept
in `sent`, and faults are given by the name of an operation and of a node.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterprep.changes.resources import PlanContext, StepResource
from clusterprep.errors import ClusterprepError, Interrupted, LinkLost, OutOfTime
from clusterprep.facts import Fact
from clusterprep.facts.account import Rights
from clusterprep.facts.journal import DamagedRun, Journal, JournalEntry, parse_nodes
from clusterprep.model import Absent, Fleet, Inventory, Node, NodeSnapshot, Read
from clusterprep.model.files import FileState
from clusterprep.model.operations import Reboot, RunCommand, StepAction
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.queries import QueryPlan
from tests.support.fleet import healthy

UNSETTLED = ("staged", "committed")
PART_OF = {
    **dict.fromkeys(("lock", "stage", "commit", "settle", "undo", "runs", "set_aside"), "act"),
    **dict.fromkeys(("perform", "take_back", "deeds", "halt"), "steps"),
    **dict.fromkeys(("look", "listen", "dial", "unlisten"), "look"),
}
# A node that goes away before it does what it is asked to, or after it has done it.
LOST_BEFORE, LOST_AFTER = "lost-before", "lost-after"

Answer = dict[str, Any] | LinkLost
# One of the two above, the answer of a node that refuses, or what the request raises.
Fault = str | Mapping[str, Any] | Exception


# ---------------------------------------------------------------- a step that can be seen


def parse_switch(answer: str) -> str:
    return answer


SWITCH = Fact("test:switch", lambda node, inventory: (Read("switch"),), parse_switch)
ON = RunCommand(("switch", "on"), undo=(RunCommand(("switch", "off")),))
ON_FOR_EVER = RunCommand(("switch", "on"))
REBOOT = Reboot(("reboot",), limit=30.0)
KINDS = {"on": ON, "for-ever": ON_FOR_EVER, "reboot": REBOOT}


def plan_switch(params: Mapping[str, Any], context: PlanContext) -> Iterable[StepAction]:
    """Turn the switch of a node on, in one of the ways of KINDS."""
    is_on = context.facts[SWITCH.name] == "on"
    operations = () if is_on else (KINDS[params.get("how", "on")],)
    target = str(params.get("target", "main"))
    yield StepAction(context.node.name, "switch", target, "run", operations, "switch on")


SWITCHES = StepResource("switch", plan_switch, lambda params, inventory: (SWITCH,))


# ---------------------------------------------------------------- a node


@dataclass
class FakeNode:
    """What one node holds. Its methods are the operations of the agent."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    switch: str = "off"
    holder: str | None = None  # another run that holds the lock
    locked_by: str | None = None  # this one does
    boots: int = 1
    broken_switch: bool = False  # turning it on has no effect
    unseen: str = ""  # why its files cannot be looked at
    parts: set[str] = field(default_factory=lambda: {"look"})
    damaged: dict[str, str] = field(default_factory=dict)  # run → why its record cannot be read

    def answer(self, op: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if PART_OF[op] not in self.parts:
            return {"no": "unknown", "why": f"no operation {op}"}
        return getattr(self, f"do_{op}")(body)  # type: ignore[no-any-return]

    def content(self, path: str) -> str | None:
        data = self.files.get(path)
        return None if data is None else base64.b64encode(data).decode()

    def put(self, path: str, text: str | None) -> None:
        if text is None:
            self.files.pop(path, None)
        else:
            self.files[path] = base64.b64decode(text)

    def read(self, path: str) -> bytes | None:
        """What a file holds now."""
        return self.files.get(path)

    def journal(self) -> Journal:
        """What a look at the journal finds."""
        entries = [
            JournalEntry(
                run,
                manifest["cluster"],
                manifest["state"],
                manifest["number"],
                parse_nodes(manifest["nodes"]),
                manifest["node"],
                manifest.get("batch", 0),
            )
            for run, manifest in self.runs.items()
        ]
        damaged = tuple(DamagedRun(run, why) for run, why in self.damaged.items())
        return Journal(tuple(entries), self.locked_by, damaged)

    def do_set_aside(self, body: Mapping[str, Any]) -> dict[str, Any]:
        moved = [[run, f"damaged-{run}", why] for run, why in self.damaged.items()]
        self.damaged = {}
        return {"moved": moved}

    def do_lock(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.holder:
            return {"no": "locked", "why": self.holder}
        self.locked_by = f"run {body['run']} of cluster {body['cluster']}"
        return {"last": max((run["number"] for run in self.runs.values()), default=0)}

    def do_stage(self, body: Mapping[str, Any]) -> dict[str, Any]:
        for run, manifest in self.runs.items():
            if manifest["state"] in UNSETTLED:
                return {"no": "unsettled", "why": f"run {run} was begun here and never settled"}
        for file in body["files"]:
            if self.content(file["path"]) != file["before"]:
                return self._changed(file["path"], "since it was planned")
        self.runs[body["run"]] = {
            "state": "staged",
            "cluster": body["cluster"],
            "number": body["number"],
            "node": body["node"],
            "nodes": body["nodes"],
            "undoes": body["undoes"],
            "by": None,
            "files": list(body["files"]),
            "deeds": [],
            **{key: body[key] for key in ("batch", "batches") if key in body},
        }
        return {}

    def do_commit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        manifest = self.runs[body["run"]]
        assert manifest["state"] == "staged"
        for file in manifest["files"]:
            if self.content(file["path"]) != file["before"]:
                manifest["state"] = "undone"
                return self._changed(file["path"], "since it was planned")
        for file in manifest["files"]:
            self.put(file["path"], file["after"])
        manifest["state"] = "committed"
        return {}

    def do_settle(self, body: Mapping[str, Any]) -> dict[str, Any]:
        manifest = self.runs[body["run"]]
        if manifest["state"] == "done":
            return {"nothing": "done"}
        assert manifest["state"] == "committed"
        manifest["state"] = "done"
        if manifest["undoes"] in self.runs:
            self.runs[manifest["undoes"]]["state"] = "undone"
        return {}

    def do_undo(self, body: Mapping[str, Any]) -> dict[str, Any]:
        manifest = self.runs.get(body["undo"])
        if manifest is None:
            return {"nothing": "not begun"}
        if manifest["state"] not in UNSETTLED:
            return {"nothing": manifest["state"]}
        committed = manifest["state"] == "committed"
        for file in manifest["files"] if committed else ():
            edited = self.content(file["path"]) not in (file["before"], file["after"])
            if edited and not body.get("force"):
                more = {"after": file["after"]}
                return self._changed(file["path"], "after it was written", **more)
        for file in manifest["files"] if committed else ():
            self.put(file["path"], file["before"])
        manifest.update(state="undone", by=body.get("by"))
        return {}

    def do_runs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        rows = []
        for run, manifest in self.runs.items():
            keys = ("cluster", "state", "undoes", "by", "number", "node", "nodes")
            is_pending = any(deed["state"] == "done" for deed in manifest["deeds"])
            files = [
                {**file, "now": self.content(file["path"]), "strange": None, "access": None}
                for file in manifest["files"]
            ]
            of_batch = {key: manifest[key] for key in ("batch", "batches") if key in manifest}
            row = {"run": run, **{key: manifest[key] for key in keys}, **of_batch, "files": files}
            rows.append({**row, "reversible": bool(files) or is_pending})
        return {"runs": rows}

    def do_perform(self, body: Mapping[str, Any]) -> dict[str, Any]:
        manifest = self.runs[body["run"]]
        assert manifest["state"] == "committed"
        for step_action in body["deeds"]:
            manifest["deeds"].append({**step_action, "state": "done"})
            for operation in step_action["operations"]:
                if operation["do"] == "reboot":
                    self.boots += 1
                    self.parts, self.locked_by = {"look"}, None
                    self.switch = "on"
                elif not self.broken_switch:
                    self.switch = "on"
        return {}

    def do_take_back(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {"undone": [], "kept": []}
        step_actions = self.runs.get(body["run"], {"deeds": []})["deeds"]
        if body.get("half"):
            return answer
        for number, step_action in reversed(list(enumerate(step_actions))):
            if step_action["state"] != "done":
                continue
            can = all(operation.get("undo") for operation in step_action["operations"])
            step_action["state"] = "undone" if can else "kept"
            answer[step_action["state"]].append(number)
            if can:
                self.switch = "off"
        return answer

    def do_deeds(self, body: Mapping[str, Any]) -> dict[str, Any]:
        keys = ("place", "step", "resource", "target", "action", "diff")
        step_actions = self.runs[body["run"]]["deeds"]
        return {
            "deeds": [
                [*(step_action[key] for key in keys), [step_action["state"]]]
                for step_action in step_actions
            ]
        }

    def do_halt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def do_look(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answers = []
        for kind, _, _ in body["reads"]:
            assert kind in ("switch", "file")
            answers.append(["ok", self.switch if kind == "switch" else f"boot-{self.boots}\n"])
        return {"answers": answers}

    def do_listen(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"ports": [low for low, _ in body["spans"]]}

    def do_dial(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"dials": [["ok", 100, 1500, True, 1500] for _ in body["targets"]]}

    def _changed(self, path: str, when: str, **more: Any) -> dict[str, Any]:
        why = f"{path} changed {when}"
        return {"no": "changed", "why": why, "path": path, "current": self.content(path), **more}


# ---------------------------------------------------------------- all nodes


@dataclass
class FakeLink:
    """A connection to one node, for those who ask it by themselves."""

    node: FakeNode

    def request(self, op: str, limit: float, **body: Any) -> dict[str, Any]:
        return self.node.answer(op, body)


class FakeAgents:
    """The agents of a small fleet of healthy nodes. `sent` has (operation, node, body)."""

    def __init__(self, count: int = 3) -> None:
        self._base = healthy(count)
        self.nodes = {node.name: FakeNode(node.name) for node in self.inventory.nodes}
        self.links = {name: FakeLink(node) for name, node in self.nodes.items()}
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.faults: dict[tuple[str, str], Fault] = {}
        self.unreachable: set[str] = set()
        self.deadline = Deadline()
        self.rights = Rights(0, "root")
        self.interrupt_during: str | None = None  # a signal comes once nodes have done this
        self.interruption: ClusterprepError = Interrupted("interrupted by SIGTERM")
        self.before_second_survey: Callable[[], None] = lambda: None
        self.surveys = 0

    @property
    def inventory(self) -> Inventory:
        return self._base.inventory

    def ops(self, name: str) -> list[str]:
        """What was sent to a node, but for what only looks."""
        return [op for op, node, _ in self.sent if node == name and PART_OF[op] != "look"]

    def bodies(self, wanted: str) -> dict[str, dict[str, Any]]:
        """The last body of an operation to each node."""
        return {node: body for op, node, body in self.sent if op == wanted}

    # ------------------------------------------------------------ as Fanout has it

    def survey(
        self,
        plan: QueryPlan,
        *,
        last: bool = False,
        inventory: Inventory | None = None,
        keeps_known: bool = False,
    ) -> Fleet:
        inventory = inventory or self.inventory
        self.surveys += 1
        if self.surveys == 2:
            self.before_second_survey()
        snapshots = {}
        for node in inventory.nodes:
            snapshots[node.name] = self._snapshot(node, plan)
        try:
            self._signal("survey" if self.surveys == 1 else "second survey")
        except OutOfTime:
            if not keeps_known:
                raise
        return Fleet(inventory, snapshots)

    def ask(
        self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> dict[str, Answer]:
        assert timeout > 0
        answers = {}
        for name, body in bodies.items():
            if name not in self.links:
                answers[name] = LinkLost("hung", "the node was lost earlier")
                continue
            self.sent.append((op, name, dict(body)))
            answers[name] = self._answer(op, name, body)
        if bodies:
            self._signal(op)
        return answers

    def ask_each(
        self,
        op: str,
        bodies: Mapping[str, Mapping[str, Any]],
        timeout: float,
        take: Callable[[str, Answer], object],
    ) -> None:
        for name, answer in self.ask(op, bodies, timeout).items():
            take(name, answer)

    def load(self, part: str, names: Iterable[str] | None = None) -> None:
        for name in self.nodes if names is None else names:
            if name in self.links:
                self.nodes[name].parts.add(part)

    def tell(self, op: str, names: Iterable[str]) -> None:
        pass

    def bear_silence(self, seconds: float) -> None:
        assert seconds > 0

    def each(self, items: Iterable[Node], work: Callable[[Node], None]) -> None:
        for item in items:
            work(item)

    def log_out(self) -> None:
        self.sent += [("log out", name, {}) for name in self.links]

    def redial(self, node: Node) -> FakeLink:
        self.links[node.name] = FakeLink(self.nodes[node.name])
        return self.links[node.name]

    # ------------------------------------------------------------ how nodes behave

    def _answer(self, op: str, name: str, body: Mapping[str, Any]) -> Answer:
        node = self.nodes[name]
        fault = self.faults.get((op, name))
        if isinstance(fault, Exception):
            raise fault
        if isinstance(fault, Mapping):
            return dict(fault)
        if fault != LOST_BEFORE:
            answer = node.answer(op, body)
        if fault in (LOST_BEFORE, LOST_AFTER) or self._goes_down(op, body):
            del self.links[name]
            return LinkLost("hung", "no sign of life for 5 s")
        return answer

    def _goes_down(self, op: str, body: Mapping[str, Any]) -> bool:
        if op != "perform":
            return False
        operations = [each for step_action in body["deeds"] for each in step_action["operations"]]
        return any(operation["do"] == "reboot" for operation in operations)

    def _signal(self, moment: str) -> None:
        if self.interrupt_during == moment:
            self.interrupt_during = None
            self.deadline.stop(self.interruption)
        self.deadline.check()

    def _snapshot(self, node: Node, plan: QueryPlan) -> NodeSnapshot:
        if node.name in self.unreachable or node.name not in self.links:
            detail = "no answer within 10 s"
            return NodeSnapshot(node.name, node.address, False, "timed_out", detail, answered=False)
        facts = dict(self._base.snapshots[node.name].facts)
        fake = self.nodes[node.name]
        facts["state.journal"] = fake.journal()
        facts["ssh.rights"] = self.rights
        facts[SWITCH.name] = fake.switch
        for fact in plan.facts:
            kind, _, path = fact.name.partition(":")
            if kind == "target":
                state = Absent(fake.unseen) if fake.unseen else FileState(path, fake.read(path))
                facts[fact.name] = state
        known = {fact.name: facts.get(fact.name, Absent("missing")) for fact in plan.facts}
        return NodeSnapshot(node.name, node.address, True, facts=known)
