"""Finds why nodes do not reach each other: the smallest explanations of many failed dials. Pure.

`find_causes` blames single nodes and pairs by a fixed rule. `explain` puts alike ones together: a
full table of neighbours, groups that do not reach each other, a range of ports, several nodes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts.pairs import CONNECTED, Dial, TableWhileDialling
from clusterprep.model.pair_schedule import Groups

# So many causes that are alike are told as one; two are told one by one.
MANY = 3
# Failed pairs without an end in common that are told one by one.
MOST_PAIRS = 8
# Words of dials that a full table of neighbours explains: without the address of the hardware no
# packet leaves, and no answer comes. A refusal is an answer.
NO_ANSWER = ("timed_out", "no_route", "error ENOBUFS")


class Cause(Struct, frozen=True):
    """The cause of failed dials: a "listener", a "dialer", or a "pair" with both its ends.

    `failed` holds the dials that are explained by it.
    """

    role: str
    nodes: tuple[str, ...]
    failed: tuple[Dial, ...]


def unreached(dials: Iterable[Dial]) -> list[Dial]:
    """Return the dials that did not get through."""
    return [dial for dial in dials if dial.word != CONNECTED]


def find_causes(
    dials: Sequence[Dial], failed: Sequence[Dial] | None = None, by_port: bool = False
) -> tuple[Cause, ...]:
    """Return the causes of the failed dials; each failed dial belongs to exactly one of them.

    `failed` are those of `dials` that count as failed, by default those that did not get through. A
    listener that fails at least half of its dialers and at least two is blamed alone and set aside,
    then a dialer likewise, and with `by_port` a listener for one of its ports. Every other failed
    dial stands by itself.
    """
    if failed is None:
        failed = unreached(dials)
    # Of the many dials those count that have an end in common with a failed one.
    dialers, listeners = frozenset(map(_dialer, failed)), frozenset(map(_listener, failed))
    remaining: Sequence[Dial] = ()
    if failed:
        remaining = [one for one in dials if one.dialer in dialers or one.listener in listeners]
    causes: list[Cause] = []
    for end in _ENDS if by_port else _ENDS[:2]:
        guilty = _guilty(remaining, failed, end)
        for failures in guilty.values():
            node = end.node(failures[0])
            causes.append(Cause(end.role, (node,), failures))
        if guilty:
            failed = end.without(failed, guilty)
            if not failed:  # usual, and there are many dials
                break
            remaining = end.without(remaining, guilty)
    for dial in failed:
        pair = Cause("pair", (dial.dialer, dial.listener), (dial,))
        causes.append(pair)
    return tuple(causes)


NodeOrPort = str | tuple[str, int]


class _End(Struct, frozen=True):
    """An end of a dial that can be at fault, and how it is read from the dial.

    `key` groups the dials, `node` is the end itself and `peer` the other end.
    """

    role: str
    key: Callable[[Dial], NodeOrPort]
    node: Callable[[Dial], str]
    peer: Callable[[Dial], str]

    def without(self, dials: Sequence[Dial], keys: Collection[NodeOrPort]) -> list[Dial]:
        """Return the dials that have none of these keys."""
        keys_of_dials = map(self.key, dials)
        return [dial for key, dial in zip(keys_of_dials, dials, strict=True) if key not in keys]


# There are many dials, and these are faster than functions of our own.
_dialer: Callable[[Dial], str] = attrgetter("dialer")
_listener: Callable[[Dial], str] = attrgetter("listener")
_port_of_listener: Callable[[Dial], NodeOrPort] = attrgetter("listener", "port")

_ENDS = (
    _End("listener", _listener, _listener, _dialer),
    _End("dialer", _dialer, _dialer, _listener),
    _End("listener", _port_of_listener, _listener, _dialer),
)


def _guilty(
    dials: Sequence[Dial], failed: Sequence[Dial], end: _End
) -> dict[NodeOrPort, tuple[Dial, ...]]:
    """Return the failed dials of each guilty end, the worst first.

    Guilty is an end that failed for at least two peers, and for at least half of those that tried.
    Nodes are counted, not ports: one dialer that fails on two ports is one.
    """
    failures: dict[NodeOrPort, list[Dial]] = {}
    failed_peers: dict[NodeOrPort, set[str]] = {}
    for dial in failed:
        key = end.key(dial)
        failures.setdefault(key, []).append(dial)
        failed_peers.setdefault(key, set()).add(end.peer(dial))
    all_peers: dict[NodeOrPort, set[str]] = {}
    for key, peers in failed_peers.items():
        if len(peers) >= 2:
            all_peers[key] = set()
    if not all_peers:  # usual, and there are many dials
        return {}
    for key, dial in zip(map(end.key, dials), dials, strict=True):
        if key in all_peers:
            all_peers[key].add(end.peer(dial))
    ranked = []
    for key, peers in all_peers.items():
        number = len(failed_peers[key])
        if 2 * number >= len(peers):
            ranked.append((number, key))
    ranked.sort(reverse=True)
    return {key: tuple(failures[key]) for _, key in ranked}


# ---------------------------------------------------------------- many causes as one

Kind = Literal[
    "table",  # nodes whose kernel had no place for a neighbour while they dialled
    "everywhere",  # no dial at all got through
    "apart",  # a group that reaches no node outside of it, or is reached by none
    "between",  # two groups that do not reach each other
    "ports",  # a range of ports that is reached on no node
    "nodes",  # a node or several that are not reached, reach no other, or both
    "pair",  # one pair
    "pairs",  # pairs with one end in common, or with nothing in common
]


class Explanation(Struct, frozen=True):
    """Why dials failed: `failed` are the dials that it explains, `nodes` are to blame.

    `tried` counts the dials that were made where it holds, those that got through included.
    `subjects` names what it is about: groups, the first and the last port of a range, or the node
    that pairs have in common. `roles` are the ends at which the nodes fail, as in `Cause`.
    """

    kind: Kind
    nodes: tuple[str, ...]
    failed: tuple[Dial, ...]
    tried: int
    subjects: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def explain(
    dials: Sequence[Dial],
    groups: Groups,
    tables: Mapping[str, TableWhileDialling],
    failed: Sequence[Dial] | None = None,
) -> tuple[Explanation, ...]:
    """Return the smallest explanations of the failed dials; each dial belongs to exactly one.

    `failed` are those of `dials` that did not get through, if they are known already. `groups` are
    those of the inventory, and `tables` holds what nodes know of their table of neighbours. A dial
    without an answer is explained by a table that was full at one of its ends. What is left is
    judged by `find_causes`, and causes that are alike become one. No node is blamed that
    `find_causes` does not blame, or whose table was not full.
    """
    if failed is None:
        failed = unreached(dials)
    if not failed:
        return ()
    explanations: list[Explanation] = []
    full = frozenset(name for name, table in tables.items() if table.refused > 0)
    by_table = [dial for dial in failed if _explained_by_table(dial, full)]
    if by_table:
        explanations.append(_full_table(dials, by_table, full))
        dials = [dial for dial in dials if not _explained_by_table(dial, full)]
        failed = unreached(dials)
    causes = _merged_pairs(find_causes(dials, failed, by_port=True))
    if len(causes) >= MANY:
        folded, causes = _fold_regions(dials, causes, groups)
        explanations.extend(folded)
    explanations.extend(_fold_nodes(dials, causes, groups))
    explanations.extend(_fold_pairs(dials, causes))
    return tuple(explanations)


def _explained_by_table(dial: Dial, full: Collection[str]) -> bool:
    if dial.word not in NO_ANSWER:
        return False
    return dial.dialer in full or dial.listener in full


def _full_table(
    dials: Sequence[Dial], failed: Sequence[Dial], full: Collection[str]
) -> Explanation:
    ends = _ends_of(failed)
    nodes = tuple(name for name in ends if name in full)
    tried = sum(dial.dialer in full or dial.listener in full for dial in dials)
    return Explanation("table", nodes, tuple(failed), tried)


def _ends_of(dials: Iterable[Dial]) -> list[str]:
    """Return the names of all ends, each once, in the order of the dials."""
    ends: dict[str, None] = {}
    for dial in dials:
        ends[dial.dialer] = None
        ends[dial.listener] = None
    return list(ends)


def _merged_pairs(causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes with those of the same two nodes, in either direction, as one."""
    merged: dict[tuple[str, frozenset[str], int], Cause] = {}
    for number, cause in enumerate(causes):
        # Other roles stay apart: a node may be blamed at both ends.
        key = (cause.role, frozenset(cause.nodes), 0 if cause.role == "pair" else number)
        first = merged.get(key)
        if first is None:
            merged[key] = cause
        else:
            merged[key] = replace(first, failed=(*first.failed, *cause.failed))
    return list(merged.values())


