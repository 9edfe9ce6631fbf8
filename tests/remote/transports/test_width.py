"""The width of a command.

What a silent node costs the others, and what stays open when nothing more is asked.
"""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import paramiko
import pytest
from msgspec.structs import replace

from clusterprep.model import Fleet, Inventory, Node
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.selection import Selection, select_checks
from tests.remote.transports.peers import listening
from tests.remote.transports.sshd import Sshd, free_port
from tests.support.patience import eventually

pytestmark = pytest.mark.machine
HOURS = 36_000.0  # seconds; a limit that no test lives to see


class Watch:
    """Who was through, in that order, and how many threads of ours and files there were then."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: list[int] = []
        self.files: list[int] = []

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None:
        assert not self.names

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        self.names.append(node)
        self.threads.append(threading.active_count())
        self.files.append(open_files())


def plan_of(*only: str) -> QueryPlan:
    return plan_queries(select_checks(registry.checks(), Selection(only=only)), registry.facts())


def survey(
    transport: SshTransport, nodes: list[Node], watch: Watch, only: str, forks: int, last: bool
) -> Fleet:
    inventory = Inventory(
        "width", tuple(replace(n, name=f"n{i}", index=i) for i, n in enumerate(nodes))
    )
    with Fanout(inventory, {"ssh": transport}, forks, lambda node: None, watch) as fanout:
        return fanout.survey(plan_of(only), last=last)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def reading_threads() -> int:
    return sum(1 for thread in threading.enumerate() if isinstance(thread, paramiko.Transport))


def test_a_silent_node_keeps_no_other_from_its_turn(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    """With a width of one, the first two nodes are silent until the others are done."""
    good, watch = sshd.node(tmp_path), Watch()

    def silent_until_then(connection: socket.socket) -> None:
        assert eventually(lambda: len(watch.names) >= 3)

    with listening(silent_until_then) as mute:
        bad = replace(good, ssh=replace(good.ssh, port=mute, connect_timeout=HOURS))
        fleet = survey(
            transport, [bad, bad, good, good, good], watch, "kernel.version", forks=1, last=True
        )
    assert watch.names[:3] == ["n2", "n3", "n4"]
    assert sorted(watch.names[3:]) == ["n0", "n1"]
    assert [snapshot.reason for snapshot in fleet.snapshots.values() if not snapshot.reached] == [
        "no_banner"
    ] * 2


def test_a_slow_node_that_speaks_keeps_its_place(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    """A slow node that speaks keeps its place in the width."""
    slow, watch = replace(sshd.node(tmp_path)), Watch()
    survey(transport, [slow] * 6, watch, "kernel.version", forks=1, last=True)
    assert watch.names == [f"n{number}" for number in range(6)]


@pytest.mark.parametrize(
    ("only", "last", "stays"), [("kernel.version", True, 0), ("kernel.version", False, 12)]
)
def test_a_node_of_which_nothing_more_is_wanted_keeps_no_connection(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, only: str, last: bool, stays: int
) -> None:
    # A connection of an earlier test is closed by its reading thread, a moment after that test.
    assert eventually(lambda: not reading_threads())
    watch, before = Watch(), (threading.active_count(), open_files())
    fleet = survey(transport, [sshd.node(tmp_path)] * 12, watch, only, forks=2, last=last)
    assert len(fleet.reached) == 12
    # The last step may come before the last but one has closed; paramiko's threads end a moment
    # after their sockets.
    assert watch.files[-1] - before[1] <= stays + 2
    assert watch.files[-1] - before[1] >= stays
    assert max(watch.threads) - before[0] <= 1 + 2 * 2 + max(stays, 4)


def test_many_nodes_may_have_many_files(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        unreachable = sshd.node(tmp_path)
        unreachable = replace(unreachable, ssh=replace(unreachable.ssh, port=free_port()))
        survey(transport, [unreachable] * 60, Watch(), "kernel.version", forks=4, last=True)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 60 + 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
