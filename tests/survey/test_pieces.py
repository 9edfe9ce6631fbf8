"""An answer that stays JSON until a part of it is new means what the whole answer means."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.facts.gpu import nvml_read
from clusterprep.model import Inventory, Node, Read
from clusterprep.survey import registry
from clusterprep.survey.answers import narrowed_and_parsed
from clusterprep.survey.meanings import Meanings
from tests.support import grown

NODE = Node("n1", "n1", 0)
NVML = nvml_read(NODE, Inventory("test", (NODE,)))
SPOILT = (None, -1, "x", [["no", "nvml_error", 3]], ["no", "denied"], ["no", "gpu_lost"])


def _is_of_nvml_alone(fact: Fact) -> bool:
    return fact.pieces is not None and fact.reads(NODE, Inventory("test", (NODE,))) == NVML


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
