"""What a node sends: frames, then facts, then findings, then a report in every format.

May happen: the stream is refused with ValueError, which makes the node lost, and a fact is Absent.
Never: another exception, a check that passes the node without a fact that it needs, a check that
breaks, another node that is judged otherwise than before, a report that is not well-formed or far
longer than what was sent.
"""

from __future__ import annotations

import contextlib
import functools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.cli.commands import selftest
from clusterprep.errors import LinkLost
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Finding, Fleet, Json, Node, NodeSnapshot, Report
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.launch_paths import launch_paths
from clusterprep.remote.transports.frames import MAX_FRAME, MAX_JUNK, FrameReader, plain
from clusterprep.remote.transports.replay import read_key
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import Queries, QueryPlan, Sheet
from tests.fuzz.wellformed import FORMATS, checked

NONCE = "00112233aabbccdd"
FLEET = "hgx-h100-ib"
VICTIM = 1  # neither the rendezvous host, nor a majority
TODAY = date(2026, 11, 21)
LONGER = 40  # times what was sent
ROOM = 400_000  # characters of a report of so many healthy nodes
WORD = 3000  # characters of one text of a finding, beyond what was sent

# Checks whose answer about others follows from what one node says of itself, and why that is right.
ABOUT_OTHERS = {
    "host.identity": "the other node of two that have one machine id is as suspect",
}


# --------------------------------------------------- a healthy fleet, of which one node is spoilt


@dataclass(frozen=True)
class Query:
    """One read of the victim, the facts that are made of it, and the checks made of those facts."""

    key: str
    plan: QueryPlan
    sheet: Sheet
    answers: tuple[bytes, ...]  # healthy ones, as they travel
    place: int  # of this read among them
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> Json:
        return json.loads(self.answers[self.place])


@dataclass(frozen=True)
class World:
    fleet: Fleet
    node: Node
    queries: tuple[Query, ...]
    said: Mapping[str, frozenset[tuple[str, str, str]]]  # by check: verdict, severity and node


@functools.cache
def world() -> World:
    checks = tuple(registry.checks().values())
    fleet = selftest.recorded_fleet(FLEET, checks)
    with selftest._recording(FLEET) as (path, recording):
        inventory = load_inventory(path)
        answers = recording[inventory.nodes[VICTIM].name]["answers"]
    node = inventory.nodes[VICTIM]
    said = {check.name: _said(judge(fleet, [check], TODAY)) for check in checks}
    return World(fleet, node, tuple(_questions(fleet, node, checks, answers)), said)


def _questions(
    fleet: Fleet, node: Node, checks: Sequence[Check], answers: Mapping[str, Json]
) -> Iterator[Query]:
    needed = {name for check in checks for name in (*check.facts, *check.uses)}
    facts = [
        fact for fact in registry.facts().values() if fact.stage is None and fact.name in needed
    ]
    reads = dict.fromkeys(read for fact in facts for read in fact.reads(node, fleet.inventory))
    for read in reads:
        mine = tuple(fact for fact in facts if read in fact.reads(node, fleet.inventory))
        names = {fact.name for fact in mine}
        plan = QueryPlan((), mine)
        sheet = Queries(plan, fleet.inventory).of(node)
        told = tuple(
            json.dumps(answers.get(read_key(one), ["no", "missing"])).encode()
            for one in sheet.reads
        )
        judged = tuple(check for check in checks if names & {*check.facts, *check.uses})
        yield Query(read_key(read), plan, sheet, told, sheet.reads.index(read), judged)


def _said(findings: Sequence[Finding]) -> frozenset[tuple[str, str, str]]:
    return frozenset((f.verdict, f.severity, node) for f in findings for node in f.nodes)


# ---------------------------------------------------------------- ways to spoil an answer


def _raw(query: Query, at: int, payload: bytes) -> bytes:
    """The value of the answer, as it comes."""
    return b'["ok",' + payload + b"]"


def _row(query: Query, at: int, payload: bytes) -> bytes:
    """The answer as a whole."""
    return payload


def _text(query: Query, at: int, payload: bytes) -> bytes:
    """Every text of the answer is another one."""
    return json.dumps(
        _texts(query.healthy, lambda text: payload.decode("utf-8", "surrogateescape"))
    ).encode()


def _spliced(query: Query, at: int, payload: bytes) -> bytes:
    """Something stands in the middle of every text."""
    words = payload.decode("utf-8", "surrogateescape")

    def splice(text: str) -> str:
        cut = at % (len(text) + 1)
        return text[:cut] + words + text[cut + (at >> 8) % 40 :]

    return json.dumps(_texts(query.healthy, splice)).encode()


def _leaf(query: Query, at: int, payload: bytes) -> bytes:
    """One value of the answer is another one: one of ODD where a byte names it, else what comes."""
    payload = ODD[payload[0] % len(ODD)] if len(payload) == 1 else payload
    mark, number = "\x00here\x00", [at % max(1, _size(query.healthy))]
    told = json.dumps(_marked(query.healthy, number, mark)).encode()
    return told.replace(json.dumps(mark).encode(), payload, 1)


