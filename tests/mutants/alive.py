"""Why no test can find some mutants: what they change cannot be seen. They count as alive."""

from __future__ import annotations

# The change as docs/why/mutants.md has it, and the reason.
EQUIVALENT: dict[str, str] = {
    '- domain, _, rest = address.lower().partition(":")\n'
    '+ domain, _, rest = address.lower().rpartition(":")': (
        "as only zeros at the very front are taken off, and both parts are joined again"
    ),
}
