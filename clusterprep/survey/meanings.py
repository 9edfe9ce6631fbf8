"""Turn the answers of nodes into the values of facts: equal answers are decoded and read once.

meanings = Meanings(facts)
meanings.of(sheet.reads, sheet.layout, answers)   # {"os.release": ..., "eth.mtu": ...}

Of ten thousand nodes nearly all answer the same to most reads. So an answer stays a piece of its
frame until it is known to be new: as a rule it equals that of the node before, byte by byte, else
it is looked up by its digest. Only then is it decoded and parsed. Parsing is pure and values are
frozen, so nodes that answered alike share one value: `model/alike.py` and the history rely on that.

An answer that is another one on each node is looked at in pieces (`Fact.pieces`): what a fact takes
of it (`Fact.narrow`) is equal on most nodes, or is but for texts that are put in afterwards
(`Fact.with_own`), or its rows are equal (`facts/parts.py`).
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import msgspec

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.facts.parts import Apart, as_json, strictly_decoded
from clusterprep.model import Absent, Json, Read
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.transports.frames import has_long_digits
from clusterprep.survey.answers import bounded, mark_of, narrowed, parse_fact
from clusterprep.survey.parse_process import CPU_LIMIT, LARGE, ParseProcess

MOST_ENDLESS = 4  # answers on which a site's expression may run out of time, each for a second
# Answers of a read that are kept although they never came again. Some are another one on each node,
# as serial numbers and times are: to keep what they mean would take most of the memory of a look.
MOST_UNREPEATED = 1024
_NOTHING = b"null"  # an answer that cannot be written as JSON counts as missing
_ONLY_PIECES = {msgspec.Raw}
_NEW = object()  # no value yet; None is one

# For each fact, the positions of its answers among the answers of a node.
Layout = tuple[tuple[int, ...], ...]
Meaning = dict[str, Any]  # values by the names of facts
_Splitter = msgspec.json.Decoder[tuple[str, Any]]  # of answers into pieces


class Meanings:
    """What answers mean for the facts of a plan.

    Several threads may use an instance side by side; at worst two of them parse the same answer.
    """

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._facts = tuple(facts)
        self._names = tuple(fact.name for fact in facts)
        self._forms: dict[Layout, _Form] = {}
        self._slots: dict[tuple[str, ...], _Slot] = {}
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._parse_process = ParseProcess()
        self._endless: dict[str, int] = {}  # answers that a guarded fact was not read from, by fact

    def close(self) -> None:
        """End the process that parses large answers, if there is one."""
        self._parse_process.close()

    def of(
        self, reads: Sequence[Read], layout: Layout, answers: Sequence[msgspec.Raw | Json]
    ) -> Meaning:
        """Return facts by name; an unknown fact is an Absent.

        Answers are pieces of a frame, or values. Raises LinkLost for answers that no agent writes,
        or that take too long to parse.
        """
        look = _Look(reads, answers)
        form = self._form_of(layout, reads)
        before = form.last
        if before is None:
            values = dict.fromkeys(self._names)
            changed: Sequence[int] = range(len(reads))
        else:
            values = dict(before.values)
            changed = look.differing_from(before.look)
        for position in changed:
            values.update(self._meaning(form.slots[position], look, position))
        changed_positions = frozenset(changed)
        for group, positions in form.joint:
            if before is None or not changed_positions.isdisjoint(positions):
                (fact,) = group.facts
                values[fact.name] = self._joint_value(group, look, positions)
        form.last = _Last(look, values)
        return dict(values)  # the caller may change its own

    def _form_of(self, layout: Layout, reads: Sequence[Read]) -> _Form:
        form = self._forms.get(layout)
        if form is None:
            form = self._forms[layout] = self._new_form(layout, reads)
        return form

    def _new_form(self, layout: Layout, reads: Sequence[Read]) -> _Form:
        alone: list[list[Fact]] = [[] for _ in reads]
        joint: list[tuple[_Group, tuple[int, ...]]] = []
        for fact, positions in zip(self._facts, layout, strict=True):
            if len(positions) == 1 and not fact.guarded:
                alone[positions[0]].append(fact)
            else:
                joint.append((self._group_of([fact]), positions))
        slots = []
        for read, facts in zip(reads, alone, strict=True):
            key = (read.kind, *(fact.name for fact in facts))
            if key not in self._slots:
                self._slots[key] = _Slot(self._groups_of(facts))
            slots.append(self._slots[key])
        return _Form(tuple(slots), tuple(joint))

    def _groups_of(self, facts: Sequence[Fact]) -> tuple[_Group, ...]:
        """Return the facts of one answer in groups that are made of the same part of it."""
        by_part: dict[object, list[Fact]] = {}
        for fact in facts:
            by_part.setdefault((fact.narrow, fact.pieces), []).append(fact)
        return tuple(map(self._group_of, by_part.values()))

    def _group_of(self, facts: Sequence[Fact]) -> _Group:
        names = tuple(fact.name for fact in facts)
        if names not in self._groups:
            self._groups[names] = _Group(facts)
        return self._groups[names]

    def _meaning(self, slot: _Slot, look: _Look, position: int) -> Meaning:
        """Return the facts that are made of one answer alone."""
        if not slot.comes_again:
            return self._values_of_groups(slot.groups, look, position)
        data = look.data[position]
        usual_data, usual_meaning = slot.usual
        if data == usual_data:
            return usual_meaning
        mark = look.mark(position)
        meaning = slot.known.get(mark)
        if meaning is _NEW:
            meaning = self._values_of_groups(slot.groups, look, position)
            slot.known.put(mark, meaning)
        else:
            slot.usual = (data, meaning)
        found: Meaning = meaning
        return found

    def _values_of_groups(self, groups: Sequence[_Group], look: _Look, position: int) -> Meaning:
        positions = (position,)
        if len(groups) == 1:
            return self._values(groups[0], look, positions)
        meaning: Meaning = {}
        for group in groups:
            meaning.update(self._values(group, look, positions))
        return meaning

    def _joint_value(self, group: _Group, look: _Look, positions: tuple[int, ...]) -> Any:
        """Return a fact that is made of several answers, or of none, or by a site's expression."""
        (fact,) = group.facts
        if _has_another_answer_on_each_node(fact) and not fact.guarded:
            return self._values(group, look, positions)[fact.name]
        key = tuple(map(look.mark, positions))
        value = group.by_answers.get(key)
        if value is _NEW:
            if fact.guarded and positions:
                value = self._guarded_value(fact, look, positions)
            else:
                value = self._values(group, look, positions)[fact.name]
            group.by_answers.put(key, value)
        return value

    def _values(self, group: _Group, look: _Look, positions: tuple[int, ...]) -> Meaning:
        """Return the facts of a group from their answers. Raises LinkLost."""
        if look.size(positions) > LARGE:
            return self._values_of_large(group, look.values(positions))
        part = None
        if group.takes_part and positions:
            part = look.part(group, positions[0])
        if part is None:
            return group.parse(look.pieces(group, positions))
        meaning = self._meaning_of_part(group, as_json(part.part), look, positions[1:])
        return group.with_own(meaning, part.own) if part.own else meaning

    def _values_of_large(self, group: _Group, raw_answers: Sequence[Json]) -> Meaning:
        """Return the facts of a group from answers that a process of its own parses."""
        meaning: Meaning = {}
        for fact in group.facts:
            meaning[fact.name] = self._parse_process.parse(fact, raw_answers)
        return meaning

    def _meaning_of_part(
        self, group: _Group, part: bytes, look: _Look, others: tuple[int, ...]
    ) -> Meaning:
        """Return the facts of a part of an answer, and of other answers."""
        marks = tuple(map(look.mark, others))
        usual_part, usual_marks, usual_meaning = group.usual
        if part == usual_part and marks == usual_marks:
            return usual_meaning
        key = (mark_of(part), *marks)
        meaning = group.by_part.get(key)
        if meaning is _NEW:
            # Decoded only here, as the others are: most nodes have a part that is known.
            meaning = group.parse([strictly_decoded(part), *look.values(others)])
            group.by_part.put(key, meaning)
        else:
            group.usual = (part, marks, meaning)
        found: Meaning = meaning
        return found

    def _guarded_value(self, fact: Fact, look: _Look, positions: tuple[int, ...]) -> Any:
        """Return a fact whose parser may never end, or the Absent that says that it does not.

        After MOST_ENDLESS answers that it does not read in time the others are not tried: each
        takes a second, and there may be one for every node.
        """
        if self._endless.get(fact.name, 0) >= MOST_ENDLESS:
            return Absent("timed_out", "the expression of this check takes too long on other nodes")
        try:
            return self._parse_process.parse(fact, look.values(positions))
        except LinkLost:
            self._endless[fact.name] = self._endless.get(fact.name, 0) + 1
            why = f"the expression of this check takes more than {CPU_LIMIT:g} s on this answer"
            return Absent("timed_out", why)


