"""What msgspec encodes of a fact is what json would, or is left to json."""

from __future__ import annotations

import json
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from clusterprep.facts.clock import Offset
from clusterprep.facts.rdma import Gid
from clusterprep.facts.storage import Mount
from clusterprep.model import Absent, RankGpu
from clusterprep.reports.json_report import json_of
from clusterprep.reports.plain_facts import encode_plain


class Foreign(Struct, frozen=True):
    """A record of a site, whose declared types are not checked by our type checker."""

    name: str


MOUNT = Mount("/", "ext4", "/dev/sda", frozenset(("rw", "nodev")), frozenset(("rw",)), "8:1")


def text_of(fact: Any) -> str:
    return json.dumps(json_of(fact), allow_nan=False)


@settings(max_examples=300)
@given(st.floats())
def test_a_float_is_written_as_json_writes_it_or_left_to_json(value: float) -> None:
    for fact in (value, [value], {"a": value, "b": 1}, Offset(value, -value)):
        assert encode_plain(fact) in (None, text_of(fact))


@settings(max_examples=300)
@given(st.text() | st.text(st.characters(codec="ascii")))
def test_a_text_is_written_as_json_writes_it_or_left_to_json(text: str) -> None:
    for fact in (text, [text], {text: text}, RankGpu(text, 1, text, None)):
        assert encode_plain(fact) in (None, text_of(fact))


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param({"GPU-9e63": {1: (0, -2, True, None)}}, id="counters"),
        pytest.param(("9c63:c003:00f0:0400", "1e5", 0.25), id="digits-around-an-e"),
        pytest.param(RankGpu("u", 0, "p", None), id="record"),
        pytest.param(Gid(1, IPv6Address("fe80::1"), "RoCE v2", None), id="address"),
        pytest.param(1 << 70, id="long"),
        pytest.param(1e15, id="large"),
        pytest.param(0.0001, id="small"),
        pytest.param(1e16, id="with-exponent"),
        pytest.param([8e-05, {"a": (-1.5e-07, None)}], id="tiny"),
        pytest.param({"\x7f": [Gid(1, IPv6Address("fe80::1"), "\x7f", None)]}, id="delete"),
    ],
)
def test_honest_facts_are_encoded_here(fact: Any) -> None:
    assert encode_plain(fact) == text_of(fact)


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param([8e-05, float("inf")], id="infinite"),
        pytest.param([8e-05, Absent("hung")], id="absent-and-small"),
        pytest.param("é", id="not-ascii"),
        pytest.param("\udcff", id="surrogate"),
        pytest.param({1.5: 1}, id="odd-key"),
        pytest.param([Absent("hung")], id="absent"),
        pytest.param(frozenset("ab"), id="set"),
        pytest.param(b"ab", id="bytes"),
        pytest.param(MOUNT, id="set-in-record"),
        pytest.param(Foreign("n1"), id="record-of-a-site"),
        pytest.param([[[[[[[[[[1]]]]]]]]]], id="deep"),
    ],
)
def test_what_may_differ_is_left_to_json(fact: Any) -> None:
    assert encode_plain(fact) is None
