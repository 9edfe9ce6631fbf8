"""Landlock: takes the right to write outside of some folders from this process and its children.

A mutant of what writes files may write to any path, and the tests may run as root.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

# From linux/landlock.h, and system calls, which have the same number on all machines from 424 on.
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
REMOVE_DIR, REMOVE_FILE, REFER = 1 << 4, 1 << 5, 1 << 13
MAKE_ANYTHING = sum(1 << bit for bit in range(6, 13))
WRITING = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | REFER | MAKE_ANYTHING
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
SET_NO_NEW_PRIVS = 38  # of prctl


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def write_only_below(folders: Iterable[Path]) -> None:
    """Give up writing elsewhere. Raises OSError where the kernel has no Landlock 3 (Linux 6.2)."""
    library = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        answer = library.syscall(number, *arguments)
        if answer < 0:
            raise OSError(ctypes.get_errno(), "trying mutants needs Landlock 3, of Linux 6.2")
        return int(answer)

    ruleset = _Ruleset(WRITING)
    rules = call(CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    for folder in folders:
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = _Beneath(WRITING, place)
        call(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(place)
    if library.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    call(RESTRICT_SELF, rules, 0)
    os.close(rules)
