"""All rules over one text, in the order of its lines."""

from __future__ import annotations

from clusterprep.nccl.lint import (
    Remark,
    Text,
    Versions,
    conf,
    dialects,
    leftovers,
    lists,
    names,
    numbers,
    together,
    words,
)

FAMILIES = (conf, dialects, names, numbers, lists, words, together, leftovers)


def judge(text: Text, versions: Versions) -> tuple[Remark, ...]:
    """Every rule that a line breaks, once."""
    found = [remark for family in FAMILIES for remark in family.judge(text, versions)]
    return tuple(dict.fromkeys(sorted(found, key=lambda remark: remark.line)))
