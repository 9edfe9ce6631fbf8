"""chrony's sources: written where chronyd reads them, taken by it, and one of them followed."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.clock import (
    CHRONY,
    HEAD,
    MARKS,
    MORE,
    RESOURCE,
    SOURCES,
    Chrony,
    parse_chrony,
)
from clusterprep.model import Absent, Node
from clusterprep.model.operations import RunCommand, StepAction, Write
from tests.changes.resources.planned import commands, earlier, step_actions

DEBIAN, OTHERS = "/etc/chrony/chrony.conf", "/etc/chrony.conf"
DIRS = b"sourcedir /run/chrony-dhcp\nsourcedir /etc/chrony/sources.d\n"
CONF = b"confdir /etc/chrony/conf.d\npool 2.debian.pool.ntp.org iburst\n" + DIRS
LINES = b"server 10.0.0.1 iburst prefer\nserver ntp.example iburst prefer\n"
BLOCK = MARKS.begin + b"\n" + LINES + MARKS.end + b"\n"
NO_DIRS = b"pool x\n#sourcedir /etc/chrony/sources.d\n"
NAMES = ["10.0.0.1", "ntp.example"]
BOTH = (("10.0.0.1", "*"), ("ntp.example", "-"), ("pool.example", "+"))
FOLLOWS = Chrony(True, True, BOTH)


def planned(
    chrony: Chrony | None = FOLLOWS, files: dict[str, bytes] | None = None, **more: Any
) -> StepAction:
    params = more.pop("params", {"sources": NAMES})
    paths = RESOURCE.paths(params, None)  # type: ignore[arg-type]
    had: dict[str, bytes | None] = {
        **dict.fromkeys(paths),
        **({DEBIAN: CONF} if files is None else files),
    }
    (step_action,) = step_actions(
        RESOURCE, params, {CHRONY.name: chrony}, had if paths else {}, **more
    )
    return step_action


def written(step_action: StepAction) -> list[tuple[str, bytes | None]]:
    return [(each.path, each.after) for each in step_action.operations if isinstance(each, Write)]


def verbs(step_action: StepAction) -> list[str]:
    """What is run, the wait by its sources."""
    return [line.rpartition("exit 1\n")[2] for line in commands(step_action)]


def test_sources_are_written_taken_and_waited_for() -> None:
    step_action = planned(Chrony(True, True, (("pool.example", "*"),)))
    assert written(step_action) == [(SOURCES, HEAD + LINES)]
    assert verbs(step_action) == ["chronyc reload sources", " sh 60 10.0.0.1 ntp.example"]
    assert step_action.diff == "+ server 10.0.0.1\n+ server ntp.example"
    assert (
        next(each.again for each in step_action.operations if isinstance(each, RunCommand))[0].argv[
            1
        ]
        == "reload"
    )


def test_what_follows_already_is_left_alone() -> None:
    had = {DEBIAN: CONF, SOURCES: HEAD + LINES}
    assert planned(FOLLOWS, had).action == "none"
    other = Chrony(True, True, (("10.0.0.1", "+"), ("ntp.example", "-"), ("pool.example", "*")))
    assert (verbs(planned(other, had)), planned(other, had).diff) == (
        [" sh 60 10.0.0.1 ntp.example"], "follows 10.0.0.1 or ntp.example"
    )  # fmt: skip
    unread = Chrony(True, True, BOTH[:1])
    assert verbs(planned(unread, had)) == ["chronyc reload sources", " sh 60 10.0.0.1 ntp.example"]


@pytest.mark.parametrize(
    ("files", "path", "after", "unit"),
    [
        ({DEBIAN: b"  ConfDir /etc/chrony/conf.d/\n"}, MORE, HEAD + LINES, "chrony.service"),
        ({DEBIAN: NO_DIRS}, DEBIAN, NO_DIRS + BLOCK, "chrony.service"),
        ({OTHERS: b"pool x"}, OTHERS, b"pool x\n" + BLOCK, "chronyd.service"),
    ],
)  # fmt: skip
def test_where_there_is_no_folder_of_sources_chronyd_is_started_anew(
    files: dict[str, bytes], path: str, after: bytes, unit: str
) -> None:
    step_action = planned(FOLLOWS, files)
    assert written(step_action) == [(path, after)]
    assert verbs(step_action)[0] == f"systemctl restart -- {unit}"
    assert planned(FOLLOWS, {**files, path: after}).action == "none"


def test_sources_that_are_not_wanted_any_more_go() -> None:
    for files in (
        {DEBIAN: CONF, SOURCES: HEAD + b"server old iburst prefer\n"},
        {OTHERS: BLOCK.replace(b"10.0.0.1", b"old")},
    ):
        diff = planned(FOLLOWS, files).diff.splitlines()
        assert diff[:2] == ["- server old", "+ server 10.0.0.1"]


def test_without_sources_any_will_do() -> None:
    assert planned(FOLLOWS, params={}).action == "none"
    step_action = planned(Chrony(True), params={"limit": "2m"})
    assert (commands(step_action), step_action.diff) == (
        ["chronyc waitsync 120 0 0 1"],
        "follows a source",
    )


@pytest.mark.parametrize(
    ("chrony", "said"), [(None, "there is no chronyc"), (Chrony(False), "chronyd does not run")]
)
def test_what_is_missing_may_come_by_a_step_before(chrony: Chrony | None, said: str) -> None:
    with pytest.raises(NoPlan, match=said):
        planned(chrony)
    for brings in ("package", "service", "command"):
        assert planned(chrony, **earlier(brings)).diff == "+ server 10.0.0.1\n+ server ntp.example"
    assert written(planned(None, {}, **earlier("package"))) == [(SOURCES, HEAD + LINES)]


@pytest.mark.parametrize(
    ("chrony", "more", "said"),
    [
        (
            FOLLOWS,
            {"node": Node("ntp.example", "10.0.0.9", 0)},
            "cannot be its own source ntp.example",
        ),
        (FOLLOWS, {"node": Node("n1", "10.0.0.1", 0)}, "cannot be its own source 10.0.0.1"),
        (Chrony(True, old=True), {}, "older than 4.0"),
        (FOLLOWS, {"files": {}}, "neither /etc/chrony/chrony.conf nor /etc/chrony.conf"),
        (FOLLOWS, {"files": {OTHERS: MARKS.begin}}, "mend it by hand"),
    ],
)
def test_what_cannot_be_is_refused(chrony: Chrony, more: dict[str, Any], said: str) -> None:
    with pytest.raises(NoPlan, match=said):
        planned(chrony, **more)


def test_a_value_that_was_put_in_is_one_name() -> None:
    assert not list(RESOURCE.wrong({"sources": ["{{ first.address }}"]}))
    two_lines = {"sources": ["10.0.0.1 iburst\nallow all"]}
    assert [key for key, _ in RESOURCE.wrong(two_lines)] == ["sources"]


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"sources": ["a b"]}, "sources"),
        ({"sources": ["-x"]}, "sources"),
        ({"sources": ["a,b"]}, "sources"),
        ({"sources": ["::g"]}, "sources"),
        ({"limit": "60"}, "limit"),
        ({"limit": "10ms"}, "limit"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, Any], key: str) -> None:
    assert [where for where, _ in RESOURCE.wrong(params)] == [key]


# Answers of chrony 4.3 on Debian 12, and of 3.5.
ROWS = (
    "^,?,2.debian.pool.ntp.org,0,6,0,4294967295,0.0,0.0,0.0\n"
    "^,*,10.77.0.2,8,6,7,1,0.000004261,0.000004478,0.0\n"
)
TRACKED = (
    "0A4D0002,10.77.0.2,9,1795355750.401370378,-0.000000217,0.000000217,"
    "0.0,0.000,-0.394,1000000.0,0.0,1.2,0.0,{}\n"
)


def answer(out: str, code: int = 0, err: str = "") -> dict[str, Any]:
    return {"code": code, "out": out, "err": err}


def test_what_chronyc_says() -> None:
    seen = parse_chrony(answer(ROWS), answer(TRACKED.format("Normal")))
    assert seen == Chrony(True, True, (("2.debian.pool.ntp.org", "?"), ("10.77.0.2", "*")))
    assert seen.follows_one(("10.77.0.2",))
    assert not seen.follows_one(("2.debian.pool.ntp.org",))
    lost = parse_chrony(answer(ROWS), answer(TRACKED.format("Not synchronised")))
    assert isinstance(lost, Chrony)
    assert not lost.follows_one(("10.77.0.2",))
    own = parse_chrony(answer(""), answer(TRACKED.format("Normal").replace("0A4D0002", "7F7F0101")))
    assert own == Chrony(True)
    assert parse_chrony(answer("506 Cannot talk to daemon\n", 1), answer("", 1)) == Chrony(False)
    assert parse_chrony(answer("", 1, "chronyc: invalid option -- 'N'\n"), answer("")) == Chrony(
        True, old=True
    )
    assert parse_chrony(Absent("missing_tool"), Absent("missing_tool")) is None
    assert parse_chrony(Absent("hung"), Absent("hung")) == Absent("hung")
    with pytest.raises(ValueError, match="501 Not authorised"):
        parse_chrony(answer("501 Not authorised\n", 1), answer(""))
