"""Sort the nodes of a survey into passing, failing and unknown ones, and choose some. Pure.

pick(inventory, ["n1", "n2", "n4"], 2)  →  ("n1", "n2") where these two are one group
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence

from msgspec.structs import replace

from clusterprep.model import Finding, Fleet, Inventory, NodeLists, VerifyResult


def sort_nodes(
    fleet: Fleet,
    findings: Iterable[Finding],
    verify: VerifyResult | None = None,
    strict: bool = False,
) -> NodeLists:
    """Return the lists of a fleet, each in the order of the inventory.

    A node fails if an error or a culprit of the all-reduce names it. It is unknown if it was not
    reached, if an error could not be determined there, or if the all-reduce was not started, or did
    not pass and names no culprit. With `strict` warnings count as errors. Silenced findings do not
    count.
    """
    failed: set[str] = set()
    unknown: set[str] = set()
    for finding in findings:
        if _counts(finding, strict):
            names = failed if finding.verdict == "fail" else unknown
            names.update(finding.nodes)
    reached = {node.name for node in fleet.reached}
    culprits = culprits_of(verify)
    failed.update(culprits)
    is_undecided = False
    if verify is not None and verify.verdict in ("fail", "unknown"):
        is_undecided = not culprits or not verify.stages
    passing: list[str] = []
    failing: list[str] = []
    undecided: list[str] = []
    for node in fleet.inventory.nodes:
        if node.name in failed:
            failing.append(node.name)
        elif node.name in unknown or node.name not in reached or is_undecided:
            undecided.append(node.name)
        else:
            passing.append(node.name)
    return NodeLists(tuple(passing), tuple(failing), tuple(undecided))


def _counts(finding: Finding, strict: bool) -> bool:
    """Return whether a finding says that its nodes do not pass."""
    if finding.verdict not in ("fail", "unknown") or finding.silenced or finding.fixed:
        return False
    return strict or finding.severity == "error"


def culprits_of(verify: VerifyResult | None) -> set[str]:
    """Return the nodes that a failed all-reduce names."""
    names: set[str] = set()
    if verify is not None and verify.verdict == "fail":
        for culprit in verify.culprits:
            names.update(culprit.nodes)
    return names


def moved(
    inventory: Inventory,
    lists: NodeLists,
    failing: Collection[str] = (),
    unknown: Collection[str] = (),
) -> NodeLists:
    """Return the lists after these nodes were found not to pass. A node that failed stays so."""
    failed = {*lists.failing, *failing}
    undecided = {*lists.unknown, *unknown} - failed

    def in_order(names: Collection[str]) -> tuple[str, ...]:
        return tuple(node.name for node in inventory.nodes if node.name in names)

    return replace(
        lists,
        passing=in_order(set(lists.passing) - failed - undecided),
        failing=in_order(failed),
        unknown=in_order(undecided),
    )


def limited_fleet(fleet: Fleet, names: Collection[str]) -> Fleet:
    """Return the fleet as if the inventory had these nodes alone; the others are `left_out`."""
    inside = tuple(node for node in fleet.inventory.nodes if node.name in names)
    outside = tuple(node for node in fleet.inventory.nodes if node.name not in names)
    left_out = (*fleet.inventory.left_out, *outside)
    inventory = replace(fleet.inventory, nodes=inside, left_out=left_out)
    snapshots = {name: seen for name, seen in fleet.snapshots.items() if name in names}
    return Fleet(inventory, snapshots, limited=True)


def stand_in(
    fleet: Fleet, findings: Iterable[Finding], busy: Collection[str], number: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first `number` nodes that pass, and those that do not; `busy` ones do not.

    Both are in inventory order. The first are fewer if fewer pass.
    """
    lists = moved(fleet.inventory, sort_nodes(fleet, findings), unknown=busy)
    bad = {*lists.failing, *lists.unknown}
    names = tuple(node.name for node in fleet.inventory.nodes if node.name in bad)
    return lists.passing[:number], names


def warnings_of(findings: Iterable[Finding]) -> Mapping[str, int]:
    """Return how many warnings name each node. Silenced and cured ones do not count."""
    counts: Counter[str] = Counter()
    for finding in findings:
        if finding.verdict == "fail" and not finding.silenced and not finding.fixed:
            counts.update(finding.nodes)
    return counts


def pick(
    inventory: Inventory,
    passing: Sequence[str],
    number: int,
    warnings: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Return the best `number` of the passing nodes, in inventory order; fewer if fewer pass.

    As few groups as possible are used: a group that is just large enough, else the largest one
    whole and then the next; groups within a group likewise. Nodes of no group count as one. Of
    equal groups one whose nodes all pass comes first, then one with fewer `warnings`, then the one
    that the inventory has first. Of the nodes of one group those with fewer warnings come first.
    """
    counts = warnings or {}
    good = frozenset(passing)
    names = [node.name for node in inventory.nodes if node.name in good]
    names.sort(key=lambda name: counts.get(name, 0))
    groups: list[frozenset[str]] = []
    for members in inventory.groups.values():
        groups.append(frozenset(members))

    def preference(group: frozenset[str]) -> tuple[bool, int]:
        return not group <= good, sum(counts.get(name, 0) for name in group)

    groups.sort(key=preference)
    chosen = _choose(names, min(number, len(names)), groups)
    return tuple(node.name for node in inventory.nodes if node.name in chosen)


def _choose(
    candidates: Sequence[str], number: int, groups: Sequence[frozenset[str]]
) -> frozenset[str]:
    """Return `number` of the candidates. These and the groups are in order of preference."""
    left = dict.fromkeys(candidates)  # a set that keeps the order
    chosen: set[str] = set()
    while len(chosen) < number:
        missing = number - len(chosen)
        part = _next_part(left.keys(), missing, groups)
        in_order = [name for name in left if name in part]
        if len(part) > missing and len(part) < len(left):
            chosen.update(_choose(in_order, missing, groups))
            break
        for name in in_order[:missing]:
            chosen.add(name)
            del left[name]
    return frozenset(chosen)


def _next_part(
    left: KeysView[str], missing: int, groups: Sequence[frozenset[str]]
) -> Collection[str]:
    """Return those of `left` to take from next: of one group, or all if no group divides them."""
    parts: list[Collection[str]] = []
    inside: set[str] = set()
    for group in groups:
        part = group & left
        if part and len(part) < len(left):
            parts.append(part)
            inside |= part
    if parts and len(inside) < len(left):
        parts.append(left - inside)
    large_enough = [part for part in parts if len(part) >= missing]
    if large_enough:
        return min(large_enough, key=len)
    return max(parts, key=len, default=left)
