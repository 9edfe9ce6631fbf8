"""Recognises lines that show how a job is set up: what they name has not happened."""

from __future__ import annotations

import re

# A comment, a shell's trace of a command (`set -x`), a variable as `env` prints it, a program's own
# help, and the line of source code in a traceback that raises what its last line tells. A trace may
# begin with several signs, one for each level of nesting.
_SHOWN = re.compile(
    r"^\s*(?:"
    # gdb and others number frames like #0; nccl-tests put a # before what they found wrong.
    r"#(?!\d| Out of bounds values)"
    r"|\++ "
    r"|[A-Z][A-Z0-9_]*="
    r"|usage: "
    r"|--?[a-z][\w-]* (?:[A-Z_]+ |\{)"
    r"|raise [A-Z_a-z]"
    r")"
)


def is_setting(message: str) -> bool:
    """Return whether a message is a comment, a command, a variable, a help text or source code."""
    return _SHOWN.match(message) is not None
