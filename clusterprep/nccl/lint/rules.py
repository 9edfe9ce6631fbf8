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
    """Return a remark for each rule that a line breaks, once, sorted by line."""
    remarks: list[Remark] = []
    for family in FAMILIES:
        remarks.extend(family.judge(text, versions))
    remarks.sort(key=lambda remark: remark.line)
    return tuple(dict.fromkeys(remarks))
