"""Many nodes at once: open links within a width, look everywhere, ask everybody, lose some and keep the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from clusterprep.errors import LinkLost, Unreached
from clusterprep.facts.clock import Offset
from clusterprep.model import Absent, Fleet, Inventory, Json, Node, NodeSnapshot, Read
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.link import Frame, Link, Password, open_link
from clusterprep.remote.untrusted import require_number, shortened
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.clock import running_seconds
from clusterprep.survey.queries import Queries, QueryPlan, Sheet

ROUNDS = 5  # clock exchanges per node in one round trip; the shortest counts
FINE = 0.010  # seconds; a coarser clock bound is measured again when the machine is quiet
AGAIN = 3  # round trips for that
APART = 0.002  # seconds between the nodes of which it is asked, so that no answer waits for another one to be read
PINGS: tuple[tuple[str, dict[str, Any]], ...] = (("ping", {}),) * ROUNDS
UNHEARD = (
    1.0  # seconds until a node that has not said a word no longer keeps others from their turn
)
SPARE = 256  # files besides those of the nodes
MOST_UNHEARD = 1024  # nodes; each waits in a thread and a file of its own
PULSE = 5.0  # seconds between signs of life; an agent gives up after 30 s
MARGIN = 5.0  # seconds beyond the sum of its limits that an answer may take
SERIAL = (
    ("file", "files", "target"),
    ("environment", "nccl_address"),
)  # kinds of reads that wait for each other

Item = TypeVar("Item")


class Watch(Protocol):
    """What a progress display must offer."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