class _Kept:
    """Values by key. New ones are kept as long as keys come again."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._hits = 0

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, _NEW if it has none."""
        value = self._values.get(key, _NEW)
        if value is not _NEW:
            self._hits += 1
        return value

    def put(self, key: Hashable, value: Any) -> None:
        if len(self._values) < self._hits + MOST_UNREPEATED:
            self._values[key] = value


class _Group:
    """Facts that are made of the same answers and, with a `narrow`, of the same part of the first.

    `by_part` is what such parts mean for them, `by_answers` what several whole answers mean.
    `usual` is the part that came again last, the marks of the answers beside it, and its meaning.
    `splitters` decode the answers into pieces.
    """

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = tuple(facts)
        self.takes_part = self.facts[0].narrow is not None
        self.has_types = self.facts[0].typed
        self.splitters = tuple(map(_splitter, self.facts[0].pieces))
        self.by_part = _Kept()
        self.usual: tuple[bytes, tuple[bytes, ...], Meaning] = (b"", (), {})
        self.by_answers = _Kept()

    def parse(self, raw_answers: Sequence[Json]) -> Meaning:
        """Return the facts from answers, the first of which is narrowed."""
        return {fact.name: parse_fact(fact, raw_answers) for fact in self.facts}

    def with_own(self, meaning: Meaning, own: Sequence[str]) -> Meaning:
        """Return the facts with the texts that a node has for itself."""
        values: Meaning = {}
        for fact in self.facts:
            value = meaning[fact.name]
            if fact.with_own is not None and not isinstance(value, Absent):
                value = fact.with_own(value, own)
            values[fact.name] = value
        return values


