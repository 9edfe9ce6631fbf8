"""Why no test can find some mutants: what they change cannot be seen. They count as alive."""

from __future__ import annotations

# The change as docs/mutants.md has it, and the reason.
EQUIVALENT: dict[str, str] = {}
