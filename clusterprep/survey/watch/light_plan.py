"""The part of the checks that is cheap enough to be repeated every few seconds. Pure.

What a fact costs is declared with the fact: `deep` ones run code of the job's user, and `costly`
names kinds of reads that a repeated look does without. A check takes part if all facts that it
needs are left. Where some of its reads are not asked only its failures are of use: that it does not
know something is no news then, and that it found nothing is no pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.model import NOT_ASKED, Finding, Inventory, Node, Read
from clusterprep.survey.queries import QueryPlan
from clusterprep.survey.typecheck import fits_return_type

# Stages of a survey that are repeated: measuring clocks takes five short exchanges, and earlier
# counters are kept by the watch itself. Dialling all pairs of nodes is not repeated.
STAGES = ("clock", "history")


def light_checks(
    checks: Iterable[Check], facts: Mapping[str, Fact], inventory: Inventory
) -> tuple[Check, ...]:
    """Return the checks of which every fact that they need is asked in a light look."""
    chosen = []
    for check in checks:
        if all(light_fact(facts[name], inventory) is not None for name in check.facts):
            chosen.append(check)
    return tuple(chosen)


def in_part(
    checks: Iterable[Check], facts: Mapping[str, Fact], inventory: Inventory
) -> frozenset[str]:
    """Return the names of the checks for which a light look does not ask all that they look at."""
    names = set()
    for check in checks:
        looked_at = [facts[name] for name in (*check.facts, *check.uses)]
        if any(light_fact(fact, inventory) is not fact for fact in looked_at):
            names.add(check.name)
    return frozenset(names)


def without_partial_passes(
    findings: Iterable[Finding], partial: Collection[str]
) -> tuple[Finding, ...]:
    """Return the findings without passes of checks that saw only a part of what they look at."""
    kept = []
    for finding in findings:
        if finding.verdict != "pass" or finding.check not in partial:
            kept.append(finding)
    return tuple(kept)


def light_plan(plan: QueryPlan, inventory: Inventory) -> QueryPlan:
    """Return the plan of a survey without the facts and the reads that cost too much."""
    facts = []
    for fact in plan.facts:
        light = light_fact(fact, inventory)
        if light is not None:
            facts.append(light)
    return QueryPlan(plan.checks, tuple(facts))


def light_fact(fact: Fact, inventory: Inventory) -> Fact | None:
    """Return the fact as a light look asks it, None if it does not ask it."""
    if fact.deep or (fact.stage is not None and fact.stage not in STAGES):
        return None
    if not fact.costly:
        return fact
    asked = _asked_reads(fact, inventory)
    if all(asked):
        return fact
    if not fact.lenient or not any(asked):
        return None
    parse = functools.partial(_parse_asked, fact.parse, asked)
    return replace(fact, reads=functools.partial(_light_reads, fact), parse=parse)


def _asked_reads(fact: Fact, inventory: Inventory) -> tuple[bool, ...]:
    """Return which reads of a fact are asked in a light look, by the node that has most of them."""
    longest: tuple[Read, ...] = ()
    for node in inventory.nodes:
        reads = fact.reads(node, inventory)
        if len(reads) > len(longest):
            longest = reads
    return tuple(read.kind not in fact.costly for read in longest)


def _light_reads(fact: Fact, node: Node, inventory: Inventory) -> tuple[Read, ...]:
    reads = fact.reads(node, inventory)
    return tuple(read for read in reads if read.kind not in fact.costly)


def _parse_asked(parse: Callable[..., Any], asked: tuple[bool, ...], *answers: Any) -> Any:
    """Return what the answers mean; reads that were not asked have no answer."""
    given = iter(answers)
    whole = [next(given) if is_asked else NOT_ASKED for is_asked in asked]
    value = parse(*whole)
    if not fits_return_type(parse, value):
        raise ValueError("a value of another type than this fact has")
    return value
