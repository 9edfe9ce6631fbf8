"""A mapping whose last entries are shared behaves as a dictionary with all of them."""

from __future__ import annotations

import pickle

import pytest

from clusterprep.model.joined import Joined

SHARED = {"n1": ("10.0.0.1",), "n2": None}
JOINED = Joined({"n7": ("10.0.0.7",)}, SHARED)
WHOLE = {"n7": ("10.0.0.7",), "n1": ("10.0.0.1",), "n2": None}


def test_it_equals_a_dictionary_with_all_entries_in_their_order() -> None:
    assert JOINED == WHOLE
    assert list(JOINED) == list(JOINED.keys()) == list(WHOLE)
    assert list(JOINED.values()) == list(WHOLE.values())
    assert list(JOINED.items()) == list(WHOLE.items())
    assert len(JOINED) == 3
    assert repr(JOINED) == repr(WHOLE)


def test_entries_of_both_are_found() -> None:
    assert JOINED["n7"] == ("10.0.0.7",)
    assert JOINED["n2"] is None
    assert "n1" in JOINED
    assert "n3" not in JOINED
    with pytest.raises(KeyError):
        JOINED["n3"]


def test_it_comes_back_from_another_process() -> None:
    assert pickle.loads(pickle.dumps(JOINED)) == JOINED  # noqa: S301 - our own bytes


def test_what_is_shared_is_no_copy() -> None:
    assert Joined({}, SHARED).shared is SHARED
