"""What must be asked to answer what was wanted, and what the answers mean. Pure."""

from __future__ import annotations

import functools
import hashlib
import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from clusterprep.checks import Check
from clusterprep.errors import ENDINGS, InputError, Problem
from clusterprep.facts import Denied, Fact
from clusterprep.model import Absent, Inventory, Json, Node, Read
from clusterprep.nccl.interfaces import FACTS
from clusterprep.remote.untrusted import shortened
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.typecheck import returns

PORTS = ("net.port_range",)  # where the nodes listen for each other


@dataclass(frozen=True)
class Selection:
    """`--only`, `--skip`, `--tags`, `--skip-tags`, as typed."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueryPlan:
    """The checks to judge, the facts they need and the stages that bring facts without reads.

    `kept` are checks that nodes keep findings of, which are read in their place.
    """

    checks: tuple[Check, ...]
    facts: tuple[Fact, ...]
    kept: tuple[Check, ...] = ()

    @functools.cached_property
    def stages(self) -> frozenset[str]:
        return frozenset(fact.stage for fact in self.facts if fact.stage)


def matches(word: str, name: str) -> bool:
    """`env.` and `env` take a whole area, `env.shadow` one check."""
    return name == word or name.startswith(word if word.endswith(".") else word + ".")


def select_checks(
    checks: Mapping[str, Check],
    selection: Selection,
    known: Iterable[str] = (),
    always: Iterable[str] = (),
) -> tuple[Check, ...]:
    """The checks a selection leaves, and those of `always`, without which a command's answer would mean nothing.

    A word that matches no check is an input error with the nearest name.
    """
    names = {*checks, *known}
    wrong = [
        w for w in (*selection.only, *selection.skip) if not any(matches(w, name) for name in names)
    ]
    if wrong:
        raise InputError(tuple(_no_such_check(word, names) for word in wrong))
    kept = {*always, *(check.name for check in checks.values() if _wanted(check, selection))}
    return tuple(check for check in checks.values() if check.name in kept)


def _wanted(check: Check, selection: Selection) -> bool:
    tags = {*check.tags, check.name.split(".")[0]}
    if selection.only and not any(matches(word, check.name) for word in selection.only):
        return False
    if selection.tags and not tags & set(selection.tags):
        return False
    return not (
        any(matches(word, check.name) for word in selection.skip) or tags & set(selection.skip_tags)
    )


def _no_such_check(word: str, names: Iterable[str]) -> Problem:
    import difflib

    near = difflib.get_close_matches(word, sorted(names), 1, 0.5)
    return Problem(f"there is no check {word!r}", hint=f"did you mean {near[0]}?" if near else None)


def plan_queries(
    checks: Sequence[Check],
    facts: Mapping[str, Fact],
    extra: Iterable[Fact] = (),
    kept: Sequence[Check] = (),
) -> QueryPlan:
    """The facts that the checks need plus `extra`, each once."""
    needed = {name: facts[name] for check in checks for name in (*check.facts, *check.uses)}
    needed.update({fact.name: fact for fact in extra})
    pairs = any(fact.stage == "pairs" for fact in needed.values())
    if pairs or FACTS[0] in needed:  # the same interface is chosen whatever else is asked
        needed.update(
            {name: facts[name] for name in (*FACTS, *(PORTS if pairs else ())) if name in facts}
        )
    return QueryPlan(tuple(checks), tuple(needed.values()), tuple(kept))


Layout = tuple[tuple[int, ...], ...]
REASON = 80  # characters of why something is not known
PLAIN = 2  # a format of marshal without references, in which equal values of JSON are equal bytes
_OWN = ("name", "address", "index")  # what tells nodes apart that are alike
_ALIKE = tuple(field.name for field in fields(Node) if field.name not in _OWN)


@dataclass(frozen=True)
class Sheet:
    """What a node is asked, each thing once, and for each fact of the plan the places of the answers it is made of."""

    reads: tuple[Read, ...]
    layout: Layout


class Queries:
    """What the nodes of an inventory are asked, and what their answers mean.

    Most questions are the same for all nodes that are alike, and are made once. Parsing is pure and values are frozen,
    so what many nodes answer alike is parsed once, and they share one value. Threads may use this side by side: at
    worst two of them parse the same answer.
    """

    def __init__(self, plan: QueryPlan, inventory: Inventory) -> None:
        self._inventory = inventory
        asked = [fact for fact in plan.facts if fact.stage is None]
        self._shared = tuple(fact for fact in asked if not fact.apiece)
        self._apiece = tuple(fact for fact in asked if fact.apiece)
        self._alike: dict[tuple[object, ...], tuple[Mapping[Read, int], Layout]] = {}
        self._layouts: dict[Layout, Layout] = {}
        self._known: dict[
            tuple[object, ...], Any
        ] = {}  # by a fact's name and the marks of its answers

    def of(self, node: Node) -> Sheet:
        kind = tuple(_hashable(getattr(node, name)) for name in _ALIKE)
        if kind not in self._alike:
            first: dict[Read, int] = {}
            self._alike[kind] = (first, self._places(self._shared, node, first))
        common, layout = self._alike[kind]
        places = dict(common)
        layout += self._places(self._apiece, node, places)
        return Sheet(tuple(places), self._layouts.setdefault(layout, layout))

    def _places(self, facts: Iterable[Fact], node: Node, places: dict[Read, int]) -> Layout:
        asked = (fact.reads(node, self._inventory) for fact in facts)
        return tuple(tuple(places.setdefault(read, len(places)) for read in mine) for mine in asked)

    def facts(self, sheet: Sheet, answers: Sequence[Json]) -> dict[str, Any]:
        """Facts from a node's answers to the reads of its sheet; what is missing keeps its reason."""
        marked = [(_mark(raw), raw) for raw in answers]
        found = {}
        for fact, places in zip((*self._shared, *self._apiece), sheet.layout, strict=True):
            mine = [marked[place] for place in places]
            if fact.narrow and (part := _narrowed(fact, mine[0][1])) is not None:
                mine[0] = (_mark(part), part)
            key = (fact.name, *(mark for mark, _ in mine))
            if key not in self._known:
                self._known[key] = _value(
                    fact, [_answer(raw if mark else None) for mark, raw in mine]
                )
            found[fact.name] = self._known[key]
        return found


