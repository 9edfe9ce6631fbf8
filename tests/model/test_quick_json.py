"""What msgspec encodes of a value is what json would, or is left to json."""

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
from clusterprep.model.joined import Joined
from clusterprep.model.quick_json import encode_other, quick_encoder
from clusterprep.reports.json_report import json_of


class Foreign(Struct, frozen=True):
    """A record of a site, whose declared types are not checked by our type checker."""

    name: str


MOUNT = Mount("/", "ext4", "/dev/sda", frozenset(("rw", "nodev", "é")), frozenset(("rw",)), "8:1")


def encoded(value: Any) -> bytes | None:
    quick = quick_encoder((value,))
    return quick.encode(value) if quick is not None else None


def is_same(value: Any) -> bool:
    """Whether the value is encoded as it should be, so that nothing is lost, not even an order."""
    data = encoded(value)
    return data is not None and repr(json.loads(data)) == repr(json_of(value))


@settings(max_examples=300)
@given(st.floats())
def test_a_float_keeps_its_value(value: float) -> None:
    for fact in (value, [value], {"a": value, "b": 1}, Offset(value, -value)):
        assert is_same(fact)


@settings(max_examples=300)
@given(st.text() | st.text(st.characters(codec="ascii")))
def test_a_text_keeps_its_characters(text: str) -> None:
    for fact in (text, [text], {text: text}, RankGpu(text, 1, text, None)):
        assert is_same(fact)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"GPU-9e63": {1: (0, -2, True, None)}}, id="counters"),
        pytest.param(Absent("hung"), id="absent"),
        pytest.param([1, {"a": [Absent("hung")]}], id="absent-within"),
        pytest.param({"b": 1, "a": {"d": 2, "c": 3}}, id="order-of-keys"),
        pytest.param(Joined({"b": ("x", None)}, {"a": 1.5}), id="joined"),
        pytest.param([{"c": Joined({}, {"a": {"d": 2}})}], id="joined-within"),
        pytest.param(RankGpu("u", 0, "p", None), id="record"),
        pytest.param(Gid(1, IPv6Address("fe80::1"), "RoCE v2", None), id="address"),
        pytest.param([8e-05, 1e15, 1e16, {"a": (-1.5e-07, None)}], id="small-and-large"),
        pytest.param("\x7f\U0001f600 \u2028 ü", id="characters"),
        pytest.param((MOUNT, MOUNT), id="sets-in-records"),
    ],
)
def test_honest_values_are_encoded_here(value: Any) -> None:
    assert is_same(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("\udcff", id="surrogate"),
        pytest.param({1.5: 1}, id="odd-key"),
        pytest.param({"a": {(1, 2): 1}}, id="odd-inner-key"),
        pytest.param(Joined({}, {"a": b"x"}), id="bytes-that-are-joined"),
        pytest.param(frozenset("ab"), id="set"),
        pytest.param({"b": MOUNT, "a": 1}, id="set-and-order-of-keys"),
        pytest.param(b"ab", id="bytes"),
        pytest.param(Foreign("n1"), id="record-of-a-site"),
        pytest.param([[[[[[[[[[1]]]]]]]]]], id="deep"),
    ],
)
def test_what_would_differ_is_left_to_json(value: Any) -> None:
    assert encoded(value) is None


@pytest.mark.parametrize(
    ("value", "may_hold_floats"),
    [("a", False), (["a", {"b": [1.5]}], True), (Offset(1.0, 2.0), True), (MOUNT, False)],
)
def test_an_encoder_says_whether_there_may_be_infinities(value: Any, may_hold_floats: bool) -> None:
    quick = quick_encoder(["a", value])
    assert quick is not None
    assert quick.may_hold_floats == may_hold_floats


@given(st.integers(0, (1 << 64) - 1) | st.builds(lambda n: n << 48 | n, st.integers(0, 0xFFFF)))
def test_an_address_is_written_as_the_standard_library_does(host: int) -> None:
    for prefix in (0xFE80 << 48, 0xFEC0 << 48, 0):
        address = IPv6Address(prefix << 64 | host)
        assert encode_other(address) == str(address)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "fe80::1:0:0:1", "fe80::1:2:3:4%ib0", "::1"])
def test_an_odd_address_is_written_as_the_standard_library_does(text: str) -> None:
    assert encode_other(IPv6Address(text)) == str(IPv6Address(text))


def test_one_value_that_is_left_to_json_takes_others_with_it() -> None:
    assert quick_encoder([1, {"a": "b"}, b"c"]) is None
