"""Which checks a selection by name, area and tag takes."""

from __future__ import annotations

import pytest

from clusterprep.errors import InputError
from clusterprep.survey import registry
from clusterprep.survey.selection import (
    Selection,
    asked_without_check,
    matches,
    refuse_unknown_tags,
    select_checks,
)

# A few stand for all, so that another check in their area changes nothing here.
NAMES = ("eth.iface_choice", "eth.mtu", "net.ports", "os.release", "time.daemon", "time.offset")
CHECKS = {name: registry.checks()[name] for name in NAMES}


@pytest.mark.parametrize(
    ("word", "name", "takes"),
    [
        ("time.offset", "time.offset", True),
        ("time", "time.offset", True),
        ("time.", "time.offset", True),
        ("time.off", "time.offset", False),
        ("tim", "time.offset", False),
        ("offset", "time.offset", False),
        ("time.offset.", "time.offset", False),
        ("", "time.offset", False),
        (".", "time.offset", False),
    ],
)
def test_a_word_takes_a_check_or_a_whole_area(word: str, name: str, takes: bool) -> None:
    assert matches(word, name) is takes


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        pytest.param(Selection(), set(CHECKS), id="all"),
        pytest.param(Selection(only=("time.",)), {"time.offset", "time.daemon"}, id="an-area"),
        pytest.param(
            Selection(only=("time", "os.release")),
            {"time.offset", "time.daemon", "os.release"},
            id="two",
        ),
        pytest.param(
            Selection(skip=("time.offset",)), set(CHECKS) - {"time.offset"}, id="all-but-one"
        ),
        pytest.param(
            Selection(only=("time",), skip=("time.daemon",)), {"time.offset"}, id="an-area-but-one"
        ),
        pytest.param(
            Selection(tags=("eth",)), {"eth.mtu", "eth.iface_choice"}, id="a-tag-is-also-an-area"
        ),
        pytest.param(Selection(tags=("eth",), skip_tags=("eth",)), set(), id="a-tag-and-not"),
        pytest.param(Selection(only=("disk.nvme",)), set(), id="known-and-not-built"),
    ],
)
def test_a_selection_leaves_what_it_says(selection: Selection, expected: set[str]) -> None:
    assert {
        check.name for check in select_checks(CHECKS, selection, known=("disk.nvme",))
    } == expected


def test_every_wrong_word_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(InputError) as raised:
        select_checks(CHECKS, Selection(only=("time.ofset",), skip=("nonsense",)))
    assert [(p.message, p.hint) for p in raised.value.problems] == [
        ("there is no check 'time.ofset'", "did you mean time.offset?"),
        ("there is no check 'nonsense'", None),
    ]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ((), ()),
        (("time.offset",), ()),
        (("disk.nvme",), ("disk.nvme",)),
        (("disk.",), ("disk.nvme", "disk.smart")),
        (("time.drift", "eth."), ("time.drift",)),
        (("time.",), ()),  # some of the area can be judged
    ],
)
def test_names_without_a_check_that_are_asked_for(
    only: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    known = ("disk.nvme", "disk.smart", "time.drift")
    assert asked_without_check(CHECKS, Selection(only=only), known) == expected


def test_a_tag_that_no_check_has_is_refused_with_the_nearest() -> None:
    refuse_unknown_tags(Selection(tags=("eth",), skip_tags=("net",)), {"eth", "net"})
    with pytest.raises(InputError) as caught:
        refuse_unknown_tags(Selection(tags=("ehtt",), skip_tags=("nett",)), {"eth", "net"})
    assert [(problem.key, problem.hint) for problem in caught.value.problems] == [
        ("--tags", None), ("--skip-tags", "did you mean 'net'?")
    ]  # fmt: skip
