"""The verify lines of incidents: a collective of exactly their size.

If that does not fit, it is the largest that does, and the report says so.
"""

from __future__ import annotations

from clusterprep.model.units import format_size
from tests.support.command import Answer

FLOAT32 = 4  # bytes
WHY = ("memory that is free", "time limit at this speed")


def tried(found: Answer, op: str, elements: int) -> int:
    """Return the bytes with which a healthy verify ran a collective in its largest buffer.

    There are fewer only where the report says so, with a reason that can be checked.
    """
    verify, planned = found.report["verify"], elements * FLOAT32
    assert (found.code, verify["verdict"], verify["culprits"]) == (0, "pass", []), verify
    row = [row for row in verify["collectives"] if row["op"] == op][-1]
    assert row["wrong"] == 0
    assert {stage["verdict"] for stage in verify["stages"]} <= {"pass", "skip"}
    said = [words for words in verify.get("message", "").split("; ") if words.startswith(f"{op} ")]
    if row["bytes"] == planned:
        assert said == []
    else:
        assert 0 < row["bytes"] < planned
        scaling = f"{op} {format_size(planned)} was scaled down"
        smaller = f"{scaling} to {format_size(row['bytes'])}, which fits the "
        assert said in [[smaller + why] for why in WHY]
    return int(row["bytes"])
