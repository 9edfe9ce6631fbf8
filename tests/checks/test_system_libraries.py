"""The C library and OpenSSL: equal, different, and different on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.system_libraries import OTHER_LIBRARY
from clusterprep.model import Container, Runtime
from tests.support.fleet import absent, findings, fleet, same, told

# What Debian 11, 12 and 13 have.
BULLSEYE, BOOKWORM, TRIXIE = "2.31", "2.36", "2.41"


def distributions(*releases: str) -> dict[str, Any]:
    """Settings by which the inventory says what each node is."""
    return {
        f"n{number}": {"require": {"os.release": release}}
        for number, release in enumerate(releases, 1)
    }


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        pytest.param([BOOKWORM] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [BOOKWORM, BOOKWORM, BULLSEYE], ["pass", "pass", "fail warning"], id="one-is-older"
        ),
        pytest.param([BOOKWORM, BULLSEYE], ["fail warning"] * 2, id="no-majority"),
        pytest.param(
            [BOOKWORM, BOOKWORM, OTHER_LIBRARY], ["pass", "pass", "fail warning"], id="musl"
        ),
        pytest.param(
            [BOOKWORM, BOOKWORM, absent("missing_tool")],
            ["pass", "pass", "unknown warning missing_tool"],
            id="not-known",
        ),
    ],
)
def test_glibc_is_equal_on_all_nodes(versions: list[Any], expected: list[str]) -> None:
    seen = fleet(**same("os.glibc", *versions))
    assert list(told(seen, "os.glibc").values()) == expected


def test_nodes_that_all_have_another_c_library_are_left_out() -> None:
    """As a fleet of Alpine, or the nodes of Alpine that the inventory declares as such."""
    alone = fleet(**same("os.glibc", OTHER_LIBRARY, OTHER_LIBRARY))
    assert set(told(alone, "os.glibc").values()) == {"skip not_applicable"}
    releases = distributions("debian 12", "debian 12", "alpine 3", "alpine 3")
    declared = fleet(
        some=releases, **same("os.glibc", BOOKWORM, BOOKWORM, OTHER_LIBRARY, OTHER_LIBRARY)
    )
    assert told(declared, "os.glibc") == {
        "n1": "pass",
        "n2": "pass",
        "n3": "skip not_applicable",
        "n4": "skip not_applicable",
    }


def test_glibc_that_is_required_is_missing_where_another_library_is() -> None:
    required = {"n1": {"require": {"os.glibc": ">=2.34"}}}
    seen = fleet(some=required, **same("os.glibc", OTHER_LIBRARY, OTHER_LIBRARY))
    assert told(seen, "os.glibc") == {"n1": "fail error", "n2": "skip not_applicable"}


@pytest.mark.parametrize(
    ("odd", "does_not_load"), [(BULLSEYE, True), (TRIXIE, False), (OTHER_LIBRARY, True)]
)
def test_an_older_one_loads_less(odd: str, does_not_load: bool) -> None:
    found = findings(fleet(**same("os.glibc", BOOKWORM, BOOKWORM, odd)), "os.glibc")
    (failed,) = [finding for finding in found if finding.verdict == "fail"]
    assert failed.nodes == ("n3",)
    assert ("does not load here" in failed.message) is does_not_load
    assert "require: os.release" in failed.remedy


@pytest.mark.parametrize("check", ["os.glibc", "os.openssl"])
def test_distributions_that_are_declared_are_compared_within_themselves(check: str) -> None:
    old, new = ("2.31", "2.36") if check == "os.glibc" else ("1.1.1", "3.0.19")
    releases = distributions("debian 11", "debian 11", "debian 12", "debian 12")
    mixed = fleet(some=releases, **same(check, old, old, new, new))
    assert set(told(mixed, check).values()) == {"pass"}
    forgotten = fleet(some=releases, **same(check, old, old, new, old))
    assert told(forgotten, check)["n4"] == "fail warning"
    undeclared = fleet(**same(check, old, old, new, new))
    assert set(told(undeclared, check).values()) == {"fail warning"}


def test_a_version_is_required() -> None:
    seen = fleet(each={"require": {"os.glibc": ">=2.34"}}, **same("os.glibc", BULLSEYE, TRIXIE))
    assert told(seen, "os.glibc") == {"n1": "fail error", "n2": "pass"}


@pytest.mark.parametrize("check", ["os.glibc", "os.openssl"])
def test_a_container_brings_its_own(check: str) -> None:
    runtime = Runtime(container=Container(engine="podman", image="job"))
    old, new = ("2.31", "2.36") if check == "os.glibc" else ("1.1.1", "3.0.19")
    seen = fleet(some={"n3": {"runtime": runtime}}, **same(check, new, new, old))
    assert told(seen, check) == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        pytest.param("3.0.19", "pass", id="a-patch"),
        pytest.param("3.2.2", "fail warning", id="another-series"),
        pytest.param("1.1.1", "fail warning", id="before-3"),
        pytest.param("LibreSSL 2.8.3", "fail warning", id="another-library"),
        pytest.param(absent("not_applicable"), "skip not_applicable", id="no-program"),
        pytest.param(absent("timed_out"), "unknown warning timed_out", id="not-known"),
    ],
)
def test_openssl_is_of_one_series(odd: Any, expected: str) -> None:
    seen = fleet(**same("os.openssl", "3.0.7", "3.0.7", odd))
    assert told(seen, "os.openssl") == {"n1": "pass", "n2": "pass", "n3": expected}
