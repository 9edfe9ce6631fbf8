"""Have the agents sample their nodes while a job runs, and return what they saw.

    sampling = begin(fanout, fleet)
    …                                   # the job
    findings = end(fanout, sampling)

Before and after the job each agent is asked once; while it runs nothing is sent, so that neither
the job nor the signs of life wait for samples. A node that does not answer makes its samples
unknown and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.jobs.load.findings import COMPARED, judge_load
from clusterprep.jobs.load.samples import (
    LINK_ERRORS,
    Looks,
    NodeLooks,
    NodeSamples,
    parse_samples,
)
from clusterprep.model import Absent, Finding, Fleet, Json
from clusterprep.remote.bootstrap import parts_for
from clusterprep.remote.untrusted import shortened
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import Queries, QueryPlan, Sheet
from clusterprep.survey.reads import look_request

INTERVAL = 1.0  # seconds between two samples
LOOK_LIMIT = 10.0  # seconds for all nodes to answer; they take milliseconds
START_LIMIT = 5.0
END_LIMIT = 8.0  # the agent gives its child three for a last sample


class LoadSampling(Struct, frozen=True):
    """Sampling under way: when it began, and what the nodes answered before."""

    fleet: Fleet
    began: float
    before: Mapping[str, Mapping[str, Any]]


def begin(fanout: Fanout, fleet: Fleet) -> LoadSampling:
    """Look at all nodes and have them take samples from now on."""
    _load_parts(fanout, fleet)
    before = _look(fanout, fleet)
    bodies = {node.name: {"interval": INTERVAL} for node in fleet.reached}
    fanout.ask("sample", bodies, START_LIMIT)
    return LoadSampling(fleet, time.monotonic(), before)


def end(fanout: Fanout, sampling: LoadSampling, on_gpus: bool) -> tuple[Finding, ...]:
    """End the samples and return what appeared, grew or fell meanwhile.

    `on_gpus`: whether the job was to work on the GPUs of the nodes.
    """
    fleet = sampling.fleet
    bodies: dict[str, dict[str, Any]] = {node.name: {} for node in fleet.reached}
    answers = fanout.ask("sampled", bodies, END_LIMIT)
    seconds = time.monotonic() - sampling.began
    after = _look(fanout, fleet)
    looks: dict[str, NodeLooks] = {}
    for node in fleet.reached:
        name = node.name
        samples = _samples(answers[name])
        looks[name] = NodeLooks(sampling.before[name], after[name], samples)
    return judge_load(fleet, Looks(seconds, on_gpus, looks))


def _facts_asked() -> tuple[Fact, ...]:
    known = registry.facts()
    return (*(known[name] for name in COMPARED if name in known), LINK_ERRORS)


def _load_parts(fanout: Fanout, fleet: Fleet) -> None:
    """Send the parts of the agent that the reads need. The part `look` has every agent."""
    queries = Queries(QueryPlan((), _facts_asked()), fleet.inventory)
    kinds: set[str] = set()
    for node in fleet.reached:
        kinds.update(read.kind for read in queries.of(node).reads)
    for part in parts_for(kinds):
        if part != "look":
            fanout.load(part)
    fanout.load("load_samples")


def _look(fanout: Fanout, fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Return by node the facts that are compared; Absent where a node gave no answer."""
    queries = Queries(QueryPlan((), _facts_asked()), fleet.inventory)
    sheets: dict[str, Sheet] = {}
    bodies: dict[str, dict[str, Any]] = {}
    for node in fleet.reached:
        sheet = queries.of(node)
        sheets[node.name] = sheet
        _, bodies[node.name] = look_request(sheet.reads)
    facts: dict[str, dict[str, Any]] = {}
    try:
        for name, answer in fanout.ask("look", bodies, LOOK_LIMIT).items():
            facts[name] = _facts(queries, sheets[name], answer)
    finally:
        queries.close()
    return facts


def _facts(queries: Queries, sheet: Sheet, answer: Any) -> dict[str, Any]:
    try:
        if isinstance(answer, LinkLost):
            raise answer
        raw: Sequence[Json] = answer.get("answers")
        if not isinstance(raw, list) or len(raw) != len(sheet.reads):
            raise LinkLost("garbled", "the answer does not fit the question")
        return queries.facts(sheet, raw)
    except LinkLost as lost:
        absent = Absent(lost.reason, shortened(lost.message))
        return {fact.name: absent for fact in _facts_asked()}


def _samples(answer: Any) -> NodeSamples:
    if isinstance(answer, LinkLost):
        return NodeSamples(Absent(answer.reason, shortened(answer.message)))
    try:
        return parse_samples(answer)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return NodeSamples(Absent("garbled", shortened(f"{type(error).__name__}: {error}")))
