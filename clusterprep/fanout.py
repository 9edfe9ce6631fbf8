"""Many nodes at once: open links within a width, look everywhere, ask everybody, lose some and keep the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from clusterprep.errors import LinkLost, Unreached
from clusterprep.facts.clock import Offset
from clusterprep.model import Absent, Fleet, Inventory, Json, Node, Read, Sighting
from clusterprep.plan import Plan, Questions, Sheet
from clusterprep.remote import boot
from clusterprep.transports import Transport
from clusterprep.transports.link import Frame, Link, Password, open_link

ROUNDS = 5  # clock exchanges per node; the shortest round trip counts
FINE = 0.010  # seconds; a coarser clock bound is measured again when the machine is quiet
PULSE = 5.0  # seconds between signs of life; an agent gives up after 30 s
MARGIN = 5.0  # seconds beyond the sum of its limits that an answer may take

Item = TypeVar("Item")


class Watch(Protocol):
    """What a progress display must offer."""

    def stage(self, name: str, total: int) -> None: ...
    def step(self, node: str, outcome: str) -> None: ...


class Fanout:
    """The links of one command. Use as a context manager: leaving it ends every agent."""

    def __init__(
        self,
        inventory: Inventory,
        transports: Mapping[str, Transport],
        forks: int,
        password: Password,
        watch: Watch,
    ) -> None:
        self.inventory = inventory
        self.links: dict[str, Link] = {}
        self._transports, self._forks = transports, forks
        self._parts: tuple[str, ...] = ("look",)
        self._password, self._watch = password, watch
        self._closing = threading.Event()
        self._logins: dict[str, float] = {}  # seconds that each took

    def __enter__(self) -> Fanout:
        threading.Thread(target=self._pulse, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        links, self.links = list(self.links.values()), {}
        self.each(links, Link.close)
        for transport in self._transports.values():
            transport.close()

    def _pulse(self) -> None:
        while not self._closing.wait(PULSE):
            for link in list(self.links.values()):
                link.pulse()

    def each(self, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        """Run work(item) for all items, at most `forks` at a time, in threads that cannot hold up the exit."""
        todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
        count = 0
        for item in items:
            todo.put(item)
            count += 1
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for _ in range(min(self._forks, count)):
            threading.Thread(target=_drain, args=(todo, done, work), daemon=True).start()
        for _ in range(count):
            if (error := done.get()) is not None:
                raise error

    def survey(self, plan: Plan) -> Fleet:
        """Log in to every node and look. A node that cannot be used is a Sighting with the reason."""
        seen: dict[str, Sighting] = {}

        def work(node: Node) -> None:
            seen[node.name] = self._sight(node, plan, questions, sheets[node.name])
            self._watch.step(node.name, "reached" if seen[node.name].reached else str(seen[node.name].reason))

        questions = Questions(plan, self.inventory)
        sheets = {node.name: questions.of(node) for node in self.inventory.nodes}
        kinds = {read.kind for sheet in sheets.values() for read in sheet.reads}
        self._parts = (*boot.parts_for(kinds), *(("dial",) if "pairs" in plan.stages else ()))
        self._watch.stage("look", len(self.inventory.nodes))
        self.each(self.inventory.nodes, work)
        fleet = Fleet(self.inventory, {node.name: seen[node.name] for node in self.inventory.nodes})
        return self._refine_clocks(fleet) if "clock" in plan.stages else fleet

    def _sight(self, node: Node, plan: Plan, questions: Questions, sheet: Sheet) -> Sighting:
        started = time.monotonic()
        try:
            link = self.links.get(node.name) or self._open(node)
            facts = self._look(link, plan, questions, sheet)
        except Unreached as error:
            self._forget(node.name)
            detail, remedy = error.message, error.remedy
            seconds = time.monotonic() - started
            return Sighting(node.name, node.address, False, error.reason, detail, remedy, error.answered, {}, seconds)
        seconds, login = time.monotonic() - started, self._logins[node.name]
        return Sighting(node.name, node.address, True, facts=facts, seconds=seconds, login=login)

    def _open(self, node: Node) -> Link:
        started = time.monotonic()
        link = open_link(self._transports[node.transport], node, self._parts, self._password)
        self._logins[node.name] = time.monotonic() - started
        if self._closing.is_set():
            link.close()
            raise Unreached("hung", "the command ended")
        self.links[node.name] = link
        return link

    def _forget(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is not None:
            link.close()

    def _look(self, link: Link, plan: Plan, questions: Questions, sheet: Sheet) -> dict[str, Any]:
        offset = measure_clock(link) if "clock" in plan.stages else None
        facts = questions.facts(sheet, ask_reads(link, sheet.reads) if sheet.reads else ())
        facts["ssh.peer"] = link.peer
        if offset is not None:
            facts["clock.offset"] = offset
        return facts

    def _refine_clocks(self, fleet: Fleet) -> Fleet:
        """Measure coarse clocks again, one node at a time: the first answers came while everybody logged in."""
        sightings = dict(fleet.sightings)
        for name, sighting in fleet.sightings.items():
            coarse = sighting.facts.get("clock.offset")
            link = self.links.get(name)
            if link is None or not isinstance(coarse, Offset) or coarse.bound <= FINE:
                continue
            try:
                again = measure_clock(link)
            except LinkLost:
                continue
            best = min(coarse, again, key=lambda offset: offset.bound)
            sightings[name] = dataclasses.replace(sighting, facts={**sighting.facts, "clock.offset": best})
        return dataclasses.replace(fleet, sightings=sightings)

    def load(self, part: str) -> None:
        """Send a further part of the agent to every node, without waiting: what is asked of it next comes after it.

        A node that does not take the part answers the next request as unknown.
        """
        modules = [list(module) for module in boot.sources(part)]
        for link in list(self.links.values()):
            with contextlib.suppress(LinkLost):  # the next request meets the same loss, and tells it
                link.send("load", modules=modules)

    def ask(self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float) -> dict[str, Frame | LinkLost]:
        """One request to each node named in `bodies`, all under way at once; a lost node is its LinkLost."""
        numbers: dict[str, int] = {}
        answers: dict[str, Frame | LinkLost] = {}
        for name, body in bodies.items():
            link = self.links.get(name)
            if link is None:
                answers[name] = LinkLost("hung", "the node was lost earlier")
                continue
            try:
                numbers[name] = link.send(op, **body)
            except LinkLost as lost:
                answers[name] = lost
        end = time.monotonic() + timeout
        for name, number in numbers.items():
            try:
                answers[name] = self.links[name].receive(number, max(0.05, end - time.monotonic()))
            except LinkLost as lost:
                answers[name] = lost
        return answers


def _drain(
    todo: queue.SimpleQueue[Item], done: queue.SimpleQueue[BaseException | None], work: Callable[[Item], None]
) -> None:
    while True:
        try:
            item = todo.get_nowait()
        except queue.Empty:
            return
        try:
            work(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            done.put(error)
        else:
            done.put(None)


def ask_reads(link: Link, asked: Sequence[Read]) -> list[Json]:
    """The agent's answer to each read; reads run side by side, so the slowest lane and a margin is the limit."""
    limit = sum(read.limit for read in asked if read.kind in ("file", "files", "target")) + MARGIN
    limit = max(limit, max(read.limit for read in asked) + MARGIN)
    frame = link.request("look", limit, reads=[[read.kind, list(read.args), read.limit] for read in asked])
    answers = frame.get("answers")
    if not isinstance(answers, list) or len(answers) != len(asked):
        raise LinkLost("garbled", str(frame.get("why") or "the answer does not fit the question"))
    return answers


def measure_clock(link: Link) -> Offset | Absent:
    """Node clock minus controller clock from four time stamps, the best of ROUNDS exchanges."""
    best: Offset | None = None
    for _ in range(ROUNDS):
        asked = time.time()
        frame = link.request("ping", 10.0)
        heard = time.time()
        try:
            seen, sent = float(frame["seen"]), float(frame["sent"])
        except (KeyError, TypeError, ValueError):
            return Absent("garbled", "a clock exchange brought no time stamps")
        offset = Offset(((seen - asked) + (sent - heard)) / 2, max(0.0, (heard - asked) - (sent - seen)) / 2)
        best = offset if best is None or offset.bound < best.bound else best
    return best or Absent("garbled")
