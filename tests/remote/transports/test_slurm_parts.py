"""What a step's streams are made of, without Slurm.

Records, envelopes, the relay, and what scontrol says of nodes.
"""

from __future__ import annotations

import base64
import os
import random
import zlib
from collections import deque
from collections.abc import Iterable

import pytest

from clusterprep.remote.agent.relay import SIGNAL_DELAY, Relay, is_among
from clusterprep.remote.transports.slurm_envelopes import Message, Outbox, envelopes, ranges
from clusterprep.remote.transports.slurm_nodes import SlurmNode, matching, parse_nodes
from clusterprep.remote.transports.slurm_records import MAX_PIECE, Record, RecordReader

NONCE = "0123456789abcdef"


def lines(*records: tuple[str, int, bytes], task: int = 3) -> bytes:
    """What a relay writes for these records."""
    relay = Relay(NONCE, task)
    for record in records:
        relay.emit(*record)
    return relay._outgoing


def labelled(task: int, text: bytes) -> bytes:
    return b"".join(b"%d: %s\n" % (task, line) for line in text.splitlines())


def read(data: bytes) -> list[tuple[int, Record]]:
    return list(RecordReader(NONCE).feed(data))


# ---------------------------------------------------------------- records


def test_a_line_is_never_longer_than_srun_keeps_together() -> None:
    said = lines(("o", 7, random.Random(1).randbytes(60_000)))
    assert max(map(len, said.splitlines(keepends=True))) <= 1000


