"""`when`: what is true, what is false, and what stays unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.changes.playbook.conditions import ConditionError, groups_of, parse
from clusterprep.changes.playbook.names import NAMES, find, value_of
from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.model import Absent, EnvSetting, Fleet, Gpus
from tests.support.fleet import absent, fleet

FACTS = {
    "kernel.release": "5.15.0-91-generic",
    "os.release": "ubuntu 22.04",
    "host.name": "gpu01",
    "gpu.nvml": Nvml(
        "550.54.15", "12.4", (Gpu(0, "NVIDIA L20", "GPU-1", "0000:01:00.0"),), ("GPU 1: lost",)
    ),
    "nv.driver": "550.54.15",
    "mem.total": 512 << 30,
    "cpu.processors": Cpus("EPYC", 2, 64, 128),
}
SETTINGS = {
    "groups": ("rack1", "odd-ones"),
    "gpus": Gpus(8),
    "env": {"NCCL_DEBUG": EnvSetting("WARN", "env")},
    "job_user": "trainer",
}


def seen(**facts: Any) -> Fleet:
    return fleet(each=SETTINGS, n1={**FACTS, **facts})


def holds(text: str, **facts: Any) -> Any:
    found = seen(**{name.replace("__", "."): value for name, value in facts.items()})
    node = found.inventory.nodes[0]
    return parse(text).holds(node, lambda name: value_of(name, found, node))


@pytest.mark.parametrize(
    "text",
    [
        "kernel >= 5.15", "kernel == 5.15", "kernel < 5.15.1", "kernel > '5.4'", "5.4 < kernel",
        "not kernel >= 6", "os.id == 'ubuntu'", 'os.id != "debian"',
        "os.id in ('debian', \"ubuntu\")", "os.id not in ('debian')",
        "os.version >= 22.04", "os.version in (20.04, 22.04)", "driver >= 550.54",
        "driver < 550.100",
        "gpus.count == 2", "gpus.declared > gpus.count", "gpus.model == 'NVIDIA L20'",
        "gpus.count in (1, 2, 8)",
        "memory >= 512GiB", "memory > 100G", "cpus.count == 128", "nodes.count == 1", "index == 0",
        "in group rack1", "node in group odd-ones", "not in group rack2", "node not in group rack2",
        "node == first.node", "node == 'n1'", "hostname == 'gpu01'", "env.NCCL_DEBUG == 'WARN'",
        "job_user != 'root'", "kernel > 6 or gpus.count == 2 and in group rack1",
        "(kernel > 6 or gpus.count == 2) and in group rack1", "not (kernel > 6 or in group rack2)",
        "not not in group rack1", "transport == 'ssh' and root == '/'",
    ],
)  # fmt: skip
def test_what_holds(text: str) -> None:
    assert holds(text) is True
    assert holds(f"not ({text})") is False


def test_and_binds_closer_than_or() -> None:
    assert holds("gpus.count == 2 or gpus.count == 2 and kernel > 6") is True
    assert holds("(gpus.count == 2 or gpus.count == 2) and kernel > 6") is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("driver > 500", None),
        ("not driver > 500", None),
        ("driver > 500 and kernel > 5", None),
        ("driver > 500 and kernel > 6", False),
        ("kernel > 6 and driver > 500", False),
        ("driver > 500 or kernel > 5", True),
        ("driver > 500 or kernel > 6", None),
        ("gpus.count == 0 or driver > 500", None),
        ("driver == driver", None),
        ("driver in (500, 550)", None),
    ],
)
def test_what_is_not_known_stays_unknown_unless_the_rest_decides(
    text: str, expected: bool | None
) -> None:
    found = holds(text, nv__driver=absent("denied", "no permission"))
    assert found == (Absent("denied", "driver: no permission") if expected is None else expected)


@pytest.mark.parametrize(
    ("fact", "value", "text", "reason"),
    [
        ("gpu.nvml", None, "gpus.model == 'x'", "not_applicable"),
        ("kernel.release", "next", "kernel > 5", "garbled"),
        ("host.name", "a\x1b[31m", "hostname == 'a'", "garbled"),
        ("os.release", "arch", "os.version > 1", "not_applicable"),
        ("cpu.processors", "many", "cpus.count > 1", "garbled"),
        (
            "gpu.nvml",
            Nvml("1", "1", (Gpu(0, "A", "", ""), Gpu(1, "B", "", ""))),
            "gpus.model == 'A'",
            "mixed",
        ),
    ],
)
def test_a_strange_answer_is_no_answer(fact: str, value: Any, text: str, reason: str) -> None:
    found = holds(text, **{fact.replace(".", "__"): value})
    assert isinstance(found, Absent)
    assert found.reason == reason


def test_a_node_without_gpus_has_none() -> None:
    assert holds("gpus.count == 0", gpu__nvml=None) is True


def test_groups_are_found_wherever_they_stand() -> None:
    assert list(
        groups_of(parse("not (in group a or node in group b) and node not in group c"))
    ) == ["a", "b", "c"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_value_and_asks_for_facts_that_there_are(name: str) -> None:
    from clusterprep.survey.registry import facts

    assert set(find(name).facts) <= set(facts())
    found = seen()
    value = value_of(find(name), found, found.inventory.nodes[0])
    undeclared = {"nproc", "interfaces.nccl"}
    assert isinstance(value, Absent) == (name in undeclared), value


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    try:
        parse(text)
    except ConditionError as error:
        assert str(error)  # noqa: PT017 - that it is another error would be raised


TOKENS = [
    "and",
    "or",
    "not",
    "in",
    "group",
    "(",
    ")",
    ",",
    "==",
    "<",
    "kernel",
    "node",
    "5.15",
    "'x'",
    "gpus.count",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_any_row_of_words_too(words: list[str]) -> None:
    test_any_text_is_a_condition_or_an_error_of_ours.hypothesis.inner_test(" ".join(words))  # type: ignore[attr-defined]
