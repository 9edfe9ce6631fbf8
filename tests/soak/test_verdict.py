"""What counts as wrong: each rule speaks, and keeps silent where a command told the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.soak.observer import BROKEN, Pending, Seen, Size, Versions, template_of, version_of
from tests.soak.schedule import WITHOUT_NODE, Harm, Round
from tests.soak.verdict import Case, Told, leaks, leftovers, trend, unreached, violations

NODES = ("n1", "n2", "n3")
OLD, NEW = (1, 1), (2, 2)
PENDING = Pending("r2", "committed", OLD, NEW)
FORM = b"export NCCL_BUFFSIZE=#\n# end\n"


def finding(check: str, verdict: str, *nodes: str) -> dict[str, Any]:
    return {"check": check, "verdict": verdict, "nodes": list(nodes), "fixed": False}


def told(
    *findings: Mapping[str, Any], code: int = 0, outcome: str = "", notice: str = "", **more: Any
) -> Told:
    report: dict[str, Any] = {"run": "r2", "findings": list(findings), "notices": [notice], **more}
    if outcome:
        report["changes"] = [{"nodes": list(NODES), "outcome": outcome}]
    return Told(code, report)


def case(command: str, answer: Told, *harms: Harm, **after: Seen) -> Case:
    before = dict.fromkeys(NODES, Seen(OLD))
    return Case(Round(1, command, harms, 2), answer, NODES, before, {**before, **after})


def every(versions: Versions, **more: Any) -> dict[str, Seen]:
    return dict.fromkeys(NODES, Seen(versions, **more))


def ended(error: str, code: int = 130) -> Told:
    """A command that ended with an error."""
    return told(code=code, error=error)


PUT_BACK = "interrupted by SIGTERM; what had been written was put back on"


@pytest.mark.parametrize(
    ("answer", "after", "words"),
    [
        pytest.param(ended(f"{PUT_BACK} all nodes"), every(OLD), "", id="put-back"),
        pytest.param(
            ended(f"{PUT_BACK} all nodes", 1),
            {"n2": Seen(NEW, (PENDING,))},
            "n2 is said to be put back",
            id="not-put-back",
        ),
        pytest.param(
            ended(f"{PUT_BACK} n[1,3] only; of n2 it is not known (gone)", 1),
            {"n2": Seen(NEW, (PENDING,))},
            "",
            id="put-back-but-for-one",
        ),
        pytest.param(
            ended(f"{PUT_BACK} n[1,3] only; of n2 it is not known (gone)", 1),
            {"n3": Seen(NEW, (PENDING,))},
            "n3 is said to be put back",
            id="another-one-was-not",
        ),
        pytest.param(
            ended("interrupted by SIGTERM; what was written stays on n[1-3]"),
            every(NEW),
            "",
            id="stays",
        ),
        pytest.param(
            ended("interrupted by SIGTERM; what was written stays on n[1-3]"),
            {**every(NEW), "n1": Seen(OLD)},
            "n1 is said to be written",
            id="does-not-stay",
        ),
        pytest.param(
            ended("n1: another run holds the lock (run r1); nothing was written", 4),
            {"n1": Seen(NEW)},
            "n1 is said to be not written",
            id="something-was-written",
        ),
        pytest.param(
            told(code=4, notice="run r2 was cut off; it was undone on n[1-2]"),
            {"n2": Seen(OLD, (PENDING,))},
            "n2 is said to be settled",
            id="a-run-that-is-not-settled",
        ),
    ],
)
def test_sentences_are_held_against_bytes(
    answer: Told, after: Mapping[str, Seen], words: str
) -> None:
    found = [each for each in violations(case("apply", answer, **after)) if "untrue" in each]
    assert len(found) == (1 if words else 0), found
    assert words in "".join(found)


REACHED = finding("ssh.reach", "pass", *NODES)
OFF, DOWN = Harm("clock", "n3"), Harm("cable-out", "n3")
BUT_N3 = finding("ssh.reach", "pass", "n1", "n2")
MUTE = finding("ssh.reach", "unknown", "n3")


@pytest.mark.parametrize(
    ("answer", "harms", "words"),
    [
        pytest.param(told(REACHED), (), "", id="all-well"),
        pytest.param(
            told(REACHED, code=3), (DOWN,), "wrong pass: ssh.reach on n3", id="down-and-passed"
        ),
        pytest.param(
            told(BUT_N3, code=3),
            (DOWN,),
            "nothing is said of ssh.reach on n3",
            id="down-and-not-named",
        ),
        pytest.param(told(BUT_N3, MUTE, code=3), (DOWN,), "", id="down-and-said-so"),
        pytest.param(told(BUT_N3, MUTE), (DOWN,), "exit 0", id="down-and-exit-0"),
        pytest.param(
            told(REACHED, finding("time.offset", "pass", *NODES), code=3),
            (OFF,),
            "time.offset",
            id="clock",
        ),
        pytest.param(
            told(REACHED, finding("time.offset", "fail", "n3"), code=1),
            (OFF,),
            "",
            id="clock-found",
        ),
        pytest.param(
            told(BUT_N3, MUTE, code=3), (OFF,), "", id="clock-of-a-node-that-was-not-reached"
        ),
        pytest.param(
            told(REACHED, finding("time.offset", "fail", "n1"), code=1), (), "on n1", id="innocent"
        ),
        pytest.param(
            told(BUT_N3, MUTE, code=3), (), "", id="not-reached-without-a-fault-is-no-failure"
        ),
        pytest.param(told(code=70), (), "ended with 70", id="a-bug"),
        pytest.param(Told(0, None), (), "ended with 0", id="no-report"),
        pytest.param(
            Told(-9, None, killed=True),
            (Harm("controller-killed", WITHOUT_NODE, 0.5),),
            "",
            id="killed",
        ),
    ],
)
def test_what_is_told_of_nodes(answer: Told, harms: tuple[Harm, ...], words: str) -> None:
    found = violations(case("check", answer, *harms))
    assert all(words in text for text in found)
    assert bool(found) == bool(words), found


LOST = told(REACHED, code=1, outcome="failed")


@pytest.mark.parametrize(
    ("command", "answer", "after", "words"),
    [
        pytest.param("apply", told(REACHED, outcome="done"), every(NEW), "", id="done"),
        pytest.param(
            "apply",
            told(REACHED, outcome="done"),
            every(OLD),
            "which is none of",
            id="done-and-old",
        ),
        pytest.param(
            "apply",
            told(REACHED, outcome="done"),
            {**every(NEW), "n2": Seen(OLD)},
            "n2 has",
            id="one-old",
        ),
        pytest.param(
            "apply", told(REACHED, code=1, outcome="rolled-back"), every(OLD), "", id="rolled-back"
        ),
        pytest.param(
            "apply",
            told(REACHED, code=1, outcome="rolled-back"),
            every(NEW),
            "none of",
            id="not-back",
        ),
        pytest.param(
            "apply",
            Told(4, {"error": {"code": 4}}),
            every(NEW),
            "none of",
            id="refused-and-written",
        ),
        pytest.param(
            "apply",
            Told(130, {"error": {"message": "what was written stays"}}),
            every(NEW),
            "",
            id="stays",
        ),
        pytest.param("apply", LOST, {"n3": Seen(NEW, (PENDING,))}, "", id="lost-and-new"),
        pytest.param("apply", LOST, {"n3": Seen((2, 1), (PENDING,))}, "", id="lost-in-the-middle"),
        pytest.param(
            "apply", LOST, {"n3": Seen((2, 1))}, "n3 has (2, 1)", id="in-the-middle-and-settled"
        ),
        pytest.param(
            "apply", LOST, {"n3": Seen((3, 3))}, "n3 has (3, 3)", id="what-nobody-wanted-now"
        ),
        pytest.param("apply", told(outcome="done"), every((BROKEN, 2)), "half a file", id="half"),
        pytest.param(
            "apply",
            told(outcome="done"),
            every(NEW, pending=(PENDING,)),
            "ended with 0",
            id="untold",
        ),
        pytest.param(
            "apply",
            told(outcome="done"),
            every(NEW, beside=frozenset({"/etc/.x"})),
            "left beside",
            id="lies",
        ),
        pytest.param(
            "apply", told(outcome="done"), every(NEW, runs=("r",) * 42), "keeps 42 runs", id="state"
        ),
        pytest.param("check", told(REACHED), every(NEW), "none of", id="check-wrote"),
        pytest.param(
            "rollback",
            told(outcome="undone", notice="run r1 is undone"),
            every((0, 0)),
            "",
            id="undone",
        ),
        pytest.param(
            "rollback",
            told(outcome="undone", notice="run r1 is undone"),
            every(OLD),
            "none of",
            id="not-so",
        ),
    ],
)
def test_what_stands_in_files(
    command: str, answer: Told, after: dict[str, Seen], words: str
) -> None:
    one = replace(
        case(command, answer, **after), history={"r1": {node: {(0, 0)} for node in NODES}}
    )
    found = violations(one)
    assert all(words in text for text in found)
    assert bool(found) == bool(words), found


def test_a_journal_that_is_not_settled_is_no_pass() -> None:
    one = case("check", told(REACHED, finding("state.journal", "pass", *NODES)))
    begun = {**one.before, "n2": Seen(OLD, (PENDING,))}
    assert violations(one) == []
    assert (
        "state.journal on n2, whose run r2 is committed"
        in violations(replace(one, before=begun, after=begun))[0]
    )
    held = {**begun, "n2": Seen(OLD, (PENDING,), locked=True)}
    assert violations(replace(one, before=held, after=held)) == [], "the run may still be at work"


def test_an_earlier_run_may_be_settled_either_way() -> None:
    begun = {
        **dict.fromkeys(NODES, Seen(OLD)),
        "n2": Seen(NEW, (Pending("r0", "committed", (0, 0), (3, 3)),)),
    }
    for versions, wrong in [((0, 0), False), ((3, 3), False), (NEW, False), ((4, 4), True)]:
        one = case("apply", Told(4, {"error": {}}), n2=Seen(versions))
        assert bool(violations(replace(one, before=begun))) == wrong


def test_culprits_of_a_verify_are_guilty() -> None:
    row = {"nodes": ["n1"], "cause": "slow"}
    one = case(
        "verify",
        told(REACHED, code=1, verify={"culprits": [row]}),
        Harm("link-flap", "n3", 0.5, 2.0),
    )
    assert "wrong culprit: n1" in violations(one)[0]
    row["nodes"] = ["n1", "n3"]
    assert violations(one) == []


def test_nodes_that_were_not_reached_without_a_reason_are_counted() -> None:
    assert unreached(case("check", told(BUT_N3, MUTE, code=3))) == ["n3"]
    assert unreached(case("check", told(BUT_N3, MUTE, code=3), DOWN)) == []


def test_a_file_is_what_was_written_to_the_byte_or_broken() -> None:
    whole = b"export NCCL_BUFFSIZE=1048577\n# end\n"
    assert template_of(whole, 1048577) == FORM
    assert version_of(whole, FORM) == 1048577
    assert version_of(None, FORM) is None
    assert [version_of(data, FORM) for data in (b"", whole[:-1], whole + b"\n", whole[7:])] == [
        BROKEN
    ] * 4


def test_what_lies_about_is_left() -> None:
    baseline = {"n1": ["/tmp/known"], "n2": []}
    seen = {"n1": Seen(OLD, stray=frozenset({"/tmp/known", "/tmp/new"})), "n2": Seen(OLD)}
    assert leftovers(baseline, seen) == ["left on n1: /tmp/new"]


def test_growth_is_told_and_noise_is_not() -> None:
    assert trend("x", [100, 101, 99, 100, 102, 100, 101, 98]) == []
    assert trend("x", [100, 101, 99, 100, 130, 131, 128, 131]) == ["x grows: 100 KiB, then 130 KiB"]
    assert trend("x", [100, 200]) == []
    still, more = Size(1, 3, 9), Size(1, 3, 10)
    assert leaks([still, more, still, still, still, more, still, still]) == []
    assert leaks([still] * 4 + [more] * 4) == [
        "the open files of one process grow: " + str([9] * 4 + [10] * 4)
    ]
