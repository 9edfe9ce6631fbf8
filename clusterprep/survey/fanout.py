"""The links to all nodes of one command: log in, look at the nodes, send requests to their agents.

with Fanout(inventory, transports, 64, password, watch) as fanout:
    fleet = fanout.survey(plan)
    answers = fanout.ask("listen", {"n1": {"spans": [[29500, 29500]]}}, timeout=10.0)

A node that says nothing takes no place among `forks`. It is dialled and given its whole
`connect_timeout`, and meanwhile another node has its turn in one thread more. One deadline for all
nodes would be simpler, but it would call nodes silent that were never asked because others were
slow. A node that has sent a byte keeps its place, so that a busy controller does not become busier.
1024 nodes may be silent at once (`worker_pool`); the others wait behind them.

Nodes are asked by threads and not by asyncio, because paramiko blocks. The threads are daemons, so
a dead node cannot keep the command from ending. A node that is only looked at is closed after its
look, so threads and open files stay within `forks`. Pairs of nodes, writing and verify need all
agents at once: then each node has a connection, an open file and paramiko's reading thread,
together some 90 KB. One reading thread for all would be held up by the slowest node, because
paramiko reads a packet in pieces from a stream that may block between any two of them. Of many
nodes the connections are in worker processes (`transports.workers`), which is not seen here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from clusterprep.errors import LinkLost, OutOfTime, Unreached
from clusterprep.model import Fleet, Inventory, Json, Node, NodeSnapshot
from clusterprep.remedies import shell_line
from clusterprep.remote import bootstrap
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.held_bytes import HeldBytes
from clusterprep.remote.transports.link import Frame, Link, Password, open_link
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.clock import running_seconds
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey import open_files
from clusterprep.survey.clock_sync import PINGS, ROUNDS, best_clock, is_coarse, refine_clocks
from clusterprep.survey.queries import Queries, QueryPlan, Sheet
from clusterprep.survey.reads import ask_reads, look_request
from clusterprep.survey.senders import HELD_UP, Senders
from clusterprep.survey.worker_pool import WorkerPool

SILENT_LIMIT = 1.0  # seconds until a node that has sent nothing no longer occupies a slot
LOOK_INTERVAL = 0.1  # seconds between two looks at whether the command is to end
CLOSING_LIMIT = 1.0  # seconds for ending the agents of a command that was told to end
CLOSERS = 4  # threads that end agents, as long as none of them is held up
PULSE_INTERVAL = 5.0  # seconds between signs of life; an agent gives up after 30 s
LEAST_WAIT = 0.05  # seconds that each answer is waited for, even when the time of all is over
SWEEP = 0.02  # seconds that one node's answer is waited for until those of the others are looked at

# What a node that did not answer in time may suffer from.
LATE_REMEDY = shell_line(
    "uptime; dmesg -T | tail -50   # on the node: too much load, or a disk that does not answer"
)

Item = TypeVar("Item")


class Watch(Protocol):
    """What a progress display must offer."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


