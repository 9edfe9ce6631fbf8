"""An answer that stays JSON until a part of it is new means what the whole answer means.

Nor does it matter what a node answered before.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from clusterprep.cli.commands import selftest
from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.facts.gpu import FIELDS, nvml_read
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.transports.replay import read_key
from clusterprep.survey import registry
from clusterprep.survey.answers import narrowed_and_parsed
from clusterprep.survey.meanings import Meanings
from tests.support import grown

NODE = Node("n1", "n1", 0)
NVML = nvml_read(NODE, Inventory("test", (NODE,)))
SPOILT = (None, -1, "x", [["no", "nvml_error", 3]], ["no", "denied"], ["no", "gpu_lost"])


def _is_of_nvml_alone(fact: Fact) -> bool:
    return bool(fact.pieces) and fact.reads(NODE, Inventory("test", (NODE,))) == NVML


OF_NVML = tuple(fact for fact in registry.facts().values() if _is_of_nvml_alone(fact))
LAYOUT = tuple((0,) for _ in OF_NVML)


@functools.cache
def _recorded() -> str:
    answers = grown.Answers()
    frame: Any = json.loads(answers.frame(3, NVML))
    return json.dumps(frame["answers"][0])


def _spoilt_answers() -> Iterator[Any]:
    """Return answers of two GPUs in which a field of the first or of both has another value."""
    answer = json.loads(_recorded())
    del answer[1]["gpus"][2:]
    for field in answer[1]["gpus"][0]:
        for value in SPOILT:
            other = copy.deepcopy(answer)
            for row in other[1]["gpus"]:
                row[field] = value
            yield other
        other[1]["gpus"][1] = answer[1]["gpus"][1]
        yield other
        del other[1]["gpus"][0][field]
        yield other


def _meaning(answer: Any) -> dict[str, Any]:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return Meanings(OF_NVML).of(list(NVML), LAYOUT, [msgspec.Raw(text.encode())])


def _meaning_of_whole(answer: Any) -> dict[str, Any]:
    return {fact.name: narrowed_and_parsed(fact, [answer]) for fact in OF_NVML}


def test_a_field_of_any_value_means_the_same() -> None:
    assert len(OF_NVML) > 20
    for answer in _spoilt_answers():
        assert _meaning(answer) == _meaning_of_whole(answer)


@pytest.mark.parametrize(
    "answer",
    [
        ["ok", None],
        ["ok", {}],
        ["ok", {"gpus": []}],
        ["ok", {"gpus": [7], "driver": "1", "cuda": 1}],
        ["ok", {"gpus": {}, "driver": "1", "cuda": 1}],
        ["ok", {"gpus": [{"index": 0, "no": "gpu_lost"}], "driver": [], "cuda": "1"}],
        ["ok", {"gpus": [{}], "driver": None, "cuda": None}],
        ["no", "no_driver", ""],
        ["no", "missing"],
        "ok",
        [],
    ],
)
def test_an_answer_of_another_shape_means_the_same(answer: Any) -> None:
    assert _meaning(json.dumps(answer)) == _meaning_of_whole(answer)


@pytest.mark.parametrize("value", ["1" * 30, "[" * 80 + "]" * 80, "NaN"])
def test_a_piece_that_no_agent_writes_loses_the_node(value: str) -> None:
    text = _recorded().replace('"mig": [0, 0]', f'"mig": {value}', 1)
    assert text != _recorded()
    with pytest.raises(LinkLost) as raised:
        _meaning(text)
    assert raised.value.reason == "garbled"


def test_a_trouble_is_found_however_it_is_written() -> None:
    facts = (registry.facts()["gpu.gone"],)
    reads = [*NVML, Read("pci", ("0x10de",))]
    plain = _recorded().replace('"mig": [0, 0]', '"mig": ["no", "gpu_lost"]', 1)
    for word in ('["no","gpu_lost"]', '["no" , "gpu_los\\u0074"]', '["n\\u006f", "gpu_lost", 15]'):
        text = plain.replace('["no", "gpu_lost"]', word)
        pieces = [msgspec.Raw(text.encode()), msgspec.Raw(b'["ok", []]')]
        gone = Meanings(facts).of(reads, ((0, 1),), pieces)["gpu.gone"]
        assert gone.lost == ("GPU 0: gpu_lost",)


# ---------------------------------------------------------------- all facts that take pieces

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**19,
    "",
    "x\n",
    "\udcff",
    [],
    {},
    ["no", "denied"],
    [["a", 1]],
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values within a value, each as its keys from outside."""
    yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*place, index))


