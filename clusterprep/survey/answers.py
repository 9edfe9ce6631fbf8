r"""Turn the raw answers of an agent into the values of facts. Pure.

parse_fact(HOSTNAME, [["ok", "gpu1\n"]])   # "gpu1"
parse_fact(HOSTNAME, [["no", "denied", "/etc/hostname"]])   # Absent("denied", "/etc/hostname")
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts import Denied, Fact
from clusterprep.facts.parts import Apart
from clusterprep.model import Absent, Json
from clusterprep.remote.agent.readers import MAX_TEXT
from clusterprep.remote.untrusted import shortened
from clusterprep.survey.typecheck import fits_return_type

# Characters of one text, by the kind of read: a file that may be rewritten has 1 MiB at most, and
# comes in base64. Of any other kind a text has at most MAX_TEXT.
LONGEST_TEXTS = {"target": 3 << 19}
REASON = 80  # characters of why something is not known
SHORT = 64  # bytes; a digest of so few would cost more than to keep them


def parse_fact(fact: Fact, raw_answers: Sequence[Json]) -> Any:
    """Return the value of a fact, or the Absent that says why it is not known.

    Raises LinkLost for pieces of answers that no agent writes.
    """
    answers = list(map(_unwrapped, raw_answers))
    if not fact.lenient:
        for answer in answers:
            if isinstance(answer, Absent):
                return answer
    try:
        value = fact.parse(*answers)
        has_types = fact.typed and all(isinstance(raw, tuple) for raw in raw_answers)
        if not has_types and not fits_return_type(fact.parse, value):
            return Absent("garbled", "a value of another type than this fact has")
    except Denied as error:
        return Absent("denied", shortened(str(error)))
    except LinkLost:
        raise
    # The answer comes from a node and may be anything: an exception of any type means a garbled
    # answer.
    except Exception as error:  # noqa: BLE001
        return Absent("garbled", shortened(f"{type(error).__name__}: {error}"))
    return value


def narrowed(fact: Fact, raw: Json) -> Apart | None:
    """Return the part of a raw answer that counts for the fact, as a raw answer.

    Returns None if the fact takes the whole answer, or if the answer has no such part: then the
    parser of the fact decides what that means.
    """
    if fact.narrow is None:
        return None
    try:
        if raw[0] == "ok":
            part = fact.narrow(raw[1])
            if isinstance(part, Apart):
                return Apart(["ok", part.part], part.own)
            return Apart(["ok", part])
    except Exception:  # noqa: BLE001 - as in parse_fact
        return None
    return None


def narrowed_and_parsed(fact: Fact, raw_answers: Sequence[Json]) -> Any:
    """Return the value of a fact from whole answers, of which it may need a part alone."""
    raw_answers = list(raw_answers)
    part = narrowed(fact, raw_answers[0]) if raw_answers else None
    if part is not None:
        raw_answers[0] = part.part
    return parse_fact(fact, raw_answers)


def bounded(kind: str, raw: Json) -> Json:
    """Return a raw answer to a read of this kind, or that it is truncated if a text is too long.

    An agent of ours returns no such text. It is not cut, because a part could pass for the whole.
    """
    most = LONGEST_TEXTS.get(kind, MAX_TEXT)
    waiting = [raw]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > most:
            why = f"a text of {len(value):,} characters; {most:,} are the most"
            return ["no", "truncated", why]
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return raw


def mark_of(data: bytes) -> bytes:
    """Return bytes that are equal for equal answers only, from an answer's JSON.

    That is a digest, or the JSON itself if it is short. JSON tells 1, 1.0 and true apart.
    """
    return data if len(data) <= SHORT else hashlib.sha256(data).digest()


def _unwrapped(raw: Json) -> Any:
    """Return the value of a raw answer, None for a file that does not exist, or Absent.

    An answer in pieces is a tuple.
    """
    if not isinstance(raw, (list, tuple)) or len(raw) < 2 or raw[0] not in ("ok", "no"):
        return Absent("garbled", "the agent's answer has another shape")
    if raw[0] == "ok":
        return raw[1]
    reason = raw[1]
    if reason == "missing":
        return None
    detail = shortened(raw[2]) if len(raw) > 2 else ""
    return Absent(shortened(reason, REASON), detail)
