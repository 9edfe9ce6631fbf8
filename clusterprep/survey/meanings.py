"""Turn the answers of nodes into the values of facts: equal answers are decoded and read once.

meanings = Meanings(facts)
meanings.of(sheet.reads, sheet.layout, answers)   # {"os.release": ..., "eth.mtu": ...}

Of ten thousand nodes nearly all answer the same to most reads. So an answer stays a piece of its
frame until it is known to be new: as a rule it equals the one before it, byte by byte, else it is
looked up by its digest. Only then is it decoded and parsed. Parsing is pure and values are frozen,
so nodes that answered alike share one value, which `model/alike.py` and the history rely on.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import msgspec

from clusterprep.errors import LinkLost
from clusterprep.facts import Fact
from clusterprep.facts.parts import as_json
from clusterprep.model import Absent, Json, Read
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.transports.frames import decoded
from clusterprep.survey.answers import bounded, mark_of, narrowed, parse_fact
from clusterprep.survey.parse_process import CPU_LIMIT, LARGE, ParseProcess

MOST_ENDLESS = 4  # answers on which a site's expression may run out of time, each for a second
# Answers of a read that are kept although they never came again. Some are another one on each node,
# as serial numbers and times are: to keep what they mean would take most of the memory of a look.
MOST_UNREPEATED = 1024
# Pieces of answers whose values are kept, and their bytes: most are equal on all GPUs.
MOST_PIECES = 1024
LONGEST_PIECE = 2048
_NOTHING = b"null"  # an answer that cannot be written as JSON counts as missing
_NEW = object()  # no value yet; None is one

# For each fact, the positions of its answers among the answers of a node.
Layout = tuple[tuple[int, ...], ...]
Meaning = dict[str, Any]  # values by the names of facts


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
        self._joint = _Kept()
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
        values: Meaning = {}
        for position, slot in enumerate(form.slots):
            values.update(self._meaning(slot, look, position))
        for group, positions in form.joint:
            (fact,) = group.facts
            values[fact.name] = self._joint_value(group, look, positions)
        return {name: values[name] for name in self._names}

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
            by_part.setdefault(fact.narrow, []).append(fact)
        return tuple(map(self._group_of, by_part.values()))

    def _group_of(self, facts: Sequence[Fact]) -> _Group:
        names = tuple(fact.name for fact in facts)
        if names not in self._groups:
            self._groups[names] = _Group(facts)
        return self._groups[names]

    def _meaning(self, slot: _Slot, look: _Look, position: int) -> Meaning:
        """Return the facts that are made of one answer alone, and note the answer's mark."""
        data = look.data[position]
        usual_data, usual_mark, usual_meaning = slot.usual
        if data == usual_data:
            look.marks[position] = usual_mark
            return usual_meaning
        mark = look.marks[position] = mark_of(data)
        meaning = slot.known.get(mark)
        if meaning is _NEW:
            meaning = {}
            for group in slot.groups:
                meaning.update(self._values(group, look, (position,)))
            slot.known.put(mark, meaning)
        else:
            slot.usual = (data, mark, meaning)
        found: Meaning = meaning
        return found

    def _joint_value(self, group: _Group, look: _Look, positions: tuple[int, ...]) -> Any:
        """Return a fact that is made of several answers, or of none, or by a site's expression."""
        (fact,) = group.facts
        key = (fact.name, *(look.marks[position] for position in positions))
        value = self._joint.get(key)
        if value is _NEW:
            if fact.guarded and positions:
                value = self._guarded_value(fact, look, positions)
            else:
                value = self._values(group, look, positions)[fact.name]
            self._joint.put(key, value)
        return value

    def _values(self, group: _Group, look: _Look, positions: tuple[int, ...]) -> Meaning:
        """Return the facts of a group from their answers. Raises LinkLost."""
        if look.size(positions) > LARGE:
            raw_answers = look.values(positions)
            return {fact.name: self._parse_process.parse(fact, raw_answers) for fact in group.facts}
        part = look.part(group.facts[0], positions[0]) if positions else None
        if part is None:
            return group.parse(look.values(positions))
        key = (mark_of(as_json(part)), *(look.marks[position] for position in positions[1:]))
        meaning = group.by_part.get(key)
        if meaning is _NEW:
            # Decoded only here, as the others are: most nodes have a part that is known.
            meaning = group.parse([_without_pieces(part), *look.values(positions[1:])])
            group.by_part.put(key, meaning)
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

    `by_part` is what such parts mean for them.
    """

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = tuple(facts)
        self.by_part = _Kept()

    def parse(self, raw_answers: Sequence[Json]) -> Meaning:
        """Return the facts from answers, the first of which is narrowed."""
        return {fact.name: parse_fact(fact, raw_answers) for fact in self.facts}


class _Slot:
    """The facts that are made of one answer alone, and what answers mean for them by their marks.

    `usual` is the answer that came again last: its bytes, its mark and its meaning.
    """

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.groups = tuple(groups)
        self.known = _Kept()
        self.usual: tuple[bytes, bytes, Meaning] = (b"", b"", {})


class _Form(msgspec.Struct, frozen=True):
    """How answers become facts: a slot for each, and the facts of several with their positions.

    A fact of several answers is a group of its own.
    """

    slots: tuple[_Slot, ...]
    joint: tuple[tuple[_Group, tuple[int, ...]], ...]


class _Look:
    """The answers of one node: their bytes, their marks once known, their values once needed."""

    def __init__(self, reads: Sequence[Read], answers: Sequence[msgspec.Raw | Json]) -> None:
        if len(reads) != len(answers):
            raise ValueError(f"{len(answers)} answers to {len(reads)} reads")
        self._reads = reads
        self.data: list[bytes] = []
        self.marks = [b""] * len(reads)
        self._values: dict[int, Json] = {}
        self._pieces: dict[int, Json] = {}
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

    def size(self, positions: Sequence[int]) -> int:
        """Return the bytes of some answers."""
        return sum(len(self.data[position]) for position in positions)

    def values(self, positions: Sequence[int]) -> list[Json]:
        """Return some answers. Raises LinkLost for what no agent writes."""
        return [self.value(position) for position in positions]

    def value(self, position: int) -> Json:
        """Return an answer, decoded once. Raises LinkLost for what no agent writes."""
        if position not in self._values:
            answer = _decoded(self.data[position])
            self._values[position] = self._bounded(position, answer)
        return self._values[position]

    def part(self, fact: Fact, position: int) -> Json:
        """Return the part of an answer that counts for a fact, as `narrowed` does.

        It may have pieces of JSON. Raises LinkLost for what no agent writes.
        """
        if fact.narrow is None:
            return None
        part = None
        if fact.pieces is not None:
            part = narrowed(fact, self._in_pieces(fact.pieces, position))
        if part is None:
            part = narrowed(fact, self.value(position))
        return part

    def _in_pieces(self, kind: Any, position: int) -> Json:
        """Return an answer of which only the pieces are decoded, None if it has another shape."""
        if position not in self._pieces:
            try:
                self._pieces[position] = _splitter(kind).decode(self.data[position])
            except (msgspec.MsgspecError, RecursionError):
                self._pieces[position] = None
        return self._pieces[position]


@functools.cache
def _splitter(kind: Any) -> msgspec.json.Decoder[tuple[str, Any]]:
    """Return what decodes an answer of this kind: ["ok", …]."""
    return msgspec.json.Decoder(tuple[Literal["ok"], kind])


def _without_pieces(part: Json) -> Json:
    """Return a part with the values of its pieces. Raises LinkLost for what no agent writes."""
    if isinstance(part, msgspec.Raw):
        data = bytes(part)
        return _known_value(data) if len(data) <= LONGEST_PIECE else _decoded(data)
    if isinstance(part, dict):
        return {key: _without_pieces(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_without_pieces(value) for value in part]
    return part


@functools.lru_cache(maxsize=MOST_PIECES)
def _known_value(data: bytes) -> Json:
    """Return the value of a piece, one for equal pieces of all nodes. It must not be changed."""
    return _decoded(data)


def _decoded(data: bytes) -> Json:
    """Return the value of JSON. Raises LinkLost for what no agent writes."""
    try:
        return decoded(data)
    except ValueError as error:
        raise LinkLost("garbled", str(error)) from None