def _changed(generator: random.Random, answer: Any) -> Any:
    """Return an answer of which one part is gone, twice there, cut or something else."""
    answer = copy.deepcopy(answer)
    *outer, key = generator.choice([place for place in _places(answer) if len(place) > 1])
    within = functools.reduce(lambda value, step: value[step], outer, answer)
    old = within[key]
    change = generator.choice(("remove", "replace", "cut", "again"))
    if change == "remove":
        del within[key]
    elif change == "cut" and isinstance(old, str):
        within[key] = old[: generator.randrange(len(old) + 1)]
    elif change == "again" and isinstance(within, list):
        within.append(old)
    else:
        within[key] = copy.deepcopy(generator.choice(ODD))
    return answer


def _recorded_answers(kind: str) -> Iterator[tuple[Fact, list[Any]]]:
    """Yield each fact that takes pieces with the answers of a recorded node."""
    with selftest._recording(kind) as (path, recording):
        inventory = load_inventory(path)
    node = inventory.nodes[1]
    answers = recording[node.name]["answers"]
    for fact in registry.facts().values():
        reads = fact.reads(node, inventory) if fact.pieces else ()
        if reads:
            yield fact, [answers.get(read_key(read), ["no", "missing"]) for read in reads]


def _asked(meanings: Meanings, fact: Fact, rows: list[Any]) -> Any:
    reads = [Read("file", (f"/{place}",)) for place in range(len(rows))]
    pieces = [msgspec.Raw(json.dumps(row).encode()) for row in rows]
    return meanings.of(reads, (tuple(range(len(rows))),), pieces)[fact.name]


@pytest.mark.parametrize("kind", ["hgx-h100-ib", "hgx-h100-roce"])
def test_changed_answers_mean_the_same_in_pieces(kind: str) -> None:
    generator = random.Random(kind)
    in_pieces = list(_recorded_answers(kind))
    assert len(in_pieces) > 40
    for fact, rows in in_pieces:
        meanings = Meanings([fact])
        assert repr(_asked(meanings, fact, rows)) == repr(narrowed_and_parsed(fact, rows))
        # Those with a `narrow` are of NVML's long answer, which the tests above change too.
        for _ in range(2 if fact.narrow else 30):
            changed = list(rows)
            place = generator.randrange(len(rows))
            if isinstance(rows[place][1], (dict, list)):
                changed[place] = _changed(generator, rows[place])
            seen = _asked(meanings, fact, changed)
            assert repr(seen) == repr(narrowed_and_parsed(fact, changed)), (fact.name, changed)


def test_all_that_the_recorded_gpus_say_is_known() -> None:
    for row in json.loads(_recorded())[1]["gpus"]:
        assert set(row) == set(FIELDS)


def _with_uuids(*uuids: Any) -> str:
    answer = json.loads(_recorded())
    del answer[1]["gpus"][len(uuids) :]
    for row, uuid in zip(answer[1]["gpus"], uuids, strict=True):
        row["uuid"] = uuid
    return json.dumps(answer)


@pytest.mark.parametrize(
    "uuids",
    [
        ("GPU-a", "GPU-b", "GPU-c"),
        ("GPU-b", "GPU-a"),
        ("GPU-a", "GPU-a"),
        ("", ""),
        ("1", "0"),
        ('"', "b"),
        ("\\", "b"),
        ("\u00fc", "\udcff"),
        (["no", "denied"], "b"),
        (["a", "b"], 5),
        (5, ["a", "b"]),
        (None, "a"),
    ],
)
def test_uuids_of_any_kind_are_those_of_the_node(uuids: tuple[Any, ...]) -> None:
    meanings = Meanings(OF_NVML)
    for text in (_with_uuids("GPU-x", "GPU-y"), _with_uuids(*uuids), _with_uuids("GPU-x", "GPU-y")):
        seen = meanings.of(list(NVML), LAYOUT, [msgspec.Raw(text.encode())])
        assert repr(seen) == repr(_meaning_of_whole(json.loads(text)))


def test_nodes_that_differ_in_uuids_alone_share_their_other_values() -> None:
    meanings = Meanings(OF_NVML)
    first, second = (
        meanings.of(list(NVML), LAYOUT, [msgspec.Raw(_with_uuids(*uuids).encode())])
        for uuids in (("GPU-a", "GPU-b"), ("GPU-c", "GPU-d"))
    )
    apart = {name for name in first if first[name] is not second[name]}
    assert apart == {"gpu.nvml", "gpu.counters", "gpu.ecc_corrected", "nvlink.errors"}
    assert first["nvlink.errors"][0].links is second["nvlink.errors"][0].links