# ---------------------------------------------------------------- groups and ports

# The dials between these groups, from and to this one, or to this range of ports.
Region = tuple[Kind, tuple[str, ...]]
EVERYWHERE: Region = ("everywhere", ())
# Where two regions explain as much: the plainest first.
_PLAINEST: tuple[Kind, ...] = ("everywhere", "between", "apart", "ports")


class _Regions:
    """Tells in which regions a dial lies."""

    def __init__(self, dials: Sequence[Dial], failed: Sequence[Dial], groups: Groups) -> None:
        connected = [dial for dial in dials if dial.word == CONNECTED]
        self._reached = frozenset(map(_listener, connected))
        self._number = len(self._reached.union(map(_dialer, connected), _ends_of(failed)))
        self._members = {**groups, **_parts(connected, groups)}
        self._groups_of: dict[str, list[str]] = {}
        for group, names in self._members.items():
            for name in names:
                self._groups_of.setdefault(name, []).append(group)
        self._range_of_port = _dead_ranges(connected, failed, self._reached)

    def of(self, dial: Dial) -> set[Region]:
        """Return every region of a dial."""
        regions: set[Region] = {EVERYWHERE}
        if dial.port in self._range_of_port and dial.listener in self._reached:
            regions.add(("ports", self._range_of_port[dial.port]))
        dialers = self._groups_of.get(dial.dialer, ())
        listeners = self._groups_of.get(dial.listener, ())
        # A group that has both ends is not crossed by the dial.
        left = [group for group in dialers if group not in listeners]
        entered = [group for group in listeners if group not in dialers]
        for group in (*left, *entered):
            regions.add(("apart", (group,)))
        for one in left:
            for other in entered:
                first, second = sorted((one, other))
                regions.add(("between", (first, second)))
        return regions

    def smaller_side(self, group: str, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return those of `nodes` that are on the smaller side of a group's border.

        That is all of them where both sides are as large.
        """
        members = set(self._members[group])
        twice = 2 * len(members)
        if twice == self._number:
            return tuple(nodes)
        is_inside = twice < self._number
        return tuple(name for name in nodes if (name in members) == is_inside)


def _parts(connected: Sequence[Dial], groups: Groups) -> dict[str, list[str]]:
    """Return the parts of the fleet that no connection joins, each under a description.

    So nodes behind one switch are found where the inventory has no group for them. Parts of one
    node are left out, and so are the largest part and those that are a group of the inventory.
    """
    if _are_joined(connected):
        return {}
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for dial in connected:
        one, other = root(dial.dialer), root(dial.listener)
        if one != other:
            parent[other] = one
    members: dict[str, list[str]] = {}
    for name in _ends_of(connected):
        members.setdefault(root(name), []).append(name)
    known = {frozenset(names) for names in groups.values()}
    smaller = sorted(members.values(), key=len)[:-1]
    parts: dict[str, list[str]] = {}
    for names in smaller:
        if len(names) > 1 and frozenset(names) not in known:
            parts[f"the {len(names)} nodes around {names[0]}"] = names
    return parts


def _are_joined(connected: Sequence[Dial]) -> bool:
    """Return whether connections join all their nodes, as they mostly do.

    False may be wrong: only nodes that connect to a joined one by themselves are looked for.
    """
    listeners_of: dict[str, list[str]] = {}
    for dialer, own in itertools.groupby(connected, _dialer):
        listeners_of.setdefault(dialer, []).extend(map(_listener, own))
    joined = set(itertools.islice(listeners_of, 1))
    latest = joined
    while latest:
        further = [listeners_of.get(name, ()) for name in latest]
        latest = set().union(*further).difference(joined)
        joined = joined | latest
    return not any(
        joined.isdisjoint(listeners)
        for dialer, listeners in listeners_of.items()
        if dialer not in joined
    )


def _dead_ranges(
    connected: Iterable[Dial], failed: Iterable[Dial], reached: Collection[str]
) -> dict[int, tuple[str, ...]]:
    """Return (first, last) by port, for the ports of a range in which no dial got through.

    A range ends at the next port on which one did, and has MANY ports at least. Only the
    listeners in `reached` count: for one that is reached on no port it is no matter of ports.
    """
    open_ports = {dial.port for dial in connected}
    is_open = dict.fromkeys(open_ports, True)
    for dial in failed:
        if dial.listener in reached:
            is_open.setdefault(dial.port, False)
    ranges: dict[int, tuple[str, ...]] = {}
    for is_alive, run in itertools.groupby(sorted(is_open), is_open.__getitem__):
        ports = list(run)
        if not is_alive and len(ports) >= MANY:
            ends = (str(ports[0]), str(ports[-1]))
            ranges.update(dict.fromkeys(ports, ends))
    return ranges


def _fold_regions(
    dials: Sequence[Dial], causes: list[Cause], groups: Groups
) -> tuple[list[Explanation], list[Cause]]:
    """Return the explanations by regions in which every dial failed, and the causes left over.

    The region that explains most causes is taken first.
    """
    failed = [dial for cause in causes for dial in cause.failed]
    regions = _Regions(dials, failed, groups)
    common: list[set[Region]] = []  # of each cause
    number: Counter[Region] = Counter()
    for cause in causes:
        shared = set.intersection(*map(regions.of, cause.failed))
        common.append(shared)
        number.update(shared)
    candidates = {region for region, count in number.items() if count >= MANY}
    tried = _count_failed_regions(dials, regions, candidates)
    left = set(range(len(causes)))
    explained: list[Explanation] = []
    while True:
        inside: dict[Region, list[int]] = {}
        for place in sorted(left):
            for region in common[place] & tried.keys():
                inside.setdefault(region, []).append(place)
        best = max(inside, key=lambda region: _rank(region, inside[region]), default=EVERYWHERE)
        folded = inside.get(best, [])
        if len(folded) < MANY:
            return explained, [causes[place] for place in sorted(left)]
        kind, names = best
        explanation = _combined(kind, [causes[place] for place in folded], tried[best], names)
        if kind == "apart":
            # A node of the larger side may be dialled mostly from the smaller one, by chance.
            nodes = regions.smaller_side(names[0], explanation.nodes)
            explanation = replace(explanation, nodes=nodes or explanation.nodes)
        explained.append(explanation)
        left.difference_update(folded)


def _count_failed_regions(
    dials: Iterable[Dial], regions: _Regions, candidates: set[Region]
) -> Counter[Region]:
    """Return the number of dials in each of these regions in which none got through."""
    tried: Counter[Region] = Counter()
    left = set(candidates)
    for dial in dials:
        if not left:  # usual, and there are many dials
            break
        # Most often only this one is left, and it needs no look at the groups.
        own = left if left == {EVERYWHERE} else regions.of(dial) & left
        tried.update(own)
        if dial.word == CONNECTED:
            left = left - own
    return Counter({region: tried[region] for region in left})


def _rank(region: Region, causes: Sequence[int]) -> tuple[int, int, tuple[str, ...]]:
    kind, names = region
    return len(causes), -_PLAINEST.index(kind), names


def _combined(
    kind: Kind, causes: Sequence[Cause], tried: int, subjects: tuple[str, ...] = ()
) -> Explanation:
    """Return one explanation of what several causes explain."""
    nodes: dict[str, None] = {}
    failed: list[Dial] = []
    roles = set()
    for cause in causes:
        nodes.update(dict.fromkeys(cause.nodes))
        failed.extend(cause.failed)
        roles.add(cause.role)
    return Explanation(
        kind,
        tuple(nodes),
        tuple(failed),
        tried,
        subjects,
        tuple(sorted(roles)),
    )


# ---------------------------------------------------------------- nodes and pairs


def _fold_nodes(
    dials: Sequence[Dial], causes: Iterable[Cause], groups: Groups
) -> Iterator[Explanation]:
    """Yield what is explained by single nodes: those that fail alike as one, from MANY on."""
    of_node: dict[str, list[Cause]] = {}
    for cause in causes:
        if cause.role != "pair":
            of_node.setdefault(cause.nodes[0], []).append(cause)
    alike: dict[tuple[object, ...], list[str]] = {}
    for node, own in of_node.items():
        roles = frozenset(cause.role for cause in own)
        words = frozenset(dial.word for cause in own for dial in cause.failed)
        alike.setdefault((roles, words), []).append(node)
    for nodes in alike.values():
        parts = [nodes] if len(nodes) >= MANY else [[node] for node in nodes]
        for part in parts:
            own = list(itertools.chain.from_iterable(of_node[node] for node in part))
            yield _of_nodes(dials, own, groups)


def _of_nodes(dials: Iterable[Dial], causes: Sequence[Cause], groups: Groups) -> Explanation:
    """Return the explanation of causes that are alike, of one node or of several."""
    listeners = {cause.nodes[0] for cause in causes if cause.role == "listener"}
    dialers = {cause.nodes[0] for cause in causes if cause.role == "dialer"}
    tried = 0
    for dial in dials:
        if dial.listener in listeners or dial.dialer in dialers:
            tried += 1
    nodes = listeners | dialers
    for group, members in groups.items():
        if nodes == set(members):
            return _combined("nodes", causes, tried, (group,))
    return _combined("nodes", causes, tried)


def _fold_pairs(dials: Sequence[Dial], causes: Iterable[Cause]) -> Iterator[Explanation]:
    """Yield what is explained by pairs: those with one end in common as one, from MANY on.

    If even so there are more than MOST_PAIRS explanations, all pairs are one.
    """
    left = [cause for cause in causes if cause.role == "pair"]
    everything = left
    stars: list[Explanation] = []
    while len(stars) <= MOST_PAIRS:
        ends = Counter(itertools.chain.from_iterable(cause.nodes for cause in left))
        node, number = ends.most_common(1)[0] if ends else ("", 0)
        if number < MANY:
            break
        star = [cause for cause in left if node in cause.nodes]
        left = [cause for cause in left if node not in cause.nodes]
        tried = sum(node in (dial.dialer, dial.listener) for dial in dials)
        stars.append(_combined("pairs", star, tried, (node,)))
    if len(stars) + len(left) > MOST_PAIRS:
        yield _combined("pairs", everything, len(dials))
        return
    yield from stars
    for cause in left:
        yield _combined("pair", [cause], len(cause.failed))