@pytest.mark.parametrize("size", [0, 1, 512, 513, 60_000])
def test_a_record_comes_back(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert read(labelled(3, lines(("o", 7, data)))) == [(3, Record("o", 7, data))]


def test_pieces_of_torn_lines_find_together_between_those_of_others() -> None:
    """As srun gives the end of what a task said.

    In pieces of 1024 bytes, each with a label and a newline.
    """
    talks = {
        task: lines(("o", 1, random.Random(task).randbytes(9000)), ("f", 1, b""), task=task)
        for task in (0, 1)
    }
    pieces = {
        task: [talk[at : at + 1024] for at in range(0, len(talk), 1024)]
        for task, talk in talks.items()
    }
    mixed = b"".join(
        labelled(task, pieces[task][i]) for i in range(len(pieces[0])) for task in (0, 1)
    )
    found = [(task, record) for task, record in read(mixed) if record.kind != "junk"]
    for task in talks:
        output, end = (record for whose, record in found if whose == task)
        assert (output.data, end.kind) == (random.Random(task).randbytes(9000), "f")


@pytest.mark.parametrize(
    "junk", [b"a banner\n", b"half a line ", b"\xff\x00\n\n", b"fedcba9876543210 0 AAAA;\n"]
)
def test_what_else_is_printed_is_passed_over(junk: bytes) -> None:
    found = read(labelled(3, junk + lines(("h", 0, b"n4"))))
    assert found[-1] == (3, Record("h", 0, b"n4"))
    assert {record.kind for _, record in found[:-1]} <= {"junk"}


def test_where_a_task_runs_is_told_before_python_starts() -> None:
    assert read(f"12: {NONCE} at gpu07\n".encode()) == [(12, Record("at", data=b"gpu07"))]


def test_a_line_that_is_missing_breaks_that_task_alone() -> None:
    torn = b"\n".join(lines(("o", 1, random.Random(1).randbytes(3000))).splitlines()[1:])
    found = read(labelled(3, torn) + labelled(4, lines(("f", 1, b""))))
    assert [(task, record.kind) for task, record in found] == [(3, "broken"), (4, "f")]


@pytest.mark.parametrize(
    "text",
    [
        b"!!!!",
        base64.b64encode(b"o"),
        base64.b64encode(b"O 1 no zlib"),
        base64.b64encode(b"o one x"),
        base64.b64encode(b"O 1 " + zlib.compress(bytes(MAX_PIECE + 1))),
        b"A" * (3 * MAX_PIECE),
    ],
)
def test_what_is_no_record_of_ours_breaks_it(text: bytes) -> None:
    said = b"".join(
        b"3: %s %d %s%s\n"
        % (NONCE.encode(), n, text[at : at + 900], b"," if at + 900 < len(text) else b";")
        for n, at in enumerate(range(0, len(text), 900))
    )
    assert [record.kind for _, record in read(said)] == ["broken"]


# ---------------------------------------------------------------- envelopes


def heard(task: int, sent: bytes) -> list[tuple[int, str, bytes]]:
    """What the relay of a task takes from srun's stdin."""
    taken: list[tuple[int, str, bytes]] = []
    relay = Relay(NONCE, task)
    relay._serve = lambda channel, op, body: taken.append((channel, op, body))  # type: ignore[method-assign]
    for at in range(0, len(sent), 700):
        relay._incoming += sent[at : at + 700]
        while relay._envelope():
            pass
    return taken


def content(taken: Iterable[tuple[int, str, bytes]]) -> bytes:
    return b"".join(
        zlib.decompress(body) if op == "zdata" else body for _, op, body in taken if op != "pulse"
    )


def test_every_task_gets_its_own_in_order_and_what_is_common_goes_once() -> None:
    source = random.Random(5).randbytes(20_000)
    own = {task: [b"%d" % task + source, b"look", b"own %d" % task] for task in (0, 1, 2, 9)}
    waiting = {
        task: deque(Message(1, "data", body) for body in bodies) for task, bodies in own.items()
    }
    sent = b"".join(envelopes(waiting))
    assert {task: content(heard(task, sent)) for task in own} == {
        task: b"".join(own[task]) for task in own
    }
    assert content(heard(5, sent)) == b""
    assert len(sent) < 21_000


def test_the_outbox_gives_signs_of_life_and_ends() -> None:
    box = Outbox()
    box.put_for_all(b"first")
    box.put(2, 1, "data", b"x" * 5)
    assert box.take(0.01) == b"first2 1 data 5\nxxxxx"
    assert heard(7, box.take(0.01) or b"") == [(0, "pulse", b"")]
    box.put(2, 1, "close", b"")
    box.close()
    assert (box.take(5), box.take(5)) == (b"2 1 close 0\n", None)


def test_numbers_as_ranges() -> None:
    numbers = [0, 1, 2, 3, 7, 9, 10]
    assert ranges(numbers) == "0-3,7,9-10"
    assert [n for n in range(20) if is_among(n, ranges(numbers))] == numbers
    assert is_among(4711, "*")


# ---------------------------------------------------------------- the relay alone


def test_the_relay_ends_its_children_when_the_controller_is_silent() -> None:
    silent, held = os.pipe()
    heard_end, out = os.pipe()
    relay = Relay(NONCE, 0, silent, out, patience=0.3)
    relay._serve(1, "open", b"cat")
    pid = relay.children[1].pid
    relay.run()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    os.close(out)
    with os.fdopen(heard_end, "rb") as said:
        kinds = [record.kind for _, record in read(labelled(0, said.read()))]
    assert sorted(kinds) == ["f", "x"] or kinds == ["x"]
    os.close(silent)
    os.close(held)


def ended_by(command: bytes) -> tuple[list[str], list[str]]:
    """What a relay reports of a child that a signal ends: at once, and after the delay."""
    relay = Relay(NONCE, 0)
    relay._serve(1, "open", command)
    child = relay.children[1]
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    relay._carry(child, child.out)
    relay._look(child)
    at_once = [record.kind for _, record in read(labelled(0, relay._outgoing))]
    child.signalled_at -= SIGNAL_DELAY
    relay._look(child)
    return at_once, [record.kind for _, record in read(labelled(0, relay._outgoing))]


@pytest.mark.parametrize(
    "command", [b"kill -TERM $$", b"kill -KILL $$", b"sh -c 'kill -KILL $$'; exit $?"]
)
def test_a_child_that_a_signal_ended_is_reported_only_if_its_task_goes_on(command: bytes) -> None:
    """A step that is cancelled ends its processes one by one, and the child may be the first."""
    at_once, later = ended_by(command)
    assert "f" not in at_once
    assert "x" not in at_once
    assert later[-2:] == ["f", "x"]


def test_a_child_that_this_task_killed_is_not_held_back() -> None:
    relay = Relay(NONCE, 0)
    relay._serve(1, "open", b"exec cat")
    child = relay.children[1]
    while not child.kill():  # until it has a session of its own
        pass
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    relay._look(child)
    assert [record.kind for _, record in read(labelled(0, relay._outgoing))] == ["x"]


# ---------------------------------------------------------------- nodes

LINE = (
    "NodeName=n1 Arch=x NodeAddr=10.0.0.1 NodeHostName=h1 OS=Linux State={} Partitions=a,b "
    "Reason=q [root@x]"
)


@pytest.mark.parametrize(
    ("state", "outside", "inside"),
    [
        ("IDLE", True, True),
        ("MIXED", True, True),
        ("ALLOCATED", True, True),  # that it is busy is another reason
        ("IDLE+DRAIN", False, True),
        ("ALLOCATED+DRAIN", False, True),
        ("IDLE+MAINT+RESERVED", False, True),
        ("IDLE*", False, False),
        ("DOWN", False, False),
        ("DOWN*+DRAIN", False, False),
        ("IDLE+NOT_RESPONDING", False, False),
        ("IDLE+CLOUD+POWERED_DOWN", False, False),
        ("UNKNOWN", False, False),
    ],
)
def test_where_a_step_can_start(state: str, outside: bool, inside: bool) -> None:
    (node,) = parse_nodes(LINE.format(state))
    assert [not node.why_no_step(in_allocation=there) for there in (False, True)] == [
        outside,
        inside,
    ]
    assert not inside or not node.why_no_step(in_allocation=True)
    if not outside:
        assert node.why_no_step(in_allocation=False) == f"Slurm says {state}: q"


def test_a_node_is_found_by_its_name_first() -> None:
    nodes = (
        SlurmNode("a", "10.0.0.1", (), "ha"),
        SlurmNode("b", "10.0.0.2", (), "a"),
        SlurmNode("c", "10.0.0.2", ()),
    )
    found = [
        matching(nodes, *wanted)
        for wanted in (("a", "x"), ("x", "b"), ("ha", "x"), ("x", "10.0.0.1"))
    ]
    assert [node and node.name for node in found] == ["a", "b", "a", "a"]
    assert matching(nodes, "x", "10.0.0.2") is None, "two have it"
