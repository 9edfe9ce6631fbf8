"""What a check of the trial says of single nodes, with equal outcomes as one finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Verdict
from clusterprep.model.nodeset import fold
from clusterprep.remedies import NO_REMEDY, Remedy


class NodeOutcome(Struct, frozen=True):
    """The verdict about one node; `message` is true of every node that has an equal outcome."""

    verdict: Verdict
    message: str
    seen: str = ""
    wanted: str = ""
    reason: str | None = None
    remedy: Remedy = NO_REMEDY


def not_applicable(message: str) -> NodeOutcome:
    return NodeOutcome("skip", message, reason="not_applicable")


def local_rank_words(local_ranks: Iterable[int]) -> str:
    """Return "local rank [0-3]": nodes where the same ranks are at fault have equal outcomes."""
    numbers = dict.fromkeys(map(str, local_ranks))
    return f"local rank {fold(numbers)}"


def node_findings(
    check: str, timeline: Timeline, outcomes: Mapping[str, NodeOutcome]
) -> Iterable[Finding]:
    """Yield a warning for each outcome with its nodes, and an error for those that require it."""
    requiring = {node.name for node in timeline.plan.nodes if check in node.require}
    groups: dict[tuple[NodeOutcome, bool], list[str]] = {}
    for name in timeline.node_names():
        if name in outcomes:
            key = (outcomes[name], name in requiring)
            groups.setdefault(key, []).append(name)
    for (outcome, is_required), names in groups.items():
        finding = Finding(
            check=check,
            verdict=outcome.verdict,
            severity="warning",
            nodes=tuple(names),
            message=outcome.message,
            seen=outcome.seen,
            wanted=outcome.wanted,
            remedy=outcome.remedy,
            reason=outcome.reason,
        )
        if is_required:
            finding = replace(finding, severity="error")
        yield finding
