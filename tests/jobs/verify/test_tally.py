"""What a trial measured.

How far each rank came in words, and what was made smaller than planned.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.evidence import end_words
from clusterprep.jobs.verify.schedule import ScheduledTest, with_link_speed
from clusterprep.jobs.verify.tally import (
    cut_short_steps,
    event_words,
    last_events,
    refusals,
    scaled_down_steps,
)
from tests.jobs.verify.stories import killed, make_plan, on, story


@pytest.mark.parametrize(
    ("event", "words"),
    [
        pytest.param(on(1, "joined"), "joined", id="milestone"),
        pytest.param(
            on(1, "entered", op="all_reduce", bytes=8), "entered all_reduce 8 B", id="entered"
        ),
        pytest.param(on(1, "warmed", op="all_reduce", bytes=8), "in all_reduce 8 B", id="warmed"),
        pytest.param(
            on(1, "left", op="broadcast", bytes=1 << 20, dtype="bfloat16"),
            "left broadcast 1 MiB bfloat16",
            id="another-type",
        ),
        pytest.param(on(1, "left", op="barrier", bytes=0), "left barrier", id="without-a-size"),
        pytest.param(on(1, "state", state="stopped"), "stopped", id="state"),
        pytest.param(on(1, "state", state=""), "", id="goes-on"),
        pytest.param(killed(1), "ended by SIGKILL", id="signal"),
        pytest.param(on(1, "exit", code=3), "exit 3", id="exit"),
        pytest.param(killed(1, asked=True), "", id="ended-by-us"),
        pytest.param(on(1, "error", stage="store"), "error in store", id="error"),
        pytest.param(on(1, "nccl", lines=()), "", id="what-nccl-says"),
        pytest.param(on(1, "holds", part="files"), "", id="what-it-has"),
    ],
)
def test_an_event_says_how_far_its_rank_came(event: Event, words: str) -> None:
    assert event_words(event) == words


def test_the_last_word_of_a_rank_is_not_what_says_nothing() -> None:
    timeline = story(
        on(1, "state", 21.0, state="stopped"), on(1, "nccl", 22.0), killed(2, at=23.0, asked=True)
    )
    assert last_events(timeline) == {0: "finished", 1: "stopped", 2: "finished", 3: "finished"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param({}, (), id="not-told"),
        pytest.param({"output": ""}, (), id="nothing"),
        pytest.param({"output": "one\n\n  two \n"}, ("«one»", "«two»"), id="lines"),
    ],
)
def test_the_end_of_a_rank_quotes_what_it_printed(
    output: dict[str, Any], expected: tuple[str, ...]
) -> None:
    event = on(1, "exit", 20.0, code=3, **output)
    told = end_words(story(event, until="joined"), 1, event)
    assert told == ("rank 1 ended with exit code 3 at +20.00 s, last heard of: joined", *expected)


@pytest.mark.parametrize(
    "outside", [("state", {"state": "stopped"}), ("nccl", {}), ("holds", {"part": "files"})]
)
def test_what_is_seen_from_outside_is_no_step_of_a_rank(
    outside: tuple[str, dict[str, Any]],
) -> None:
    what, data = outside
    event = on(1, "exit", 20.0, code=3)
    told = end_words(story(on(1, what, 19.0, **data), event, until="joined"), 1, event)
    assert told[0].endswith("last heard of: joined")


def test_what_came_after_a_moment_is_not_heard_before_it() -> None:
    early = on(1, "exit", 4.5, code=3)
    told = end_words(story(early), 1, early)
    assert told == ("rank 1 ended with exit code 3 at +4.50 s, last heard of: store",)


@pytest.mark.parametrize(
    ("fit", "why", "expected"),
    [
        pytest.param(
            True,
            "memory",
            ("all_reduce 1 GiB was scaled down to 64 MiB, which fits the memory that is free",),
        ),
        pytest.param(
            True,
            "time",
            (
                (
                    "all_reduce 1 GiB was scaled down to 64 MiB, "
                    "which fits the time limit at this speed"
                ),
            ),
        ),
        pytest.param(True, "", (), id="as-planned"),
        pytest.param(False, "memory", (), id="of-one-size"),
    ],
)
def test_what_was_made_smaller_is_told(fit: bool, why: str, expected: tuple[str, ...]) -> None:
    plan = replace(make_plan(), steps=(ScheduledTest("all_reduce", 1 << 30, fit=fit),))
    entered = on(0, "entered", 8.0, op="all_reduce", bytes=64 << 20, scaled=why)
    assert scaled_down_steps(story(entered, plan=plan, until="met")) == expected


def test_a_size_that_was_cut_short_is_told() -> None:
    plan = with_link_speed(make_plan(nodes=4, nproc=1, sizes=(8, 64 << 20)), 1.25e9)
    entered = on_host(0, "entered", 8.0, op="all_reduce", bytes=8)
    cut = on_host(0, "entered", 9.0, op="all_reduce", bytes=2 << 20, scaled="links")
    timeline = story(entered, cut, plan=plan, until="met")
    assert cut_short_steps(timeline) == (plan.steps[1],)
    (told,) = scaled_down_steps(timeline)
    assert told.startswith("all_reduce 64 MiB was scaled down to 2 MiB, as at the speed of the ")
    assert told.endswith(" would take over 20 times what most links need")


def on_host(rank: int, what: str, at: float, **data: object) -> Event:
    return Event(f"n{rank + 1}", what, at, rank, data)


def test_what_the_backend_refuses_is_told_in_its_words() -> None:
    plan = replace(
        make_plan(), steps=(ScheduledTest("all_reduce", 8), ScheduledTest("broadcast", 8))
    )
    left = [on(rank, "left", 10.0, op="all_reduce", bytes=8) for rank in range(4)]
    refused = [
        on(rank, "left", 11.0, op="broadcast", bytes=8, refused="not here") for rank in range(4)
    ]
    assert refusals(story(*left, *refused, plan=plan, until="met")) == {plan.steps[1]: "not here"}
