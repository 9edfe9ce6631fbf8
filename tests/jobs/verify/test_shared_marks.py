"""Marks in shared folders: written and read by real agents, one of which may see another folder."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.facts.shared import SharedFolder
from clusterprep.jobs.verify.shared_marks import Mark, Seen, judge, planned_marks, try_mark
from clusterprep.model import Absent, Inventory, Node
from clusterprep.remote.transports.local import LocalChannel, LocalTransport
from clusterprep.remote.transports.protocol import Channel
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import plan_queries
from tests.support.children import own_children
from tests.support.fleet import fleet
from tests.support.patience import eventually

pytestmark = pytest.mark.machine

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own needs root")
SHORT = 0.3  # seconds that readers look for a mark that does not come
FOLDER = SharedFolder("nfs4", "nas:/data", "/data", "rw", 2, None, True, 1 << 40, 1 << 39, 0.001)
READ_ONLY = replace(FOLDER, mode="ro", writable=False)
NODES = tuple(Node(name, name, number) for number, name in enumerate(("n1", "n2", "n3")))
PLACE = "/data/.clusterprep-1"
MARK = Mark("/data", NODES[0], NODES[1:])


class OwnMounts(LocalTransport):
    """Nodes of this machine; before the agent of some starts, a shell line changes its mounts."""

    def __init__(self, lines: dict[str, str]) -> None:
        super().__init__()
        self._lines = lines

    def open(self, node: Node, command: str) -> Channel:
        line = self._lines.get(node.name)
        if line is None:
            return super().open(node, command)
        inside = f"{line}; {command}"
        return LocalChannel(f"exec unshare --mount /bin/sh -c {shlex.quote(inside)}")


@contextmanager
def agents(folder: Path, **lines: str) -> Iterator[tuple[Fanout, Mark]]:
    """Three agents, and a mark that the first writes; lines change what an agent has mounted."""
    nodes = tuple(replace(node, transport="local") for node in NODES)
    with Fanout(
        Inventory("marks", nodes), {"local": OwnMounts(lines)}, 3, lambda node: None, Watch()
    ) as fanout:
        fanout.survey(plan_queries([], {}))
        fanout.load("sessions")
        fanout.load("shared_marks")
        yield fanout, Mark(str(folder), nodes[0], nodes[1:])


class Watch:
    def stage(self, name: str, total: int, nodes: object = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


def verdicts(seen: Seen) -> dict[tuple[str, ...], str]:
    return {finding.nodes: finding.verdict for finding in judge(seen)}


def test_what_one_node_writes_all_read_and_nothing_remains(tmp_path: Path) -> None:
    with agents(tmp_path) as (fanout, mark):
        seen = try_mark(fanout, mark)
    assert verdicts(seen) == {("n2", "n3"): "pass"}
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_the_node_that_has_another_folder_is_named(tmp_path: Path) -> None:
    with agents(tmp_path, n3=f"mount -t tmpfs none {tmp_path}") as (fanout, mark):
        seen = try_mark(fanout, mark, SHORT)
    assert verdicts(seen) == {("n2",): "pass", ("n3",): "fail"}
    (failed,) = [finding for finding in judge(seen) if finding.verdict == "fail"]
    assert "what n1 wrote there was not read" in failed.message
    assert failed.seen == "read on n2"
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_a_user_who_may_not_write_leaves_it_unknown(tmp_path: Path) -> None:
    with agents(tmp_path) as (fanout, mark):
        writer = replace(mark.writer, job_user="nobody")
        seen = try_mark(fanout, replace(mark, writer=writer), SHORT)
    (finding,) = judge(seen)
    assert (finding.verdict, finding.reason) == ("unknown", "denied")
    assert list(tmp_path.iterdir()) == []


def test_a_mark_goes_with_its_agent(tmp_path: Path) -> None:
    """An agent that is killed cleans up nothing: its child does."""
    before = own_children()
    with agents(tmp_path) as (fanout, mark):
        body = {"path": str(tmp_path), "name": ".clusterprep-1", "text": "1", "user": None}
        fanout.ask("mark", {mark.writer.name: body}, 5.0)
        assert [file.name for file in tmp_path.iterdir()] == [".clusterprep-1"]
        for pid in own_children() - before:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: list(tmp_path.iterdir()) == [], seconds=10)


def test_a_mark_goes_with_the_controller(tmp_path: Path) -> None:
    with agents(tmp_path) as (fanout, mark):
        body = {"path": str(tmp_path), "name": ".clusterprep-1", "text": "1", "user": None}
        fanout.ask("mark", {mark.writer.name: body}, 5.0)
    assert eventually(lambda: list(tmp_path.iterdir()) == [], seconds=10)


@pytest.mark.parametrize("name", ["../x", "data", ".clusterprep-/../x"])
def test_a_mark_has_a_name_of_ours(tmp_path: Path, name: str) -> None:
    with agents(tmp_path) as (fanout, mark):
        body = {"path": str(tmp_path), "name": name, "text": "1", "user": None}
        answer = fanout.ask("mark", {mark.writer.name: body}, 5.0)["n1"]
    assert "no name of a mark" in str(answer)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what is marked


def test_a_folder_is_marked_by_the_first_node_that_may_write_there() -> None:
    facts = {
        "n1": {"fs.shared": {"/data": READ_ONLY, "/alone": FOLDER}},
        "n2": {"fs.shared": {"/data": FOLDER}},
        "n3": {"fs.shared": {"/data": FOLDER}},
        "n4": {"fs.shared": {"/data": Absent("ESTALE")}},
        "n5": {"fs.shared": None},
    }
    seen = fleet(**facts)
    (mark,) = planned_marks(seen)
    assert (mark.path, mark.writer.name) == ("/data", "n2")
    assert [node.name for node in mark.readers] == ["n1", "n3"]


def test_a_folder_to_which_nobody_writes_is_not_marked() -> None:
    both: dict[str, dict[str, object]] = {
        name: {"fs.shared": {"/data": READ_ONLY}} for name in ("n1", "n2")
    }
    assert list(planned_marks(fleet(**both))) == []


# ---------------------------------------------------------------- what is said


def test_silence_is_unknown() -> None:
    seen = Seen(MARK, PLACE, None, {"n2": 0.1, "n3": Absent("hung", "no answer within 15 s")})
    assert verdicts(seen) == {("n2",): "pass", ("n3",): "unknown"}


def test_what_may_remain_is_said() -> None:
    seen = Seen(MARK, PLACE, Absent("hung"), left=f"{PLACE}: n1 did not say")
    assert [finding.verdict for finding in judge(seen)] == ["fail", "unknown"]
    (first, _) = judge(seen)
    assert "may remain" in first.message
    # What else has such a name is a copy on its way, or another run's.
    assert str(first.remedy) == f"rm -f {PLACE}"
