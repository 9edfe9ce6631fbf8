"""Packages as they are and as apt would have them become commands, each with its way back.

And what is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.package_managers import Answered, PackageRequest, Packages, parse_answers
from clusterprep.changes.package_managers.apt import APT, MARK, parse
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.package import RESOURCE, UNKNOWN_MANAGER
from clusterprep.facts.apt import MISSING
from clusterprep.facts.package_manager import NOT_MINE
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.model.packages import Package, PackageChange, Simulation
from clusterprep.nccl.environment import Environment

EMPTY, NODE = Inventory("test", ()), Node("n1", "n1", 0)
HERE = Package("installed", "1.0")
LEFT = Package("config-files", "1.0")
HELD = Package("installed", "1.0", held=True)
REQUEST = PackageRequest(("tool",))
CAME = PackageChange("tool", None, "2.0")
UP = PackageChange("tool", "1.0", "2.0")
LIB = PackageChange("lib", None, "2.0")


def planned(
    params: dict[str, Any],
    packages: Packages,
    earlier: tuple[StepAction, ...] = (),
    manager: str = "apt",
) -> StepAction:
    found = Answered(manager, packages)
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
    step_action = planned(params, Packages(states, outlook))
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
        ({"name": "tool"}, {}, Simulation(failed=(MISSING,)), ("no dpkg and apt",)),
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
        planned(params, Packages(states, outlook))
    assert told.value.absent.reason == "cannot"
    assert [word for word in words if word not in told.value.absent.detail] == []


def test_what_a_step_before_may_bring_is_planned_as_if_it_were_there() -> None:
    unknown = Packages({}, Simulation(failed=("Unable to locate package tool",)))
    update = StepAction(
        "n1", "command", "apt-get update", "run", (RunCommand(("apt-get", "update")),)
    )
    assert planned({"name": "tool"}, unknown, (update,)).diff == "install tool"


def test_apt_that_is_not_there_is_known_and_one_that_hangs_is_not() -> None:
    answer = {"code": 0, "out": "", "err": ""}
    assert parse(REQUEST, Absent("missing_tool"), answer) == Packages(
        {}, Simulation(failed=(MISSING,))
    )
    assert parse(REQUEST, answer, Absent("hung", "apt")) == Absent("hung", "apt")


def test_what_apt_is_asked_has_its_names_as_words_of_their_own() -> None:
    (fact,) = RESOURCE.facts({"name": ["a1", "b1"], "hold": True}, EMPTY)
    _, asked, *_ = fact.reads(NODE, EMPTY)
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


# ---------------------------------------------------------------- dnf and zypper

# Packages of rpm have their architecture beside the name.
RPM_CAME = PackageChange("tool", None, "2.0-1", "noarch")
RPM_UP = PackageChange("tool", "1.0-1", "2.0-1", "noarch")
RPM_FOR_ALL = PackageChange("tool", "1.0-1", "2.0-1", "noarch", "x86_64")
RPM_HERE = Package("installed", "1.0-1")
RPM_HELD = Package("installed", "1.0-1", held=True)
OFFERED = {"tool": ("1.0-1", "2.0-1"), "heir": ("3-1",), "old": ("1-1",)}
DNF = "dnf -q -y --setopt=metadata_expire=-1"
ZYPPER = "zypper --non-interactive --no-refresh --quiet"


def lines(step_action: StepAction) -> list[str]:
    """The commands and, behind «<», those that undo each; texts for the shell are left out."""
    shown_lines = []
    for run in step_action.operations:
        assert isinstance(run, RunCommand)
        undo = [] if run.undo is None else [brief(each) for each in run.undo]
        shown_lines.append(
            f"{brief(run)} < {'; '.join(undo)}" if run.undo is not None else brief(run)
        )
    return shown_lines


def brief(run: RunCommand) -> str:
    words = run.argv
    if words[:2] == ("sh", "-c"):
        kind = "erase" if "rpm -e $here" in words[2] else "finish"
        return " ".join((kind, *words[4:]))
    return " ".join(words).replace(DNF, "dnf").replace(ZYPPER, "zypper")


@pytest.mark.parametrize(
    ("manager", "params", "states", "outlook", "expected", "diff"),
    [
        pytest.param(
            "dnf", {"name": "tool"}, {}, Simulation((RPM_CAME,)),
            ["dnf install tool-2.0-1 < erase tool-2.0-1.noarch"],
            "install tool 2.0-1",
            id="dnf-new",
        ),
        pytest.param(
            "zypper", {"name": "tool"}, {}, Simulation((RPM_CAME,)),
            ["zypper install tool=2.0-1 < erase tool-2.0-1.noarch"],
            "install tool 2.0-1",
            id="zypper-new",
        ),
        pytest.param(
            "dnf", {"name": "tool", "state": "latest"}, {"tool": RPM_HERE},
            Simulation((RPM_UP,), versions=OFFERED),
            [
                ("dnf install --best tool-2.0-1 < finish tool-1.0-1.noarch tool-2.0-1.noarch; "
                "dnf install --disableplugin=versionlock tool-1.0-1.noarch")
            ],
            "change tool 1.0-1 to 2.0-1",
            id="dnf-upgrade",
        ),
        pytest.param(
            "zypper", {"name": "tool", "state": "latest"}, {"tool": RPM_HERE},
            Simulation((RPM_UP,), versions=OFFERED),
            [
                ("zypper install tool=2.0-1 < finish tool-1.0-1.noarch tool-2.0-1.noarch; "
                "zypper install --oldpackage tool=1.0-1")
            ],
            "change tool 1.0-1 to 2.0-1",
            id="zypper-upgrade",
        ),
        pytest.param(
            "dnf", {"name": "tool", "state": "latest"}, {"tool": RPM_HERE},
            Simulation((RPM_FOR_ALL,), versions=OFFERED),
            [
                ("dnf install --best tool-2.0-1 < finish tool-1.0-1.x86_64 tool-2.0-1.noarch; "
                "dnf install --disableplugin=versionlock tool-1.0-1.x86_64")
            ],
            "change tool 1.0-1 to 2.0-1",
            id="dnf-another-architecture",
        ),
        pytest.param(
            "zypper", {"name": "tool", "state": "latest"}, {"tool": RPM_HERE},
            Simulation((RPM_FOR_ALL,), versions=OFFERED),
            [
                ("zypper install tool=2.0-1 < finish tool-1.0-1.x86_64 tool-2.0-1.noarch; "
                "zypper install --oldpackage tool=1.0-1")
            ],
            "change tool 1.0-1 to 2.0-1",
            id="zypper-another-architecture",
        ),
        pytest.param(
            "dnf", {"name": "tool", "state": "latest"}, {"tool": RPM_HERE}, Simulation((RPM_UP,)),
            ["dnf install --best tool-2.0-1"],
            "change tool 1.0-1 to 2.0-1\nno way back: tool 1.0-1 is in no source",
            id="dnf-no-way-back",
        ),
        pytest.param(
            "dnf", {"name": "heir"}, {},
            Simulation(
                (
                    PackageChange("heir", None, "3-1", "noarch"),
                    PackageChange("old", "1-1", None, "noarch"),
                ),
                versions=OFFERED,
            ),
            [
                ("dnf install heir-3-1 < dnf install --disableplugin=versionlock --allowerasing "
                "old-1-1.noarch; erase heir-3-1.noarch")
            ],
            "install heir 3-1\nremove old 1-1",
            id="dnf-in-place-of-another",
        ),
        pytest.param(
            "zypper", {"name": "heir"}, {},
            Simulation(
                (
                    PackageChange("heir", None, "3-1", "noarch"),
                    PackageChange("old", "1-1", None, "noarch"),
                ),
                versions=OFFERED,
            ),
            [
                ("zypper install heir=3-1 < zypper install --oldpackage old=1-1 !heir; "
                "erase heir-3-1.noarch")
            ],
            "install heir 3-1\nremove old 1-1",
            id="zypper-in-place-of-another",
        ),
        pytest.param(
            "dnf", {"name": "tool", "version": "2.0", "hold": True}, {"tool": RPM_HELD},
            Simulation((RPM_UP,), versions=OFFERED),
            [
                "dnf versionlock delete tool < dnf versionlock add tool",
                ("dnf install --disableplugin=versionlock tool-2.0-1 < "
                "finish tool-1.0-1.noarch tool-2.0-1.noarch; "
                "dnf install --disableplugin=versionlock tool-1.0-1.noarch"),
                "dnf versionlock add tool < dnf versionlock delete tool",
            ],
            "change tool 1.0-1 to 2.0-1\nstays on hold",
            id="dnf-another-version-on-hold",
        ),
        pytest.param(
            "dnf", {"name": "tool", "state": "latest", "hold": False}, {"tool": RPM_HELD},
            Simulation((RPM_UP,), versions=OFFERED),
            [
                "dnf versionlock delete tool < dnf versionlock add tool",
                ("dnf install --best --disableplugin=versionlock tool-2.0-1 < "
                "finish tool-1.0-1.noarch tool-2.0-1.noarch; "
                "dnf install --disableplugin=versionlock tool-1.0-1.noarch"),
            ],
            "change tool 1.0-1 to 2.0-1\nno hold tool",
            id="dnf-let-go-and-changed",
        ),
        pytest.param(
            "dnf", {"name": "tool", "hold": False}, {"tool": RPM_HELD}, Simulation(),
            ["dnf versionlock delete tool < dnf versionlock add tool"],
            "no hold tool",
            id="dnf-let-go",
        ),
        pytest.param(
            "zypper", {"name": "tool", "hold": True}, {"tool": RPM_HERE}, Simulation(),
            ["zypper addlock --type package tool < zypper removelock --type package tool"],
            "hold tool",
            id="zypper-hold",
        ),
        pytest.param(
            "zypper", {"name": "tool", "state": "absent"}, {"tool": RPM_HERE},
            Simulation((PackageChange("tool", "1.0-1", None, "noarch"),), versions=OFFERED),
            ["zypper remove --no-clean-deps tool < zypper install --oldpackage tool=1.0-1"],
            "remove tool 1.0-1",
            id="zypper-absent",
        ),
        pytest.param(
            "dnf", {"name": "tool", "version": "1.*"}, {"tool": Package("installed", "1:1.0-1")},
            Simulation(), [], "", id="a-version-without-its-epoch",
        ),
        pytest.param(
            "zypper", {"name": "tool", "version": "1.0"}, {"tool": RPM_HERE},
            Simulation(), [], "", id="a-version-without-its-release",
        ),
    ],
)  # fmt: skip
def test_what_dnf_and_zypper_run_and_how_it_goes_back(
    manager: str,
    params: dict[str, Any],
    states: dict[str, Package],
    outlook: Simulation,
    expected: list[str],
    diff: str,
) -> None:
    step_action = planned(params, Packages(states, outlook), manager=manager)
    assert (lines(step_action), step_action.diff) == (expected, diff)


@pytest.mark.parametrize(
    ("manager", "params", "states", "failed", "words"),
    [
        ("dnf", {"name": "tool"}, {}, "there is no dnf 4", ("yum 3 and dnf 5", "command:")),
        ("dnf", {"name": "tool"}, {}, "Unable to find a match: tool", ("dnf makecache",)),
        (
            "dnf",
            {"name": "tool", "hold": True},
            {"tool": RPM_HERE},
            "dnf has no command versionlock",
            ("python3-dnf-plugin-versionlock",),
        ),
        ("zypper", {"name": "tool"}, {}, "No provider of 'tool' found.", ("zypper refresh",)),
        (
            "zypper",
            {"name": "tool", "state": "latest", "hold": True},
            {"tool": RPM_HELD},
            "Problem: conflicting requests",
            ("tool is locked", "`hold: false` in a step of its own"),
        ),
    ],
)
def test_what_dnf_and_zypper_cannot_is_said(
    manager: str, params: dict[str, Any], states: Any, failed: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(NoPlan) as told:
        planned(params, Packages(states, Simulation(failed=(failed,))), manager=manager)
    assert [word for word in words if word not in told.value.absent.detail] == []


HIDDEN = Simulation(failed=("Unable to find a match: tool",), hidden=("tool",))


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        pytest.param(
            ("tools:2", "tools:3"),
            (
                "dnf's modules hide tool",
                "is in tools:2, tools:3, which",
                "dnf -y module enable tools:2",
                "unless: grep -q ^stream=2$ /etc/dnf/modules.d/tools.module",
            ),
            id="a-stream-has-it",
        ),
        pytest.param((), ("dnf -y module disable", "module_hotfixes=1"), id="none-has-it"),
    ],
)
def test_a_package_that_a_module_of_dnf_hides(
    streams: tuple[str, ...], words: tuple[str, ...]
) -> None:
    packages = Packages({}, replace(HIDDEN, streams=streams))
    with pytest.raises(NoPlan) as told:
        planned({"name": "tool"}, packages, manager="dnf")
    said = told.value.absent.detail
    assert [word for word in words if word not in said] == []
    assert "no repository" not in said


def test_a_stream_that_comes_with_a_package_goes_with_it() -> None:
    outlook = Simulation((RPM_CAME,), enabled=("tools:2",))
    step_action = planned({"name": "tool"}, Packages({}, outlook), manager="dnf")
    assert lines(step_action) == [
        "dnf install tool-2.0-1 < erase tool-2.0-1.noarch; dnf module reset tools"
    ]
    assert step_action.diff == "install tool 2.0-1\nenable module tools:2"


OTHERS_ANSWER = {"code": NOT_MINE, "out": "", "err": ""}


def test_the_manager_in_charge_answers_and_others_are_not_read() -> None:
    text = "\n== states\n\n== locks\n\n== end\n"
    answers = (Absent("missing_tool"), OTHERS_ANSWER, {"code": 0, "out": text}, OTHERS_ANSWER)
    assert parse_answers(REQUEST, *answers) == Answered("dnf", Packages({}, Simulation()))


def test_a_node_of_no_known_manager_is_refused() -> None:
    answers = (Absent("missing_tool"), OTHERS_ANSWER, OTHERS_ANSWER, OTHERS_ANSWER)
    (fact,) = RESOURCE.facts({"name": "tool"}, EMPTY)
    found = fact.parse(*answers)
    assert found == UNKNOWN_MANAGER
    context = PlanContext(Fleet(EMPTY, {}), NODE, {}, {fact.name: found}, Environment((), {}))
    with pytest.raises(NoPlan, match="no package manager that is handled"):
        list(RESOURCE.plan({"name": "tool"}, context))