def _texts(value: Json, turn: Callable[[str], str], top: bool = True) -> Json:
    """The first word says that there is an answer, and stays."""
    if isinstance(value, str):
        return turn(value)
    if isinstance(value, dict):
        return {key: _texts(item, turn, top=False) for key, item in value.items()}
    if isinstance(value, list):
        return [
            item if top and place == 0 else _texts(item, turn, False)
            for place, item in enumerate(value)
        ]
    return value


def _size(value: Json) -> int:
    """How many values there are, all that hold others included."""
    if isinstance(value, (dict, list)):
        return 1 + sum(map(_size, value.values() if isinstance(value, dict) else value))
    return 1


def _marked(value: Json, number: list[int], mark: str) -> Json:
    """With the value that has this number replaced, counted from the outside."""
    if number[0] == 0:
        number[0] = -1
        return mark
    number[0] -= 1
    if isinstance(value, dict):
        return {
            key: item if number[0] < 0 else _marked(item, number, mark)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [item if number[0] < 0 else _marked(item, number, mark) for item in value]
    return value


# Values where others are expected: of another type, of extreme size, or with control characters.
ODD = tuple(
    word.encode()
    for word in (
        *"null true 0 -1 1.5 1e308 18446744073709551615 99999999999999999999 1e999 NaN".split(),
        *r'''"" "x" "-1" "nan" "inf" "0-4294967295" "\ud800" "\u001b[31m"'''.split(),
        *r'''"[red]\n</script>" "a\"b\\c{d=\"e\"}" "9999999999999999999999999"'''.split(),
        *'[] {} [null] ["x"] [[1]] {"x":1}'.split(),
        r'{"\u202e":[]}',
        "[" * 63 + "]" * 63,
        "[" * 200 + "]" * 200,
        '"' + "9" * 5000 + '"',
        '"' + "a" * 9000 + '"',
    )
)
WAYS = (_raw, _row, _text, _spliced, _leaf)


# ---------------------------------------------------------------- one input


def one(data: bytes) -> None:
    """The first byte chooses how the rest is meant.

    As a stream, or as the answer to one query.
    """
    way = data[0] % (len(WAYS) + 1) if data else 0
    if way == len(WAYS):
        _stream(data[1:])
    elif len(data) > 5:
        query, data = _chosen(data[1:])
        _answer(WAYS[way], query, int.from_bytes(data[:2], "big"), data[2:])


def _chosen(data: bytes) -> tuple[Query, bytes]:
    """The query that two bytes name, or behind two of 255 a part of its words.

    So a finding stays what it is.
    """
    queries = world().queries
    if data[:2] == b"\xff\xff" and b"\n" in data:
        words, _, data = data[2:].partition(b"\n")
        named = [query for query in queries if words.decode("utf-8", "replace") in query.key]
        return (named or queries)[0], data
    return queries[int.from_bytes(data[:2], "big") % len(queries)], data[2:]


def _stream(data: bytes) -> None:
    """Frames come out alike however the stream is cut, and nothing piles up.

    A byte of 255 is the nonce.
    """
    stream = data.replace(b"\xff", b"\n" + NONCE.encode() + b" ")
    whole = _fed([stream])
    assert whole[:1] != ["refused"] or whole[1], "a long message"
    step = 1 + len(stream) // 7
    assert _fed([stream[at : at + step] for at in range(0, len(stream), step)]) == whole


def _fed(pieces: Sequence[bytes]) -> list[Any]:
    reader, found = FrameReader(NONCE), []
    try:
        for piece in pieces:
            found += reader.feed(piece)
            assert len(reader._buffer) <= max(MAX_JUNK, MAX_FRAME) + len(piece)
            assert len(reader.rest) <= 2048
    except ValueError as error:
        return ["refused", len(str(error)) < 300]  # what came before is of no use: the node is lost
    assert all(isinstance(frame, dict) for frame in found)
    return found


def _answer(
    way: Callable[[Query, int, bytes], bytes], query: Query, at: int, payload: bytes
) -> None:
    """From the bytes of a frame to a report."""
    here = world()
    rows = list(query.answers)
    rows[query.place] = row = way(query, at, payload)
    answers = _received(b'{"id":1,"answers":[' + b",".join(rows) + b"]}")
    if answers is None or len(answers) != len(rows):
        return  # the node is lost, with the reason
    before = here.fleet.snapshots[here.node.name]
    queries = Queries(query.plan, here.fleet.inventory)
    try:
        facts = queries.facts(query.sheet, answers)
    except LinkLost:
        return  # likewise
    finally:
        queries.close()
    after = replace(before, facts={**before.facts, **facts})
    fleet = replace(here.fleet, snapshots={**here.fleet.snapshots, here.node.name: after})
    findings = judge(fleet, query.checks, TODAY)
    _fair(here, query, facts, findings)
    _bounded(findings, len(row))
    _shown(fleet, after, findings, row)


def _received(payload: bytes) -> list[Any] | None:
    """The answers of a frame in pieces, which are those of the frame as a whole."""
    stream = b"\n%s %d %s\n" % (NONCE.encode(), len(payload), payload)
    pieces = _answers(FrameReader(NONCE, in_pieces=True), stream)
    whole = _answers(FrameReader(NONCE), stream)
    if pieces is None:
        assert whole is None, "a frame is read as a whole that cannot be split"
        return None
    try:
        values = plain({"answers": pieces})["answers"]
    except ValueError:
        values = None
    assert repr(values) == repr(whole)  # which tells 1, 1.0 and True apart
    return pieces


def _answers(reader: FrameReader, stream: bytes) -> list[Any] | None:
    with contextlib.suppress(ValueError):
        frames = reader.feed(stream)
        answers = frames[0].get("answers") if frames else None
        return answers if isinstance(answers, list) else None
    return None


def _fair(here: World, query: Query, facts: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """No node passes without what is needed, no check breaks, the others are judged as before."""
    name = here.node.name
    gone = {fact for fact, value in facts.items() if isinstance(value, Absent)}
    blind = {check.name for check in query.checks if gone & set(check.facts)}
    for finding in findings:
        assert finding.reason != "a bug in clusterprep", (
            f"{query.key}: {finding.check}: {finding.message}"
        )
        if finding.verdict == "pass" and finding.check in blind:
            assert name not in finding.nodes, f"{finding.check} passes without {gone}"
        for node in finding.nodes:
            told = (finding.verdict, finding.severity, node)
            fine = node == name or told in here.said[finding.check] or finding.check in ABOUT_OTHERS
            fine = fine or finding.verdict in (
                "pass",
                "skip",
            )  # there may be something to compare with now
            assert fine, (
                f"{query.key}: {finding.check} of {node} is {finding.verdict}: "
                f"{finding.message:.300}"
            )


def _bounded(findings: Sequence[Finding], sent: int) -> None:
    for finding in findings:
        for text in (
            finding.message,
            finding.seen,
            finding.wanted,
            finding.remedy,
            finding.reason or "",
        ):
            assert len(text) <= WORD + LONGER * sent, f"{finding.check} says {len(text)} characters"


def _shown(
    fleet: Fleet, snapshot: NodeSnapshot, findings: tuple[Finding, ...], payload: bytes
) -> None:
    """Render the environment that follows, and now and then a report.

    Not every time, as some formats take a hundred times as long as the rest.
    """
    env = planned_environment(fleet)
    assert all(value.value is None or value.value.isprintable() for value in env.values)
    chosen = zlib.crc32(payload) % (2 * len(FORMATS))
    if chosen < len(FORMATS):
        text = checked(_report(fleet, snapshot, findings), list(FORMATS)[chosen])
        assert len(text) <= ROOM + LONGER * len(payload)


def _report(fleet: Fleet, snapshot: NodeSnapshot, findings: tuple[Finding, ...]) -> Report:
    paths = launch_paths(fleet, writing=False)
    others = tuple(
        replace(s, facts={}) for s in fleet.snapshots.values() if s.node != snapshot.node
    )
    return Report(
        command="check",
        run="20261121-093000-4f2a",
        cluster="fuzz",
        started="2026-11-21T09:30:00Z",
        seconds=1.0,
        verdict="fail",
        code=1,
        nodes=(snapshot, *others),
        findings=findings,
        env=planned_environment(fleet).values,
        env_paths=paths,
    )


# ---------------------------------------------------------------- where to begin

DICTIONARY = (
    *(
        word.encode()
        for word in (
            "null",
            "true",
            "1e999",
            "-0",
            "NaN",
            "Infinity",
            "[]",
            "{}",
            '""',
            "[[",
            '"\\ud800"',
        )
    ),
    *(
        word.encode()
        for word in (
            '"missing"',
            '"denied"',
            '["no",',
            '["ok",',
            "\\u001b[31m",
            "</script>",
            "[red]",
        )
    ),
    *(
        word.encode()
        for word in (
            "0-4294967295",
            "18446744073709551615",
            "-1",
            "99999999999999999999",
            "1e308",
            "\n",
        )
    ),
    b"\xff",
)


def seeds() -> Iterator[bytes]:
    """Each query answered as a healthy node does, and each way to spoil an answer once."""
    for number, query in enumerate(world().queries):
        head = bytes([1]) + number.to_bytes(2, "big") + b"\0\0"
        if len(query.answers[query.place]) < 4096:
            yield head + query.answers[query.place]
        for way, payload in (
            (0, b"7"),
            (2, b"x"),
            (3, b"0-99999999999"),
            (4, bytes([number % len(ODD)])),
        ):
            yield bytes([way]) + number.to_bytes(2, "big") + b"\0\7" + payload
    yield b'\5\xff9 {"id":7}\n\xff0 \n\xff12 {"id":'
