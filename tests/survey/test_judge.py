"""Facts become findings: missing ones stay missing, equal ones fold, silences end, codes follow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome
from clusterprep.cli.exit_codes import findings_code as exit_code
from clusterprep.facts.account import Rights
from clusterprep.facts.clock import Daemon, Offset
from clusterprep.facts.gpu import DeviceNodes, Gone, Nvml
from clusterprep.facts.gpu_driver import FabricState, Library
from clusterprep.facts.gpu_health import Temperatures
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Finding, Fleet, Interfaces, Inventory, Node, Silence
from clusterprep.remedies import has_placeholder, sentence
from clusterprep.survey import registry
from clusterprep.survey.judge import BECOME, judge, lapsed_silences, merge, with_fixed
from tests.support.fleet import (
    REASONS,
    TODAY,
    absent,
    by_node,
    eth,
    findings,
    fleet,
    healthy,
    same,
    silent,
    told,
    with_facts,
)

NAMES = ("n1", "n2", "n3", "n4")

# What a severity depends on is set so that it is not grave: no RDMA, a clock less than a second
# away.
ERRORS = {
    "ssh.reach", "host.identity", "name.resolve", "time.offset", "nv.driver", "torch.version",
    "nccl.torch", "gpu.count", "eth.iface_choice", "net.ports",
}  # fmt: skip
WARNINGS = {"kernel.version", "os.release", "time.daemon", "lim.memlock", "eth.mtu"}
# These stand for all: the engine is tested here. What holds of every check is in
# tests/survey/test_honesty.py.
CHECKS = {name: check for name, check in registry.checks().items() if name in ERRORS | WARNINGS}
NEEDS = [(check.name, fact) for check in CHECKS.values() for fact in check.facts]


def everything(seen: Fleet) -> tuple[Finding, ...]:
    return judge(seen, list(CHECKS.values()), TODAY)


def without_rdma(seen: Fleet) -> Fleet:
    return with_facts(seen, {(node.name, "rdma.devices"): () for node in seen.reached})


# ---------------------------------------------------------------- not knowing


def test_a_healthy_fleet_passes_every_check_on_every_node() -> None:
    found = everything(healthy())
    assert {finding.verdict for finding in found} == {"pass"}
    assert {(finding.check, finding.nodes) for finding in found} == {
        (check, NAMES) for check in CHECKS
    }
    assert exit_code(found, strict=True) == 0


def test_every_check_has_its_severity() -> None:
    assert {check.name for check in CHECKS.values() if check.severity == "error"} == ERRORS


@pytest.mark.parametrize(("check", "fact"), NEEDS, ids=[f"{check}-{fact}" for check, fact in NEEDS])
@pytest.mark.parametrize("reason", REASONS)
def test_a_missing_fact_is_unknown_with_its_reason_and_never_a_pass(
    check: str, fact: str, reason: str
) -> None:
    seen = with_facts(without_rdma(healthy()), {("n2", fact): Absent(reason, "what was seen")})
    found = findings(seen, check)
    (mine,) = [
        finding for finding in found if "n2" in finding.nodes and finding.verdict == "unknown"
    ]
    assert (mine.reason, mine.message, mine.nodes) == (reason, "what was seen", ("n2",))
    # What the check says of a fault holds no value of a node that is not known.
    assert mine.remedy or has_placeholder(registry.checks()[check].remedy)
    assert not [finding for finding in found if finding.verdict == "pass" and "n2" in finding.nodes]
    grave = check in ERRORS or fact == "rdma.devices"
    assert mine.severity == ("error" if grave else "warning")
    assert exit_code(found) == (3 if grave else 0)
    assert exit_code(found, strict=True) == 3


@pytest.mark.parametrize(("check", "fact"), NEEDS, ids=[f"{check}-{fact}" for check, fact in NEEDS])
def test_a_missing_fact_of_a_required_check_is_an_error(check: str, fact: str) -> None:
    wanted = {
        "time.offset": "50ms",
        "eth.mtu": "9000",
        "lim.memlock": "8G",
        "nv.driver": ">=1",
        "kernel.version": ">=5",
    }
    facts = {node: snapshot.facts for node, snapshot in healthy().snapshots.items()}
    seen = fleet(some={"n2": {"require": {check: wanted.get(check, "1")}}}, **facts)
    found = findings(with_facts(seen, {("n2", fact): absent()}), check)
    assert by_node(found)["n2"] == "unknown error denied"


@pytest.mark.parametrize(
    ("reason", "uid", "expected"),
    [
        pytest.param("denied", 1000, True, id="denied-to-a-user"),
        pytest.param("denied", 0, False, id="denied-to-root"),
        pytest.param("hung", 1000, False, id="hung"),
    ],
)
def test_sudo_is_the_remedy_for_what_is_denied_to_a_user(
    reason: str, uid: int, expected: bool
) -> None:
    rights = Rights(uid, "root" if uid == 0 else "alice")
    seen = fleet(n1={"lim.memlock": absent(reason), "rdma.devices": (), "ssh.rights": rights})
    (found,) = findings(seen, "lim.memlock")
    assert (found.remedy == BECOME) is expected


def test_what_is_denied_to_root_is_not_mended_by_what_mends_a_fault() -> None:
    facts = {"ssh.rights": Rights(0, "root"), "rdma.devices": ()}
    seen = fleet(n1={"lim.memlock": absent("denied"), **facts})
    assert [found.remedy for found in findings(seen, "lim.memlock")] == [""]


def test_a_fact_that_was_never_asked_for_is_not_known() -> None:
    assert told(fleet(n1={}), "kernel.version") == {"n1": "unknown warning not_asked"}


def test_what_does_not_apply_is_skipped_and_counts_for_nothing() -> None:
    seen = fleet(n1={"kernel.release": Absent("not_applicable", "no kernel of its own")})
    found = findings(seen, "kernel.version")
    assert by_node(found) == {"n1": "skip not_applicable"}
    assert exit_code(found, strict=True) == 0


def reached_facts(seen: Fleet) -> list[tuple[str, str]]:
    return [(name, fact) for name, snapshot in seen.snapshots.items() for fact in snapshot.facts]


PLACES = reached_facts(healthy())
ABSENCES = st.dictionaries(
    st.sampled_from(PLACES), st.sampled_from(REASONS).map(absent), max_size=40
)

# A value of the right type that no node has, and the checks that must not pass the node that shows
# it.
NONSENSE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "kernel.release": ("not a kernel", ("kernel.version",)),
    "os.release": ("?", ("os.release",)),
    "clock.offset": (Offset(math.nan, math.nan), ("time.offset",)),
    "clock.daemon": (Daemon(None, None), ("time.daemon",)),
    "names.own": (("", ["127.0.0.1"]), ("name.resolve",)),
    "names.resolved": ({}, ("name.resolve",)),
    "torch.build": (Torch("nonsense", None, "0.0.0", "/"), ("torch.version", "nccl.torch")),
    "nv.driver": ("0", ("nv.driver",)),
    "gpu.pci": (("",), ("gpu.count",)),
    "gpu.nvml": (Nvml("", "", ()), ("gpu.count",)),
    "gpu.gone": (Gone(lost=("",)), ("gpu.lost",)),
    "gpu.nodes": (DeviceNodes({0: "denied"}, ()), ("gpu.hidden",)),
    "gpu.ecc": ({}, ("gpu.ecc_unc",)),
    "gpu.heat": ({0: Temperatures(0, None, None)}, ("gpu.temp",)),
    "gpu.compute_mode": ({0: ""}, ("gpu.compute_mode",)),
    "nvlink.links": ({}, ("nvl.state", "nvl.topology")),
    "gpu.fabric_state": (FabricState(None, None, None), ("gpu.fabricmanager",)),
    "nv.library": (Library(None, {}, False, False), ("nv.module_vs_lib",)),
    "net.interfaces": ((eth("", "0.0.0.0/0", up=False),), ("eth.iface_choice", "eth.mtu")),
    "lim.memlock": (math.nan, ("lim.memlock",)),
    "net.listen": (Listen("", 0, ""), ("net.ports",)),
    "net.dials": ((Dial("", "", "", 0, ""),), ()),
    "host.machine_id": ("", ()),
    "rdma.devices": ((), ()),
}


@settings(deadline=None)
@given(ABSENCES, st.sampled_from(NAMES), st.sets(st.sampled_from(sorted(NONSENSE))))
def test_no_mutilation_of_facts_makes_a_pass_or_loses_a_node(
    absences: dict[tuple[str, str], Absent], victim: str, nonsense: set[str]
) -> None:
    broken = {**absences, **{(victim, fact): NONSENSE[fact][0] for fact in nonsense}}
    found = everything(with_facts(healthy(), broken))
    passes = {
        (finding.check, node)
        for finding in found
        if finding.verdict == "pass"
        for node in finding.nodes
    }
    for check, node in product(CHECKS.values(), NAMES):
        missing = [fact for fact in check.facts if isinstance(broken.get((node, fact)), Absent)]
        spoilt = [fact for fact in nonsense if node == victim and check.name in NONSENSE[fact][1]]
        assert not ((check.name, node) in passes and (missing or spoilt))
        answers = [
            finding for finding in found if finding.check == check.name and node in finding.nodes
        ]
        # A rendezvous host that cannot listen leaves nothing to say of the others.
        assert answers or check.name == "net.ports"
        assert not (missing and all(f.verdict != "unknown" for f in answers))
    assert not [finding for finding in found if finding.reason == "a bug in clusterprep"]


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from(PLACES),
        st.sampled_from([None, 7, "", [], {}, ((),), object(), -1.0, True]),
        min_size=1,
        max_size=9,
    )
)
def test_values_of_any_other_type_never_end_the_run(junk: dict[tuple[str, str], Any]) -> None:
    found = everything(with_facts(healthy(), junk))
    assert {finding.check for finding in found} == set(CHECKS)


SICK: dict[tuple[str, str], Any] = {
    ("n4", "kernel.release"): "5.4.0-150-generic",
    ("n4", "clock.offset"): Offset(5.0, 0.0004),
    ("n4", "clock.daemon"): Daemon(None, False),
    ("n4", "names.own"): ("n4", ["127.0.1.1"]),
    ("n4", "torch.build"): Torch(None, None, None, None),
    ("n4", "nv.driver"): None,
    ("n4", "gpu.nvml"): None,
    ("n4", "net.interfaces"): (),
    ("n4", "lim.memlock"): 65536.0,
    ("n4", "net.dials"): (Dial("n4", "n1", "10.0.0.1", 29500, "timed_out"),),
}
IN_ITSELF = (
    "kernel.version", "time.offset", "time.daemon", "name.resolve", "torch.version", "nccl.torch",
    "nv.driver", "gpu.count", "eth.iface_choice", "eth.mtu", "lim.memlock", "net.ports",
)  # fmt: skip


@settings(deadline=None)
@given(ABSENCES)
def test_knowing_less_never_makes_a_sick_node_well(absences: dict[tuple[str, str], Absent]) -> None:
    found = everything(with_facts(with_facts(healthy(), SICK), absences))
    well = {
        finding.check for finding in found if finding.verdict == "pass" and "n4" in finding.nodes
    }
    assert not well & set(IN_ITSELF)


# ---------------------------------------------------------------- the engine


def check_of(judge_all: Any, **fields: Any) -> Check:
    return Check(
        "test.check",
        ("kernel.release",),
        judge_all,
        "warning",
        "t",
        "w",
        "h",
        sentence("the check's remedy"),
        **fields,
    )


def judged(check: Check, seen: Fleet) -> tuple[Finding, ...]:
    return judge(seen, [check], TODAY)


def test_an_answer_over_which_a_check_breaks_is_its_nodes_own_trouble() -> None:
    def divides(context: CheckContext) -> Iterable[Outcome]:
        shares = {node.name: 1 / context.value(node, "lim.memlock") for node in context.nodes}
        return [Outcome("pass", tuple(shares), f"{len(shares)} of them")]

    seen = fleet(**same("lim.memlock", 1, 0, 2, 4))
    found = judged(replace(check_of(divides), facts=("lim.memlock",)), seen)
    expected = dict.fromkeys(("n1", "n3", "n4"), "pass") | {"n2": "unknown warning garbled"}
    assert by_node(found) == expected


def test_an_answer_over_which_a_check_breaks_is_not_there_for_the_others() -> None:
    """A check that compares with all nodes would break over it again."""

    def compares(context: CheckContext) -> Iterable[Outcome]:
        known = [context.fleet.fact(node.name, "lim.memlock") for node in context.fleet.reached]
        least = min(1 / value for value in known if not isinstance(value, Absent))
        return [
            Outcome(
                "fail",
                tuple(node.name for node in context.nodes),
                f"{least:g} is the least",
                seen=f"{least:g}",
            )
        ]

    found = judged(
        replace(check_of(compares), facts=("lim.memlock",)),
        fleet(**same("lim.memlock", 1, 0, 2, 4)),
    )
    assert by_node(found)["n2"] == "unknown warning garbled"
    assert [(finding.nodes, finding.seen) for finding in found if finding.verdict == "fail"] == [
        (("n1", "n3", "n4"), "0.25")
    ]


def test_a_bug_in_a_check_is_unknown_for_the_nodes_it_saw_and_keeps_what_was_known_before() -> None:
    def raises(context: CheckContext) -> Iterable[Outcome]:
        yield Outcome("pass", ("n1",), "half-way")
        raise RuntimeError("boom")

    seen = fleet(n1={"kernel.release": "6.1"}, n2={"kernel.release": absent("hung")})
    found = judged(check_of(raises), seen)
    assert by_node(found) == {
        "n1": "unknown warning a bug in clusterprep",
        "n2": "unknown warning hung",
    }
    assert any("boom" in finding.message for finding in found)
    grave = judged(check_of(raises, grave=lambda fleet, node: node.name == "n1"), seen)
    assert by_node(grave) == {
        "n1": "unknown error a bug in clusterprep",
        "n2": "unknown warning hung",
    }


def test_a_check_never_sees_a_node_whose_facts_are_missing() -> None:
    shown: list[str] = []

    def looks(context: CheckContext) -> Iterable[Outcome]:
        shown.extend(node.name for node in context.nodes)
        return ()

    judged(check_of(looks), fleet(n1={"kernel.release": "6.1"}, n2={}, n3=silent("n3")))
    assert shown == ["n1"]


def test_a_node_that_fails_one_part_of_a_check_does_not_pass_it() -> None:
    def both(context: CheckContext) -> Iterable[Outcome]:
        yield Outcome("pass", ("n1", "n2"), "equal")
        yield Outcome("fail", ("n2",), "old")

    found = judged(
        check_of(both), fleet(n1={"kernel.release": "6.1"}, n2={"kernel.release": "6.1"})
    )
    assert by_node(found) == {"n1": "pass", "n2": "fail warning"}


@pytest.mark.parametrize(
    ("outcome", "remedy"),
    [
        pytest.param(Outcome("fail", ("n1",), "m"), "the check's remedy", id="the-checks-own"),
        pytest.param(
            Outcome("fail", ("n1",), "m", remedy=sentence("another")), "another", id="the-outcomes"
        ),
        pytest.param(Outcome("unknown", ("n1",), "m"), "the check's remedy", id="unknown"),
        pytest.param(
            Outcome("pass", ("n1",), "m", remedy=sentence("another")), "", id="nothing-to-cure"
        ),
        pytest.param(Outcome("skip", ("n1",), "m"), "", id="skipped"),
    ],
)
def test_a_remedy_goes_with_what_is_wrong(outcome: Outcome, remedy: str) -> None:
    (found,) = judged(check_of(lambda context: [outcome]), fleet(n1={"kernel.release": "6.1"}))
    assert found.remedy == remedy


def test_what_one_node_requires_is_an_error_there_and_a_warning_elsewhere() -> None:
    seen = fleet(
        some={"n2": {"require": {"test.check": "x"}}},
        n1={"kernel.release": "1"},
        n2={"kernel.release": "1"},
    )
    found = judged(check_of(lambda context: [Outcome("fail", ("n1", "n2"), "m", "s", "w")]), seen)
    assert by_node(found) == {"n1": "fail warning", "n2": "fail error"}


def test_a_required_check_that_is_not_built_is_skipped_and_said() -> None:
    seen = fleet(each={"require": {"shm.size": "8GiB"}}, n1={}, n2=silent("n2"))
    found = judge(seen, [], TODAY, catalogue=("shm.size", "pcie.acs"))
    assert [(f.check, f.verdict, f.nodes) for f in found] == [("shm.size", "skip", ("n1", "n2"))]
    assert exit_code(found, strict=True) == 0


def test_a_required_check_that_only_a_trial_judges_is_skipped_and_said() -> None:
    seen = fleet(each={"require": {"nccl.transport": "any"}}, n1={}, n2=silent("n2"))
    found = judge(seen, [], TODAY, trial=("nccl.transport", "nccl.hang"))
    assert [(f.check, f.verdict, f.nodes) for f in found] == [
        ("nccl.transport", "skip", ("n1", "n2"))
    ]
    assert found[0].message == "required, but only verify can judge it"
    assert exit_code(found, strict=True) == 0


def test_rdma_on_a_node_that_is_not_reached_still_makes_declared_ones_grave() -> None:
    declared = {"interfaces": Interfaces(rdma=("mlx5_0",))}
    seen = fleet(each=declared, n1={"lim.memlock": absent(), "rdma.devices": ()})
    assert told(seen, "lim.memlock") == {"n1": "unknown error denied"}


# ---------------------------------------------------------------- one finding for what is the same

INVENTORY = Inventory("test", tuple(Node(name, name, index) for index, name in enumerate(NAMES)))
FAIL = Finding("a.check", "fail", "error", ("n1",), "message", "seen", "wanted", sentence("remedy"))


def test_the_same_on_several_nodes_is_one_finding_in_inventory_order() -> None:
    found = merge([replace(FAIL, nodes=(name,)) for name in ("n3", "n1", "n4", "n1")], INVENTORY)
    assert found == (replace(FAIL, nodes=("n1", "n3", "n4")),)


def test_the_words_of_one_node_do_not_stand_for_another() -> None:
    (found,) = merge(
        [
            FAIL,
            replace(FAIL, nodes=("n2",), message="other words", remedy=sentence("else")),
            replace(FAIL, nodes=("n3",)),
        ],
        INVENTORY,
    )
    assert found.message == "message (n[1,3]); other words (n2)"
    assert (found.remedy, found.nodes) == ("remedy", ("n1", "n2", "n3"))


@pytest.mark.parametrize(
    "other",
    [
        {"check": "b.check"}, {"verdict": "pass"}, {"severity": "warning"}, {"seen": "else"},
        {"wanted": "else"}, {"silenced": "accepted"},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_what_differs_stays_apart(other: dict[str, Any]) -> None:
    assert len(merge([FAIL, replace(FAIL, nodes=("n2",), **other)], INVENTORY)) == 2


def test_different_reasons_stay_apart() -> None:
    found = [
        replace(FAIL, verdict="unknown", reason=reason, nodes=(name,))
        for name, reason in zip(NAMES, "abab", strict=True)
    ]
    assert [finding.nodes for finding in merge(found, INVENTORY)] == [("n1", "n3"), ("n2", "n4")]


def test_findings_keep_the_order_of_the_checks() -> None:
    found = everything(
        with_facts(
            healthy(), {("n2", "kernel.release"): "6.1.0", ("n3", "clock.offset"): Offset(9.0, 0.0)}
        )
    )
    order = [finding.check for finding in found]
    assert list(dict.fromkeys(order)) == list(CHECKS)


# ---------------------------------------------------------------- silences


def silenced(seen: Fleet, *silences: Silence, today: date = TODAY) -> tuple[Finding, ...]:
    quiet = replace(seen, inventory=replace(seen.inventory, silences=silences))
    return findings(quiet, "torch.version", today)


def broken() -> Fleet:
    """torch is another on n2 and n4."""
    other = Torch("2.5.1+cu124", "12.4", "2.21.5", "/torch")
    return with_facts(healthy(5), {("n2", "torch.build"): other, ("n4", "torch.build"): other})


def accept(
    *nodes: str,
    until: date | None = None,
    check: str = "torch.version",
    reason: str = "ticket 4711",
) -> Silence:
    return Silence(check, frozenset(nodes), reason, until)


def test_a_silenced_failure_keeps_its_verdict_is_marked_and_does_not_count() -> None:
    found = silenced(broken(), accept("n2", "n4"))
    (bad,) = [finding for finding in found if finding.verdict == "fail"]
    assert (bad.nodes, bad.silenced, bad.severity) == (("n2", "n4"), "ticket 4711", "error")
    assert exit_code(found, strict=True) == 0


def without_nvml() -> Fleet:
    """n2, whose NVML does not start."""
    refused = Absent("nvml_not_started", "nvmlInit answered 999")
    seen = healthy(3)
    facts = seen.snapshots["n2"].facts
    told = {name: refused for name in facts if name.startswith(("gpu.", "nvlink."))}
    return seen.with_facts({"n2": {**told, "gpu.gone": Gone(stopped=refused.detail)}})


def of_gpus(seen: Fleet) -> tuple[Finding, ...]:
    checks = registry.checks()
    return judge(seen, [checks[name] for name in ("gpu.lost", "gpu.busy", "gpu.temp")], TODAY)


def test_what_follows_from_another_finding_is_told_once() -> None:
    found = of_gpus(without_nvml())
    of_n2 = {f.check: f.verdict for f in found if f.nodes == ("n2",) and f.verdict != "pass"}
    assert of_n2.pop("gpu.lost") == "fail"
    assert of_n2.pop("gpu.busy") == "unknown"
    assert of_n2 == {"gpu.temp": "skip"}
    alone = judge(without_nvml(), [registry.checks()["gpu.temp"]], TODAY)
    assert [f.verdict for f in alone if "n2" in f.nodes] == ["unknown"]  # nothing else tells


def test_what_follows_is_not_silenced_with_its_cause() -> None:
    until = TODAY + timedelta(days=1)
    seen = without_nvml()
    silence = accept("n2", until=until, check="gpu.lost")
    quiet = replace(seen, inventory=replace(seen.inventory, silences=(silence,)))
    verdicts = {f.check: f.verdict for f in of_gpus(quiet) if f.nodes == ("n2",)}
    assert verdicts["gpu.temp"] == "unknown"


def test_a_silence_for_one_node_leaves_the_other() -> None:
    found = silenced(broken(), accept("n2"))
    assert {(f.nodes, f.silenced) for f in found if f.verdict == "fail"} == {
        (("n2",), "ticket 4711"),
        (("n4",), None),
    }
    assert exit_code(found) == 1


@pytest.mark.parametrize(
    ("days", "code"),
    [
        pytest.param(1, 0, id="tomorrow"),
        pytest.param(0, 0, id="its-last-day"),
        pytest.param(-1, 1, id="yesterday"),
    ],
)
def test_a_silence_holds_until_its_date(days: int, code: int) -> None:
    assert exit_code(silenced(broken(), accept("n2", "n4", until=TODAY + timedelta(days)))) == code


def test_a_silence_tells_its_end_and_what_counts_again_is_said() -> None:
    held = accept("n2", "n4", until=TODAY)
    assert {f.until for f in silenced(broken(), held) if f.verdict == "fail"} == {TODAY}
    assert lapsed_silences(silenced(broken(), held), [held], TODAY) == ()
    over = accept("n1", "n2", "n4", until=TODAY - timedelta(1))
    still = accept("n4", reason="newer")
    found = silenced(broken(), over, still)
    yesterday = TODAY - timedelta(1)
    assert lapsed_silences(found, [over, still], TODAY) == (
        f"the silence of torch.version on n2 (ticket 4711) ended on {yesterday}: it counts again",
    )
    assert lapsed_silences(silenced(healthy(5), over), [over], TODAY) == (), (
        "what is mended needs no silence"
    )


def test_an_expired_silence_does_not_hide_one_that_holds() -> None:
    old = accept("n2", "n4", until=TODAY - timedelta(1), reason="old")
    found = silenced(broken(), old, accept("n2", "n4", reason="new"))
    assert {finding.silenced for finding in found if finding.verdict == "fail"} == {"new"}


def test_a_silence_of_another_check_or_node_is_none() -> None:
    found = silenced(broken(), accept("n2", "n4", check="torch"), accept("n1", "n3", "n5"))
    assert exit_code(found) == 1
    assert not [finding for finding in found if finding.silenced]


def test_passes_are_not_silenced() -> None:
    assert {f.silenced for f in silenced(healthy(), accept(*NAMES))} == {None}


def test_what_is_not_known_can_be_accepted_too() -> None:
    seen = with_facts(healthy(), {("n2", "torch.build"): absent("hung")})
    found = silenced(seen, accept("n2"))
    assert by_node(found)["n2"] == "unknown error hung"
    assert exit_code(found) == 0


# ---------------------------------------------------------------- exit codes


def of(*kinds: str) -> list[Finding]:
    made = []
    for kind in kinds:
        verdict, severity, *marks = kind.split()
        marked = {"silenced": "why" if "silenced" in marks else None, "fixed": "fixed" in marks}
        made.append(replace(FAIL, verdict=verdict, severity=severity, **marked))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("kinds", "code", "strict"),
    [
        pytest.param([], 0, 0, id="nothing"),
        pytest.param(["pass error", "skip error"], 0, 0, id="well"),
        pytest.param(["fail error"], 1, 1, id="failed"),
        pytest.param(["unknown error"], 3, 3, id="not-known"),
        pytest.param(["unknown error", "fail error"], 1, 1, id="a-failure-outranks-not-knowing"),
        pytest.param(["fail warning"], 0, 1, id="warning"),
        pytest.param(["unknown warning"], 0, 3, id="unknown-warning"),
        pytest.param(["fail warning", "unknown error"], 3, 1, id="warning-and-unknown-error"),
        pytest.param(["fail error silenced", "unknown error silenced"], 0, 0, id="silenced"),
        pytest.param(["fail error fixed", "unknown error fixed"], 0, 0, id="cured"),
        pytest.param(["fail error fixed", "fail error"], 1, 1, id="one-cured-of-two"),
    ],
)
def test_exit_codes(kinds: list[str], code: int, strict: int) -> None:
    assert (exit_code(of(*kinds)), exit_code(of(*kinds), strict=True)) == (code, strict)


# ---------------------------------------------------------------- the second look


def look(**said: str) -> list[Finding]:
    return [replace(FAIL, nodes=(node,), verdict=verdict) for node, verdict in said.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "cured"),
    [
        pytest.param(look(n1="fail"), look(n1="pass"), ("n1",), id="cured"),
        pytest.param(look(n1="unknown"), look(n1="pass"), ("n1",), id="known-by-now"),
        pytest.param(look(n1="fail"), look(n1="fail"), None, id="as-before"),
        pytest.param(look(n1="fail"), look(n1="unknown"), None, id="no-longer-known"),
        pytest.param(look(n1="fail"), [], None, id="the-node-was-lost-in-between"),
        pytest.param(look(n1="fail"), look(n1="skip"), None, id="does-not-apply-any-more"),
        pytest.param(look(n1="pass"), look(n1="pass"), None, id="nothing-to-cure"),
        pytest.param(look(n1="pass"), look(n1="fail"), None, id="broken-by-now"),
    ],
)
def test_only_what_passes_by_now_is_fixed(
    before: list[Finding], after: list[Finding], cured: Any
) -> None:
    found = with_fixed(before, after)
    assert [finding.nodes for finding in found if finding.fixed] == ([cured] if cured else [])
    assert [finding for finding in found if not finding.fixed] == after
    assert exit_code(found) == exit_code(after)


def test_a_finding_that_is_cured_on_some_nodes_names_those() -> None:
    before = [replace(FAIL, nodes=("n1", "n2"))]
    found = with_fixed(before, look(n1="pass", n2="fail"))
    assert [(f.nodes, f.verdict, f.fixed) for f in found] == [
        (("n1",), "fail", True), (("n1",), "pass", False), (("n2",), "fail", False)
    ]  # fmt: skip
