"""Packages as they are and as apt would have them become commands, each with its way back.

And what is refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.package import APT, MARK, RESOURCE, Apt, parse_apt
from clusterprep.facts.apt import MISSING, Package, PackageChange, Simulation
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.nccl.environment import Environment

EMPTY, NODE = Inventory("test", ()), Node("n1", "n1", 0)
HERE = Package("installed", "1.0")
LEFT = Package("config-files", "1.0")
HELD = Package("installed", "1.0", held=True)
CAME = PackageChange("tool", None, "2.0")
UP = PackageChange("tool", "1.0", "2.0")
LIB = PackageChange("lib", None, "2.0")


def planned(params: dict[str, Any], found: Apt, earlier: tuple[StepAction, ...] = ()) -> StepAction:
    (fact,) = RESOURCE.facts(params, EMPTY)
    context = PlanContext(
        Fleet(EMPTY, {}), NODE, {}, {fact.name: found}, Environment((), {}), earlier
    )
    (step_action,) = RESOURCE.plan(params, context)
    return step_action


def commands(step_action: StepAction) -> list[str]:
    """What is run, without what every command of apt has."""
    return [shown(run) for run in step_action.operations if isinstance(run, RunCommand)]


def ways_back(step_action: StepAction) -> list[list[str] | None]:
    """The undo of each, without waiting for the lock and mending what is half done."""
    runs = [run for run in step_action.operations if isinstance(run, RunCommand)]
    return [
        None
        if r.undo is None
        else [s for s in map(shown, r.undo) if "check" not in s and "--triggers" not in s]
        for r in runs
    ]


def shown(run: RunCommand) -> str:
    for common, short in ((APT, "apt-get"), (MARK, "apt-mark")):
        if run.argv[: len(common)] == common:
            return " ".join((short, *run.argv[len(common) :]))
    return " ".join(run.argv)


@pytest.mark.parametrize(
    ("params", "states", "outlook", "expected", "back", "diff"),
    [
        pytest.param({"name": "tool"}, {"tool": HERE}, Simulation((UP,)), [], [], "", id="there"),
        pytest.param(
            {"name": ["bash", "tool"]},
            {"bash": HERE},
            Simulation((LIB, CAME), states={"lib": Package("config-files", "0.9")}),
            ["apt-get install -- tool=2.0"],
            [["dpkg --remove lib", "dpkg --purge tool"]],
            "install tool 2.0\ninstall lib 2.0",
            id="new-with-another",
        ),
        pytest.param(
            {"name": "tool", "state": "latest"},
            {"tool": HERE},
            Simulation((UP, LIB), versions={"tool": ("2.0", "1.0")}),
            ["apt-get install -- tool=2.0"],
            [
                [
                    ("apt-get --allow-downgrades --allow-change-held-packages "
                    "install -- tool=1.0 lib-"),
                    "dpkg --purge lib",
                ]
            ],
            "change tool 1.0 to 2.0\ninstall lib 2.0",
            id="upgrade",
        ),
        pytest.param(
            {"name": "tool", "state": "latest"},
            {"tool": HERE},
            Simulation((UP,), versions={"tool": ("2.0",)}),
            ["apt-get install -- tool=2.0"],
            [None],
            "change tool 1.0 to 2.0\nno way back: tool 1.0 is in no source",
            id="no-way-back",
        ),
        pytest.param(
            {"name": "tool", "state": "latest"}, {"tool": HERE}, Simulation(), [], [], "",
            id="latest-already",
        ),
        pytest.param(
            {"name": "tool", "version": "1.*"}, {"tool": HERE}, Simulation((UP,)), [], [], "",
            id="version",
        ),
        pytest.param(
            {"name": "tool", "version": "2.*", "hold": True},
            {"tool": HELD},
            Simulation((UP,), held=("tool",), states={"tool": HELD}, versions={"tool": ("1.0",)}),
            [
                "apt-get --allow-downgrades --allow-change-held-packages install -- tool=2.0",
                "apt-mark hold tool",
            ],
            [
                [
                    "apt-get --allow-downgrades --allow-change-held-packages install -- tool=1.0",
                    "apt-mark hold tool",
                ],
                [],
            ],
            "change tool 1.0 to 2.0\nstays on hold",
            id="a-version-on-hold",
        ),
        pytest.param(
            {"name": "tool", "hold": True}, {"tool": HERE}, Simulation(),
            ["apt-mark hold tool"], [["apt-mark unhold tool"]], "hold tool", id="hold",
        ),
        pytest.param(
            {"name": "tool", "hold": False}, {"tool": HELD}, Simulation(),
            ["apt-mark unhold tool"], [["apt-mark hold tool"]], "no hold tool", id="no-hold",
        ),
        pytest.param(
            {"name": "tool", "hold": True}, {"tool": HELD}, Simulation(), [], [], "", id="held"
        ),
        pytest.param(
            {"name": ["tool", "x"], "state": "absent"},
            {"tool": HERE},
            Simulation(
                (PackageChange("tool", "1.0", None), PackageChange("user", "3", None)),
                versions={"tool": ("1.0",), "user": ("3",)},
            ),
            ["apt-get remove -- tool"],
            [
                [
                    ("apt-get --allow-downgrades --allow-change-held-packages "
                    "install -- tool=1.0 user=3")
                ]
            ],
            "remove tool 1.0\nremove user 3",
            id="absent",
        ),
        pytest.param(
            {"name": "tool", "state": "absent"}, {"tool": LEFT}, Simulation(), [], [], "", id="gone"
        ),
        pytest.param(
            {"name": "tool"},
            {"tool": Package("half-configured", "1.0")},
            Simulation(),
            ["apt-get install -- tool"],
            [[]],
            "install tool",
            id="half-installed",
        ),
    ],
)  # fmt: skip
def test_what_is_run_and_how_it_goes_back(
    params: dict[str, Any],
    states: dict[str, Package],
    outlook: Simulation,
    expected: Any,
    back: Any,
    diff: str,
) -> None:
    step_action = planned(params, Apt(states, outlook))
    assert (commands(step_action), ways_back(step_action), step_action.diff) == (
        expected,
        back,
        diff,
    )
    for run in step_action.operations:
        assert isinstance(run, RunCommand)
        assert ("DEBIAN_FRONTEND", "noninteractive") in run.env


@pytest.mark.parametrize(
    ("params", "states", "outlook", "words"),
    [
        (
            {"name": "tool"},
            {},
            Simulation(failed=("Unable to locate package tool",)),
            ("locate package tool", "apt-get update"),
        ),
        ({"name": "tool"}, {}, Simulation(failed=(MISSING,)), ("no dpkg and apt", "dnf")),
        (
            {"name": "tool", "state": "absent"},
            {},
            Simulation(failed=(MISSING,)),
            ("no dpkg and apt",),
        ),
        (
            {"name": "tool", "state": "latest"},
            {"tool": HELD},
            Simulation(
                failed=("Held packages were changed and -y was used without …",), held=("tool",)
            ),
            ("tool: Held", "hold: false"),
        ),
        (
            {"name": "tool", "hold": True},
            {},
            Simulation((CAME,), held=("lib",)),
            ("lib", "on hold"),
        ),
        (
            {"name": "mail"},
            {},
            Simulation((PackageChange("postfix", None, "3"),)),
            ("no package of the name mail", "postfix"),
        ),
    ],
)
def test_what_cannot_be_is_said(
    params: dict[str, Any], states: Any, outlook: Simulation, words: tuple[str, ...]
) -> None:
    with pytest.raises(NoPlan) as told:
        planned(params, Apt(states, outlook))
    assert told.value.absent.reason == "cannot"
    assert [word for word in words if word not in told.value.absent.detail] == []


def test_what_a_step_before_may_bring_is_planned_as_if_it_were_there() -> None:
    unknown = Apt({}, Simulation(failed=("Unable to locate package tool",)))
    update = StepAction(
        "n1", "command", "apt-get update", "run", (RunCommand(("apt-get", "update")),)
    )
    assert planned({"name": "tool"}, unknown, (update,)).diff == "install tool"


def test_apt_that_is_not_there_is_known_and_one_that_hangs_is_not() -> None:
    answer = {"code": 0, "out": "", "err": ""}
    assert parse_apt(Absent("missing_tool"), answer) == Apt({}, Simulation(failed=(MISSING,)))
    assert parse_apt(answer, Absent("hung", "apt")) == Absent("hung", "apt")


def test_what_apt_is_asked_has_its_names_as_words_of_their_own() -> None:
    (fact,) = RESOURCE.facts({"name": ["a1", "b1"], "hold": True}, EMPTY)
    _, asked = fact.reads(NODE, EMPTY)
    assert asked.args[4:] == ("--no-upgrade", "--allow-change-held-packages", "install", "a1", "b1")


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"name": "a1-"}, "name"),
        ({"name": ["a1", "--purge"]}, "name"),
        ({"name": "a1", "version": "1", "state": "latest"}, "version"),
        ({"name": ["a1", "b1"], "version": "1"}, "version"),
        ({"name": "a1", "state": "absent", "hold": True}, "hold"),
    ],
)
def test_what_cannot_be_meant(params: dict[str, Any], key: str) -> None:
    assert [where for where, _ in RESOURCE.wrong(params)] == [key]