class Fanout:
    """The links of one command, by the name of the node in `links`.

    Use it as a context manager: leaving it ends every agent.
    """

    pulse_interval = PULSE_INTERVAL

    def __init__(
        self,
        inventory: Inventory,
        transports: Mapping[str, Transport],
        forks: int,
        password: Password,
        watch: Watch,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.inventory = inventory
        self.links: dict[str, Link] = {}
        self._transports = transports
        self._forks = forks
        self._password = password
        self._watch = watch
        self._budget = budget
        self._senders = Senders()
        # What may end the command. It is looked at in the thread that waits for the nodes.
        self._deadline = deadline or Deadline()
        # Parts of the agent that a new one is started with.
        self._parts: tuple[str, ...] = ("look",)
        self._closing = threading.Event()
        self._held_bytes = HeldBytes()
        self._login_seconds: dict[str, float] = {}

    def __enter__(self) -> Fanout:
        # A check on this machine reports the limit of open files, so a local agent must not inherit
        # a raised one.
        if all(node.transport == "ssh" for node in self.inventory.nodes):
            open_files.raise_limit(len(self.inventory.nodes))
        threading.Thread(target=self._keep_sending, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        links = list(self.links.values())
        self.links = {}
        self._close(links)
        for transport in self._transports.values():
            transport.close()

    def _close(self, links: Iterable[Link]) -> None:
        """End the agents. A command that was told to end does not wait long for the last ones.

        They notice the end of their connections by themselves.
        """
        until = None if self._budget is None else self._budget.closing
        pool = WorkerPool(links, Link.close)
        # Over SSH nothing is waited for, and a thread's start takes as long as to close.
        pool.start_threads(min(CLOSERS, self._forks))
        began = time.monotonic()
        is_wide = False
        stopped = time.monotonic() if self._deadline.error else None
        while pool.unfinished:
            remaining = self._remaining(until)
            waited = 0.0 if stopped is None else time.monotonic() - stopped
            if remaining == 0.0 or waited > CLOSING_LIMIT:
                break
            pool.wait(LOOK_INTERVAL if remaining is None else min(LOOK_INTERVAL, remaining))
            if not is_wide and time.monotonic() - began > LOOK_INTERVAL:
                is_wide = True
                pool.start_threads(self._forks)

    def _keep_sending(self) -> None:
        """Send signs of life, and see to it that nodes that take nothing hold up no others."""
        sent = time.monotonic()
        while not self._closing.wait(min(HELD_UP, self.pulse_interval)):
            self._senders.relieve()
            if time.monotonic() - sent < self.pulse_interval:
                continue
            sent = time.monotonic()
            for link in list(self.links.values()):
                link.pulse()
                self._senders.put(link)

    def check(self) -> None:
        """Raise what ends the command, if anything does."""
        self._deadline.check()

    # ------------------------------------------------------------ many nodes at once

    def each(
        self, items: Iterable[Item], work: Callable[[Item], None], until: float | None = None
    ) -> None:
        """Run work(item) for all items, at most `forks` at a time.

        The threads do not hold up the exit of the process. With a budget, items that are not done
        by `until` are left to their threads. `until` is a moment of the budget; the default is when
        nodes are no longer waited for.
        """
        pool = WorkerPool(items, work)
        pool.start_threads(self._forks)
        while pool.unfinished:
            self._deadline.check()
            remaining = self._remaining(until)
            if remaining == 0.0:
                break
            pool.wait(LOOK_INTERVAL if remaining is None else min(LOOK_INTERVAL, remaining))

    def _each_node(self, nodes: Iterable[Node], work: Callable[[Node], None]) -> None:
        """Run `work` for each node. A connection that stays silent does not occupy a slot."""
        pool = WorkerPool(nodes, work)
        pool.start_threads(self._forks)
        silent_before: set[str] = set()
        checked = time.monotonic()
        while pool.unfinished:
            self._deadline.check()
            # Asked once in a turn: a second answer could be that the time is over.
            remaining = self._remaining()
            if remaining == 0.0:
                break
            pool.wait(LOOK_INTERVAL if remaining is None else min(LOOK_INTERVAL, remaining))
            if not pool.has_pending or time.monotonic() - checked < SILENT_LIMIT:
                continue
            checked = time.monotonic()
            silent = self._silent_nodes()
            pool.replace_threads(silent_before & silent)
            silent_before = silent

    def _silent_nodes(self) -> set[str]:
        """Return the nodes that are being dialled and have sent nothing yet."""
        names: set[str] = set()
        for transport in self._transports.values():
            names.update(transport.unheard())
        return names

    def _remaining(self, until: float | None = None) -> float | None:
        """Return the seconds that the budget leaves until then, None without a budget."""
        return None if self._budget is None else self._budget.left(until)

    # ------------------------------------------------------------ looking at the nodes

    def survey(
        self,
        plan: QueryPlan,
        *,
        last: bool = False,
        inventory: Inventory | None = None,
        keeps_known: bool = False,
        names: Collection[str] | None = None,
    ) -> Fleet:
        """Log in to every node and return the facts of the plan.

        A node that cannot be used is a NodeSnapshot with the reason. `last` tells that the nodes
        are asked nothing after the stages of this plan: a node of which nothing more is wanted
        keeps no connection. `inventory` has the nodes to ask if these are not all. With `names`
        only these of them are asked, and the fleet has no snapshots of the others. With
        `keeps_known` the time limit of the command is not raised here: the nodes that had not
        answered are then NodeSnapshots that say so.
        """
        inventory = inventory or self.inventory
        queries = Queries(plan, inventory)
        nodes = _named(inventory.nodes, names)
        sheets = {node.name: queries.of(node) for node in nodes}
        self._need_parts(_agent_parts(plan, sheets.values(), inventory))
        drops_links = last and "pairs" not in plan.stages
        open_files.refuse_too_few(nodes, self._forks if drops_links else len(nodes))
        snapshots: dict[str, NodeSnapshot] = {}

        def work(node: Node) -> None:
            sheet = sheets[node.name]
            snapshot = self._look(node, plan, queries, sheet)
            if not snapshot.reached and self._closing.is_set():
                return  # the command ends, which says nothing of the node
            snapshots[node.name] = snapshot
            if drops_links and not is_coarse(snapshot):
                self._forget(node.name)
            outcome = "reached" if snapshot.reached else str(snapshot.reason)
            self._watch.step(node.name, outcome, snapshot.seconds)

        self._watch.stage("look", len(sheets), list(sheets))
        try:
            self._each_node(nodes, work)
        except OutOfTime:
            if not keeps_known:
                raise
        finally:
            queries.close()
        fleet = Fleet(inventory, self._in_order(nodes, snapshots))
        if "clock" in plan.stages and self._deadline.over is None:
            return refine_clocks(fleet, self.links, self.each)
        return fleet

    def _in_order(
        self, nodes: Iterable[Node], snapshots: Mapping[str, NodeSnapshot]
    ) -> dict[str, NodeSnapshot]:
        """Return a snapshot for each node; one that did not answer in time has one that says so."""
        in_order = {}
        for node in nodes:
            snapshot = snapshots.get(node.name)
            in_order[node.name] = snapshot or _late_snapshot(node, self._deadline.over)
        return in_order

    def keep_part(self, part: str) -> None:
        """Have every agent get a part: those that run now, and new ones at their start."""
        self._need_parts((part,))

    def _need_parts(self, parts: Iterable[str]) -> None:
        """Have every agent get these parts: a new one at its start, one that runs already now."""
        missing = [part for part in parts if part not in self._parts]
        for part in missing:
            self.load(part)
        self._parts = (*self._parts, *missing)

    def _look(self, node: Node, plan: QueryPlan, queries: Queries, sheet: Sheet) -> NodeSnapshot:
        """Return the facts of a node, or the reason why it cannot be used."""
        started = time.monotonic()
        try:
            facts = self._ask_facts(node, plan, queries, sheet)
        except (Unreached, OSError) as error:
            self._forget(node.name)
            seconds = time.monotonic() - started
            unreached = open_files.own_fault(error) or error
            if not isinstance(unreached, Unreached):
                raise
            return _lost_snapshot(node, unreached, seconds)
        seconds = time.monotonic() - started
        login = self._login_seconds[node.name]
        return NodeSnapshot(
            node.name, node.address, reached=True, facts=facts, seconds=seconds, login=login
        )

    def _ask_facts(
        self, node: Node, plan: QueryPlan, queries: Queries, sheet: Sheet
    ) -> Mapping[str, Any]:
        """Return a node's facts by name. Raises Unreached.

        All requests go out in one piece, which costs one round trip. They follow the source of the
        agent at once, unless the clock is measured: then they wait until the agent is up, for its
        start would count as time on the way.
        """
        measures_clock = "clock" in plan.stages
        sent: list[tuple[float, list[int]]] = []

        def send_requests(link: Link) -> None:
            requests = list(PINGS) if measures_clock else []
            if sheet.reads:
                requests.append(look_request(sheet.reads, self._budget))
            now = time.time()
            numbers = link.send_all(*requests) if requests else []
            sent.append((now, numbers))

        link = self.links.get(node.name)
        if link is None:
            link = self._open(node, None if measures_clock else send_requests)
        if not sent:
            send_requests(link)
        sent_at, numbers = sent[0]
        brought: dict[str, Any] = {"ssh.peer": link.peer}
        if measures_clock:
            brought["clock.offset"] = best_clock(link, sent_at, numbers[:ROUNDS])
        answers: list[Json] = []
        if sheet.reads:
            answers = ask_reads(link, sheet.reads, numbers[-1], self._budget)
        return queries.row(queries.facts(sheet, answers), brought)

    # ------------------------------------------------------------ single links

    def _open(self, node: Node, first: Callable[[Link], object] | None) -> Link:
        """Log in to a node and start its agent.

        Raises Unreached. `first` sends what follows the agent at once.
        """
        started = time.monotonic()
        self._refuse_closing()
        link = open_link(
            self._transports[node.transport],
            node,
            self._parts,
            self._password,
            first,
            self._held_bytes,
        )
        self._login_seconds[node.name] = time.monotonic() - started
        try:
            self._refuse_closing()
        except Unreached:
            link.close()
            raise
        self.links[node.name] = link
        return link

    def _refuse_closing(self) -> None:
        """Raise Unreached once the command has begun to end."""
        if self._closing.is_set():
            raise Unreached("hung", "the command ended")

    def _forget(self, name: str) -> None:
        """Close the link to a node, if there is one, and keep it no longer."""
        link = self.links.pop(name, None)
        if link is not None:
            link.close()

    def log_out(self) -> None:
        """End the agents; a node that is asked again is logged in to anew.

        Limits and groups of a session are those of its start. Tasks of Slurm stay: they have what
        their step was given.
        """
        links = {}
        for node in self.inventory.nodes:
            if node.transport != "slurm" and node.name in self.links:
                links[node.name] = self.links.pop(node.name)
        self._close(links.values())

    def redial(self, node: Node) -> Link:
        """Start a new agent on a node, with the parts that the last one had. Raises Unreached."""
        self._forget(node.name)
        return self._open(node, None)

    def bear_silence(self, seconds: float) -> None:
        """Set how long the present agents may be silent until they count as lost."""
        for link in list(self.links.values()):
            link.silence_limit = seconds

    # ------------------------------------------------------------ requests

    def tell(self, op: str, names: Iterable[str]) -> None:
        """Send a request to these nodes without waiting for answers. Lost nodes are passed over."""
        for name in names:
            link = self.links.get(name)
            if link is not None:
                link.post(op)
                self._senders.put(link)

    def load(self, part: str, names: Iterable[str] | None = None) -> None:
        """Send a further part of the agent to these nodes, or to all, and do not wait.

        A node that does not take the part answers the next request as unknown.
        """
        chosen = list(self.links) if names is None else names
        for name in chosen:
            link = self.links.get(name)
            if link is not None:
                link.load(part)
                self._senders.put(link)

    def ask(
        self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> dict[str, Answer]:
        """Send a request to each node named in `bodies` and return the answers.

        A lost node gives its LinkLost. All requests are under way at once. `timeout` is in seconds
        and for all of them together.
        """
        answers: dict[str, Answer] = {}
        self.ask_each(op, bodies, timeout, answers.__setitem__)
        return {name: answers[name] for name in bodies}

    def ask_each(
        self,
        op: str,
        bodies: Mapping[str, Mapping[str, Any]],
        timeout: float,
        take: Callable[[str, Answer], object],
    ) -> None:
        """Call `take` with the name and the answer of each node as it comes, otherwise as `ask`.

        So the answers of many nodes are not in memory all at once.
        """
        awaited: dict[str, Awaited] = {}
        if self._budget is not None:
            timeout = min(timeout, self._budget.left())
        for name, body in bodies.items():
            link = self.links.get(name)
            if link is None:
                take(name, LinkLost("hung", "the node was lost earlier"))
                continue
            awaited[name] = (link, link.post(op, **body))
            self._senders.put(link)
        _take_answers(awaited, take, timeout, self._deadline.patience)


Awaited = tuple[Link, int]  # a link, and the number of the request that it is to answer
Answer = Frame | LinkLost


def _take_answers(
    awaited: dict[str, Awaited],
    take: Callable[[str, Answer], object],
    timeout: float,
    patience: Callable[[], float],
) -> None:
    """Call `take` for the nodes in `awaited` as they answer, or when `timeout` seconds are over.

    All are read in turn, so that a node that sends slowly or without end holds up no other one.
    `patience` may raise, and returns for how many seconds answers are still awaited.
    """
    end = running_seconds() + timeout
    # What has come by then is still read, if no node sends without end.
    grace = LEAST_WAIT * len(awaited)
    wait = 0.0
    while awaited:
        now = running_seconds()
        end = min(end, now + patience())
        heard, has_parts = _sweep(awaited, take, wait)
        if now >= (end + grace if heard else end):
            break
        # Without a wait all links would be read without a pause while answers come one by one.
        wait = 0.0 if has_parts else min(SWEEP, max(end - now, 0.0))
    for name in awaited:
        take(name, LinkLost("timed_out", "the agent did not answer in time"))


def _sweep(
    awaited: dict[str, Awaited], take: Callable[[str, Answer], object], wait: float
) -> tuple[bool, bool]:
    """Read once from each link, and wait up to `wait` seconds for the one that was asked last.

    When that one answers, most of the others have. Returns whether anything came, and whether any
    of it was a part of an answer, whose rest may be there already.
    """
    heard = False
    has_parts = False
    for name, (link, number) in reversed(list(awaited.items())):
        before = link.received
        try:
            answer: Answer | None = link.receive_now(number, wait)
        except LinkLost as lost:
            answer = lost
        wait = 0.0
        has_come = link.received > before
        heard = heard or has_come
        if answer is not None:
            del awaited[name]
            take(name, answer)
        elif has_come:
            has_parts = True
    return heard, has_parts


def _agent_parts(plan: QueryPlan, sheets: Iterable[Sheet], inventory: Inventory) -> tuple[str, ...]:
    """Return the parts of the agent that a plan's reads and stages and the nodes' runtimes need."""
    kinds: set[str] = set()
    if any(node.runtime for node in inventory.nodes):
        kinds.add(bootstrap.INSIDE)
    for sheet in sheets:
        for read in sheet.reads:
            kinds.add(read.kind)
    parts = bootstrap.parts_for(kinds)
    return (*parts, "dial") if "pairs" in plan.stages else parts


def _lost_snapshot(node: Node, error: Unreached, seconds: float) -> NodeSnapshot:
    return NodeSnapshot(
        node.name,
        node.address,
        reached=False,
        reason=error.reason,
        detail=error.message,
        remedy=error.remedy,
        answered=error.answered,
        seconds=seconds,
    )


def _named(nodes: tuple[Node, ...], names: Collection[str] | None) -> tuple[Node, ...]:
    """Return the nodes with these names, all if None are given."""
    if names is None:
        return nodes
    return tuple(node for node in nodes if node.name in names)


def _late_snapshot(node: Node, over: OutOfTime | None) -> NodeSnapshot:
    """Return the snapshot of a node that had not answered when the budget was over, or all time."""
    detail = "the budget ended before it answered"
    if over is not None:
        detail = f"{over.message} before it answered"
    return NodeSnapshot(
        node.name,
        node.address,
        reached=False,
        reason="timed_out",
        detail=detail,
        remedy=LATE_REMEDY,
        answered=False,
    )