class Fanout:
    """The links of one command. Use as a context manager: leaving it ends every agent."""

    def __init__(
        self,
        inventory: Inventory,
        transports: Mapping[str, Transport],
        forks: int,
        password: Password,
        watch: Watch,
        budget: Budget | None = None,
    ) -> None:
        self.inventory = inventory
        self._budget = budget
        self.links: dict[str, Link] = {}
        self._transports, self._forks = transports, forks
        self._parts: tuple[str, ...] = ("look",)
        self._password, self._watch = password, watch
        self._closing = threading.Event()
        self._logins: dict[str, float] = {}  # seconds that each took

    def __enter__(self) -> Fanout:
        if all(
            node.transport == "ssh" for node in self.inventory.nodes
        ):  # a local agent's own limit is looked at
            _allow_files(len(self.inventory.nodes) + SPARE)
        threading.Thread(target=self._pulse, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        links, self.links = list(self.links.values()), {}
        self.each(links, Link.close, None if self._budget is None else self._budget.closing)
        for transport in self._transports.values():
            transport.close()

    def _pulse(self) -> None:
        while not self._closing.wait(PULSE):
            for link in list(self.links.values()):
                link.pulse()

    def each(
        self, items: Iterable[Item], work: Callable[[Item], None], until: float | None = None
    ) -> None:
        """Run work(item) for all items, at most `forks` at a time, in threads that cannot hold up the exit.

        Where the command has a budget, what is not done `until` then is left to its thread.
        """
        crew = _Crew(items, work)
        crew.hire(self._forks)
        while crew.left and not self._is_over(until):
            crew.wait(self._left(until))

    def _left(self, until: float | None = None) -> float | None:
        """Seconds that the budget leaves until then, None without one."""
        return None if self._budget is None else self._budget.left(until)

    def _is_over(self, until: float | None = None) -> bool:
        return self._left(until) == 0.0

    def _each_node(self, work: Callable[[Node], None]) -> None:
        """The same for all nodes; one that is dialled and says nothing keeps no other from its turn."""
        crew = _Crew(self.inventory.nodes, work)
        crew.hire(self._forks)
        suspects: set[str] = set()
        checked = time.monotonic()
        while crew.left and not self._is_over():
            crew.wait(min(UNHEARD, self._left() or UNHEARD))
            if crew.waiting and time.monotonic() - checked >= UNHEARD:
                checked = time.monotonic()
                silent = {
                    name for transport in self._transports.values() for name in transport.unheard()
                }
                crew.pass_over(suspects & silent)
                suspects = silent

    def survey(self, plan: QueryPlan, *, last: bool = False) -> Fleet:
        """Log in to every node and look. A node that cannot be used is a NodeSnapshot with the reason.

        `last`: nothing is asked of the nodes afterwards but for the stages of this plan, so that a node of which
        nothing more is wanted keeps no connection.
        """
        seen: dict[str, NodeSnapshot] = {}

        def work(node: Node) -> None:
            seen[node.name] = self._sight(node, plan, questions, sheets[node.name])
            if last and "pairs" not in plan.stages and not _is_coarse(seen[node.name]):
                self._forget(node.name)
            snapshot = seen[node.name]
            self._watch.step(
                node.name, "reached" if snapshot.reached else str(snapshot.reason), snapshot.seconds
            )

        questions = Queries(plan, self.inventory)
        sheets = {node.name: questions.of(node) for node in self.inventory.nodes}
        kinds = {read.kind for sheet in sheets.values() for read in sheet.reads}
        self._parts = (*boot.parts_for(kinds), *(("dial",) if "pairs" in plan.stages else ()))
        self._watch.stage("look", len(self.inventory.nodes), list(sheets))
        self._each_node(work)
        fleet = Fleet(
            self.inventory,
            {node.name: seen.get(node.name) or _late(node) for node in self.inventory.nodes},
        )
        return self._refine_clocks(fleet) if "clock" in plan.stages else fleet

    def _sight(self, node: Node, plan: QueryPlan, questions: Queries, sheet: Sheet) -> NodeSnapshot:
        started = time.monotonic()
        try:
            facts = self._look(node, plan, questions, sheet)
        except Unreached as error:
            self._forget(node.name)
            detail, remedy = error.message, error.remedy
            seconds = time.monotonic() - started
            return NodeSnapshot(
                node.name,
                node.address,
                False,
                error.reason,
                detail,
                remedy,
                error.answered,
                {},
                seconds,
            )
        seconds, login = time.monotonic() - started, self._logins[node.name]
        return NodeSnapshot(
            node.name, node.address, True, facts=facts, seconds=seconds, login=login
        )

    def _open(self, node: Node, first: Callable[[Link], object] | None) -> Link:
        started = time.monotonic()
        self._refuse_closing()
        link = open_link(self._transports[node.transport], node, self._parts, self._password, first)
        self._logins[node.name] = time.monotonic() - started
        try:
            self._refuse_closing()
        except Unreached:
            link.close()
            raise
        self.links[node.name] = link
        return link

    def _refuse_closing(self) -> None:
        if self._closing.is_set():
            raise Unreached("hung", "the command ended")

    def _forget(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is not None:
            link.close()

    def _look(
        self, node: Node, plan: QueryPlan, questions: Queries, sheet: Sheet
    ) -> dict[str, Any]:
        """Everything is asked in one piece: behind the agent itself, or where its clock is to be read once it is up."""
        asked, clock = sheet.reads, "clock" in plan.stages
        sent: list[tuple[float, list[int]]] = []

        def ask(link: Link) -> None:
            questions = (
                *(PINGS if clock else ()),
                *([look_request(asked, self._budget)] if asked else []),
            )
            sent.append((time.time(), link.send_all(*questions) if questions else []))

        link = self.links.get(node.name) or self._open(node, None if clock else ask)
        if not sent:
            ask(link)
        at, numbers = sent[0]
        offset = best_clock(link, at, numbers[:ROUNDS]) if clock else None
        answers = ask_reads(link, asked, numbers[-1], self._budget) if asked else ()
        facts = questions.facts(sheet, answers)
        facts["ssh.peer"] = link.peer
        if offset is not None:
            facts["clock.offset"] = offset
        return facts

    def _refine_clocks(self, fleet: Fleet) -> Fleet:
        """Measure coarse clocks again, one node after the other: the first answers came while everybody logged in."""
        snapshots = dict(fleet.snapshots)
        began = time.monotonic()

        def refine(turn: tuple[int, str]) -> None:
            number, name = turn
            link, snapshot = self.links[name], snapshots[name]
            found = [snapshot.facts["clock.offset"]]
            time.sleep(max(0.0, began + number * APART - time.monotonic()))
            with contextlib.suppress(LinkLost):
                found.extend(measure_clock(link) for _ in range(AGAIN))
            best = min((o for o in found if isinstance(o, Offset)), key=lambda offset: offset.bound)
            snapshots[name] = dataclasses.replace(
                snapshot, facts={**snapshot.facts, "clock.offset": best}
            )

        coarse = [
            name
            for name, snapshot in snapshots.items()
            if name in self.links and _is_coarse(snapshot)
        ]
        self.each(enumerate(coarse), refine)
        return dataclasses.replace(fleet, snapshots=snapshots)

    def tell(self, op: str, names: Iterable[str]) -> None:
        """A request to each of these nodes whose answer nobody waits for; a node that is lost has told so already."""
        for name in names:
            with contextlib.suppress(LinkLost, KeyError):
                self.links[name].send(op)

    def redial(self, node: Node) -> Link:
        """A new agent on a node, with the reading parts that the last one had. Raises Unreached."""
        self._forget(node.name)
        return self._open(node, None)

    def bear_silence(self, seconds: float) -> None:
        """So long may the agents that are there now be silent until they count as lost."""
        for link in list(self.links.values()):
            link.silence_limit = seconds

    def load(self, part: str, names: Iterable[str] | None = None) -> None:
        """Send a further part of the agent to every node, or to these, without waiting: what is asked next follows it.

        A node that does not take the part answers the next request as unknown.
        """
        chosen = list(self.links) if names is None else names
        for link in [self.links[name] for name in chosen if name in self.links]:
            with contextlib.suppress(
                LinkLost
            ):  # the next request meets the same loss, and tells it
                link.load(part)

    def ask(
        self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> dict[str, Frame | LinkLost]:
        """One request to each node named in `bodies`, all under way at once; a lost node is its LinkLost."""
        numbers: dict[str, int] = {}
        answers: dict[str, Frame | LinkLost] = {}
        timeout = timeout if self._budget is None else min(timeout, self._budget.left())
        for name, body in bodies.items():
            link = self.links.get(name)
            if link is None:
                answers[name] = LinkLost("hung", "the node was lost earlier")
                continue
            try:
                numbers[name] = link.send(op, **body)
            except LinkLost as lost:
                answers[name] = lost
        end = running_seconds() + timeout
        for name, number in numbers.items():
            try:
                answers[name] = self.links[name].receive(number, max(0.05, end - running_seconds()))
            except LinkLost as lost:
                answers[name] = lost
        return answers


def _allow_files(count: int) -> None:
    """Raise our soft limit of open files to this, as far as it goes: a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else count
    if soft != resource.RLIM_INFINITY and soft < min(count, most):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, most), hard))


class _Crew(Generic[Item]):
    """Threads that take the next item as soon as they are through with one; daemons, so that none holds up the exit."""

    def __init__(self, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        self._todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._work = work
        self._passed: set[str] = (
            set()
        )  # names of items whose threads leave after them, as others took their turn
        self.left = 0
        for item in items:
            self._todo.put(item)
            self.left += 1

    @property
    def waiting(self) -> bool:
        """Whether there are items that nobody has begun."""
        return not self._todo.empty()

    def hire(self, count: int) -> None:
        for _ in range(min(count, self.left)):
            threading.Thread(target=self._drain, daemon=True).start()

    def pass_over(self, names: Iterable[str]) -> None:
        """Let others go on in place of those that work at these items."""
        new = [name for name in names if name not in self._passed][
            : MOST_UNHEARD - len(self._passed)
        ]
        self._passed.update(new)
        self.hire(len(new))

    def wait(self, limit: float | None = None) -> None:
        """Until an item is done, `limit` seconds at most; raises what its work raised."""
        try:
            error = self._done.get(timeout=limit)
        except queue.Empty:
            return
        self.left -= 1
        if error is not None:
            raise error

    def _drain(self) -> None:
        while True:
            try:
                item = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._done.put(error)
            else:
                self._done.put(None)
            if getattr(item, "name", None) in self._passed:
                return


def _late(node: Node) -> NodeSnapshot:
    """A node that had not answered when the budget was over."""
    cure = (
        "uptime; dmesg -T | tail -50   # on the node: too much load, or a disk that does not answer"
    )
    return NodeSnapshot(
        node.name,
        node.address,
        False,
        "timed_out",
        "the budget ended before it answered",
        cure,
        False,
    )


def _is_coarse(snapshot: NodeSnapshot) -> bool:
    """Whether the node's clock has been measured, and could be known better."""
    offset = snapshot.facts.get("clock.offset")
    return isinstance(offset, Offset) and offset.bound > FINE


def look_request(asked: Sequence[Read], budget: Budget | None = None) -> tuple[str, dict[str, Any]]:
    """The request that brings the answers to all these reads; under a budget when the time for reads is over."""
    within = {} if budget is None else {"within": budget.left(budget.reads)}
    return "look", {"reads": [[read.kind, list(read.args), read.limit] for read in asked], **within}


def ask_reads(
    link: Link, asked: Sequence[Read], number: int | None = None, budget: Budget | None = None
) -> list[Json]:
    """The agent's answer to each read, to the request of that number, or to one that is sent now.

    Reads run side by side, so the slowest lane and a margin is the limit.
    """
    rows = [sum(read.limit for read in asked if read.kind in kinds) for kinds in SERIAL]
    limit = max(*rows, *(read.limit for read in asked)) + MARGIN
    limit = limit if budget is None else min(limit, budget.left())
    number = link.send_all(look_request(asked, budget))[0] if number is None else number
    frame = link.receive(number, limit)
    answers = frame.get("answers")
    if not isinstance(answers, list) or len(answers) != len(asked):
        raise LinkLost(
            "garbled", shortened(frame.get("why") or "the answer does not fit the question")
        )
    return answers


def measure_clock(link: Link) -> Offset | Absent:
    """Node clock minus controller clock from one exchange."""
    asked = time.time()
    return best_clock(link, asked, [link.send("ping")])


def best_clock(link: Link, asked: float, numbers: Iterable[int]) -> Offset | Absent:
    """The same from the best of several exchanges that were sent at `asked`, by four time stamps each."""
    found = []
    for number in numbers:
        frame = link.receive(number, 10.0)
        heard = time.time()
        try:
            seen, sent = require_number(frame.get("seen")), require_number(frame.get("sent"))
        except ValueError:
            return Absent("garbled", "a clock exchange brought no time stamps")
        found.append(
            Offset(
                ((seen - asked) + (sent - heard)) / 2, max(0.0, (heard - asked) - (sent - seen)) / 2
            )
        )
    return min(found, key=lambda offset: offset.bound, default=Absent("garbled"))