class _Slot:
    """The facts that are made of one answer alone, and what answers mean for them by their marks.

    `usual` is the answer that came again last: its bytes and its meaning. An answer of which all
    facts take parts or pieces is another one on each node: it is not looked up (`comes_again`).
    """

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.groups = tuple(groups)
        facts = [fact for group in self.groups for fact in group.facts]
        self.comes_again = not all(map(_has_another_answer_on_each_node, facts))
        self.known = _Kept()
        self.usual: tuple[bytes, Meaning] = (b"", {})


class _Form:
    """How answers become facts: a slot for each, and the facts of several with their positions.

    A fact of several answers is a group of its own. `last` is the node before, of any thread.
    """

    def __init__(
        self, slots: Sequence[_Slot], joint: Sequence[tuple[_Group, tuple[int, ...]]]
    ) -> None:
        self.slots = tuple(slots)
        self.joint = tuple(joint)
        self.last: _Last | None = None


class _Last(msgspec.Struct, frozen=True):
    """The answers of a node, and all its facts, which must not be changed."""

    look: _Look
    values: Meaning


class _Look:
    """The answers of one node: their bytes, and their marks and values once needed."""

    def __init__(self, reads: Sequence[Read], answers: Sequence[msgspec.Raw | Json]) -> None:
        if len(reads) != len(answers):
            raise ValueError(f"{len(answers)} answers to {len(reads)} reads")
        self._reads = reads
        self.data: list[bytes] = []
        self._marks: dict[int, bytes] = {}
        self._values: dict[int, Json] = {}
        self._pieces: dict[tuple[int, _Splitter], Json] = {}
        if set(map(type, answers)) == _ONLY_PIECES:
            self.data = list(map(bytes, answers))
            return
        for position, answer in enumerate(answers):
            if isinstance(answer, msgspec.Raw):
                self.data.append(bytes(answer))
            else:
                self._add_value(position, answer)

    def _add_value(self, position: int, answer: Json) -> None:
        """Add an answer that is decoded already. What cannot be JSON counts as missing."""
        try:
            data = json.dumps(answer).encode()
        except (TypeError, ValueError, RecursionError):
            data = _NOTHING
            answer = None
        self.data.append(data)
        self._values[position] = self._bounded(position, answer)

    def _bounded(self, position: int, answer: Json) -> Json:
        """Return an answer, or that it is truncated if it has a text that is too long."""
        if len(self.data[position]) <= MAX_TEXT:
            return answer
        return bounded(self._reads[position].kind, answer)

    def differing_from(self, other: _Look) -> Sequence[int]:
        """Return the positions of answers that another node has not alike.

        The marks of answers that are equal are taken over. Values are not: a parser of a site might
        change one, and another node would then have it.
        """
        are_equal = list(map(operator.eq, self.data, other.data))
        for position, mark in other._marks.items():
            if are_equal[position]:
                self._marks[position] = mark
        return [position for position, is_equal in enumerate(are_equal) if not is_equal]

    def mark(self, position: int) -> bytes:
        """Return the mark of an answer, by which equal answers are known."""
        mark = self._marks.get(position)
        if mark is None:
            mark = self._marks[position] = mark_of(self.data[position])
        return mark

    def size(self, positions: Sequence[int]) -> int:
        """Return the bytes of some answers."""
        size = 0
        for position in positions:
            size += len(self.data[position])
        return size

    def values(self, positions: Sequence[int]) -> list[Json]:
        """Return some answers. Raises LinkLost for what no agent writes."""
        return [self.value(position) for position in positions]

    def value(self, position: int) -> Json:
        """Return an answer, decoded once. Raises LinkLost for what no agent writes."""
        if position not in self._values:
            answer = strictly_decoded(self.data[position])
            self._values[position] = self._bounded(position, answer)
        return self._values[position]

    def pieces(self, group: _Group, positions: Sequence[int]) -> list[Json]:
        """Return the answers that facts are made of, in pieces. Raises LinkLost as `value`."""
        takes_pieces = not group.takes_part and len(group.splitters) == len(positions)
        if not takes_pieces or (group.has_types and self._may_have_long_integers(positions)):
            return self.values(positions)
        answers = []
        for splitter, position in zip(group.splitters, positions, strict=True):
            answer = None if splitter is None else self._split(splitter, position)
            answers.append(self.value(position) if answer is None else answer)
        return answers

    def _may_have_long_integers(self, positions: Sequence[int]) -> bool:
        """Return whether there may be integers that msgspec takes and no agent writes."""
        return any(has_long_digits(self.data[position]) for position in positions)

    def part(self, group: _Group, position: int) -> Apart | None:
        """Return the part of an answer that counts for facts, as `narrowed` does.

        It may have pieces of JSON. Raises LinkLost for what no agent writes.
        """
        part = None
        splitter = group.splitters[0] if group.splitters else None
        if splitter is not None:
            part = narrowed(group.facts[0], self._split(splitter, position))
        if part is None:
            part = narrowed(group.facts[0], self.value(position))
        return part

    def _split(self, splitter: _Splitter, position: int) -> Json:
        """Return an answer of which only the pieces are decoded, None if it has another shape."""
        key = (position, splitter)
        if key not in self._pieces:
            try:
                self._pieces[key] = splitter.decode(self.data[position])
            except (msgspec.MsgspecError, RecursionError):
                self._pieces[key] = None
        return self._pieces[key]


def _has_another_answer_on_each_node(fact: Fact) -> bool:
    """Return whether whole answers are hardly ever equal. Those that only move may be."""
    return fact.narrow is not None or (bool(fact.pieces) and not fact.moves)


@functools.cache
def _splitter(kind: Any) -> _Splitter | None:
    """Return what decodes an answer of this kind, ["ok", …]; None where there are no pieces."""
    return None if kind is None else msgspec.json.Decoder(tuple[Literal["ok"], kind])
