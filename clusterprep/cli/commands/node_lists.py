"""The lists of `check` and `verify`: who passes, who fails, and the nodes that --pick chooses."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey
from clusterprep.model import Finding, NodeLists, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.survey.node_lists import moved, pick, sort_nodes, warnings_of

FACTS = ("gpu.nvml",)
"""What the hostfile needs to know: its slots are the GPUs of nodes that declare none."""


def choose(
    invocation: Invocation,
    surveyed: Survey,
    verify: VerifyResult | None = None,
    failing: Collection[str] = (),
    unknown: Collection[str] = (),
) -> NodeLists | None:
    """Return the lists of this command, with the nodes that --pick chooses; None if unwanted.

    `failing` and `unknown` name nodes that do not pass, whatever the findings say.
    """
    if not invocation.settings.sorts_nodes:
        return None
    settings = invocation.settings
    fleet = surveyed.fleet
    lists = sort_nodes(fleet, surveyed.findings, verify, settings.strict)
    lists = moved(fleet.inventory, lists, failing, unknown)
    if settings.pick is None:
        return lists
    warnings = warnings_of(surveyed.findings)
    picked = pick(fleet.inventory, lists.passing, settings.pick, warnings)
    return msgspec.structs.replace(lists, picked=picked)


def is_short(invocation: Invocation, lists: NodeLists | None) -> bool:
    """Return whether fewer nodes pass than --pick wants."""
    if lists is None or lists.picked is None:
        return False
    return len(lists.picked) < (invocation.settings.pick or 0)


def counted_findings(surveyed: Survey, lists: NodeLists | None) -> tuple[Finding, ...]:
    """Return the findings that decide the exit code: those of the chosen nodes, if there are."""
    if lists is None or not lists.picked:
        return surveyed.findings
    picked = frozenset(lists.picked)
    counted = []
    for finding in surveyed.findings:
        if not finding.nodes or picked.intersection(finding.nodes):
            counted.append(finding)
    return tuple(counted)


def conclude(
    invocation: Invocation, surveyed: Survey, lists: NodeLists | None
) -> tuple[NodeLists | None, int]:
    """Write the lists and note what became of --pick.

    Returns the lists as they are reported, and 1 if fewer of the nodes that were reached pass than
    were wanted or a list could not be written, else 0.
    """
    if lists is None:
        return None, exit_codes.OK
    code = exit_codes.OK
    if is_short(invocation, lists):
        # With no node reached the findings decide alone, as for every command.
        code = exit_codes.FAILED if surveyed.fleet.reached else exit_codes.OK
        wanted = invocation.settings.pick or 0
        invocation.notices.append(_shortage(wanted, lists))
        lists = msgspec.structs.replace(lists, picked=(), wanted=wanted)
    folder = invocation.settings.write_lists
    if folder is None:
        return lists, code
    from clusterprep.cli.commands.list_files import texts
    from clusterprep.reports.files import write_folder

    problem = write_folder(folder, texts(surveyed, lists))
    if problem:
        invocation.notices.append(f"the lists are not complete: {problem}")
        return lists, exit_codes.FAILED
    return msgspec.structs.replace(lists, folder=folder), code


def _shortage(number: int, lists: NodeLists) -> str:
    """Return why --pick chooses none."""
    passing = len(lists.passing)
    verb = "passes" if passing == 1 else "pass"
    parts = [f"--pick {number} chooses none: {pluralize(passing, 'node')} {verb}"]
    if lists.failing:
        parts.append(f"{fold(lists.failing)} failed")
    if lists.unknown:
        parts.append(f"of {fold(lists.unknown)} it is not known")
    return ", ".join(parts)
