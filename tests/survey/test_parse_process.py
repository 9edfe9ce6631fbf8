"""Large answers are parsed in a process of its own: the same values, and nobody waits for it."""

from __future__ import annotations

import io
import pickle
import re
import threading
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands import selftest
from clusterprep.errors import LinkLost
from clusterprep.facts import Fact, command, file
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Inventory, Json, Node
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.transports.replay import read_key
from clusterprep.survey import registry
from clusterprep.survey.answers import narrowed_and_parsed
from clusterprep.survey.parse_process import CPU_LIMIT, LARGE, ParseProcess, _ValueReader
from clusterprep.survey.queries import Queries, QueryPlan

NODE = Node("n1", "10.0.0.1", 0)
INVENTORY = Inventory("test", (NODE,))


def never_ends(text: str) -> str:
    """Return nothing for years: each letter more doubles the time."""
    return str(re.fullmatch(r"(a|a?)+b", text[:60]))


def takes_all_memory(text: str) -> str:
    return text * (1 << 20)


def raises(text: str) -> str:
    raise ValueError(text[:7])


@pytest.fixture
def process() -> Iterator[ParseProcess]:
    process = ParseProcess()
    yield process
    process.close()


def asked(fact: Fact, raw: Json, kind: str = "file") -> object:
    queries = Queries(QueryPlan((), (fact,)), INVENTORY)
    try:
        return queries.facts(queries.of(NODE), [raw])[fact.name]
    finally:
        queries.close()


def test_a_parse_that_does_not_end_loses_its_node_and_holds_up_nobody() -> None:
    fact = Fact("slow.fact", file("/x"), never_ends)
    began = time.monotonic()
    with pytest.raises(LinkLost, match=r"slow\.fact takes more than 1 s") as lost:
        asked(fact, ["ok", "a" * (LARGE + 1)])
    assert lost.value.reason == "garbled"
    assert time.monotonic() - began < CPU_LIMIT + 9  # on a busy machine; the child's start included


def test_others_have_their_turn_meanwhile() -> None:
    """A regular expression of this process would keep the interpreter's lock to its end."""
    fact = Fact("slow.fact", file("/x"), never_ends)
    lost: list[LinkLost] = []

    def look() -> None:
        try:
            asked(fact, ["ok", "a" * (LARGE + 1)])
        except LinkLost as error:
            lost.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    longest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        time.sleep(0.01)
        longest = max(longest, time.monotonic() - began)
    assert len(lost) == 1
    assert longest < CPU_LIMIT / 2


def test_the_next_answer_has_a_process_of_its_own(process: ParseProcess) -> None:
    with pytest.raises(LinkLost):
        process.parse(Fact("slow.fact", parse=never_ends), [["ok", "a" * 100]])
    value = process.parse(Fact("a.fact", parse=raises), [["ok", "garbage"]])
    assert value == Absent("garbled", "ValueError: garbage")


def test_a_parse_that_takes_all_memory_is_garbled(process: ParseProcess) -> None:
    value = process.parse(Fact("wide.fact", parse=takes_all_memory), [["ok", "a" * 5000]])
    assert value == Absent("garbled", "MemoryError: ")


@pytest.mark.parametrize(
    "name", ["builtins.eval", "os.system", "clusterprep.survey.registry.facts"]
)
def test_no_function_is_read_from_there(name: str) -> None:
    module, _, function = name.rpartition(".")
    reader = _ValueReader(io.BytesIO(b""))
    with pytest.raises(pickle.UnpicklingError, match=function):
        reader.find_class(module, function)


def test_every_fact_has_the_same_value_there(process: ParseProcess) -> None:
    with selftest._recording("hgx-h100-ib") as (path, recording):
        inventory = load_inventory(path)
    node = inventory.nodes[1]
    answers = recording[node.name]["answers"]
    sent = 0
    for fact in registry.facts().values():
        if fact.stage is not None:
            continue
        raw = [answers.get(read_key(read)) for read in fact.reads(node, inventory)]
        assert process.parse(fact, raw) == narrowed_and_parsed(fact, raw), fact.name
        sent += 1
    assert sent > 90


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (["ok", "x" * MAX_TEXT], None),
        (["ok", "x" * (MAX_TEXT + 1)], "truncated"),
        (["ok", {"a": ["x" * (MAX_TEXT + 1)]}], "truncated"),
        (["ok", {"x" * (MAX_TEXT + 1): 1}], "truncated"),
    ],
    ids=["whole", "text", "deep", "key"],
)
def test_a_text_beyond_what_an_agent_reads_is_truncated(raw: Json, reason: str | None) -> None:
    value = asked(Fact("a.fact", command("x"), parse=_kind_of), raw)
    if reason is None:
        assert value == str(type(raw[1]))
    else:
        assert isinstance(value, Absent)
        assert value.reason == reason
        assert "262,144 are the most" in value.detail


def _kind_of(value: object) -> str:
    return str(type(value))


def test_a_fact_that_cannot_be_sent_is_parsed_here(process: ParseProcess) -> None:
    fact = replace(Fact("a.fact"), parse=lambda text: text + "d")
    assert process.parse(fact, [["ok", "abc"]]) == "abcd"