def _narrowed(fact: Fact, raw: Json) -> Json:
    """The first answer of a fact that looks at a part of it; None where it has no such part: that is for its parser."""
    try:
        return ["ok", fact.narrow(raw[1])] if fact.narrow and raw[0] == "ok" else None
    except ENDINGS:
        raise
    except Exception:  # noqa: BLE001 - as in _value
        return None


def _hashable(value: Any) -> object:
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _mark(raw: Json) -> bytes:
    """Equal only for equal answers; the answers themselves, of all nodes, would take too much memory.

    marshal tells apart what JSON does (1, 1.0 and true), in half of the time that repr takes. Empty for an answer that
    is nested too deep for it: then it is as if there were none.
    """
    try:
        return hashlib.blake2b(marshal.dumps(raw, PLAIN), digest_size=16).digest()
    except ValueError:
        return b""


def _answer(raw: Json) -> Any:
    """An agent's answer as a value, None for a file that is not there, or Absent."""
    if not isinstance(raw, list) or len(raw) < 2 or raw[0] not in ("ok", "no"):
        return Absent("garbled", "the agent's answer has another shape")
    if raw[0] == "ok":
        return raw[1]
    if raw[1] == "missing":
        return None
    return Absent(shortened(raw[1], REASON), shortened(raw[2]) if len(raw) > 2 else "")


def _value(fact: Fact, answers: Sequence[Any]) -> Any:
    for answer in answers:
        if isinstance(answer, Absent) and not fact.lenient:
            return answer
    try:
        value = fact.parse(*answers)
        if not returns(fact.parse, value):
            return Absent("garbled", "a value of another type than this fact has")
    except ENDINGS:
        raise
    except Denied as error:
        return Absent("denied", shortened(str(error)))
    except Exception as error:  # noqa: BLE001 - the answer is a stranger's: whatever it breaks, it is the answer that is broken
        return Absent("garbled", shortened(f"{type(error).__name__}: {error}"))
    return value
