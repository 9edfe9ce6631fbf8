"""What must be asked to answer what was wanted, and what the answers mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterprep.checks import Check
from clusterprep.errors import InputError, Problem
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Node, Read
from clusterprep.network import FACTS

PORTS = ("net.port_range",)  # where the nodes listen for each other


@dataclass(frozen=True)
class Selection:
    """`--only`, `--skip`, `--tags`, `--skip-tags`, as typed."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The checks to judge, the facts they need and the stages that bring facts without reads.

    `kept` are checks that nodes keep findings of, which are read in their place.
    """

    checks: tuple[Check, ...]
    facts: tuple[Fact, ...]
    kept: tuple[Check, ...] = ()

    @property
    def stages(self) -> frozenset[str]:
        return frozenset(fact.stage for fact in self.facts if fact.stage)


def matches(word: str, name: str) -> bool:
    """`env.` and `env` take a whole area, `env.shadow` one check."""
    return name == word or name.startswith(word if word.endswith(".") else word + ".")


def select(
    checks: Mapping[str, Check], selection: Selection, known: Iterable[str] = (), always: Iterable[str] = ()
) -> tuple[Check, ...]:
    """The checks a selection leaves, and those of `always`, without which a command's answer would mean nothing.

    A word that matches no check is an input error with the nearest name.
    """
    names = {*checks, *known}
    wrong = [w for w in (*selection.only, *selection.skip) if not any(matches(w, name) for name in names)]
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
    return not (any(matches(word, check.name) for word in selection.skip) or tags & set(selection.skip_tags))


def _no_such_check(word: str, names: Iterable[str]) -> Problem:
    import difflib

    near = difflib.get_close_matches(word, sorted(names), 1, 0.5)
    return Problem(f"there is no check {word!r}", hint=f"did you mean {near[0]}?" if near else None)


def make_plan(
    checks: Sequence[Check], facts: Mapping[str, Fact], extra: Iterable[Fact] = (), kept: Sequence[Check] = ()
) -> Plan:
    """The facts that the checks need plus `extra`, each once."""
    needed = {name: facts[name] for check in checks for name in (*check.facts, *check.uses)}
    needed.update({fact.name: fact for fact in extra})
    pairs = any(fact.stage == "pairs" for fact in needed.values())
    if pairs or FACTS[0] in needed:  # the same interface is chosen whatever else is asked
        needed.update({name: facts[name] for name in (*FACTS, *(PORTS if pairs else ())) if name in facts})
    return Plan(tuple(checks), tuple(needed.values()), tuple(kept))


def reads(plan: Plan, node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Everything to look at on a node, each thing once."""
    return tuple(dict.fromkeys(read for fact in plan.facts for read in fact.reads(node, inventory)))


def interpret(plan: Plan, node: Node, inventory: Inventory, answers: Mapping[Read, Json]) -> dict[str, Any]:
    """Facts from the agent's answers; what is missing keeps its reason."""
    found = {}
    for fact in plan.facts:
        if fact.stage is None:
            found[fact.name] = _value(fact, [_answer(answers.get(r)) for r in fact.reads(node, inventory)])
    return found


def _answer(raw: Json) -> Any:
    """An agent's answer as a value, None for a file that is not there, or Absent."""
    if not isinstance(raw, list) or len(raw) < 2 or raw[0] not in ("ok", "no"):
        return Absent("garbled", "the agent's answer has another shape")
    if raw[0] == "ok":
        return raw[1]
    if raw[1] == "missing":
        return None
    return Absent(str(raw[1]), str(raw[2]) if len(raw) > 2 else "")


def _value(fact: Fact, answers: Sequence[Any]) -> Any:
    for answer in answers:
        if isinstance(answer, Absent) and not fact.lenient:
            return answer
    try:
        return fact.parse(*answers)
    except Exception as error:  # noqa: BLE001 - the answer is a stranger's: whatever it breaks, it is the answer that is broken
        return Absent("garbled", f"{type(error).__name__}: {error}")
