"""The all-reduce of `verify --pick`: the chosen nodes pass it, by themselves if not with all."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from clusterprep.cli.commands import node_lists
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey, Trial, run_trial
from clusterprep.model import Finding, Fleet, NodeLists
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment, render
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import blocking_findings
from clusterprep.survey.node_lists import culprits_of, limited_fleet, moved


class Tried(Struct, frozen=True):
    """An all-reduce, its environment, and what is known of all nodes after it."""

    trial: Trial
    environment: Environment
    surveyed: Survey
    lists: NodeLists | None = None

    @property
    def passes(self) -> bool:
        return self.trial.result is not None and self.trial.result.verdict in ("pass", "skip")


def try_nodes(
    invocation: Invocation,
    fanout: Fanout,
    surveyed: Survey,
    fleet: Fleet,
    findings: Iterable[Finding],
) -> Tried:
    """Run the all-reduce over a fleet, unless one of `findings` says that it could only hang.

    What it finds is added to `surveyed`.
    """
    environment = render(fleet)
    trial = run_trial(
        invocation,
        fanout,
        fleet,
        environment,
        findings,
    )
    return Tried(trial, environment, surveyed.with_findings(trial.findings))


def try_picked(invocation: Invocation, fanout: Fanout, surveyed: Survey, first: Tried) -> Tried:
    """Choose nodes, and try these alone if the all-reduce over all did not pass.

    `first` is the all-reduce over all. Nodes that kept it from starting and its culprits are left
    out. So are culprits among the chosen nodes, until an all-reduce passes or too few are left.
    """
    if first.passes:
        lists = node_lists.choose(invocation, first.surveyed, first.trial.result)
        return msgspec.structs.replace(first, lists=lists)
    blocked = _nodes_of(blocking_findings(surveyed.findings, invocation.settings.on_busy))
    culprits = culprits_of(first.trial.result)
    tried = first
    while True:
        lists = node_lists.choose(invocation, surveyed, failing=culprits, unknown=blocked)
        if lists is None or node_lists.is_short(invocation, lists):
            return msgspec.structs.replace(tried, lists=lists)
        tried = _try_alone(invocation, fanout, surveyed, first, lists)
        if tried.passes:
            return tried
        further = culprits_of(tried.trial.result) - culprits
        if not further:
            # It names no node, so none of them is known to be good.
            lists = node_lists.choose(
                invocation, surveyed, failing=culprits, unknown=blocked.union(lists.passing)
            )
            return msgspec.structs.replace(tried, lists=lists)
        culprits |= further


def _try_alone(
    invocation: Invocation, fanout: Fanout, surveyed: Survey, first: Tried, lists: NodeLists
) -> Tried:
    """Try the chosen nodes alone. What `first` found about other nodes is kept."""
    picked = frozenset(lists.picked or ())
    others = [one for one in first.trial.findings if not picked.intersection(one.nodes)]
    about_picked = [one for one in surveyed.findings if picked.intersection(one.nodes)]
    fleet = limited_fleet(surveyed.fleet, picked)
    tried = try_nodes(
        invocation,
        fanout,
        surveyed.with_findings(tuple(others)),
        fleet,
        about_picked,
    )
    if not tried.passes:
        return tried
    names = fold(lists.picked or ())
    invocation.notices.append(f"{names} pass the all-reduce without the others")
    # A node that was in no all-reduce which passed is not known to be good.
    lists = moved(surveyed.fleet.inventory, lists, unknown=set(lists.passing) - picked)
    return msgspec.structs.replace(tried, lists=lists)


def _nodes_of(findings: Iterable[Finding]) -> set[str]:
    nodes: set[str] = set()
    for finding in findings:
        nodes.update(finding.nodes)
    return nodes
