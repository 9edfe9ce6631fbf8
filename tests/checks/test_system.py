"""Kernel and distribution: majorities, kernels that wait for a reboot, and command lines."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.system import parameters
from clusterprep.facts.kernel import newest_waiting
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, silent, told

NEW, OTHER, OLD = "6.8.0-45-generic", "6.5.0-27-generic", "5.4.0-150-generic"


def nodes(fact: str, *values: Any) -> dict[str, dict[str, Any]]:
    """Nodes n1, n2, … with one fact each, and no kernel that waits."""
    return {
        f"n{number}": {"kernel.installed": (), fact: value}
        for number, value in enumerate(values, 1)
    }


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        pytest.param([NEW] * 3, ["pass"] * 3, id="equal"),
        pytest.param([NEW, OTHER, NEW], ["pass", "fail warning", "pass"], id="one-odd-of-three"),
        pytest.param([NEW, OTHER], ["fail warning"] * 2, id="two-nodes-have-no-majority"),
        pytest.param([NEW, NEW, OTHER, OTHER], ["fail warning"] * 4, id="two-against-two"),
        pytest.param([NEW, NEW, OTHER, "6.1.0"], ["fail warning"] * 4, id="half-is-no-majority"),
        pytest.param([NEW], ["skip not_applicable"], id="one-node"),
    ],
)
@pytest.mark.parametrize(
    ("check", "fact"), [("kernel.version", "kernel.release"), ("os.release", "os.release")]
)
def test_only_the_odd_ones_are_blamed(
    check: str, fact: str, releases: list[str], expected: list[str]
) -> None:
    assert list(told(fleet(**nodes(fact, *releases)), check).values()) == expected


def test_every_value_is_listed_with_its_nodes() -> None:
    seen = fleet(**nodes("kernel.release", NEW, NEW, NEW, OTHER))
    (bad,) = [finding for finding in findings(seen, "kernel.version") if finding.verdict == "fail"]
    assert bad.nodes == ("n4",)
    assert bad.seen == f"{NEW} on n[1-3]; {OTHER} on n4"
    assert bad.wanted == NEW
    assert bad.remedy


def test_what_is_equal_is_shown() -> None:
    (good,) = findings(fleet(**nodes("os.release", "debian 12", "debian 12")), "os.release")
    assert (good.seen, good.wanted, good.remedy) == ("debian 12", "equal on all nodes", "")


def test_one_value_of_two_nodes_is_not_known_to_be_equal() -> None:
    seen = fleet(n1={"kernel.release": NEW, "kernel.installed": ()}, n2=silent("n2"))
    assert told(seen, "kernel.version") == {
        "n1": "unknown warning fewer than two nodes have a value to compare"
    }


@pytest.mark.parametrize(
    ("release", "old"),
    [
        pytest.param("5.4.0-150-generic", True, id="ubuntu-5.4"),
        pytest.param("5.4.999", True, id="just-below"),
        pytest.param("4.18.0-553.el8_10.x86_64", True, id="rhel-8"),
        pytest.param("5.5.0", False, id="exactly"),
        pytest.param("5.5", False, id="without-patch-level"),
        pytest.param("5.14.0-427.13.1.el9_4.x86_64", False, id="rhel-9"),
        pytest.param("5.15.0-1062-nvidia", False, id="fifteen-is-more-than-five"),
        pytest.param("6.1.0-rc3+", False, id="release-candidate"),
    ],
)
def test_the_floor_is_5_5_by_numbers(release: str, old: bool) -> None:
    seen = fleet(**nodes("kernel.release", release, release))
    assert set(told(seen, "kernel.version").values()) == {"fail warning" if old else "pass"}


def test_an_old_kernel_on_all_nodes_is_a_failure_and_no_pass() -> None:
    found = findings(fleet(**nodes("kernel.release", OLD, OLD, OLD)), "kernel.version")
    assert [(finding.verdict, finding.nodes, finding.wanted) for finding in found] == [
        ("fail", ("n1", "n2", "n3"), ">=5.5")
    ]


@pytest.mark.parametrize(
    ("check", "fact", "wanted", "good", "bad"),
    [
        pytest.param("kernel.version", "kernel.release", ">=6.5", OTHER, OLD, id="kernel"),
        pytest.param(
            "kernel.version",
            "kernel.release",
            "5.4.0",
            OLD,
            OTHER,
            id="kernel-below-the-floor-on-purpose",
        ),
        pytest.param(
            "os.release", "os.release", "debian 12", "debian 12", "debian 11", id="distribution"
        ),
    ],
)
def test_what_is_required_is_compared_node_by_node_and_is_an_error(
    check: str, fact: str, wanted: str, good: str, bad: str
) -> None:
    seen = fleet(each={"require": {check: wanted}}, **nodes(fact, bad, bad, good))
    assert told(seen, check) == {"n1": "fail error", "n2": "fail error", "n3": "pass"}
    alone = fleet(each={"require": {check: wanted}}, **nodes(fact, good))
    assert told(alone, check) == {"n1": "pass"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([NEW, NEW, NEW], "pass", id="as-the-others"),
        pytest.param([NEW, NEW, OTHER], "fail warning", id="unlike-those-that-declare"),
    ],
)
def test_a_node_that_declares_nothing_is_compared_with_those_that_do(
    values: list[str], expected: str
) -> None:
    declares: dict[str, Any] = {"require": {"kernel.version": "6.8.0"}}
    seen = fleet(some={"n1": declares, "n2": declares}, **nodes("kernel.release", *values))
    assert told(seen, "kernel.version") == {"n1": "pass", "n2": "pass", "n3": expected}


# ---------------------------------------------------------------- installed kernels

GENERIC = "5.15.0-105-generic"


@pytest.mark.parametrize(
    ("running", "installed", "newest"),
    [
        pytest.param(GENERIC, (GENERIC, "5.15.0-107-generic"), "5.15.0-107-generic", id="ubuntu"),
        pytest.param(GENERIC, (GENERIC, "5.15.0-91-generic"), None, id="the-one-before"),
        pytest.param(
            GENERIC,
            (GENERIC, "5.15.0-99-generic", "5.15.0-101-generic"),
            None,
            id="by-numbers-not-letters",
        ),
        pytest.param(
            GENERIC, (GENERIC, "6.8.0-40-generic"), "6.8.0-40-generic", id="hardware-enablement"
        ),
        pytest.param(GENERIC, (GENERIC, "5.15.0-1062-nvidia"), None, id="another-flavour"),
        pytest.param(
            GENERIC, (GENERIC, "6.8.0-40-lowlatency", "6.8.0-1009-aws"), None, id="other-flavours"
        ),
        pytest.param(GENERIC, (), None, id="container"),
        pytest.param(GENERIC, ("5.15.0-107-generic",), None, id="booted-from-elsewhere"),
        pytest.param(
            "5.14.0-427.13.1.el9_4.x86_64",
            (
                "0-rescue-4f0c9a5be21d4e3f8a7b6c5d4e3f2a10",
                "5.14.0-427.13.1.el9_4.x86_64",
                "5.14.0-503.11.1.el9_5.x86_64",
            ),
            "5.14.0-503.11.1.el9_5.x86_64",
            id="rhel-9-minor-release",
        ),
        pytest.param(
            "5.14.0-427.13.1.el9_4.x86_64",
            ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64+debug"),
            None,
            id="rhel-9-debug",
        ),
        pytest.param(
            "6.1.0-18-amd64",
            ("6.1.0-18-amd64", "6.1.0-21-amd64", "6.1.0-23-rt-amd64"),
            "6.1.0-21-amd64",
            id="debian",
        ),
        pytest.param(
            "5.14.21-150500.55.19-default",
            ("5.14.21-150500.55.19-default", "5.14.21-150500.55.68-default"),
            "5.14.21-150500.55.68-default",
            id="sles",
        ),
        pytest.param("vendor build", ("vendor build", "6.8.0"), None, id="no-number"),
    ],
)
def test_a_newer_kernel_of_the_same_flavour_waits(
    running: str, installed: tuple[str, ...], newest: str | None
) -> None:
    assert newest_waiting(running, installed) == newest
    seen = {"kernel.release": running, "kernel.installed": installed}
    waits = [
        f
        for f in findings(fleet(n1=seen, n2=seen), "kernel.version")
        if "waits for a reboot" in f.message
    ]
    assert [(f.verdict, f.severity, f.nodes) for f in waits] == (
        [("fail", "warning", ("n1", "n2"))] if newest else []
    )


def test_a_pinned_kernel_waits_for_nothing() -> None:
    seen = {"kernel.release": GENERIC, "kernel.installed": (GENERIC, "5.15.0-107-generic")}
    pinned = {"n1": {"require": {"kernel.version": "5.15.0"}}}
    assert told(fleet(some=pinned, n1=seen, n2=seen), "kernel.version") == {
        "n1": "pass",
        "n2": "fail warning",
    }


@pytest.mark.parametrize("reason", ["denied", "timed_out", "garbled"])
def test_kernels_that_could_not_be_listed_are_not_known(reason: str) -> None:
    seen = {"kernel.release": NEW, "kernel.installed": absent(reason)}
    assert told(fleet(n1=seen, n2=seen), "kernel.version") == dict.fromkeys(
        ("n1", "n2"), f"unknown warning {reason}"
    )


# ---------------------------------------------------------------- command lines


def line(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PLAIN = line(
    "BOOT_IMAGE=/boot/vmlinuz-5.15.0-107-generic root=UUID=1 ro console=ttyS1,115200n8 iommu=pt"
)
TWIN = line("BOOT_IMAGE=/boot/vmlinuz-5.15.0-105-generic root=UUID=2 ro quiet splash iommu=pt")
NO_IOMMU = line("root=UUID=3 ro")
STRICT = line("root=UUID=3 ro iommu=strict")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([PLAIN, TWIN, PLAIN], ["pass"] * 3, id="what-names-one-machine-may-differ"),
        pytest.param([PLAIN, TWIN, NO_IOMMU], ["pass", "pass", "fail warning"], id="one-without"),
        pytest.param([PLAIN, TWIN, STRICT], ["pass", "pass", "fail warning"], id="another-value"),
        pytest.param([(*PLAIN, "mitigations=off"), TWIN], ["fail warning"] * 2, id="no-majority"),
        pytest.param([line("quiet"), line("splash")], ["pass"] * 2, id="nothing-that-matters"),
        pytest.param([PLAIN], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [PLAIN, PLAIN, absent("denied")],
            ["pass", "pass", "unknown warning denied"],
            id="denied",
        ),
        pytest.param(
            [PLAIN, PLAIN, absent("garbled")],
            ["pass", "pass", "unknown warning garbled"],
            id="garbled",
        ),
    ],
)
def test_kernels_are_started_alike(lines: list[Any], expected: list[str]) -> None:
    assert (
        list(told(fleet(**nodes("kernel.cmdline", *lines)), "kernel.cmdline").values()) == expected
    )


def test_only_the_parameter_that_differs_is_shown() -> None:
    more = (*PLAIN, "hugepagesz=1G", "hugepages=16")
    found = findings(
        fleet(**nodes("kernel.cmdline", more, more, (*more, "mitigations=off"))), "kernel.cmdline"
    )
    (bad,) = [finding for finding in found if finding.verdict == "fail"]
    assert bad.seen == "no mitigations on n[1-2]; mitigations=off on n3"
    assert bad.wanted == "no mitigations"


def test_another_kind_of_machine_may_be_started_otherwise() -> None:
    seen = fleet(
        each={"gpus": Gpus(8)},
        some={"n3": {"gpus": Gpus(0)}},
        **nodes("kernel.cmdline", PLAIN, TWIN, STRICT),
    )
    assert told(seen, "kernel.cmdline") == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("iommu=pt", ["pass", "fail error"], id="one-word"),
        pytest.param("ro iommu=pt", ["pass", "fail error"], id="two-words"),
        pytest.param("ro", ["pass", "pass"], id="a-word-that-both-have"),
        pytest.param("iommu=pt nosmt", ["fail error"] * 2, id="one-of-two-is-missing"),
    ],
)
def test_every_word_that_is_required_must_be_there(wanted: str, expected: list[str]) -> None:
    seen = fleet(
        each={"require": {"kernel.cmdline": wanted}}, **nodes("kernel.cmdline", PLAIN, STRICT)
    )
    assert list(told(seen, "kernel.cmdline").values()) == expected


def test_the_missing_words_can_be_pasted() -> None:
    seen = fleet(
        each={"require": {"kernel.cmdline": "iommu=pt nosmt"}}, **nodes("kernel.cmdline", PLAIN)
    )
    (bad,) = findings(seen, "kernel.cmdline")
    assert bad.seen == "no nosmt"
    assert "--args=nosmt" in bad.remedy


def test_parameters_keep_all_their_values_in_order_and_dashes_are_underscores() -> None:
    words = line(
        "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512 "
        "numa-balancing=disable pcie_aspm=off root=x nosmt"
    )
    assert parameters(words) == {
        "hugepagesz": "1G 2M",
        "hugepages": "4 512",
        "numa_balancing": "disable",
        "pcie_aspm": "off",
        "nosmt": "",
    }


# ---------------------------------------------------------------- fleets mixed on purpose

ELEVEN, TWELVE = "debian 11", "debian 12"
DECLARED = {
    "n1": {"require": {"os.release": ELEVEN}},
    "n2": {"require": {"os.release": ELEVEN}},
    "n3": {"require": {"os.release": TWELVE}},
    "n4": {"require": {"os.release": TWELVE}},
}


def test_distributions_that_are_declared_are_no_finding() -> None:
    seen = fleet(some=DECLARED, **nodes("os.release", ELEVEN, ELEVEN, TWELVE, TWELVE))
    assert set(told(seen, "os.release").values()) == {"pass"}


def test_a_node_of_another_distribution_than_declared_is_an_error() -> None:
    seen = fleet(some=DECLARED, **nodes("os.release", ELEVEN, TWELVE, TWELVE, TWELVE))
    assert told(seen, "os.release")["n2"] == "fail error"


def test_a_mixture_that_is_not_declared_says_how_to_declare_it() -> None:
    seen = fleet(**nodes("os.release", ELEVEN, ELEVEN, TWELVE, TWELVE))
    (bad,) = findings(seen, "os.release")
    assert (bad.verdict, bad.severity) == ("fail", "warning")
    assert "require: os.release" in bad.remedy


def test_nodes_without_a_declaration_are_compared_among_themselves() -> None:
    some = {"n1": DECLARED["n1"], "n2": DECLARED["n2"]}
    seen = fleet(some=some, **nodes("os.release", ELEVEN, ELEVEN, TWELVE, TWELVE))
    assert set(told(seen, "os.release").values()) == {"pass"}


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        ([OTHER, OTHER, NEW, NEW], ["pass"] * 4),
        ([OTHER, OTHER, NEW, OTHER], ["pass", "pass", "fail warning", "fail warning"]),
    ],
)
def test_kernels_are_compared_within_a_declared_distribution(
    releases: list[str], expected: list[str]
) -> None:
    seen = fleet(some=DECLARED, **nodes("kernel.release", *releases))
    assert list(told(seen, "kernel.version").values()) == expected
