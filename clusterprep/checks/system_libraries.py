"""Judges the C library and OpenSSL of the system: one environment has to load on all nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    EQUAL,
    Check,
    CheckContext,
    Outcome,
    Proof,
    as_wanted,
    kinds,
    skipped,
)
from clusterprep.checks.system import declared_distribution
from clusterprep.facts.system_libraries import ASK_LIBRARY, GLIBC, OPENSSL, OTHER_LIBRARY
from clusterprep.model import Node
from clusterprep.model.versions import conditions_of, leading_numbers, satisfies
from clusterprep.remedies import sentence

OLDEST = sentence(
    "make the job's environment on the node with the oldest one, run the job in a container, or "
    "give all nodes one release; if it is meant, one group for each distribution with "
    "require: os.release says so"
)


def glibc(context: CheckContext) -> Iterable[Outcome]:
    """Compare the versions of glibc of the nodes whose job runs on the system itself."""
    versions: dict[str, str] = context.values(GLIBC.name)
    for outcome in _compare(context, versions, "the C library"):
        odd = {versions[name] for name in outcome.nodes}
        if outcome.verdict == "fail" and _are_older(odd, outcome.wanted):
            message = f"{outcome.message}: what was built on the others does not load here"
            yield replace(outcome, message=message)
        else:
            yield outcome


def openssl(context: CheckContext) -> Iterable[Outcome]:
    """Compare the series of OpenSSL: patches of one series load the same programs."""
    versions: dict[str, str] = context.values(OPENSSL.name)
    series = {name: _series(version) for name, version in versions.items()}
    yield from _compare(context, series, "OpenSSL")


def _compare(context: CheckContext, versions: dict[str, str], what: str) -> Iterable[Outcome]:
    """Compare versions within a declared distribution, and with what `require:` says.

    A container brings its own libraries, so nodes whose job runs in one are left out.
    """
    native = []
    for node in context.nodes:
        if _runs_in_container(node):
            yield skipped(node, f"the job runs in a container with {what} of its own")
        else:
            native.append(node)
    for part in kinds(replace(context, nodes=tuple(native)), declared_distribution):
        if not part.nodes:
            continue
        exempt = sum(map(_runs_in_container, part.inventory.nodes))
        values = {node.name: versions[node.name] for node in part.nodes}
        compared = part
        if set(values.values()) == {OTHER_LIBRARY}:
            yield from _without_glibc(part)
            compared = replace(part, nodes=_with_requirement(part))
        for outcome in as_wanted(compared, values, satisfies, what, exempt):
            yield _with_remedy(outcome)


def _without_glibc(part: CheckContext) -> Iterable[Outcome]:
    """Skip nodes that all have another C library; where some have glibc, the others are odd."""
    declared = _with_requirement(part)
    for node in part.nodes:
        if node not in declared:
            yield skipped(node, "the C library is not glibc, as on Alpine with musl")


def _with_requirement(part: CheckContext) -> tuple[Node, ...]:
    return tuple(node for node in part.nodes if part.wanted(node) is not None)


def _with_remedy(outcome: Outcome) -> Outcome:
    return replace(outcome, remedy=OLDEST) if outcome.verdict == "fail" else outcome


def _runs_in_container(node: Node) -> bool:
    return node.runtime is not None and node.runtime.container is not None


def _are_older(versions: Iterable[str], usual: str) -> bool:
    """Return whether all are older than the usual version, or of another library."""
    if usual == EQUAL:
        return False
    for version in versions:
        if version != OTHER_LIBRARY and leading_numbers(version) >= leading_numbers(usual):
            return False
    return True


@functools.lru_cache(maxsize=64)  # of ten thousand nodes nearly all have the same
def _series(version: str) -> str:
    """Return «3.0» of «3.0.7», and «1.1.1» as it is: from 3 on the second number is the series."""
    numbers = leading_numbers(version)
    if not numbers or numbers[0] < 3:
        return version
    return ".".join(map(str, numbers[:2]))


CHECK_GLIBC = Check(
    "os.glibc",
    facts=(GLIBC.name,),
    judge=glibc,
    severity="warning",
    follows=("os.release",),
    title="The C library",
    why="A program, an interpreter or an NCCL that was built with a newer glibc does not load with "
    "an older one: «version `GLIBC_2.38' not found». The job starts on some nodes and not on "
    "others.",
    how="getconf GNU_LIBC_VERSION, without it ldd --version, without both what the library itself "
    "says; equal on all nodes of a distribution that `require: os.release` declares, or on all "
    "nodes; `require: {os.glibc: '>=2.34'}` wants a version. Nodes that all have musl, and nodes "
    "whose job runs in a container, as it brings its own library, are left out.",
    remedy=OLDEST,
    wants=conditions_of,
    proof=Proof(
        GLIBC.name,
        lambda version: "2.31",
        machine={"commands": {f"sh -c {ASK_LIBRARY}": "glibc 2.35\n"}},
    ),
)
CHECK_OPENSSL = Check(
    "os.openssl",
    facts=(OPENSSL.name,),
    judge=openssl,
    severity="warning",
    follows=("os.release",),
    title="OpenSSL",
    why="Python modules and programs are built for one series of OpenSSL: with another one "
    "`import ssl` fails on some nodes, and with it downloads and object stores.",
    how="openssl version, of which the library counts: 1.1.1, or from 3 on the first two numbers. "
    "Equal on all nodes of a distribution that `require: os.release` declares, or on all nodes. "
    "Patches are not compared. Nodes without the program, and those whose job runs in a container, "
    "are left out.",
    remedy=OLDEST,
    wants=conditions_of,
    proof=Proof(
        OPENSSL.name,
        lambda version: "1.1.1",
        machine={"commands": {"openssl version": "OpenSSL 3.2.2 4 Jun 2024\n"}},
    ),
)
